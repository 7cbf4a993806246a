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
from pswire.errors import (
    ConfigurationError,
    InternalError,
    Malformed,
    TimedOut,
    TooLarge,
    Unavailable,
    UnknownVariable,
)
from pswire.tensors.frames import incoming
from pswire.tensors.inline import InlineReceiver, InlineSender
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import CHUNK, INLINE
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1.paramserver_pb2_grpc import ParameterServerServicer, add_ParameterServerServicer_to_server
from psworker.transport.grpc_transport import GrpcTransport

ME = ms.Sender("w", 1)
SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = np.arange(INLINE // 4 + 1, dtype=np.float32)  # one element more than fits inline
FITS = LARGE[:-1]


def frames_of(answer):
    """A message whose tensors all follow it, also small ones."""
    sender = StreamSender(few=0)
    yield to_frame(answer, sender)
    for pieces in sender.chunks():
        yield pb.Frame(chunk=b"".join(pieces))


def to_frames(answer):
    """A message as it is sent."""
    sender = StreamSender()
    return map(pb.Frame.FromString, sender.frames(to_frame(answer, sender)))


def pulled(*arrays):
    return ms.Pulled(tuple(ms.Value(f"v{number}", 0, array) for number, array in enumerate(arrays)), 5)


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


def values_of(answer):
    return [value.array.tolist() for value in answer.values]


# --- the kind of call -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("array", "kind"), [(SMALL, "inline"), (FITS, "inline"), (LARGE, "chunks")])
def test_a_request_travels_inline_up_to_a_chunk_and_in_chunks_above(array, kind):
    server = Scripted(ms.Assigned(ms.Outcome.APPLIED, (1,), 1))
    with connected(server) as transport:
        assert ask(transport, ms.Assign(ME, 1, (ms.Assignment("W", array),))) == server.answer
    ((how, message),) = server.calls
    assert how == kind
    assert np.array_equal(message.assignments[0].array, array)


def test_calls_one_after_another_share_a_stream_whatever_their_size():
    server = Scripted()
    with connected(server) as transport:
        for step, arrays in enumerate([(SMALL, SMALL), (FITS,), (FITS, SMALL), (LARGE,), (SMALL,)]):
            names = tuple(f"v{step}.{number}" for number, _ in enumerate(arrays))
            server.answer = ms.Pulled(tuple(map(ms.Value, names, (0,) * len(arrays), arrays)), 5)
            assert values_of(ask(transport, ms.Pull(ME, names))) == values_of(server.answer)
            server.answer = ms.Pushed(ms.Outcome.APPLIED, 0, 1, server.answer.values)
            assert values_of(ask(transport, ms.Push(ME, 1, (), pull=names))) == values_of(server.answer)
    assert (len(server.calls), server.streams) == (10, 1)


def test_a_message_without_tensors_is_a_unary_call():
    server = Scripted(ms.Renewed(7))
    with connected(server) as transport:
        assert ask(transport, ms.Renew(ME)) == ms.Renewed(7)
    assert server.calls == [("unary", ms.Renew(ME))]


# --- answers that cannot be -----------------------------------------------------------------------------------------


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
    "continued": ([HEADER, *CHUNKS[:-1], pb.Frame(chunk=CHUNKS[-1].chunk + b"1")], Malformed, "1 bytes more have come"),
    "empty chunk": ([HEADER, *CHUNKS[:-1], pb.Frame()], Malformed, "there is another frame"),
    "two headers": ([HEADER, HEADER, *CHUNKS], Malformed, "there is another frame"),
    "huge": ([huge()], TooLarge, r"has 8,796,093,022,208 bytes of tensors, but 17,179,869,184 is what a Pull"),
}


@pytest.mark.parametrize(("frames", "error", "match"), BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_invalid_answer_is_refused_and_its_stream_is_not_used_again(frames, error, match):
    server = Scripted(frames=list(frames))
    with connected(server) as transport:
        with pytest.raises(error, match=match):
            ask(transport, ms.Pull(ME, ("v0",)))
        server.answer, server.frames = pulled(SMALL), None
        assert values_of(ask(transport, ms.Pull(ME, ("v0",)))) == [SMALL.tolist()]
    assert server.streams == 2


def test_an_answer_that_is_larger_than_what_was_asked_for_is_refused():
    server = Scripted(ms.Registered(pulled(LARGE).values, 0))
    with connected(server) as transport:
        ask(transport, ms.Register(ME, (ms.Declaration(TensorSpec.of("v0", LARGE)),)))
        server.answer = pulled(np.append(LARGE, LARGE))
        with pytest.raises(TooLarge, match=r"has 4,194,312 bytes of tensors, but 2,097,156 is what a Pull"):
            ask(transport, ms.Pull(ME, ("v0",)))


# --- what goes wrong on the way -------------------------------------------------------------------------------------


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
def test_a_call_that_is_not_answered_in_time_has_timed_out(held, message):
    with pytest.raises(TimedOut, match=r"the server at 127\.0\.0\.1:\d+ did not answer in time"):
        held[0].call(0, message, timeout=0.05).result()


@pytest.mark.parametrize("message", [ms.Renew(ME), ms.Pull(ME, ("v0",))], ids=["unary", "stream"])
def test_closing_ends_calls_that_wait(held, message):
    transport, came = held
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, transport, message)
        assert came.wait(30)
        transport.close()
        with pytest.raises(Unavailable, match="was broken off"):
            waiting.result()


def test_a_call_after_closing_is_refused_and_closing_twice_is_not():
    transport = GrpcTransport(["127.0.0.1:1"])
    transport.close()
    transport.close()
    with pytest.raises(InternalError, match=r"no call to 127\.0\.0\.1:1 is possible after close\(\)"):
        ask(transport, ms.Renew(ME))
    with pytest.raises(InternalError, match=r"after close\(\)"):
        ask(transport, ms.Pull(ME, ("v0",)))


@pytest.mark.parametrize(
    "addresses", [[], ["localhost"], ["localhost:1", "localhost:1"], ["localhost:1", " localhost:1"]], ids=repr
)
def test_addresses_that_cannot_be_the_shards_are_refused(addresses):
    with pytest.raises(ConfigurationError):
        GrpcTransport(addresses)


# --- a server of ours -----------------------------------------------------------------------------------------------


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
