"""A worker that leaves its loop over batches is not waited for, unless an error has ended the loop."""

import threading
from contextlib import nullcontext

import numpy as np
import pytest

import psworker as ps
from pswire.messages import Leave, Push, Renew, Take
from pswire.specs.consistency import Bounded
from psworker import ops
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from tests.shards_in_process import ShardsInProcess


@pytest.fixture
def transport():
    return ShardsInProcess(1, Bounded(3))


def train(transport, at_third, after=lambda session: None):
    """A worker that does something at its third batch, and then something after its loop."""
    with ps.collection():
        weight = ps.Variable(np.zeros(1), name="weight")
        with Session(WorkerConfig(name="w0", timeout=30), transport) as session:
            for number, _ in enumerate(session.batches(ps.Dataset({"x": np.arange(9)}), 1), 1):
                if number == 3 and at_third == "fail":
                    raise RuntimeError("out of ideas")
                if number == 3 and at_third == "break":
                    break
                ps.GradientDescent(1.0).minimize(ops.sum(weight))
            after(session)


def idles(transport):
    return [message for _, message in transport.messages(Renew) if message.idle]


@pytest.mark.parametrize("how", ["fail", "break"])
def test_a_worker_that_leaves_its_loop_gives_back_what_it_holds_and_is_not_idle_after_an_error(transport, how):
    with pytest.raises(RuntimeError) if how == "fail" else nullcontext():
        train(transport, how)
    assert [message.give_back for _, message in transport.messages(Take)] == [False, True]
    assert [message.failed for _, message in transport.messages(Leave)] == [how == "fail"]
    assert idles(transport) == []


def test_a_worker_that_breaks_out_of_its_loop_is_idle_with_its_next_call(transport):
    train(transport, "break", lambda session: [session.pull(), session.pull()])
    (idle,) = idles(transport)
    assert idle.settled > max(push.sequence for _, push in transport.messages(Push))


def test_a_worker_that_breaks_out_of_its_loop_is_idle_with_its_next_heartbeat():
    transport, idle = ShardsInProcess(1, Bounded(3), lease=0.03), threading.Event()

    def note(shard, message):
        if isinstance(message, Renew) and message.idle:
            idle.set()
        return False

    transport.refuse = note
    train(transport, "break", lambda session: idle.wait(30))
    assert idle.is_set()


def test_a_worker_that_pushes_again_after_its_loop_is_not_idle_any_more(transport):
    def after(session):
        weight = ps.Variable(np.zeros(1), name="other")
        ps.GradientDescent(1.0).minimize(ops.sum(weight))
        session.pull()

    train(transport, "break", after)
    pushes = [place for place, (_, message) in enumerate(transport.sent) if isinstance(message, Push)]
    told = [place for place, (_, message) in enumerate(transport.sent) if isinstance(message, Renew) and message.idle]
    assert all(place < pushes[-1] for place in told)
