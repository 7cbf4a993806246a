"""Held pushes and the heartbeat: retries, rejoins, logged reasons and timeouts."""

import logging
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pswire.errors import InvalidMessage, NotJoined, TimedOut, Unavailable, Zombie
from pswire.messages import Declaration, Finished, Leave, Outcome, Push, QueueSpec, Renew, Renewed, Sender
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Bounded, Synchronous
from pswire.tensors.values import TensorSpec
from psworker.client import placement
from psworker.client.chief import ChiefStatus
from psworker.client.client import Client
from psworker.client.heartbeat import Heartbeat
from psworker.client.retrying_calls import RetryingCalls
from psworker.transport import Future
from psworker.versions import ReadVersion, VersionedArray
from tests.shards_in_process import PATIENCE, ShardsInProcess


def gradient(version=0):
    return VersionedArray("a", ReadVersion((version,)), np.full(2, -1.0))


def registered(transport, worker):
    client = Client(transport, worker, timeout=60)
    client.join()
    client.register([Declaration(TensorSpec("a", (2,), "float64"), np.zeros(2), GradientDescent(1.0))])
    return client


# --- leases -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeping():
    transport = ShardsInProcess(1, lease=1000.0)
    client = registered(transport, "w0")
    client.push([gradient()]).result()
    yield transport, client
    client.leave()
    client.close()


def test_a_worker_whose_lease_has_ended_joins_again_and_goes_on(sleeping):
    transport, client = sleeping
    queue = QueueSpec("q", size=4, block=2, epochs=1)
    held = client.take(queue, None).block
    transport.sleep(2000)
    pushed = client.push([gradient(1)], pull=("a",)).result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.APPLIED, 2, 2)
    transport.sleep(2000)
    assert client.take(queue, Finished(held.number)).block == held, "what it held counts for nothing, and is free again"


def test_a_worker_whose_name_was_taken_ends(sleeping):
    transport, client = sleeping
    thief = Client(transport, "w0", timeout=60)
    thief.join()
    with pytest.raises(Zombie, match="do two workers have the same name"):
        client.push([gradient(1)]).result()
    transport.sleep(2000)
    with pytest.raises(Zombie):
        client.push([gradient(1)]).result()
    thief.leave()
    thief.close()


# --- a push that is held ----------------------------------------------------------------------------------------------


@pytest.fixture
def held():
    """A transport, a worker whose push is held, the future of the push, and the worker that is behind."""
    transport = ShardsInProcess(2, Bounded(0), lease=1000.0)
    fast, slow = registered(transport, "fast"), registered(transport, "slow")
    slow.push([gradient()]).result()
    handle = fast.push([gradient()], pull=["a"])
    yield transport, fast, handle, slow
    for client in (fast, slow):
        client.leave()
        client.close()


def test_a_held_push_whose_lease_has_ended_is_sent_again_and_counts_once(held, caplog):
    transport, _, handle, slow = held
    transport.sleep(2000)  # both are lost, and their pushes with them
    slow.push([gradient(1)]).result()
    slow.report_idle()
    pushed = handle.result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.APPLIED, 3, 3)
    said = [shard for shard, message in transport.messages(Push) if message.sender.worker == "fast"]
    assert said == [0, 0], "to the shard that had held it; the other has nothing to do for it"
    assert "fast joins shard 0 again" in caplog.text


def test_a_held_push_whose_place_a_later_call_has_taken_is_sent_again_and_counts_once(held):
    transport, _, handle, slow = held
    (push,) = [message for _, message in transport.messages(Push) if message.sender.worker == "fast"]
    transport.call(0, push, 0.0)  # the network has doubled it, and nobody hears the second answer
    slow.report_idle()
    pushed = handle.result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (Outcome.REPEATED, 2, 2)


def test_a_part_that_a_follower_holds_is_sent_again_and_the_group_is_still_one_update(monkeypatch):
    monkeypatch.setattr(placement, "SPLIT_BYTES", 8)
    transport = ShardsInProcess(2, Synchronous(2), lease=1000.0)
    first, second = (registered(transport, worker) for worker in ("w0", "w1"))
    handles = [
        client.push([VersionedArray("a", ReadVersion((0, 0)), np.full(2, -1.0))], pull=["a"])
        for client in (first, second)
    ]
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
    for result in results:
        assert (result.outcome, result.global_step) == (Outcome.APPLIED, 1)
    value = first.pull(["a"])[0]
    assert (value.versions, value.array.tolist()) == ((1, 1), [1, 1])
    for client in (first, second):
        client.leave()
        client.close()


# --- idle, and leaving ------------------------------------------------------------------------------------------------


def test_other_workers_go_on_when_a_worker_is_idle():
    transport = ShardsInProcess(2, Bounded(0))
    slow, fast = registered(transport, "slow"), registered(transport, "fast")
    slow.push([gradient()]).result()
    held = fast.push([gradient()])
    slow.report_idle()
    assert held.result().global_step == 2
    assert [(shard, said.idle) for shard, said in transport.messages(Renew)] == [(0, True)], "which decides for all"


def test_failed_reports_of_an_idle_or_leaving_worker_are_logged(caplog):
    transport = ShardsInProcess(3)
    client = registered(transport, "w0")
    transport.refuse = lambda shard, message: shard == 0
    transport.lose = lambda shard, message: shard == 1
    with caplog.at_level(logging.INFO, "psworker.client.retrying_calls"):
        client.report_idle()
        client.leave()
        client.report_idle()
    assert [shard for shard, _ in transport.messages(Renew)] == [0], "who has left says nothing more"
    assert [shard for shard, _ in transport.messages(Leave)] == [0, 1, 2]
    idle, left = "could not report that it is idle", "left without an answer"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"worker w0, shard 0: {idle}: not this one"),
        ("WARNING", f"worker w0, shard 0: {left}: not this one"),
        ("INFO", f"worker w0, shard 1: {left}: no answer"),
    ]


# --- the heartbeat ----------------------------------------------------------------------------------------------------


class Beats:
    """A transport over which one shard answers heartbeats with a script, at whose end `closing` is set."""

    shards = 1

    def __init__(self, script):
        self.closing = threading.Event()
        self.role = ChiefStatus("w0")
        self.heartbeat = Heartbeat(self, self.closing, self.role)
        self._script = iter(script)
        self.sent = []

    def call(self, shard, message, timeout):
        assert (message.sender, message.tensor_transport) == (Sender("w0", 1), self.tensor_transport(shard))
        self.sent.append(message)
        answer = next(self._script, None)
        if answer is None:
            self.closing.set()
            raise_or_answer = Renewed(0, "the end")
        else:
            raise_or_answer = answer

        def result():
            if isinstance(raise_or_answer, Exception):
                raise raise_or_answer
            return raise_or_answer

        return Future(result)

    def tensor_transport(self, shard):
        return "gRPC"

    def run(self):
        self.heartbeat.start(Sender("w0", 1), lease=0.003)
        self.heartbeat.join()


def test_the_reason_of_a_held_push_is_logged_when_it_appears_and_when_it_changes(caplog):
    script = ["", "w1 is at step 3", "w1 is at step 3", "w2 is at step 3", "", "w2 is at step 3"]
    with caplog.at_level(logging.INFO, "psworker.client.heartbeat"):
        Beats([Renewed(1, reason) for reason in script]).run()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"w0 waits, shard 0: {reason}")
        for reason in ("w1 is at step 3", "w2 is at step 3", "w2 is at step 3", "the end")
    ]


@pytest.mark.parametrize("error", [NotJoined("slept"), Unavailable("gone"), TimedOut("late"), Zombie("taken")])
def test_a_reason_is_discarded_when_a_heartbeat_fails(error):
    beats = Beats([Renewed(1, "w1 is at step 3"), error, Zombie("so that it ends")])
    beats.run()
    assert beats.heartbeat.hold_reason(0, since=0.0) == ""


def test_a_reason_from_before_a_push_does_not_count_for_it():
    beats = Beats([])
    beats.run()
    assert beats.heartbeat.hold_reason(0, since=0.0) == "the end"
    assert beats.heartbeat.hold_reason(0, since=float("inf")) == ""
    assert beats.heartbeat.hold_reason(1, since=0.0) == ""


def test_the_heartbeat_goes_on_after_temporary_errors_and_ends_after_others(caplog):
    beats = Beats([Unavailable("gone"), TimedOut("late"), NotJoined("slept"), Renewed(0, "w1"), Zombie("taken")])
    with caplog.at_level(logging.INFO, "psworker.client.heartbeat"):
        beats.run()
    assert not beats.closing.is_set(), "it has ended by itself"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "w0: heartbeat to shard 0: gone"),
        ("WARNING", "w0: heartbeat to shard 0: late"),
        ("INFO", "w0: heartbeat to shard 0: slept"),
        ("WARNING", "w0 waits, shard 0: w1"),
        ("INFO", "w0: heartbeat to shard 0: taken"),
    ]


def test_a_worker_that_joins_again_knows_whether_it_is_still_chief(sleeping):
    transport, client = sleeping
    assert client.chief
    other = Client(transport, "w1", timeout=60)
    other.join()
    assert not other.chief
    transport.sleep(600)
    other.report_idle()
    transport.sleep(600)
    client.push([gradient(1)]).result()
    other.report_idle()
    assert (client.chief, other.chief) == (False, True)
    other.leave()
    other.close()


def test_each_heartbeat_reports_the_tensor_transport():
    beats = Beats([Renewed(0), Renewed(0)])
    lanes = ["gRPC", "shared memory", "gRPC"]
    beats.tensor_transport = lambda shard: lanes[len(beats.sent)]
    beats.run()
    assert [message.tensor_transport for message in beats.sent] == lanes


def test_each_heartbeat_reports_half_pushes_and_whether_the_worker_is_idle():
    beats = Beats([Renewed(0), Renewed(0)])
    counts = [0, 1, 3]
    beats.heartbeat.half_pushes = lambda shard: counts[len(beats.sent)]
    beats.heartbeat.idle_since = 7
    beats.run()
    assert [(message.half_pushes, message.idle, message.settled) for message in beats.sent] == [
        (count, True, 7) for count in counts
    ]


# --- giving up --------------------------------------------------------------------------------------------------------


def call_that_is_never_answered(held_for, timeout=0.05):
    transport = ShardsInProcess(2)
    transport.lose = lambda shard, message: True
    some = RetryingCalls(transport, "w0", timeout, threading.Event(), held_for, ChiefStatus("w0"))
    sent = some.send([None, Push(Sender("w0", 1), 1, ())])
    with pytest.raises(TimedOut) as caught:
        some.results(sent, Push)
    return transport, str(caught.value)


def test_a_timeout_names_the_shard_that_held_the_push_and_the_reason():
    transport, text = call_that_is_never_answered(lambda shard, since: f"w{shard} is slow" if since > 0 else "")
    assert text.startswith("gave up after 0.")
    assert text.endswith("s: no answer: shard 1 held the push: w1 is slow")
    assert {shard for shard, _ in transport.sent} == {1}
    assert len(transport.sent) > 1, "it has tried again"


def test_permanent_errors_are_not_tried_again():
    transport = ShardsInProcess(1)
    transport.refuse = lambda shard, message: True
    some = RetryingCalls(transport, "w0", 60, threading.Event(), lambda shard, since: "", ChiefStatus("w0"))
    with pytest.raises(InvalidMessage, match=r"^not this one$"):
        some.join()
    assert len(transport.sent) == 1
