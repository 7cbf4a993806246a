"""Messages reach a server over gRPC by the right kind of call; invalid answers are refused; broken streams are left."""

import asyncio
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc import service
from psserver.rpc.server import ServerThread
from psserver.rpc.service import Service
from pswire import errors
from pswire import messages as ms
from pswire.optimizers import GradientDescent
from pswire.tensors.frames import incoming
from pswire.tensors.transport import CHUNK, MAX_INLINE_MESSAGE
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport.grpc_transport import GrpcTransport, TransferStream
from tests.server_client import frames_of

ME = ms.Sender("w", 1)
SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = np.arange(MAX_INLINE_MESSAGE // 4 + 1, dtype=np.float32)  # one element more than fits inline
PULL = ms.Pull(ME, ("v",))


@pytest.fixture
def transport():
    """To a server with grace 0, whose `Service` a test may have patched."""
    with (
        ServerThread(ServerConfig(grace=0.0)) as server,
        closing(GrpcTransport([server.address], shared_memory=False)) as transport,
    ):
        yield transport


def ask(transport, message, timeout=30.0):
    return transport.call(0, message, timeout).result()


def registered(transport, **arrays):
    """The worker ME has joined and registered these variables."""
    specs = [TensorSpec.of(name, array) for name, array in arrays.items()]
    declared = [ms.Declaration(spec, arrays[spec.name], GradientDescent(1.0)) for spec in specs]
    assert ask(transport, ms.Join("w")).incarnation == ME.incarnation
    ask(transport, ms.Register(ME, tuple(declared)))


@pytest.fixture
def streams(monkeypatch):
    """All streams that are opened."""
    opened, make = [], TransferStream.__init__

    def noted(self, *args, **options):
        make(self, *args, **options)
        opened.append(self)

    monkeypatch.setattr(TransferStream, "__init__", noted)
    return opened


def test_calls_with_tensors_share_a_stream_inline_up_to_two_mebibytes_and_others_are_unary(
    transport, streams, monkeypatch
):
    headers = []
    monkeypatch.setattr(service, "incoming", lambda frame: headers.append(len(frame)) or incoming(frame))
    ask(transport, ms.Join("other"))
    assert not streams
    arrays = {"small": SMALL, "fits": LARGE[:-1], "large": LARGE}
    registered(transport, **arrays)
    headers.clear()
    for sequence, (name, array) in enumerate(arrays.items(), 1):
        push = ms.Push(ME, sequence, (ms.Gradient(name, 0, array / 2),), pull=(name,))
        np.testing.assert_array_equal(ask(transport, push).values[0].array, array / 2)
    assert [nbytes > MAX_INLINE_MESSAGE for nbytes in headers] == [False, True, False]
    assert len(streams) == 1


def pulled(array):
    return ms.Pulled((ms.Value("v", 0, array),), 5)


HUGE = pb.Tensor(name="v", dtype="float64", shape=(1 << 40,), streamed=True)
HEADER, *CHUNKS = frames_of(pulled(LARGE))
BAD_ANSWERS = {
    "another answer": (frames_of(ms.Registered((), 0)), errors.Malformed, "a Pull was answered with a Registered"),
    "none": ([], errors.Malformed, "ended the stream without an answer"),
    "cut": ([HEADER, *CHUNKS[:-1]], errors.Malformed, "ended before its 2,097,156 bytes"),
    "two headers": ([HEADER, HEADER, *CHUNKS], errors.Malformed, "a chunk of data must follow"),
    "huge": (
        [pb.Frame(pulled=pb.PullReply(values=[pb.Value(tensor=HUGE)]))],
        errors.TooLarge,
        r"has 8,796,093,022,208 bytes of tensors, but 17,179,869,184 is all a Pull",
    ),
}


@pytest.mark.parametrize(("frames", "error", "match"), BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_invalid_answer_is_refused_and_its_stream_is_not_used_again(
    frames, error, match, monkeypatch, streams, request
):
    answers = [frames, frames_of(pulled(SMALL))]

    async def answer(self, requests, context):
        await context.read()
        for frame in answers.pop(0):
            await context.write(frame.SerializeToString())

    monkeypatch.setattr(Service, "_transfer", answer)
    transport = request.getfixturevalue("transport")
    with pytest.raises(error, match=match):
        ask(transport, PULL)
    np.testing.assert_array_equal(ask(transport, PULL).values[0].array, SMALL)
    assert len(streams) == 2


def test_an_answer_that_is_larger_than_what_was_asked_for_is_refused(transport, monkeypatch):
    registered(transport, v=SMALL)

    async def answer(self, frame, attached, context):
        for frame in frames_of(pulled(LARGE)):
            await context.write(frame.SerializeToString())

    monkeypatch.setattr(Service, "_call", answer)
    with pytest.raises(errors.TooLarge, match=r"has 2,097,156 bytes of tensors, but 24 is all a Pull"):
        ask(transport, PULL)


@pytest.mark.parametrize("message", [ms.Renew(ME), PULL], ids=["unary", "stream"])
def test_late_calls_time_out_and_closing_ends_those_that_wait_and_refuses_others(message, monkeypatch, request):
    came = threading.Event()

    async def hold(*_):
        came.set()
        await asyncio.sleep(1000)

    monkeypatch.setattr(Service, "_unary", hold)
    monkeypatch.setattr(Service, "_transfer", hold)
    transport = request.getfixturevalue("transport")
    with pytest.raises(errors.TimedOut, match=r"the server at 127\.0\.0\.1:\d+ did not answer in time"):
        ask(transport, message, timeout=0.05)
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


@pytest.mark.parametrize("addresses", [[], ["localhost"], ["localhost:1", " localhost:1"]], ids=repr)
def test_addresses_that_cannot_be_the_shards_are_refused(addresses):
    with pytest.raises(errors.ConfigurationError):
        GrpcTransport(addresses)


def test_threads_share_a_transport_no_push_is_lost_or_doubled_and_an_error_of_the_server_ends_one_call(transport):
    array, name = np.zeros(LARGE.shape), "😀" * 256
    registered(transport, v=array)

    def work(number):
        sender = ms.Sender(f"w{number}", ask(transport, ms.Join(f"w{number}")).incarnation)
        for sequence in range(1, 11):
            ask(transport, ms.Push(sender, sequence, (ms.Gradient("v", 0, array - number),)))
            with pytest.raises(errors.UnknownVariable, match=name[:100]):
                ask(transport, ms.Push(sender, 99, (ms.Gradient(name, 0, np.zeros(8 * CHUNK, np.int8)),)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))
    (value,) = ask(transport, PULL).values
    assert value.version == 40
    np.testing.assert_array_equal(value.array, 100.0)


def test_a_stream_that_ended_while_it_was_idle_fails_no_call(transport, streams):
    registered(transport, v=SMALL)
    for call in [transport.call(0, PULL, 30.0) for _ in range(3)]:
        call.result()
    assert len(streams) == 3
    for one in streams:
        one.cancel()
    np.testing.assert_array_equal(ask(transport, PULL).values[0].array, SMALL)
    assert len(streams) == 4


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
