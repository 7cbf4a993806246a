"""Calls to the embedded shard: one that waits raises the error with which it ended, or that it is late; failures."""

import numpy as np
import pytest

from psserver.core.variables.array_tasks import Update
from pswire import optimizers
from pswire.errors import NotJoined, TimedOut, Unavailable
from pswire.messages import Declaration, Gradient, Join, Leave, Left, Push, QueueSpec, Register, Sender, Take
from pswire.tensors.values import TensorSpec
from psworker.transport.embedded import EmbeddedTransport

QUEUE = QueueSpec("train", size=1, block=1, epochs=1)


def test_a_call_that_had_to_wait_raises_the_error_that_ended_it_or_that_it_is_late():
    transport = EmbeddedTransport()
    a, b = (Sender(name, transport.call(0, Join(name), 30.0).result().incarnation) for name in "ab")
    assert transport.call(0, Take(a, QUEUE), 30.0).result().block is not None
    replaced, left = (transport.call(0, Take(b, QUEUE), 30.0) for _ in range(2))
    with pytest.raises(Unavailable, match="another call of this worker has replaced this one"):
        replaced.result()
    assert transport.call(0, Leave(b), 30.0).result() == Left()
    with pytest.raises(NotJoined, match="worker 'b' has left: join again"):
        left.result()
    waiting = Sender("c", transport.call(0, Join("c"), 30.0).result().incarnation)
    with pytest.raises(TimedOut, match="did not answer Take in time: it waits for other threads"):
        transport.call(0, Take(waiting, QUEUE), 0.0).result()


def test_if_an_array_task_fails_the_others_of_its_step_run_and_then_the_call_raises_its_error(monkeypatch):
    transport = EmbeddedTransport()
    sender, zero = Sender("a", transport.call(0, Join("a"), 30.0).result().incarnation), np.zeros(2)
    specs = [TensorSpec(name, (2,), "float64") for name in "vw"]
    declarations = [Declaration(spec, zero, optimizers.GradientDescent(1.0)) for spec in specs]
    transport.call(0, Register(sender, tuple(declarations)), 30.0).result()
    done = []

    def fail(update):
        done.append(update.variable.spec.name)
        raise ArithmeticError(f"a bug in the update of {done[-1]}")

    monkeypatch.setattr(Update, "run", fail)
    with pytest.raises(ArithmeticError, match="update of v"):
        transport.call(0, Push(sender, 1, tuple([Gradient(name, 0, zero) for name in "vw"])), 30.0)
    assert done == ["v", "w"]
