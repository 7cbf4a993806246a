"""Messages reach a server over gRPC by the right kind of call; invalid answers are refused; broken streams are left."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.channel import SERVER_OPTIONS
from pswire.codec import decode, encode, from_frame, to_frame
from pswire.tensors.frames import incoming
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import CHUNK, MAX_INLINE_MESSAGE, InlineReceiver, InlineSender
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1.paramserver_pb2_grpc import ParameterServerServicer, add_ParameterServerServicer_to_server
from psworker.transport.grpc_transport import GrpcTransport, TransferStream
from tests.server_client import frames_of

ME = ms.Sender("w", 1)
SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = np.arange(MAX_INLINE_MESSAGE // 4 + 1, dtype=np.float32)  # one element more than fits inline
PULL = ms.Pull(ME, ("v0", "v1"))


def pulled(*arrays):
    return ms.Pulled(tuple(ms.Value(f"v{number}", 0, array) for number, array in enumerate(arrays)), 5)


def check_same(answer, expected):
    for one, other in zip(answer.values, expected.values, strict=True):
        np.testing.assert_array_equal(one.array, other.array)


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
            sender = StreamSender()
            yield from map(pb.Frame.FromString, sender.frames(to_frame(self.answer, sender)))

    Renew = unary
    Transfer = transfer


@contextmanager
def connected(servicer):
    server = grpc.server(ThreadPoolExecutor(4), options=SERVER_OPTIONS)
    add_ParameterServerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with closing(GrpcTransport([f"127.0.0.1:{port}"], shared_memory=False)) as transport:
            yield transport
    finally:
        server.stop(None).wait()


def ask(transport, message):
    return transport.call(0, message, timeout=30.0).result()


def test_calls_with_tensors_share_a_stream_inline_up_to_a_chunk_and_others_are_unary():
    server = Scripted(ms.Renewed(7))
    with connected(server) as transport:
        assert ask(transport, ms.Renew(ME)) == ms.Renewed(7)
        for array in (SMALL, LARGE[:-1], LARGE, SMALL):
            server.answer = pulled(array, SMALL)
            check_same(ask(transport, PULL), server.answer)
            server.answer = ms.Pushed(ms.Outcome.APPLIED, 0, 1, server.answer.values)
            check_same(ask(transport, ms.Push(ME, 1, (ms.Gradient("W", 0, array),), pull=PULL.names)), server.answer)
            np.testing.assert_array_equal(server.calls[-1][1].gradients[0].array, array)
    pushed = ["inline", "inline", "chunks", "inline"]
    assert [how for how, _ in server.calls] == ["unary", *(how for kind in pushed for how in ("inline", kind))]
    assert server.streams == 1


HUGE = pb.Tensor(name="v0", dtype="float64", shape=(1 << 40,), streamed=True)
HEADER, *CHUNKS = frames_of(pulled(LARGE))
BAD_ANSWERS = {
    "another answer": (frames_of(ms.Registered((), 0)), errors.Malformed, "a Pull was answered with a Registered"),
    "a request": (frames_of(ms.Push(ME, 1, ())), errors.Malformed, "a Pull was answered with a Push"),
    "none": ([], errors.Malformed, "ended the stream without an answer"),
    "empty": ([pb.Frame()], errors.Malformed, "begins with a message, this one with nothing"),
    "cut": ([HEADER, *CHUNKS[:-1]], errors.Malformed, "ended before its 2,097,156 bytes"),
    "two headers": ([HEADER, HEADER, *CHUNKS], errors.Malformed, "a chunk of data must follow"),
    "huge": (
        [pb.Frame(pulled=pb.PullReply(values=[pb.Value(tensor=HUGE)]))],
        errors.TooLarge,
        r"has 8,796,093,022,208 bytes of tensors, but 17,179,869,184 is all a Pull",
    ),
}


@pytest.mark.parametrize(("frames", "error", "match"), BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_invalid_answer_is_refused_and_its_stream_is_not_used_again(frames, error, match):
    server = Scripted(frames=list(frames))
    with connected(server) as transport:
        with pytest.raises(error, match=match):
            ask(transport, PULL)
        server.answer, server.frames = pulled(SMALL), None
        check_same(ask(transport, PULL), server.answer)
    assert server.streams == 2


def test_an_answer_that_is_larger_than_what_was_asked_for_is_refused():
    server = Scripted(ms.Registered(pulled(LARGE).values, 0))
    with connected(server) as transport:
        ask(transport, ms.Register(ME, (ms.Declaration(TensorSpec.of("v0", LARGE)),)))
        server.answer = pulled(np.append(LARGE, LARGE))
        with pytest.raises(errors.TooLarge, match=r"has 4,194,312 bytes of tensors, but 2,097,156 is all a Pull"):
            ask(transport, ms.Pull(ME, ("v0",)))


@pytest.mark.parametrize("message", [ms.Renew(ME), PULL], ids=["unary", "stream"])
def test_late_calls_time_out_and_closing_ends_those_that_wait_and_refuses_others(message):
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
        with pytest.raises(errors.TimedOut, match=r"the server at 127\.0\.0\.1:\d+ did not answer in time"):
            transport.call(0, message, timeout=0.05).result()
        came.clear()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, transport, message)
            assert came.wait(30)
            transport.close()
            with pytest.raises(errors.Unavailable, match="was interrupted"):
                waiting.result()
        transport.close()
        with pytest.raises(errors.InternalError, match=r"no call to 127\.0\.0\.1:\d+ is possible after close\(\)"):
            ask(transport, message)
        end.set()


@pytest.mark.parametrize("addresses", [[], ["localhost"], ["localhost:1", " localhost:1"]], ids=repr)
def test_addresses_that_cannot_be_the_shards_are_refused(addresses):
    with pytest.raises(errors.ConfigurationError):
        GrpcTransport(addresses)


# --- streams ----------------------------------------------------------------------------------------------------------


def test_threads_share_a_transport_and_an_error_of_the_server_ends_one_call():
    both, name = {"small": SMALL, "large": LARGE}, "😀" * 256
    with ServerThread(ServerConfig()) as server, closing(GrpcTransport([server.address])) as transport:
        assert transport.shards == 1
        me = ms.Sender("w", ask(transport, ms.Join("w")).incarnation)
        ask(transport, ms.Register(me, tuple(ms.Declaration(TensorSpec.of(n, a), a) for n, a in both.items())))

        def use(number):
            if number % 5 == 0:
                with pytest.raises(errors.UnknownVariable, match=name[:100]):
                    ask(transport, ms.Push(me, 1, (ms.Gradient(name, 0, np.zeros(8 * CHUNK, np.int8)),)))
            wanted = ("small", "large")[number % 2]
            (value,) = ask(transport, ms.Pull(me, (wanted,))).values
            return np.array_equal(value.array, both[wanted])

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(use, range(40)))


def test_a_stream_that_ended_while_it_was_idle_fails_no_call(monkeypatch):
    opened, make = [], TransferStream.__init__

    def noted(self, *args, **options):
        make(self, *args, **options)
        opened.append(self)

    monkeypatch.setattr(TransferStream, "__init__", noted)
    with connected(Scripted(pulled(SMALL))) as transport:
        for call in [transport.call(0, PULL, timeout=30.0) for _ in range(3)]:
            call.result()
        assert len(opened) == 3
        for one in opened:
            one.cancel()
        check_same(ask(transport, PULL), pulled(SMALL))
        assert len(opened) == 4


def test_a_stream_that_is_cancelled_frees_the_thread_that_sends_its_requests():
    """A call whose result nobody asks for ends so, by its deadline alone."""
    senders = []

    def open_stream(requests):
        senders.append(threading.Thread(target=deque, args=(requests, 0), daemon=True))
        senders[0].start()
        return SimpleNamespace(cancel=lambda: None)

    transfer = TransferStream(open_stream, share=False)
    transfer.send([b""])
    transfer.cancel()
    senders[0].join(30)
    assert not senders[0].is_alive()
