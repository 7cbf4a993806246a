"""A direct connection whose worker has gone: the server says nothing of it."""

import asyncio
import socket

from psserver.rpc.call_errors import status_of
from psserver.rpc.direct.connection import DirectConnection
from pswire.errors import NotJoined


def test_a_refusal_of_a_worker_that_has_gone_is_no_error():
    async def refused(near, far):
        far.close()
        near.setblocking(False)
        connection = DirectConnection(near, "a worker", memoryview(bytearray(1024)), 1.0)
        await connection.refuse(status_of(NotJoined("the lease has ended")))
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        asyncio.run(refused(server.accept()[0], far))
