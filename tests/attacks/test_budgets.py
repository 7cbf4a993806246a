"""What a peer makes a server hold: all of it counts, each has a share, and others are served on."""

import base64

import numpy as np
import pytest

from benchmarks._raw_http2 import ConnectionEnded, RawConnection, message
from psserver.config import ServerConfig
from psserver.rpc.reception import MIN_UNFINISHED
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.codec import encode
from pswire.limits import MAX_MESSAGE
from pswire.network.channel import MEMBER_TOKEN
from pswire.specs.consistency import Synchronous
from pswire.tensors.transport import InlineSender
from tests.support.servers import Client, Stream, frame_of, frames_of

SERVICE = "/paramserver.v1.ParameterServer"
WINDOW = 64 << 10  # bytes that gRPC takes of a message that nobody reads
FEW, SMALL, LARGE = np.zeros(2, np.float32), np.zeros(500_000, np.float32), np.zeros(750_000, np.float32)


@pytest.fixture
def connect(request):
    """A function that makes a client, or a raw connection, which is closed after the test."""

    def make(server, kind=Client, **arguments):
        one = kind(server.address, **arguments)
        request.addfinalizer(one.channel.close if kind is Client else one.close)
        return one

    return make


def push(sender, array, sequence=1):
    return ms.Push(sender=sender, sequence=sequence, gradients=(ms.Gradient("w", 0, array),))


def test_of_unfinished_unary_messages_a_server_takes_a_few_and_a_window_of_the_others(connect):
    with ServerThread(ServerConfig(lease=60.0, grace=0.0, memory_limit=100 << 20)) as server:
        whole, unfinished = message(bytes(4 << 20))[:-1], {}
        for _ in range(12):
            connection = connect(server, RawConnection)
            unfinished[connection] = connection.open(f"{SERVICE}/Push"), 0
        sent = -1
        while sent < (sent := sum(place for _, place in unfinished.values())):
            for connection, (stream, place) in unfinished.items():
                more = connection.data(stream, whole[place:], 0.05)
                unfinished[connection] = stream, place + more
        assert connect(server).join().incarnation == 1
        held = 0
        for connection, (stream, place) in unfinished.items():
            connection.read(0.05)
            held += place if stream not in connection.ended else 0
        assert held <= MIN_UNFINISHED * MAX_MESSAGE + len(unfinished) * 2 * WINDOW


@pytest.mark.slow
def test_frames_of_pushes_that_the_policy_holds_count_until_they_are_answered(connect):
    """Their limit is that of the traffic, 16 MiB, and 8 MiB more."""
    with ServerThread(
        ServerConfig(lease=60.0, grace=0.0, memory_limit=32 << 20, consistency=Synchronous(20))
    ) as server:
        client, streams = connect(server), []
        members = [client.join(f"w{index}") for index in range(13)]
        client.register(members[0], w=FEW)
        for index, member in enumerate(members):
            stream, frame = Stream(client, client.token(member)), frame_of(push(member, FEW))
            streams.append(stream)
            frame.padding = bytes(2_000_000)
            stream.send(frame)
            while index < 12 and not client.status().workers[index].waiting_for:
                pass
        with pytest.raises(errors.Unavailable, match=r"no room for a call of 2,000,\d+ bytes: 24,") as caught:
            streams[-1].answer()
        assert caught.value.retry
        assert client.value(members[-1], "w").tobytes() == FEW.tobytes()
        for stream in streams:
            stream.close()


@pytest.mark.slow
def test_a_member_that_sends_slowly_has_a_share_and_the_large_pushes_of_others_go_on(connect):
    with ServerThread(ServerConfig(lease=60.0, grace=0.0, memory_limit=16 << 20)) as server:
        client = connect(server)
        slow, honest = client.join("slow"), client.join("honest")
        client.register(slow, w=LARGE)
        streams = [Stream(client, client.token(slow)) for _ in range(3)]
        for sequence, stream in enumerate(streams, 1):
            stream.send(frames_of(push(slow, LARGE, sequence))[0])
            stream.flush()
        for sequence in (1, 2):
            assert client.transfer(push(honest, LARGE, sequence)).outcome is ms.Outcome.APPLIED
        for stream in streams:
            stream.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["Pull", "Transfer"])
def test_an_answer_that_nobody_reads_is_given_up(connect, method):
    with ServerThread(ServerConfig(lease=6.0, grace=0.0)) as server:
        reader, client = connect(server, RawConnection, answer_window=0), connect(server)
        sender = client.join()
        client.register(sender, w=SMALL)
        pull = ms.Pull(sender=sender, names=("w",))
        request = frame_of(pull) if method == "Transfer" else encode(pull, InlineSender())
        metadata = {MEMBER_TOKEN: base64.b64encode(client.token(sender)).decode()}
        stream = reader.open(f"{SERVICE}/{method}", message(request.SerializeToString()), metadata=metadata)
        with pytest.raises(ConnectionEnded):
            list(iter(lambda: reader.read(5.0), "never"))
        assert reader.received.get(stream, 0) == 0
        assert client.status().shard == 0


def test_messages_that_do_not_arrive_take_no_call_from_others(connect):
    with ServerThread(ServerConfig(lease=60.0, grace=0.0, max_calls=120)) as server:
        connection = connect(server, RawConnection)
        streams = [connection.open(f"{SERVICE}/Join") for _ in range(3)]
        client = connect(server)
        assert client.join().incarnation == 1
        assert client.status().workers[0].name == "w0"
        connection.read(0.05)
        assert len(connection.ended) < len(streams)
