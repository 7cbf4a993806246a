"""Vectors beside variables: arithmetic against exact sums and formulas, one message at a time, once, and kept."""

import math
from fractions import Fraction

import numpy as np
import pytest

from psserver.core.minimization.vector_operations import STRETCH, run
from psserver.core.variables.array_tasks import run as run_all
from pswire.errors import InvalidMessage, OutOfOrder, TooLarge, UnknownVariable
from pswire.messages import (
    Assign,
    Assignment,
    Compute,
    CountedPortions,
    Declaration,
    Evaluate,
    Evaluation,
    Outcome,
    Pull,
    Register,
    Renew,
)
from pswire.optimizers import Adagrad, GradientDescent
from pswire.specs.initializers import RowConstant
from pswire.specs.vectors import (
    GRADIENT,
    VARIABLES,
    Axpy,
    Copy,
    Dot,
    Drop,
    Fill,
    KeepSigns,
    MaxAbs,
    Norm1,
    PseudoGradient,
    Scale,
    combined,
)
from pswire.tensors.values import TensorSpec
from tests.support.shards import A, B, ShardDriver, declared, finish_copies, new_shard, restored, state_of
from tests.unit.psworker.minimize.numpy_space import NumpySpace

SEED = 20261123
#: Of products whose sum is much smaller than they are: a plain sum of float64 has no correct digit.
HARD = 10.0 ** np.random.default_rng(SEED).integers(-10, 11, 3 * STRETCH + 5)


def exact(terms):
    return float(sum(map(Fraction, terms)))


@pytest.mark.parametrize("size", [0, 1, 3, 8191, 3 * STRETCH + 5])
def test_sums_are_those_of_exact_arithmetic(size):
    """The products are rounded, so that only their sum is compared; the reference is Python's exact fsum."""
    rng = np.random.default_rng(SEED)
    a, b = HARD[:size] * rng.standard_normal(size), HARD[:size][::-1].copy()
    a[size // 2 :] = -a[: size - size // 2][::-1] * (1 + 1e-13)
    dot, norm, largest = run([Dot("a", "b"), Norm1("a"), MaxAbs("b")], {"a": a, "b": b})
    assert sum(dot) == math.fsum(a * b)
    assert sum(norm) == math.fsum(abs(a))
    assert largest == (max(abs(b), default=0.0), 0.0)


def test_products_of_float32_are_not_rounded():
    a = np.array([1e8, 1, -1e8], np.float32)
    b = np.array([1e8 + 8, 1e-7, 1e8 + 8], np.float32)
    (dot,) = run([Dot("a", "b")], {"a": a, "b": b})
    assert sum(dot) == exact(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("cuts", [[], [1], [100, 70_000], [8192, 3 * STRETCH]])
def test_results_do_not_depend_on_how_a_vector_is_distributed(cuts):
    a = HARD * np.random.default_rng(SEED).standard_normal(len(HARD))
    b = np.sin(np.arange(len(a)))
    operations = [Dot("a", "b"), Norm1("a"), MaxAbs("a")]
    parts = [run(operations, {"a": x, "b": y}) for x, y in zip(np.split(a, cuts), np.split(b, cuts), strict=True)]
    together = [combined(one, pairs) for one, *pairs in zip(operations, *parts, strict=True)]
    assert [sum(pair) for pair in together] == [math.fsum(a * b), math.fsum(abs(a)), max(abs(a))]


def test_infinities_and_nan_are_results_like_others():
    for a, total, largest in (
        ([math.inf, 1.0], math.inf, math.inf),
        ([math.inf, -math.inf], math.nan, math.inf),
        ([math.nan, 1.0], math.nan, math.nan),
        ([1e308, 1e308], math.inf, 1e308),
    ):
        one = np.ones(2)
        (dot, top) = run([Dot("a", "b"), MaxAbs("a")], {"a": np.array(a), "b": one})
        assert np.array_equal([sum(dot), sum(top)], [total, largest], equal_nan=True)


CHANGES = [
    (Fill("a", 2.5),),
    (Copy("a", "b"), Scale("a", -0.1)),
    (Axpy("a", 0.1, "b"), Axpy("b", -3.0, "a")),
    (PseudoGradient("a", "point", "b", 0.5),),
    (KeepSigns("a", "point"),),
    (KeepSigns("a", "point", "b"),),
]


@pytest.mark.parametrize("operations", CHANGES, ids=lambda operations: type(operations[0]).__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_changes_are_those_of_the_formulas_rounded_to_the_dtype(operations, dtype):
    rng = np.random.default_rng(SEED)
    vectors = {name: rng.standard_normal(STRETCH + 3).astype(dtype) for name in ("a", "b", "point")}
    vectors["point"][::3] = 0.0
    vectors["b"][::6] = 0.25
    expected = NumpySpace(None, vectors["a"])
    expected.vectors |= {name: vector.astype(np.float64) for name, vector in vectors.items()}
    for operation in operations:
        expected.run([operation])
        expected.vectors = {name: one.astype(dtype).astype(float) for name, one in expected.vectors.items()}
    run(operations, vectors)
    for name, vector in vectors.items():
        np.testing.assert_array_equal(vector, expected.vectors[name])


# --- the shard --------------------------------------------------------------------------------------------------------

W, V = np.array([[1.0, -2.0], [3.0, 0.5]]), np.array([4.0], np.float32)


def shard(**options):
    return ShardDriver(declared("W", W, Adagrad(0.1)), declared("v", V, GradientDescent(1.0)), **options)


def compute(driver, *operations, sequence=None, names=("W", "v"), sender=A, **fields):
    driver.sequences["a"] = sequence or driver.sequences.get("a", 0) + 1
    return driver.answer(
        Compute(sender=sender, sequence=driver.sequences["a"], names=names, operations=operations, **fields)
    )


def totals(answer):
    return [sum(answer.results[at : at + 2]) for at in range(0, len(answer.results), 2)]


def vectors_of(driver):
    variables = driver.shard.variables.items()
    return {name: {one: list(v.reshape(-1)) for one, v in mine.vectors.items()} for name, mine in variables}


def test_operations_of_one_message_are_done_in_order_over_all_variables():
    driver = shard()
    to_d = Copy("d", VARIABLES), Scale("d", 2.0), Dot("d", VARIABLES), Axpy("d", -1.0, VARIABLES), Dot("d", "d")
    answer = compute(driver, *to_d)
    assert totals(answer) == [2 * 30.25, 30.25]
    answer = compute(driver, Axpy(VARIABLES, 0.5, "d"), MaxAbs(VARIABLES), Norm1("d"))
    assert totals(answer) == [6.0, 10.5]
    values = driver.answer(Pull(sender=A, names=("W", "v"))).values
    assert [one.array.tolist() for one in values] == [[[1.5, -3.0], [4.5, 0.75]], [6.0]]
    assert [one.version for one in values] == [1, 1], "workers see that it changed"


def test_a_message_that_comes_again_changes_nothing_and_has_the_same_answer():
    driver = shard()
    compute(driver, Copy("d", VARIABLES), minimization="minimize-1", term=1, note='{"step": 3}')
    first = compute(driver, Axpy("d", 1.0, VARIABLES), Dot("d", "d"))
    again = compute(driver, Axpy("d", 1.0, VARIABLES), Dot("d", "d"), sequence=2)
    assert (first.outcome, again.outcome) == (Outcome.APPLIED, Outcome.REPEATED)
    assert totals(again) == totals(first) == [121.0]
    assert vectors_of(driver) == {"W": {"d": [2.0, -4.0, 6.0, 1.0]}, "v": {"d": [8.0]}}
    assert compute(driver, names=(), minimization="minimize-1").note == '{"step": 3}'
    driver.refuse(
        Compute(sender=A, sequence=2, names=("W",), operations=(Fill("d", 0.0),)),
        OutOfOrder,
        "came after its message 3",
    )


def test_results_of_a_repeated_message_wait_for_the_tasks_of_the_first():
    driver = shard()
    message = Compute(sender=A, sequence=1, names=("W", "v"), operations=(Fill("d", 2.0), Dot("d", "d")))
    first = driver.shard.step(0, message, 0.0)
    again = driver.shard.step(1, message, 0.0)
    assert {task.variable for task in again.tasks} == {"W", "v"}
    run_all([*first.tasks, *again.tasks])
    assert totals(again.replies[0].answer) == [20.0]


def test_what_cannot_be_computed_is_refused_and_changes_nothing():
    driver = shard(memory_limit=400)
    missing = Compute(sender=A, sequence=1, names=("W",), operations=(Fill("x", 0.0), Dot("x", "y")))
    driver.refuse(missing, InvalidMessage, "needs the vector 'y' of .*'W'")
    driver.refuse(Compute(sender=A, sequence=1, names=("u",), operations=()), UnknownVariable, "no variable 'u'")
    driver.refuse(Compute(sender=A, sequence=1, names=("W",), operations=(), note="a"), InvalidMessage, "need its name")
    driver.refuse(
        Compute(sender=A, sequence=1, names=("W",), operations=(Drop(),), minimization="task"),
        InvalidMessage,
        "need its name, and the term",
    )
    many = tuple([Fill(f"x-{number}", 0.0) for number in range(10)])
    driver.refuse(
        Compute(sender=A, sequence=1, names=("W", "v"), operations=many),
        TooLarge,
        "vectors of W and v need 360 bytes more",
    )
    whole = tuple([Fill(f"x-{number}", 0.0) for number in range(200)])
    driver.refuse(
        Compute(sender=A, sequence=1, names=("v",), operations=whole), TooLarge, "would have 201 vectors: 128 at most"
    )
    numbers = ShardDriver(declared("n", np.array([1, 2])))
    numbers.refuse(
        Compute(sender=A, sequence=1, names=("n",), operations=(Fill("x", 0.0),)), InvalidMessage, "has no vectors"
    )


def test_dropped_vectors_give_their_memory_back():
    driver = shard()
    before = driver.shard.status(0.0).nbytes
    compute(driver, Copy("d", VARIABLES), Copy("e", "d"))
    assert driver.shard.status(0.0).nbytes == before + 2 * (W.nbytes + V.nbytes)
    compute(driver, Drop(), Fill("g", 1.0))
    assert vectors_of(driver) == {"W": {"g": [1.0] * 4}, "v": {"g": [1.0]}}
    compute(driver, Drop())
    assert driver.shard.status(0.0).nbytes == before
    assert vectors_of(driver) == {"W": {}, "v": {}}
    driver.refuse(
        Compute(sender=A, sequence=4, names=("W",), operations=(Fill("d", 0.0), Drop())),
        InvalidMessage,
        "before other operations",
    )
    driver.refuse(
        Compute(sender=A, sequence=4, names=("W",), operations=(Drop(), Copy("d", "g"))),
        InvalidMessage,
        "needs the vector 'g'",
    )


def test_vectors_notes_and_the_last_answer_survive_in_the_state_of_the_shard():
    driver = shard()
    compute(driver, Copy("d", VARIABLES), Fill("e", 3.0), minimization="minimize-1", term=2, note="second")
    compute(driver, Dot("d", "e"), Dot("d", "d"))
    again = ShardDriver(workers="")
    restored(driver.shard, again.shard, 0.0)
    again.sequences["a"] = 1
    assert vectors_of(again) == vectors_of(driver)
    operations = Dot("d", "e"), Dot("d", "d")
    assert state_of(compute(again, *operations)) == state_of(compute(driver, *operations, sequence=2))
    asked = compute(again, names=(), minimization="minimize-1")
    assert (asked.term, asked.note) == (2, "second")


def test_a_cut_has_the_vectors_of_its_moment():
    driver = shard(shards=1)
    compute(driver, Fill("d", 1.0))
    cut = driver.shard.cuts.begin_final()
    step = driver.shard.step(
        9, Compute(sender=A, sequence=7, names=("W", "v"), operations=(Drop(), Fill("d", 2.0), Fill("late", 0.0))), 0.0
    )
    run_all(step.tasks)
    assert {name: one.slots["vector/d"].tolist() for name, one in ((n, c.arrays) for n, c in cut.copies.items())} == {
        "W": [[1.0, 1.0], [1.0, 1.0]],
        "v": [1.0],
    }
    assert all("vector/late" not in copy.arrays.slots for copy in cut.copies.values())


def test_variables_may_become_infinite_and_a_later_push_is_checked():
    driver = shard()
    compute(driver, Copy("p", VARIABLES), Scale(VARIABLES, 1e300), Scale(VARIABLES, 1e300))
    assert math.isinf(totals(compute(driver, MaxAbs(VARIABLES)))[0])
    compute(driver, Copy(VARIABLES, "p"))
    driver.push(W=np.ones((2, 2)), v=np.ones(1, np.float32), sequence=9)
    driver.answer(Assign(sender=B, sequence=1, assignments=(Assignment("v", V),)))
    assert driver.answer(Pull(sender=A, names=("v",))).values[0].array.tolist() == [4.0]


def test_a_table_has_no_vectors():
    driver = ShardDriver()
    driver.answer(
        Register(
            sender=A, declarations=(Declaration(TensorSpec("E", (3, 2), "float32"), None, None, RowConstant(1.0)),)
        )
    )
    driver.refuse(
        Compute(sender=A, sequence=1, names=("E",), operations=(Copy("d", GRADIENT),)),
        InvalidMessage,
        "plain ones of floating point",
    )


def test_a_cut_in_the_middle_of_an_evaluation_has_its_sums_and_what_was_made_of_them():
    """The evaluation, a sum and the point all come after the snapshot, and belong to the cut: A had not seen it."""
    driver = ShardDriver(declared("W", W), shard=1, shards=2)
    compute(driver, Fill(GRADIENT, 7.0), names=("W",), minimization="t", term=1)
    driver.answer(Renew(sender=B, cut=5))
    driver.answer(Evaluate(sender=A, name="t", evaluation=Evaluation(1, 4, 2), wait=False, term=1))
    for number in (0, 1):
        sums = Assign(
            sender=A,
            sequence=2 + number,
            assignments=(Assignment("W", W),),
            add=True,
            portions=CountedPortions("t", 1, (number,)),
        )
        assert driver.answer(sums).outcome is Outcome.APPLIED
    compute(driver, Copy("point", GRADIENT), Scale("point", 0.5), sequence=4, names=("W",), minimization="t", term=1)
    cut = driver.shard.cuts.current
    driver.answer(Renew(sender=A, cut=5))
    finish_copies(driver.shard)
    assert cut.complete
    assert len(cut.late) == 4
    again = new_shard(shard=1, shards=2)
    again.restore(cut.state, {name: copy.arrays for name, copy in cut.copies.items()}, 0.0)
    assert again.begin_from(0, 0.0, late=cut.late) == []
    assert again.variables["W"].vectors["point"].tolist() == W.tolist()
    (left,) = [one.evaluation for one in again.state().minimizations]
    assert left is None, "claims are not in the cut: the evaluation is given up"
