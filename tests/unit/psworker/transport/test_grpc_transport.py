"""Messages reach a server over gRPC by the right kind of call; invalid answers are refused."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import grpc
import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import messages as ms
from pswire.channel import SERVER_OPTIONS
from pswire.codec import decode, encode, from_frame, to_frame
from pswire.errors import ConfigurationError, InternalError, Malformed, TimedOut, TooLarge, Unavailable, UnknownVariable
from pswire.tensors.frames import incoming
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import CHUNK, MAX_INLINE_MESSAGE, InlineReceiver, InlineSender
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1.paramserver_pb2_grpc import ParameterServerServicer, add_ParameterServerServicer_to_server
from psworker.transport.grpc_transport import GrpcTransport

ME = ms.Sender("w", 1)
SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = np.arange(MAX_INLINE_MESSAGE // 4 + 1, dtype=np.float32)  # one element more than fits inline
FITS = LARGE[:-1]


def frames_of(answer):
    """A message whose tensors all follow it, also small ones."""
    sender = StreamSender(few=0)
    return [to_frame(answer, sender), *(pb.Frame(chunk=b"".join(pieces)) for pieces in sender.chunks())]


def to_frames(answer):
    """A message as it is sent."""
    sender = StreamSender()
    return map(pb.Frame.FromString, sender.frames(to_frame(answer, sender)))


def pulled(*arrays):
    return ms.Pulled(tuple(ms.Value(f"v{number}", 0, array) for number, array in enumerate(arrays)), 5)


def same(answer, expected):
    pairs = zip(answer.values, expected.values, strict=True)
    return all(np.array_equal(one.array, other.array) for one, other in pairs)


class Scripted(ParameterServerServicer):
    """Answers every call with `answer`, or every one on a stream with `frames`; remembers what came, how, and where."""

    def __init__(self, answer=None, frames=None):
        self.answer, self.frames = answer, frames
        self.calls = []
        self.streams = 0

    def unary(self, proto, context):
        self.calls.append(("unary", decode(proto, InlineReceiver())))
        return encode(self.answer, InlineSender())

    def transfer(self, frames, context):
        self.streams += 1
        for frame in frames:
            header = incoming(frame.SerializeToString())
            receiver = StreamReceiver(header.data)
            message = from_frame(header, receiver)
            if receiver.nbytes:
                receiver.allocate()
                message = from_frame(header, receiver)
                while not receiver.complete:
                    receiver.feed(next(frames).chunk)
            self.calls.append(("chunks" if receiver.nbytes else "inline", message))
            if self.frames is not None:
                yield from self.frames
                return
            yield from to_frames(self.answer)

    Renew = unary
    Transfer = transfer


@contextmanager
def connected(servicer, **options):
    server = grpc.server(ThreadPoolExecutor(4), options=SERVER_OPTIONS)
    add_ParameterServerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with closing(GrpcTransport([f"127.0.0.1:{port}"], shared_memory=False, **options)) as transport:
            yield transport
    finally:
        server.stop(None).wait()


def ask(transport, message):
    return transport.call(0, message, timeout=30.0).result()


def test_calls_with_tensors_share_a_stream_inline_up_to_a_chunk_and_others_are_unary():
    server = Scripted(ms.Renewed(7))
    with connected(server) as transport:
        assert ask(transport, ms.Renew(ME)) == ms.Renewed(7)
        for array in (SMALL, FITS, LARGE, SMALL):
            server.answer = pulled(array, SMALL)
            assert same(ask(transport, ms.Pull(ME, ("v0", "v1"))), server.answer)
            server.answer = ms.Pushed(ms.Outcome.APPLIED, 0, 1, server.answer.values)
            push = ms.Push(ME, 1, (ms.Gradient("W", 0, array),), pull=("v0", "v1"))
            assert same(ask(transport, push), server.answer)
            np.testing.assert_array_equal(server.calls[-1][1].gradients[0].array, array)
    pushed = ["inline", "inline", "chunks", "inline"]
    assert [how for how, _ in server.calls] == ["unary", *(how for kind in pushed for how in ("inline", kind))]
    assert server.streams == 1


def huge():
    tensor = pb.Tensor(name="v0", dtype="float64", shape=(1 << 40,), streamed=True)
    return pb.Frame(pulled=pb.PullReply(values=[pb.Value(tensor=tensor)]))


HEADER, *CHUNKS = frames_of(pulled(LARGE))
BAD_ANSWERS = {
    "another answer": (frames_of(ms.Registered((), 0)), Malformed, "a Pull was answered with a Registered"),
    "a request": (frames_of(ms.Push(ME, 1, ())), Malformed, "a Pull was answered with a Push"),
    "none": ([], Malformed, "ended the stream without an answer"),
    "empty": ([pb.Frame()], Malformed, "begins with a message, this one with nothing"),
    "a chunk": ([pb.Frame(chunk=b"1")], Malformed, "this one with a chunk"),
    "invalid": ([pb.Frame(pulled=pb.PullReply(global_step=-1))], Malformed, r"PullReply\.global_step"),
    "cut": ([HEADER, *CHUNKS[:-1]], Malformed, "ended before its 2,097,156 bytes"),
    "continued": ([HEADER, *CHUNKS[:-1], pb.Frame(chunk=CHUNKS[-1].chunk + b"1")], Malformed, "1 more bytes arrived"),
    "empty chunk": ([HEADER, *CHUNKS[:-1], pb.Frame()], Malformed, "a chunk of data must follow"),
    "two headers": ([HEADER, HEADER, *CHUNKS], Malformed, "a chunk of data must follow"),
    "huge": ([huge()], TooLarge, r"has 8,796,093,022,208 bytes of tensors, but 17,179,869,184 is all a Pull"),
}


@pytest.mark.parametrize(("frames", "error", "match"), BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_invalid_answer_is_refused_and_its_stream_is_not_used_again(frames, error, match):
    server = Scripted(frames=list(frames))
    with connected(server) as transport:
        with pytest.raises(error, match=match):
            ask(transport, ms.Pull(ME, ("v0",)))
        server.answer, server.frames = pulled(SMALL), None
        assert same(ask(transport, ms.Pull(ME, ("v0",))), server.answer)
    assert server.streams == 2


def test_an_answer_that_is_larger_than_what_was_asked_for_is_refused():
    server = Scripted(ms.Registered(pulled(LARGE).values, 0))
    with connected(server) as transport:
        ask(transport, ms.Register(ME, (ms.Declaration(TensorSpec.of("v0", LARGE)),)))
        server.answer = pulled(np.append(LARGE, LARGE))
        with pytest.raises(TooLarge, match=r"has 4,194,312 bytes of tensors, but 2,097,156 is all a Pull"):
            ask(transport, ms.Pull(ME, ("v0",)))


@pytest.fixture
def held():
    """A server that keeps every call waiting until the test ends, and the event of a call's coming."""
    came, end = threading.Event(), threading.Event()

    class Holding(Scripted):
        def unary(self, proto, context):
            came.set()
            end.wait(30)
            return proto

        def transfer(self, frames, context):
            self.unary(next(frames), context)
            return iter(())

        Renew, Transfer = unary, transfer

    with connected(Holding()) as transport:
        yield transport, came
        end.set()


@pytest.mark.parametrize("message", [ms.Renew(ME), ms.Pull(ME, ("v0",))], ids=["unary", "stream"])
def test_late_calls_time_out_and_closing_ends_those_that_wait_and_refuses_others(held, message):
    transport, came = held
    with pytest.raises(TimedOut, match=r"the server at 127\.0\.0\.1:\d+ did not answer in time"):
        transport.call(0, message, timeout=0.05).result()
    came.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, transport, message)
        assert came.wait(30)
        transport.close()
        with pytest.raises(Unavailable, match="was interrupted"):
            waiting.result()
    transport.close()
    with pytest.raises(InternalError, match=r"no call to 127\.0\.0\.1:\d+ is possible after close\(\)"):
        ask(transport, message)


@pytest.mark.parametrize(
    "addresses", [[], ["localhost"], ["localhost:1", "localhost:1"], ["localhost:1", " localhost:1"]], ids=repr
)
def test_addresses_that_cannot_be_the_shards_are_refused(addresses):
    with pytest.raises(ConfigurationError):
        GrpcTransport(addresses)


def test_threads_share_a_transport_and_an_error_of_the_server_ends_one_call():
    both, name = {"small": SMALL, "large": LARGE}, "😀" * 256
    with ServerThread(ServerConfig()) as server, closing(GrpcTransport([server.address])) as transport:
        assert transport.shards == 1
        me = ms.Sender("w", ask(transport, ms.Join("w")).incarnation)
        ask(transport, ms.Register(me, tuple(ms.Declaration(TensorSpec.of(n, a), a) for n, a in both.items())))

        def use(number):
            if number % 5 == 0:
                with pytest.raises(UnknownVariable, match=name[:100]):
                    ask(transport, ms.Push(me, 1, (ms.Gradient(name, 0, np.zeros(8 * CHUNK, np.int8)),)))
            wanted = ("small", "large")[number % 2]
            (value,) = ask(transport, ms.Pull(me, (wanted,))).values
            return np.array_equal(value.array, both[wanted])

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(use, range(40)))
