"""Held pushes and the heartbeat: retries, rejoins, logged reasons and timeouts."""

import logging
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pswire.errors import NotJoined, TimedOut, Unavailable, Zombie
from pswire.messages import Declaration, Finished, Leave, Outcome, Push, QueueSpec, Renew, Renewed, Sender
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Bounded, Synchronous
from pswire.tensors.values import TensorSpec
from psworker.client import placement
from psworker.client.heartbeat import Heartbeat
from psworker.client.retrying_calls import RetryingCalls
from psworker.transport import Future
from psworker.versions import ReadVersion, VersionedArray
from tests.shards_in_process import PATIENCE, ShardsInProcess

DECLARED = Declaration(TensorSpec("a", (2,), "float64"), np.zeros(2), GradientDescent(1.0))
start_heartbeat = Heartbeat.start


def gradient(*versions):
    return VersionedArray("a", ReadVersion(versions or (0,)), np.full(2, -1.0))


def registered(transport, worker):
    return transport.client(worker, DECLARED)[0]


@pytest.fixture
def sleeping():
    """A transport, and a worker that has pushed once."""
    transport = ShardsInProcess(1, lease=1000.0)
    client = registered(transport, "w0")
    client.push([gradient()]).result()
    return transport, client


def test_a_worker_whose_lease_has_ended_joins_again_and_goes_on(sleeping):
    transport, client = sleeping
    queue = QueueSpec("q", size=4, block=2, epochs=1)
    held = client.take(queue, None).block
    transport.sleep(2000)
    pushed = client.push([gradient(1)], pull=("a",)).result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.APPLIED, 2, 2)
    transport.sleep(2000)
    assert client.take(queue, Finished(held.number)).block == held, "its result counts for nothing, and it is free"


def test_a_worker_whose_name_was_taken_ends(sleeping):
    transport, client = sleeping
    transport.client("w0")
    for _ in range(2):
        with pytest.raises(Zombie, match="do two workers have the same name"):
            client.push([gradient(1)]).result()
        transport.sleep(2000)


def test_a_worker_that_joins_again_knows_whether_it_is_still_chief(sleeping):
    transport, client = sleeping
    other, _ = transport.client("w1")
    assert (client.chief, other.chief) == (True, False)
    transport.sleep(600)
    other.report_idle()
    transport.sleep(600)
    client.push([gradient(1)]).result()
    other.report_idle()
    assert (client.chief, other.chief) == (False, True)


@pytest.fixture
def held():
    """A transport, the future of a held push of worker `fast`, and worker `slow`, which is behind."""
    transport = ShardsInProcess(2, Bounded(0), lease=1000.0)
    fast, slow = registered(transport, "fast"), registered(transport, "slow")
    slow.push([gradient()]).result()
    return transport, fast.push([gradient()], pull=["a"]), slow


def pushes_of_fast(transport):
    return [(shard, message) for shard, message in transport.messages(Push) if message.sender.worker == "fast"]


def test_a_held_push_whose_lease_has_ended_is_sent_again_and_counts_once(held, caplog):
    transport, handle, slow = held
    transport.sleep(2000)  # both are lost, and their pushes with them
    slow.push([gradient(1)]).result()
    slow.report_idle()
    pushed = handle.result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.APPLIED, 3, 3)
    assert [shard for shard, _ in pushes_of_fast(transport)] == [0, 0], "shard 1 has nothing to do for it"
    assert "fast joins shard 0 again" in caplog.text


def test_a_held_push_that_a_later_call_has_replaced_is_sent_again_and_counts_once(held):
    transport, handle, slow = held
    ((_, push),) = pushes_of_fast(transport)
    transport.call(0, push, 0.0)  # the network has doubled it, and the second answer is lost
    slow.report_idle()
    pushed = handle.result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.REPEATED, 2, 2)
    assert [(shard, message.idle) for shard, message in transport.messages(Renew)] == [(0, True)], "shard 0 decides"


def test_a_part_that_a_follower_holds_is_sent_again_and_the_group_is_still_one_update(monkeypatch):
    monkeypatch.setattr(placement, "SPLIT_BYTES", 8)
    transport = ShardsInProcess(2, Synchronous(2), lease=1000.0)
    first, second = (registered(transport, worker) for worker in ("w0", "w1"))
    handles = [client.push([gradient(0, 0)], pull=["a"]) for client in (first, second)]
    parts = queue.SimpleQueue()
    transport.refuse = lambda shard, message: shard == 1 and isinstance(message, Push) and parts.put(message)
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(handles[0].result)
        parts.get(timeout=PATIENCE)
        transport.sleep(600)
        transport.call(1, Renew(Sender("w1", 1)), 0.0)
        transport.sleep(600)  # w0 is lost, and w1 is not
        parts.get(timeout=PATIENCE)
        results = [handles[1].result(), held.result()]
    assert [(result.outcome, result.global_step) for result in results] == [(Outcome.APPLIED, 1)] * 2
    value = first.pull(["a"])[0]
    assert (value.versions, value.array.tolist()) == ((1, 1), [1, 1])


def test_failed_reports_of_an_idle_or_leaving_worker_are_logged(caplog):
    transport = ShardsInProcess(3)
    client = registered(transport, "w0")
    transport.refuse = lambda shard, message: shard == 0
    transport.lose = lambda shard, message: shard == 1
    transport.sent.clear()
    with caplog.at_level(logging.INFO, "psworker.client.retrying_calls"):
        client.report_idle()
        client.leave()
        client.report_idle()  # after it has left it reports nothing more
    assert [(shard, type(message)) for shard, message in transport.sent] == [
        (0, Renew),
        *((n, Leave) for n in range(3)),
    ]
    assert logged(caplog) == [
        ("WARNING", "worker w0, shard 0: could not report that it is idle: not this one"),
        ("WARNING", "worker w0, shard 0: left without an answer: not this one"),
        ("INFO", "worker w0, shard 1: left without an answer: no answer"),
    ]


def logged(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records]


class Beats:
    """A heartbeat over a transport of one shard, which answers with a script; at its end `closing` is set."""

    shards = 1

    def __init__(self, *script):
        self.closing = threading.Event()
        self.calls = RetryingCalls(self, "w0", 60, self.closing)
        self.calls.sender = Sender("w0", 1)
        self.heartbeat = Heartbeat(self.calls)
        self._script = iter(script)
        self.sent = []

    def call(self, shard, message, timeout):
        self.sent.append(message)
        answer = next(self._script, None)
        if answer is None:
            self.closing.set()
            answer = Renewed(0, "the end")

        def result():
            if isinstance(answer, Exception):
                raise answer
            return answer

        return Future(result)

    def tensor_transport(self, shard):
        return f"transport {len(self.sent)}"

    def run(self):
        start_heartbeat(self.heartbeat, lease=0.003)
        self.heartbeat.join()
        return self


def test_the_reason_of_a_held_push_is_logged_when_it_appears_and_when_it_changes(caplog):
    script = ["", "w1 is at step 3", "w1 is at step 3", "w2 is at step 3", "", "w2 is at step 3"]
    with caplog.at_level(logging.INFO, "psworker.client.heartbeat"):
        Beats(*(Renewed(1, reason) for reason in script)).run()
    reasons = ("w1 is at step 3", "w2 is at step 3", "w2 is at step 3", "the end")
    assert logged(caplog) == [("WARNING", f"w0 waits, shard 0: {reason}") for reason in reasons]


@pytest.mark.parametrize("error", [NotJoined("slept"), Unavailable("gone"), TimedOut("late"), Zombie("taken")])
def test_a_reason_is_discarded_when_a_heartbeat_fails(error):
    beats = Beats(Renewed(1, "w1 is at step 3"), error, Zombie("so that it ends")).run()
    assert beats.calls.hold_reasons == {}


def test_the_last_reason_is_kept_with_its_time():
    began = time.monotonic()
    (answered, reason) = Beats(Renewed(1, "w1 is at step 3")).run().calls.hold_reasons[0]
    assert began < answered < time.monotonic()
    assert reason == "the end"


def test_the_heartbeat_goes_on_after_temporary_errors_and_ends_after_others(caplog):
    with caplog.at_level(logging.INFO, "psworker.client.heartbeat"):
        beats = Beats(
            Unavailable("gone"), TimedOut("late"), NotJoined("slept"), Renewed(0, "w1"), Zombie("taken")
        ).run()
    assert not beats.closing.is_set(), "it has ended by itself"
    assert logged(caplog) == [
        ("INFO", "w0: heartbeat to shard 0: gone"),
        ("WARNING", "w0: heartbeat to shard 0: late"),
        ("INFO", "w0: heartbeat to shard 0: slept"),
        ("WARNING", "w0 waits, shard 0: w1"),
        ("INFO", "w0: heartbeat to shard 0: taken"),
    ]


def test_each_heartbeat_reports_the_tensor_transport_half_pushes_and_whether_the_worker_is_idle():
    beats = Beats(Renewed(0), Renewed(0))
    beats.calls.half_pushes[0] = 3
    beats.heartbeat.idle_since = 7
    assert beats.run().sent == [Renew(Sender("w0", 1), True, f"transport {n}", 7, 3) for n in range(3)]
