"""Calls of a worker: of the right kind, valid answers only, in time; values stay while used; failures free all."""

import asyncio
import gc
import itertools
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.core.variables.array_tasks import Update
from psserver.rpc import channels
from psserver.rpc.deadline import Deadline
from psserver.rpc.server import ServerThread
from psserver.rpc.service import Service
from psserver.rpc.transfer_memory import AttachedSegments
from pswire import errors
from pswire import messages as ms
from pswire.codec import to_frame
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Asynchronous, Synchronous
from pswire.tensors.frame import split
from pswire.tensors.shared_segments import MAX_SEGMENTS, NotShared
from pswire.tensors.stream import StreamSender
from pswire.tensors.transport import CHUNK, MAX_INLINE_MESSAGE
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.transport import shared_memory
from psworker.transport import streams as transfer_streams
from psworker.transport.calls import TransferCall
from psworker.transport.deadlines import Deadlines
from psworker.transport.embedded import EmbeddedTransport
from psworker.transport.grpc_stream import GrpcStream
from psworker.transport.network_transport import NetworkTransport
from tests.support.combinations import few_fast
from tests.support.commands import BOUND
from tests.support.files import in_shared_memory, mapped_segments, shared_folder
from tests.support.servers import frames_of

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
CHUNKED = np.arange(MAX_INLINE_MESSAGE // 4 + 1, dtype=np.float32)  # one element more than fits inline
SMALL = np.zeros(shared_memory.MIN_BORROWED_BYTES // 4 - 1, np.float32)  # is copied
LARGE = np.zeros(shared_memory.MIN_BORROWED_BYTES // 4 * 3, np.float32)
HUGE = np.zeros(2 * MAX_INLINE_MESSAGE, np.float32)


class Worker:
    """A worker that has registered variables, and pushes gradients of -1 by plain gradient descent."""

    def __init__(self, transport, name="w0", **values):
        self.transport, self.names, self.sequence = transport, tuple(values), itertools.count(1)
        self.sender = ms.Sender(name, self.ask(ms.Join(worker=name, name_key=b"key")).incarnation)
        specs = [TensorSpec.of(name, value) for name, value in values.items()]
        declared = [ms.Declaration(spec, values[spec.name], GradientDescent(1.0)) for spec in specs]
        self.ask(ms.Register(sender=self.sender, declarations=tuple(declared)))
        self.gradients = [ms.Gradient(name, 0, np.full_like(value, -1)) for name, value in values.items()]

    def begin(self, message, timeout=BOUND):
        return self.transport.call(0, message, timeout)

    def ask(self, message, timeout=BOUND):
        return self.begin(message, timeout).result()

    def message(self, *gradients, **fields):
        """A push of these gradients, by default of all variables, and fresh values of all."""
        fields |= {"sender": self.sender, "sequence": next(self.sequence), "pull": self.names}
        return ms.Push(gradients=gradients or tuple(self.gradients), **fields)

    def push(self, timeout=BOUND):
        return [value.array for value in self.ask(self.message(), timeout).values]

    def pull(self):
        return [value.array for value in self.ask(ms.Pull(sender=self.sender, names=self.names)).values]


@pytest.fixture
def transport():
    """Without shared memory, to a server with grace 0, whose `Service` a test may have patched."""
    with (
        ServerThread(ServerConfig(grace=0.0, lease=BOUND)) as server,
        closing(NetworkTransport([server.address], shared_memory=False, transport="grpc")) as transport,
    ):
        yield transport


@pytest.fixture
def streams(monkeypatch):
    """All streams that are opened."""
    opened, make = [], GrpcStream.__init__

    def noted(self, *args, **options):
        make(self, *args, **options)
        opened.append(self)

    monkeypatch.setattr(GrpcStream, "__init__", noted)
    return opened


@pytest.mark.parametrize("addresses", [[], ["localhost"], ["localhost:1", " localhost:1"]], ids=repr)
def test_addresses_that_cannot_be_the_shards_are_refused(addresses):
    with pytest.raises(errors.ConfigurationError):
        NetworkTransport(addresses)


def test_calls_with_tensors_share_a_stream_inline_up_to_two_mebibytes_and_others_are_unary(
    transport, streams, monkeypatch
):
    headers = []
    monkeypatch.setattr(channels, "split", lambda frame: headers.append(len(frame)) or split(frame))
    Worker(transport, "other").ask(ms.Status())
    assert len(streams) == 1, "of the registration"
    del streams[:]
    arrays = {"small": ARRAY, "fits": CHUNKED[:-1], "large": CHUNKED}
    worker = Worker(transport, **arrays)
    headers.clear()
    for sequence, (name, array) in enumerate(arrays.items(), 1):
        gradients = (ms.Gradient(name, 0, array / 2),)
        push = ms.Push(sender=worker.sender, sequence=sequence, gradients=gradients, pull=(name,))
        np.testing.assert_array_equal(worker.ask(push).values[0].array, array / 2)
    assert [nbytes > MAX_INLINE_MESSAGE for nbytes in headers[:3]] == [False, True, False], "then chunks"
    assert len(streams) == 1


def test_a_call_without_tensors_is_sent_before_its_result_is_asked_for(transport):
    joining = transport.call(0, ms.Join(worker="w0", name_key=b"key"), BOUND)
    end = time.monotonic() + BOUND
    while not transport.call(0, ms.Status(), BOUND).result().workers:
        assert time.monotonic() < end, "the shard has not received it"
    assert joining.result().incarnation == 1


# --- wrong answers and none -------------------------------------------------------------------------------------------

PULL = ms.Pull(sender=ms.Sender("w0", 1), names=("v",))


def frames_with(array):
    """The frames of an answer to PULL."""
    return frames_of(ms.Pulled((ms.Value("v", 0, array),), 5))


def ask(transport, message, timeout=BOUND):
    return transport.call(0, message, timeout).result()


TERABYTES = pb.Tensor(name="v", dtype="float64", shape=(1 << 40,), streamed=True)
HEADER, *CHUNKS = frames_with(CHUNKED)
BAD_ANSWERS = {
    "another answer": (frames_of(ms.Registered()), errors.Malformed, "a Pull was answered with a Registered"),
    "none": ([], errors.Malformed, "ended the stream before all"),
    "cut": ([HEADER, *CHUNKS[:-1]], errors.Malformed, "ended the stream before all"),
    "two headers": ([HEADER, HEADER, *CHUNKS], errors.Malformed, "a chunk of data must follow"),
    "huge": (
        [pb.Frame(pulled=pb.PullReply(values=[pb.Value(tensor=TERABYTES)]))],
        errors.TooLarge,
        r"has 8,796,093,022,208 bytes of tensors, but 17,179,869,184 is all a Pull",
    ),
}


@pytest.mark.parametrize(("frames", "error", "match"), BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_an_invalid_answer_is_refused_and_its_stream_is_not_used_again(
    frames, error, match, monkeypatch, streams, request
):
    answers = [frames, frames_with(ARRAY)]

    async def answer(self, requests, context):
        await context.read()
        for frame in answers.pop(0):
            await context.write(frame.SerializeToString())

    monkeypatch.setattr(Service, "_transfer_by_grpc", answer)
    transport = request.getfixturevalue("transport")
    with pytest.raises(error, match=match):
        ask(transport, PULL)
    np.testing.assert_array_equal(ask(transport, PULL).values[0].array, ARRAY)
    assert len(streams) == 2


def test_an_answer_that_is_larger_than_what_was_asked_for_is_refused(transport, monkeypatch):
    worker = Worker(transport, v=ARRAY)

    async def answer(service, frame, nbytes, caller, attached, channel, began):
        sender = StreamSender(few=0)
        header = to_frame(ms.Pulled((ms.Value("v", 0, CHUNKED),), 5), sender)
        await channel.send(header, sender, Deadline(BOUND))

    monkeypatch.setattr(Service, "_call", answer)
    with pytest.raises(errors.TooLarge, match=r"has 2,097,156 bytes of tensors, but 24 is all a Pull"):
        worker.pull()


@pytest.mark.parametrize("message", [ms.Renew(sender=PULL.sender), PULL], ids=["unary", "stream"])
def test_late_calls_time_out_and_closing_ends_those_that_wait_and_refuses_others(message, monkeypatch, request):
    came = threading.Event()

    async def hold(*_):
        came.set()
        await asyncio.sleep(1000)

    monkeypatch.setattr(Service, "_unary", hold)
    monkeypatch.setattr(Service, "_transfer_by_grpc", hold)
    transport = request.getfixturevalue("transport")
    with pytest.raises(errors.TimedOut, match=r"the server at 127\.0\.0\.1:\d+ did not answer in time"):
        ask(transport, message, timeout=0.05)
    came.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, transport, message)
        assert came.wait(BOUND)
        transport.close()
        with pytest.raises(errors.Unavailable, match="was interrupted"):
            waiting.result()
    transport.close()
    with pytest.raises(errors.InternalError, match=r"no call to 127\.0\.0\.1:\d+ is possible after close\(\)"):
        ask(transport, message)


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_threads_share_a_transport_no_push_is_lost_or_doubled_and_an_error_of_the_server_ends_one_call(transport):
    value, name = np.zeros_like(CHUNKED), "😀" * 256

    def work(number):
        worker = Worker(transport, f"w{number}", v=value)
        for push in range(6):
            worker.push()
            if push == 3:  # each once: refusals beyond some are slowed
                with pytest.raises(errors.UnknownVariable, match=name[:100]):
                    worker.ask(worker.message(ms.Gradient(name, 0, np.zeros(8 * CHUNK, np.int8))))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    (final,) = Worker(transport, v=value).pull()
    np.testing.assert_array_equal(final, 18.0)


def test_no_deadline_and_no_answer_is_kept_of_a_call_that_has_ended(transport):
    embedded = EmbeddedTransport()
    for one in (transport, embedded):
        sender = ms.Sender("w9", ask(one, ms.Join(worker="w9")).incarnation)
        ask(one, ms.Renew(sender=sender))
        ask(one, ms.Pull(sender=sender))
        one.tensor_transport(0)
        tune = ms.Tune(
            sender=sender, sequence=1, names=("none",), optimizer=GradientDescent(1.0), fields=("learning_rate",)
        )
        for unknown in (ms.Pull(sender=sender, names=("none",)), tune):
            with pytest.raises(errors.UnknownVariable):
                ask(one, unknown)
    assert (transport._deadlines._waits, embedded._answers) == (set(), {})
    embedded.close()


def test_a_stream_that_ended_while_it_was_idle_fails_no_call(transport, streams):
    worker = Worker(transport, v=ARRAY)
    for call in [worker.begin(PULL) for _ in range(3)]:
        call.result()
    assert len(streams) == 3
    for one in streams:
        one.cancel()
    np.testing.assert_array_equal(worker.pull()[0], ARRAY)
    assert len(streams) == 4


def test_a_stream_that_is_cancelled_frees_the_thread_that_sends_its_requests():
    """A call whose result nobody asks for ends so, by its deadline alone."""
    senders = []

    def open_stream(requests, metadata):
        senders.append(threading.Thread(target=deque, args=(requests, 0), daemon=True))
        senders[0].start()
        return SimpleNamespace(cancel=lambda: None)

    transfer = GrpcStream(open_stream, b"", 0, share=False)
    transfer.send(pb.Frame(), StreamSender())
    transfer.cancel()
    senders[0].join(BOUND)
    assert not senders[0].is_alive()


# --- deadlines and the embedded shard ---------------------------------------------------------------------------------


@pytest.fixture
def deadlines():
    with closing(Deadlines()) as deadlines:
        yield deadlines
    assert "psworker-deadlines" not in {thread.name for thread in threading.enumerate()}


def test_late_waits_are_cancelled_each_at_its_own_deadline_and_others_are_not(deadlines):
    """Also when the thread sleeps for a longer one."""
    early = deadlines.set(BOUND * 100, partial(pytest.fail, "cancelled"))
    while deadlines._wakes != early.at:
        pass
    for number in range(5):
        cancelled = threading.Event()
        late = deadlines.set(0.005 * number, cancelled.set)
        assert cancelled.wait(BOUND)
        assert late.passed
    assert not early.passed


def test_a_dropped_deadline_is_cancelled_neither_when_it_is_late_nor_when_all_are(deadlines):
    deadlines.drop(dropped := deadlines.set(BOUND, partial(pytest.fail, "cancelled")))
    cancelled = [threading.Event() for _ in range(3)]
    for event in cancelled[:2]:
        deadlines.set(BOUND, event.set)
    deadlines.pass_all()
    deadlines.set(0.0, cancelled[2].set)
    assert all(event.wait(BOUND) for event in cancelled)
    assert not dropped.passed


def test_cancelled_calls_are_not_kept(deadlines):
    cancelled = threading.Event()
    call = lambda: cancelled.set()
    known = weakref.ref(call)
    deadlines.set(0.0, call)
    assert cancelled.wait(BOUND)
    del call
    end = time.monotonic() + BOUND
    while known() is not None:  # until the thread has come back from it
        assert time.monotonic() < end


def test_a_call_to_an_embedded_shard_that_had_to_wait_raises_the_error_that_ended_it_or_that_it_is_late():
    transport, queue = EmbeddedTransport(), ms.QueueSpec(name="train", size=1, block=1, epochs=1)
    a, b, c = (ms.Sender(name, ask(transport, ms.Join(worker=name)).incarnation) for name in "abc")
    assert ask(transport, ms.Take(sender=a, queue=queue)).block is not None
    replaced, left = (transport.call(0, ms.Take(sender=b, queue=queue), BOUND) for _ in range(2))
    with pytest.raises(errors.Unavailable, match="another call of this worker has replaced this one"):
        replaced.result()
    assert ask(transport, ms.Leave(b)) == ms.Left()
    with pytest.raises(errors.NotJoined, match="worker 'b' has left: join again"):
        left.result()
    with pytest.raises(errors.TimedOut, match="did not answer Take in time: it waits for other threads"):
        ask(transport, ms.Take(sender=c, queue=queue), 0.0)


def test_if_an_array_task_fails_the_others_of_its_step_run_and_then_the_call_raises_its_error(monkeypatch):
    worker, done = Worker(EmbeddedTransport(), v=ARRAY, w=ARRAY), []

    def fail(update):
        done.append(update.variable.spec.name)
        raise ArithmeticError(f"a bug in the update of {done[-1]}")

    monkeypatch.setattr(Update, "run", fail)
    with pytest.raises(ArithmeticError, match="update of v"):
        worker.push()
    assert done == ["v", "w"]


# --- shared memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


@pytest.fixture
def shared(folder):
    """A transport with shared memory."""
    with ServerThread(ServerConfig(lease=BOUND)) as server, closing(NetworkTransport([server.address])) as transport:
        yield transport


@pytest.fixture
def segments(monkeypatch):
    """The segments that live, of all that this process fetches; `made` counts all."""
    alive, fetch = weakref.WeakSet(), transfer_streams.fetch_segment
    alive.made = 0

    def noted(*args):
        alive.add(segment := fetch(*args))
        alive.made += 1
        return segment

    monkeypatch.setattr(transfer_streams, "fetch_segment", noted)
    return alive


def test_the_question_for_shared_memory_leaves_no_deadline_that_cancels_a_later_call_on_its_stream(shared):
    ask(shared, ms.Join(worker="w0"))
    assert shared.tensor_transport(0) == "shared memory"
    assert shared._deadlines._waits == set()


def test_values_stay_as_they_are_for_as_long_as_they_are_used(segments, shared):
    """When there are no more segments than these, further values come by frames, and are as right.

    A program has its present weights while the next ones come. A small value is copied and keeps no segment.
    """
    worker = Worker(shared, w=LARGE, v=np.append(LARGE, LARGE), small=SMALL)
    for step in range(1, 2 * MAX_SEGMENTS):
        values = worker.push()
        assert [in_shared_memory(value) for value in values] == [True, True, False]
        assert [(value.min(), value.max()) for value in values] == [(step, step)] * 3
    assert segments.made <= 4
    worker = Worker(shared, "w1", x=LARGE)
    held = [worker.push()[0] if step % 2 else worker.push()[0][-9:] for step in range(1, 2 * MAX_SEGMENTS + 1)]
    found = [in_shared_memory(value) for value in held]
    assert found == sorted(found, reverse=True), "first in shared memory, then not any more"
    assert MAX_SEGMENTS - 4 <= sum(found) <= MAX_SEGMENTS
    assert all((value == step).all() for step, value in enumerate(held, start=1))
    assert not any(value.flags.writeable for value in held)


def test_more_values_than_segments_that_are_trained_one_after_the_other_keep_no_segments(segments, shared):
    names = [f"w{index}" for index in range(2 * MAX_SEGMENTS)]
    worker = Worker(shared, **dict.fromkeys(names, LARGE))
    known_versions, held = [0] * len(names), []
    for index, gradient in enumerate(worker.gradients):
        answer = worker.ask(worker.message(gradient, known_versions=tuple(known_versions)))
        (changed,) = [value for value in answer.values if value.array is not None]
        held.append(changed.array)
        known_versions[index] = changed.version
    assert segments.made <= 4
    assert shared.tensor_transport(0) == "shared memory"
    assert [(value.min(), value.max(), value.flags.writeable) for value in held] == [(1, 1, False)] * len(names)


def test_values_that_find_no_room_in_shared_memory_are_read_while_the_worker_computes(monkeypatch, shared):
    """Or a server would have to wait with a large answer for as long as the worker computes, and give it up."""
    assert shared.tensor_transport(0) == "", "only a member can know"
    worker, read = Worker(shared, w=HUGE), threading.Event()
    assert shared.tensor_transport(0) == "shared memory"
    taken, take, receive = [], shared_memory.SegmentPool.take, TransferCall._receive
    monkeypatch.setattr(
        shared_memory.SegmentPool, "take", lambda self, n: None if taken else taken.append(take(self, n)) or taken[0]
    )
    monkeypatch.setattr(TransferCall, "_receive", lambda self: (receive(self), read.set())[0])
    call = worker.begin(worker.message())
    assert taken[0] is not None, "the gradient is in shared memory"
    assert read.wait(BOUND)
    assert call.result().values[0].array.size == HUGE.size


@pytest.mark.usefixtures("freed")
def test_a_transport_that_is_closed_frees_all_memory_but_that_of_values_at_once(folder):
    with ServerThread(ServerConfig()) as server, closing(NetworkTransport([server.address])) as transport:
        worker = Worker(transport, w=LARGE)
        (held,) = worker.push()
        worker.push()
        mapped = len(mapped_segments())
    assert len(mapped_segments()) == 1 < mapped
    assert (held == 1).all()
    del held
    assert mapped_segments() == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "direct"])
def test_a_call_whose_result_is_never_taken_leaves_no_connection_open(shared, monkeypatch):
    left = []
    monkeypatch.setattr("sys.unraisablehook", lambda one: left.append(str(one.exc_value)))
    with ServerThread(ServerConfig()) as server:
        with closing(NetworkTransport([server.address], shared_memory=shared, transport="direct")) as transport:
            worker = Worker(transport, w=LARGE)
            worker.begin(worker.message())
        del transport, worker
        gc.collect()
    assert left == []


@pytest.mark.usefixtures("folder")
def test_a_call_that_times_out_abandons_its_segments_into_which_a_late_answer_may_be_written(segments):
    """The first worker's push is held until the second one's has come, and by then it has gone on elsewhere."""
    with (
        ServerThread(ServerConfig(consistency=Synchronous(2))) as server,
        closing(NetworkTransport([server.address])) as transport,
        closing(NetworkTransport([server.address])) as other,
    ):
        second = Worker(other, "w1", w=LARGE)
        others = len(segments)
        worker = Worker(transport, w=LARGE)
        (before,) = worker.pull()
        with pytest.raises(errors.TimedOut):
            worker.push(timeout=0.3)
        end = time.monotonic() + BOUND
        while len(segments) > others + 1:  # that of `before`; until gRPC's threads have let go of the others too
            assert time.monotonic() < end
            gc.collect()
        after = [worker.pull()[0] for _ in range(3)]
        (fresh,) = second.push()
        assert (fresh == 1).all(), "the mean of both gradients"
        for value in (before, *after):
            assert in_shared_memory(value)
            assert not value.any()


@pytest.fixture
def freed(monkeypatch):
    """An event: the server has freed all memory of the first stream. The garbage collector is off meanwhile."""
    gone, known, make = threading.Event(), [], AttachedSegments.__init__

    def noted(self, *args):
        make(self, *args)
        if not known:
            known.append(weakref.ref(self, lambda _: gone.set()))

    monkeypatch.setattr(AttachedSegments, "__init__", noted)
    gc.collect()
    gc.disable()
    yield gone
    gc.enable()


ONES = HUGE + 1
FAILURES = {
    "refused by its header": (ms.Gradient("v", 0, ONES), Asynchronous(), BOUND, errors.UnknownVariable),
    "refused by its elements": (ms.Gradient("w", 0, ONES * np.nan), Asynchronous(), BOUND, errors.NotFinite),
    "refused by the shard": (ms.Gradient("w", 7, ONES), Asynchronous(), BOUND, errors.InvalidMessage),
    "late": (ms.Gradient("w", 0, ONES), Asynchronous(), 0.0, errors.TimedOut),
    "held, late": (ms.Gradient("w", 0, ONES), Synchronous(2), 0.3, errors.TimedOut),
    "held, its worker leaves": (ms.Gradient("w", 0, ONES), Synchronous(2), BOUND, errors.NotJoined),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("shared", few_fast([True, False], ids=["shared memory", "gRPC"]))
@pytest.mark.parametrize(
    ("gradient", "consistency", "timeout", "error"), few_fast(FAILURES.values(), 2, slow=4, ids=FAILURES)
)
def test_a_push_that_fails_leaves_no_memory_at_the_server_and_no_segment_at_the_worker(
    freed, segments, shared, gradient, consistency, timeout, error
):
    config = ServerConfig(consistency=consistency, lease=BOUND)
    with ServerThread(config) as server, closing(NetworkTransport([server.address], shared_memory=shared)) as transport:
        worker = Worker(transport, w=HUGE)
        call = worker.begin(worker.message(gradient), timeout)
        if error is errors.NotJoined:
            while not worker.ask(ms.Status()).workers[0].waiting_for:
                pass
            worker.ask(ms.Leave(worker.sender))
        with pytest.raises(error):
            call.result()
        del call  # it has its segments
        assert freed.wait(BOUND)
        assert not segments or timeout == 0.3


@pytest.mark.usefixtures("freed")
def test_no_segment_is_left_of_tries_to_reach_a_server_that_is_not_there(segments):
    with closing(NetworkTransport(["127.0.0.1:1"])) as transport:
        for _ in range(3):
            with pytest.raises(errors.Unavailable):
                ask(transport, ms.Push(sender=PULL.sender, sequence=1, gradients=(ms.Gradient("w", 0, ONES),)))
            assert transport.tensor_transport(0) == ""
    assert not segments


# --- the pool of segments ---------------------------------------------------------------------------------------------


@pytest.fixture
def pool():
    """A pool whose server gives every segment."""
    return shared_memory.SegmentPool(lambda number, nbytes: shared_memory.Segment(number, np.zeros(nbytes, np.uint8)))


def test_a_segment_belongs_to_one_call_until_it_is_given_back_and_a_small_message_occupies_no_large_one(pool):
    taken = [pool.take(1000) for _ in range(MAX_SEGMENTS)]
    assert [segment.number for segment in taken] == [*range(MAX_SEGMENTS)]
    assert pool.take(1000) is None
    pool.give_back(taken[3])
    assert pool.take(1000) is taken[3]
    assert (pool.count, pool.refused) == (MAX_SEGMENTS, "")
    for segment in taken[:2]:
        pool.give_back(segment)
    large = pool.take(100 * shared_memory.MIN_SEGMENT_BYTES)
    assert large.number == 0, "it replaces one of another size"
    assert 8 / 9 <= 100 * shared_memory.MIN_SEGMENT_BYTES / large.nbytes < 1, "and is at most an eighth too large"
    assert pool.take(1000) is taken[1]
    pool.give_back(large)
    assert pool.take(50 * shared_memory.MIN_SEGMENT_BYTES) is large
    pool.give_back(large)
    assert pool.take(10 * shared_memory.MIN_SEGMENT_BYTES) is not large


def test_a_segment_that_replaces_one_of_a_full_pool_is_no_room_for_another_that_is_in_use(pool):
    taken = [pool.take(1000) for _ in range(MAX_SEGMENTS)]
    pool.give_back(taken[3])
    assert pool.take(100 * shared_memory.MIN_SEGMENT_BYTES).number == 3
    assert (pool.take(1000), pool.count) == (None, MAX_SEGMENTS)


def test_a_server_that_refuses_is_not_asked_again_and_segments_that_there_are_stay_in_use(pool):
    segment, reasons = pool.take(1000), ["no memory"]

    def refuse(number, nbytes):
        raise NotShared(reasons.pop())

    pool._attach = refuse
    assert [pool.take(1000), pool.take(1000)] == [None, None]
    assert (pool.refused, pool.count) == ("no memory", 1)
    pool.give_back(segment)
    assert pool.take(1000) is segment


def test_a_segment_returns_to_its_pool_with_the_last_of_its_values_and_not_before_the_answer_is_complete(pool):
    W = TensorSpec("w", (1 << 16,))
    segments, free = [pool.take(4 * W.nbytes), pool.take(1)], pool._free
    answer = shared_memory.AnswerReceiver(segments, pool)
    with pytest.raises(errors.Malformed, match="segment 7 does not belong to this call"):
        answer.get(pb.Tensor(shared=pb.Shared(segment=7)), W)
    answer.get(pb.Tensor(shared=pb.Shared()), W)
    assert not free, "a value may be dropped while those behind it are still read"
    value = answer.get(pb.Tensor(shared=pb.Shared(offset=W.nbytes)), W)
    answer.close()
    assert free == segments[1:]
    view = value.reshape(-1, 2)[3:]
    del value
    assert free == segments[1:]
    del view
    assert free == segments[::-1]
