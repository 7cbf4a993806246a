"""An update whose result is not finite is refused whole and by name; what is finite by bounds is not looked at."""

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.consistency import DelayCompensated, Synchronous
from pswire.errors import NotFinite
from pswire.messages import Assign, Assignment, Declaration, Gradient, Join, Pull, Push, Register, Sender, Status, Tune
from pswire.rows import RowConstant
from pswire.specs import Adagrad, Adam, AdamW, Ftrl, GradientDescent, Lamb, Momentum, RMSProp
from pswire.values import IndexedSlices, TensorSpec
from tests.shard_state import slots_of, state_of

A, B = Sender("a", 1), Sender("b", 1)
ONES = np.ones(3, np.float32)


def shard_with(optimizer, value=ONES, workers=1, name="W", **options):
    shard = Shard(**options)
    for worker in "ab"[:workers]:
        shard.step(0, Join(worker), 0.0)
    declaration = Declaration(TensorSpec.of(name, value), value, optimizer)
    shard.step(0, Register(A, (declaration, Declaration(TensorSpec.of("c", ONES), ONES, GradientDescent(1.0)))), 0.0)
    return shard


def pushed(sequence, *elements, sender=A, dtype="float32", version=0, name="W", **others):
    """A push of a gradient of `name`, and a finite one of another variable, `c`."""
    array = elements[0] if isinstance(elements[0], IndexedSlices) else np.array(elements, dtype)
    return Push(sender, sequence, (Gradient("c", 0, ONES), Gradient(name, version, array)), None, **others)


def told(shard, message, ticket=1):
    """The answers by ticket."""
    return {reply.ticket: reply.answer for reply in shard.step(ticket, message, 0.0)}


def held(shard):
    """All that a push may change of variables, and of the book of pushes; apart from who waits, and when."""
    return state_of([list(shard._store), shard._ledger, shard.global_step, shard._room.applied, shard._room.dropped])


def values(shard, name="W"):
    return shard._store[name].value


@pytest.mark.parametrize(
    ("optimizer", "elements"),
    [
        (Ftrl(0.1), [1e20]),
        (RMSProp(centered=True), [1e20]),
        (RMSProp(centered=True), [1e30]),
        (RMSProp(decay=0.0), [1e20, 0.0]),
        (Adam(beta2=0.0), [1e20, 0.0]),
        (Adam(beta2=0.0, amsgrad=True), [1e20, 0.0]),
        (GradientDescent(1e30), [1e9]),
        (Momentum(1.0), [3e38, 3e38]),
    ],
    ids=str,
)
def test_a_finite_push_whose_update_would_not_be_is_refused_whole_and_by_name(optimizer, elements):
    shard = shard_with(optimizer)
    refused = 0
    for sequence, element in enumerate(elements, 1):
        before = held(shard)
        answer = told(shard, pushed(sequence, element, 0, 1))[1]
        if isinstance(answer, NotFinite):
            refused += 1
            assert "'W'" in str(answer)
            assert "lower the learning rate, or clip gradients" in str(answer)
            assert held(shard) == before
        for array in (values(shard), values(shard, "c"), *slots_of(shard, "W").values()):
            assert np.isfinite(array).all()
    assert refused
