"""Guarded updates: refused whole and by name if not finite; ordinary ones are not checked."""

import numpy as np
import pytest

from psserver.core.array_tasks import TasksPending
from psserver.core.variables import updates
from psserver.core.variables.updates import Update
from pswire.errors import NotFinite
from pswire.messages import Assign, Assignment, Declaration, Gradient, Outcome, Pull, Push, Pushed, Register, Tune
from pswire.optimizers import Adagrad, Adam, AdamW, Ftrl, GradientDescent, Lamb, Momentum, RMSProp, Step
from pswire.specs.consistency import Synchronous
from pswire.specs.initializers import RowConstant
from pswire.specs.schedules import PiecewiseConstant
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.shard_driver import A, B, ShardDriver, declared
from tests.shard_state import slots_of, state_of

ONES = np.ones(3, np.float32)
BOTH = Synchronous(2)


def gradient(*elements, sender=A, sequence=1, dtype="float32", version=0, name="W"):
    """A push of a gradient of `name`, and a finite one of another variable, `c`."""
    array = elements[0] if isinstance(elements[0], IndexedSlices) else np.array(elements, dtype)
    return Push(sender, sequence, (Gradient("c", 0, ONES), Gradient(name, version, array)))


class Guarded(ShardDriver):
    """A shard with variables `W` and `c`."""

    def __init__(self, optimizer, value=ONES, **options):
        super().__init__(declared("W", value, optimizer), declared("c", ONES, GradientDescent(1.0)), **options)

    @property
    def is_guarded(self):
        return bool(self.shard._store.guard)

    def waits(self, message, ticket=1):
        """Whether the message has to wait for pending tasks; then it has changed nothing."""
        before = state_of(self.shard)
        try:
            self.shard.step(ticket, message, self.now, settled=False)
        except TasksPending:
            assert state_of(self.shard) == before
            return True
        return False

    def kept(self):
        """All that a push may change of variables, and of the deduplication table; apart from who waits, and when."""
        shard = self.shard
        counts = shard.global_step, shard._pending.applied, shard._pending.dropped
        return state_of([list(shard._store), [(one.settled, one.answer) for one in shard._members], *counts])

    def value(self, name="W"):
        return self.shard._store[name].value


@pytest.mark.parametrize(
    ("optimizer", "elements"),
    [
        (Ftrl(0.1), [1e20]),
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
    shard, refused = Guarded(optimizer), 0
    for sequence, element in enumerate(elements, 1):
        before = shard.kept()
        answer = shard.answer(gradient(element, 0, 1, sequence=sequence))
        if isinstance(answer, NotFinite):
            refused += 1
            assert "'W'" in str(answer)
            assert "lower the learning rate, or clip gradients" in str(answer)
            assert shard.kept() == before
        for array in (shard.value(), shard.value("c"), *slots_of(shard.shard, "W").values()):
            assert np.isfinite(array).all()
    assert refused


# --- ordinary updates -------------------------------------------------------------------------------------------------


def test_an_ordinary_push_makes_tasks_and_a_guarded_one_is_done_in_its_step():
    shard = Guarded(Adam())
    for sequence, (element, settled, tasks) in enumerate(
        [(4e9, False, ["c", "W"]), (6e9, True, []), (1, False, ["c", "W"])], 1
    ):
        result = shard.shard.step(7, gradient(element, 0, 0, sequence=sequence), 0.0, settled=settled)
        assert [task.variable for task in result.tasks] == tasks
        for task in result.tasks:
            task.run()


@pytest.mark.parametrize(
    "message",
    [
        gradient(1e30, 0, 0),
        gradient(IndexedSlices(np.float32([2.4e9] * 4), np.array([1] * 4), (3,))),
        Assign(A, 1, (Assignment("W", np.float32([1e30, 0, 0])),), add=True),
    ],
    ids=["large", "rows that are large in sum", "added"],
)
def test_a_guarded_change_waits_for_pending_tasks_and_changes_nothing_before(message):
    shard = Guarded(Adam())
    assert shard.waits(message)
    assert len(shard.step(message)) == 1


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        (GradientDescent(0.1), "float16"),
        (Ftrl(0.1, learning_rate_power=0.9), "float32"),
        (Adagrad(0.1, 1e35), "float32"),
        (AdamW(1.0, weight_decay=3.0), "float32"),
        (Lamb(0.1, weight_decay=30.0), "float32"),
        (Momentum(0.1, 0.9999999), "float32"),
        (RMSProp(epsilon=1e-30), "float32"),
        (GradientDescent(PiecewiseConstant([10], [0.1, 1e30])), "float32"),
    ],
    ids=str,
)
def test_float16_and_hyperparameters_without_a_limit_are_always_guarded(optimizer, dtype):
    shard = Guarded(optimizer, ONES.astype(dtype))
    for sequence in (1, 2):
        message = gradient(1, 0, 0, dtype=dtype, sequence=sequence)
        assert shard.waits(message)
        assert isinstance(shard.answer(message), Pushed)


def test_a_variable_stays_guarded_while_its_elements_are_large():
    shard = Guarded(GradientDescent(1.0))
    for sequence, element in enumerate((1e20, -1e20), 1):
        shard.answer(gradient(element, 0, 0, sequence=sequence))
        assert shard.is_guarded == (sequence == 1)
    momentum = Guarded(Momentum(1e-12, 0.5))
    momentum.answer(gradient(4e16, 0, 0))
    for sequence in (2, 3):  # the momentum is 2e16, then 1e16
        assert momentum.waits(gradient(0.5, 0, 0, sequence=sequence))
        momentum.answer(gradient(0, 0, 0, sequence=sequence))
    assert not momentum.is_guarded


@pytest.mark.parametrize("how", ["register", "register a table", "assign", "add"])
def test_a_variable_that_is_set_to_a_large_value_is_guarded(how):
    large = np.float32([3e38, 0, 0])
    shard, name = Guarded(GradientDescent(1.0), large if how == "register" else ONES), "W"
    if how == "register a table":
        name = "E"
        table = Declaration(TensorSpec("E", (3,)), None, GradientDescent(1.0), RowConstant(3e38))
        shard.answer(Register(A, (table,)))
    elif how != "register":
        assert not shard.is_guarded
        shard.answer(Assign(A, 1, (Assignment("W", large),), add=how == "add"))
    before = shard.kept()
    assert isinstance(shard.answer(gradient(-1e38, 0, 0, name=name, sequence=2)), NotFinite)
    assert shard.kept() == before


def test_an_addition_to_several_variables_is_made_whole_or_not_at_all():
    shard = Guarded(GradientDescent(1.0), np.float32([3e38, 0, 0]))
    before = shard.kept()
    both = (Assignment("c", ONES), Assignment("W", np.float32([1e38, 1, 1])))
    refusal = shard.answer(Assign(A, 1, both, add=True))
    assert isinstance(refusal, NotFinite)
    assert "'W' has 1 of 3 elements" in str(refusal)
    assert shard.kept() == before
    shard.answer(Assign(A, 1, (both[0], Assignment("W", np.float32([-1e38, 1, 1]))), add=True))
    np.testing.assert_array_equal(shard.value(), np.float32([3e38, 0, 0]) + np.float32([-1e38, 1, 1]))
    assert shard.value("c").tolist() == [2, 2, 2]


def test_new_hyperparameters_are_guarded_once():
    shard = Guarded(Momentum(1.0, 0.5))
    shard.answer(Tune(A, 1, ("W",), Momentum(0.5, 0.5), ("learning_rate",)))
    assert shard.is_guarded
    shard.answer(gradient(1, 1, 1, sequence=2))
    assert not shard.is_guarded


def test_a_variable_is_checked_when_its_growths_add_up_to_half_of_the_limit():
    """With a rate of 9e23, an ordinary gradient of 1e10 may take 9e33 of the 1e37 that there are."""
    shard, waited = Guarded(GradientDescent(9e23)), []
    for sequence in range(1, 1300):
        message = Push(A, sequence, (Gradient("W", 0, np.float32([1e-10, 0, 0])),))
        try:
            shard.shard.step(1, message, 0.0, settled=False)
        except TasksPending:
            waited.append(sequence)
            shard.shard.step(1, message, 0.0)
    assert waited == [557, 1114]


# --- rows -------------------------------------------------------------------------------------------------------------


def rows(indices, scale):
    return IndexedSlices(np.full((len(indices), 2), scale, np.float32), np.array(indices), (1000, 2))


def test_a_guarded_update_of_rows_copies_these_rows_alone():
    shard = Guarded(Adam(), np.ones((1000, 2), np.float32))
    variable = shard.shard._store["W"]
    contributions = [(Gradient("W", 0, rows([7, 3, 7], 1e9)), None)]
    trial = Update(variable, variable.rule, contributions, 0.0, Step(1, 0, 1.0)).candidate()
    assert trial.value.shape == trial.slots["m"].shape == (2, 2)
    assert trial.rows.tolist() == [3, 7]
    before = shard.value().copy()
    assert isinstance(shard.answer(gradient(rows([7, 3, 7], 1e38))), NotFinite)
    np.testing.assert_array_equal(shard.value(), before)
    assert isinstance(shard.answer(gradient(rows([7, 3, 7], 1e11))), Pushed)
    assert np.flatnonzero((shard.value() != before).any(axis=1)).tolist() == [3, 7]


def test_a_table_with_a_large_row_is_guarded_until_all_of_it_is_small_again(monkeypatch):
    monkeypatch.setattr(updates, "UPDATES_BETWEEN_FULL_CHECKS", 4)
    shard = Guarded(GradientDescent(1.0), np.ones((1000, 2), np.float32))
    for sequence in range(1, 10):
        large = {1: 1e20, 7: -1e20}.get(sequence)
        shard.answer(gradient(rows([5], large) if large else rows([6], 1.0), sequence=sequence))
        assert shard.is_guarded or sequence >= 7
    assert not shard.is_guarded


# --- groups -----------------------------------------------------------------------------------------------------------


def test_all_pushes_of_an_update_that_overflows_are_refused_and_the_next_one_is_made():
    shard = Guarded(GradientDescent(1.0), consistency=BOTH)
    before = shard.kept()
    assert shard.step(gradient(-3e38, 0, 0), 1) == {}
    assert shard.waits(Pull(B, ("W",))), "any message may let the held push go"
    answers = shard.step(gradient(-3e38, 0, 0, sender=B), 2)
    assert {ticket: type(answer) for ticket, answer in answers.items()} == {1: NotFinite, 2: NotFinite}
    assert shard.kept() == before
    assert [member.clock for member in shard.shard._members] == [0, 0]
    assert shard.step(gradient(1, 2, 3), 3) == {}
    answers = shard.step(gradient(3, 2, 1, sender=B), 4)
    assert [answer.outcome for answer in answers.values()] == [Outcome.APPLIED] * 2
    assert shard.value().tolist() == [-1, -1, -1]


@pytest.mark.parametrize("elements", [(1e20, 1), (1, 1e20)])
def test_an_update_is_guarded_if_one_gradient_of_its_group_is_large(elements):
    shard = Guarded(GradientDescent(1.0), consistency=BOTH)
    for ticket, (sender, element) in enumerate(zip((A, B), elements, strict=True)):
        shard.step(gradient(element, 0, 0, sender=sender), ticket)
    assert shard.value()[0] == np.float32(-0.5e20)
    assert shard.is_guarded, "or the next updates would not be looked at"
