"""What fuzzing has found, over real sockets: each was an internal error."""

import numpy as np

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.messages import Status
from tests.support.servers import Client


def test_a_status_from_a_variable_beyond_all_numbers_has_no_variables():
    with ServerThread(ServerConfig(shared_memory=False)) as server:
        client = Client(server.address)
        client.register(client.join(), W=np.ones(2, np.float32))
        assert [len(client.unary(Status(first)).variables) for first in (0, 1, 2**62 - 1)] == [1, 0, 0]
        client.channel.close()
