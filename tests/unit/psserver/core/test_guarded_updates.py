"""Guarded updates: refused whole and by name if not finite; ordinary ones are not checked."""

import numpy as np
import pytest

from psserver.core.array_tasks import TasksPending, run
from psserver.core.shard import Shard
from psserver.core.variables import updates
from psserver.core.variables.updates import Update
from pswire.errors import NotFinite
from pswire.messages import (
    Assign,
    Assignment,
    Declaration,
    Gradient,
    Join,
    Outcome,
    Pull,
    Push,
    Pushed,
    Register,
    Sender,
    Tune,
)
from pswire.optimizers import Adagrad, Adam, AdamW, Ftrl, GradientDescent, Lamb, Momentum, RMSProp, Step
from pswire.specs.consistency import Synchronous
from pswire.specs.initializers import RowConstant
from pswire.specs.schedules import PiecewiseConstant
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.shard_state import run_step, slots_of, state_of

A, B = Sender("a", 1), Sender("b", 1)
ONES = np.ones(3, np.float32)


def shard_with(optimizer, value=ONES, workers=1, name="W", **options):
    shard = Shard(**options)
    for worker in "ab"[:workers]:
        run_step(shard, 0, Join(worker), 0.0)
    declaration = Declaration(TensorSpec.of(name, value), value, optimizer)
    declarations = declaration, Declaration(TensorSpec.of("c", ONES), ONES, GradientDescent(1.0))
    run_step(shard, 0, Register(A, declarations), 0.0)
    return shard


def pushed(sequence, *elements, sender=A, dtype="float32", version=0, name="W", **others):
    """A push of a gradient of `name`, and a finite one of another variable, `c`."""
    array = elements[0] if isinstance(elements[0], IndexedSlices) else np.array(elements, dtype)
    return Push(sender, sequence, (Gradient("c", 0, ONES), Gradient(name, version, array)), None, **others)


def told(shard, message, ticket=1):
    """The answers by ticket."""
    return {reply.ticket: reply.answer for reply in run_step(shard, ticket, message, 0.0)}


def held(shard):
    """All that a push may change of variables, and of the book of pushes; apart from who waits, and when."""
    return state_of(
        [list(shard._store), shard._deduplication, shard.global_step, shard._pending.applied, shard._pending.dropped]
    )


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
def test_a_finite_push_whose_update_would_overflow_is_refused_whole_and_by_name(optimizer, elements):
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


# --- what is ordinary -------------------------------------------------------------------------------------------------


def tasks_of(shard, message, **options):
    work = shard.step(7, message, 0.0, **options)
    run(work.tasks)
    return [task.variable for task in work.tasks]


def test_an_ordinary_push_makes_tasks_and_a_guarded_one_is_done_in_its_step():
    shard = shard_with(Adam())
    assert tasks_of(shard, pushed(1, 4e9, 0, 0), settled=False) == ["c", "W"]
    assert tasks_of(shard, pushed(2, 6e9, 0, 0), settled=True) == []
    assert tasks_of(shard, pushed(3, 1, 0, 0), settled=False) == ["c", "W"]


@pytest.mark.parametrize(
    "message",
    [
        pushed(1, 1e30, 0, 0),
        pushed(1, IndexedSlices(np.float32([2.4e9] * 4), np.array([1] * 4), (3,))),
        Assign(A, 1, (Assignment("W", np.float32([1e30, 0, 0])),), add=True),
    ],
    ids=["large", "rows that are large in sum", "added"],
)
def test_a_guarded_change_waits_for_pending_tasks_and_changes_nothing_before(message):
    shard = shard_with(Adam())
    before = state_of(shard)
    with pytest.raises(TasksPending):
        shard.step(1, message, 0.0, settled=False)
    assert state_of(shard) == before
    assert len(shard.step(1, message, 0.0, settled=True).replies) == 1


def test_float16_and_hyperparameters_without_a_limit_are_always_guarded():
    for optimizer, value in (
        (GradientDescent(0.1), ONES.astype("float16")),
        (Ftrl(0.1, learning_rate_power=0.9), ONES),
        (Adagrad(0.1, 1e35), ONES),
        (AdamW(1.0, weight_decay=3.0), ONES),
        (Lamb(0.1, weight_decay=30.0), ONES),
        (Momentum(0.1, 0.9999999), ONES),
        (RMSProp(epsilon=1e-30), ONES),
        (GradientDescent(PiecewiseConstant([10], [0.1, 1e30])), ONES),
    ):
        shard = shard_with(optimizer, value)
        for sequence in (1, 2):
            with pytest.raises(TasksPending):
                shard.step(1, pushed(sequence, 1, 0, 0, dtype=value.dtype), 0.0, settled=False)
            assert isinstance(told(shard, pushed(sequence, 1, 0, 0, dtype=value.dtype))[1], Pushed)


def guarded(shard, sequence):
    """Whether a small push is."""
    try:
        shard.step(1, pushed(sequence, 0.5, 0, 0), 0.0, settled=False)
    except TasksPending:
        return True
    raise AssertionError("it was taken")


def is_guarded(shard):
    return bool(shard._store.guard)


def test_a_variable_stays_guarded_while_its_elements_are_large():
    shard = shard_with(GradientDescent(1.0))
    told(shard, pushed(1, 1e20, 0, 0))
    assert is_guarded(shard)
    told(shard, pushed(2, -1e20, 0, 0))
    assert not is_guarded(shard)
    momentum = shard_with(Momentum(1e-12, 0.5))
    told(momentum, pushed(1, 4e16, 0, 0))
    assert is_guarded(momentum)
    for sequence in (2, 3):  # the momentum is 2e16, then 1e16
        assert guarded(momentum, sequence)
        told(momentum, pushed(sequence, 0, 0, 0))
    assert not is_guarded(momentum)


@pytest.mark.parametrize("how", ["register", "register a table", "assign", "add"])
def test_a_variable_that_is_set_to_a_large_value_is_guarded(how):
    large = np.float32([3e38, 0, 0])
    shard = shard_with(GradientDescent(1.0), large if how == "register" else ONES)
    name = "W"
    if how == "register a table":
        name = "E"
        table = Declaration(TensorSpec("E", (3,)), None, GradientDescent(1.0), RowConstant(3e38))
        run_step(shard, 0, Register(A, (table,)), 0.0)
    elif how != "register":
        assert not is_guarded(shard)
        told(shard, Assign(A, 1, (Assignment("W", large),), add=how == "add"))
    before = held(shard)
    assert isinstance(told(shard, pushed(2, -1e38, 0, 0, name=name))[1], NotFinite)
    assert held(shard) == before


def test_an_addition_to_several_variables_is_made_whole_or_not_at_all():
    shard = shard_with(GradientDescent(1.0), np.float32([3e38, 0, 0]))
    before = held(shard)
    both = (Assignment("c", ONES), Assignment("W", np.float32([1e38, 1, 1])))
    refusal = told(shard, Assign(A, 1, both, add=True))[1]
    assert isinstance(refusal, NotFinite)
    assert "'W' has 1 of 3 elements" in str(refusal)
    assert held(shard) == before
    told(shard, Assign(A, 1, (both[0], Assignment("W", np.float32([-1e38, 1, 1]))), add=True))
    np.testing.assert_array_equal(values(shard), np.float32([3e38, 0, 0]) + np.float32([-1e38, 1, 1]))
    assert values(shard, "c").tolist() == [2, 2, 2]


def test_new_hyperparameters_are_guarded_once():
    shard = shard_with(Momentum(1.0, 0.5))
    run_step(shard, 1, Tune(A, 1, ("W",), Momentum(0.5, 0.5), ("learning_rate",)), 0.0)
    assert is_guarded(shard)
    told(shard, pushed(2, 1, 1, 1))
    assert not is_guarded(shard)


def test_a_variable_is_checked_when_its_growths_add_up_to_half_of_the_limit():
    """With a rate of 9e23, an ordinary gradient of 1e10 may take 9e33 of the 1e37 that there are."""
    shard = shard_with(GradientDescent(9e23))
    looks = []
    for sequence in range(1, 1300):
        message = Push(A, sequence, (Gradient("W", 0, np.float32([1e-10, 0, 0])),))
        try:
            shard.step(1, message, 0.0, settled=False)
        except TasksPending:
            looks.append(sequence)
            shard.step(1, message, 0.0)
    assert looks == [557, 1114]


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_guarded_update_of_rows_copies_these_rows_alone():
    shard = shard_with(Adam(), np.ones((1000, 2), np.float32))
    variable = shard._store["W"]
    contributions = [(Gradient("W", 0, rows([7, 3, 7], 1e9)), None)]
    trial = Update(variable, variable.rule, contributions, 0.0, Step(1, 0, 1.0)).candidate()
    assert trial.value.shape == trial.slots["m"].shape == (2, 2)
    assert trial.rows.tolist() == [3, 7]
    before = values(shard).copy()
    assert isinstance(told(shard, pushed(1, rows([7, 3, 7], 1e38)))[1], NotFinite)
    np.testing.assert_array_equal(values(shard), before)
    assert isinstance(told(shard, pushed(1, rows([7, 3, 7], 1e11)))[1], Pushed)
    changed = np.flatnonzero((values(shard) != before).any(axis=1))
    assert changed.tolist() == [3, 7]


def rows(indices, scale):
    return IndexedSlices(np.full((len(indices), 2), scale, np.float32), np.array(indices), (1000, 2))


def test_a_table_with_a_large_row_is_guarded_until_all_of_it_is_small_again(monkeypatch):
    monkeypatch.setattr(updates, "FULL_CHECK", 4)
    shard = shard_with(GradientDescent(1.0), np.ones((1000, 2), np.float32))
    told(shard, pushed(1, rows([5], 1e20)))
    for sequence in range(2, 7):
        told(shard, pushed(sequence, rows([6], 1.0)))
        assert is_guarded(shard)
    told(shard, pushed(7, rows([5], -1e20)))
    for sequence in range(8, 10):
        told(shard, pushed(sequence, rows([6], 1.0)))
    assert not is_guarded(shard)


# --- groups -----------------------------------------------------------------------------------------------------------


def test_all_pushes_of_an_update_that_overflows_are_refused_and_the_next_one_is_made():
    shard = shard_with(GradientDescent(1.0), workers=2, consistency=Synchronous(2))
    before = held(shard)
    assert told(shard, pushed(1, -3e38, 0, 0), 1) == {}
    with pytest.raises(TasksPending):  # whatever comes may let the held one go
        shard.step(5, Pull(B, ("W",)), 0.0, settled=False)
    answers = told(shard, pushed(1, -3e38, 0, 0, sender=B), 2)
    assert {ticket: type(answer) for ticket, answer in answers.items()} == {1: NotFinite, 2: NotFinite}
    assert held(shard) == before
    assert [member.clock for member in shard._members] == [0, 0]
    assert told(shard, pushed(1, 1, 2, 3), 3) == {}
    answers = told(shard, pushed(1, 3, 2, 1, sender=B), 4)
    assert [answer.outcome for answer in answers.values()] == [Outcome.APPLIED] * 2
    assert values(shard).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("elements", [(1e20, 1), (1, 1e20)])
def test_an_update_is_guarded_if_one_gradient_of_its_group_is_large(elements):
    shard = shard_with(GradientDescent(1.0), workers=2, consistency=Synchronous(2))
    for ticket, (sender, element) in enumerate(zip((A, B), elements, strict=True)):
        told(shard, pushed(1, element, 0, 0, sender=sender), ticket)
    assert values(shard)[0] == np.float32(-0.5e20)
    assert is_guarded(shard), "or the next updates would not be looked at"
