"""Compiled loops: the same bits as the rules in numpy, on arrays and rows; and rules without numba."""

import sys

import numba
import numpy as np
import pytest

from pswire import optimizers
from pswire.optimizers import adam, element_wise, numba_compiler, rule_for
from pswire.tensors.values import IndexedSlices
from tests.unit.pswire.optimizers.rules_under_test import LAYOUTS, RULES_UNDER_TEST, at

BLOCK = 1 << 14
WITH_LOOP = [case for case in RULES_UNDER_TEST if rule_for(case.spec).loop is not None]
LOOPS = list(dict.fromkeys(rule_for(case.spec).loop for case in WITH_LOOP))

every_loop = pytest.mark.parametrize("case", WITH_LOOP, ids=lambda case: case.name)


@pytest.fixture(params=[20150508], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


def both(spec, monkeypatch):
    """The rule in numpy, in small blocks, and with numba."""
    monkeypatch.setattr(element_wise, "BLOCK", BLOCK)
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", False)
    plain = rule_for(spec)
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", True)
    return plain, rule_for(spec)


def check_same_bits(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left.view(f"u{left.itemsize}"), right.view(f"u{right.itemsize}"))


def check_updates(rules, first, updates):
    """Fails unless both rules make the same of a variable, bit by bit, by each of these (gradient, step)."""
    values = [first.copy(), first.copy()]
    slots = [rule.slots(value) for rule, value in zip(rules, values, strict=True)]
    for gradient, step in updates:
        for rule, value, own in zip(rules, values, slots, strict=True):
            (rule.sparse if isinstance(gradient, IndexedSlices) else rule.dense)(value, own, gradient, step)
        check_same_bits([values[0], *slots[0].values()], [values[1], *slots[1].values()])


def test_the_hot_rules_have_loops_that_release_the_interpreters_lock_and_round_as_numpy_does():
    kinds = {case.spec.kind for case in WITH_LOOP}
    assert kinds >= {"gradient_descent", "momentum", "adagrad", "rmsprop", "adam", "adamw", "ftrl"}
    for loop in LOOPS:
        code = numba_compiler.machine_code(loop)
        assert code.targetoptions["nogil"] is True
        assert not code.targetoptions.get("fastmath")
        assert len(code.signatures) == 2, "no push may wait for another one"


@every_loop
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", ()), ("float64", (0,)), ("float16", (7, 13)), ("float32", (3, BLOCK // 2 + 1))],
    ids=str,
)
def test_whole_arrays_have_the_bits_of_numpy_after_every_step(case, dtype, shape, random, monkeypatch):
    scales = 10.0 ** random.integers(-12, 5, 10)
    gradients = [np.array(scale * random.normal(size=shape), dtype) for scale in scales]
    updates = [(gradient, at(n, case.rate * random.uniform(0, 2))) for n, gradient in enumerate(gradients, 1)]
    check_updates(both(case.spec, monkeypatch), np.array(random.normal(size=shape), dtype), updates)


@every_loop
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float64", (40,)), ("float32", (0, 3)), ("float32", (5, 0)), ("float32", (40, 33)), ("float16", (6, 2, 3))],
    ids=str,
)
def test_rows_have_the_bits_of_numpy_after_every_step(case, dtype, shape, random, monkeypatch):
    updates = []
    for number in range(1, 11):
        indices = np.flatnonzero(random.random(shape[0]) < 0.5).astype(random.choice(["int64", "int32", "uint8"]))
        gradient = random.normal(size=(len(indices), *shape[1:])).astype(dtype)
        updates.append((IndexedSlices(gradient, indices, shape), at(number, case.rate)))
    check_updates(both(case.spec, monkeypatch), random.normal(size=shape).astype(dtype), updates)


@every_loop
def test_a_gradient_that_loops_do_not_know_is_left_to_numpy(case, random, monkeypatch):
    rules, (first, gradient) = both(case.spec, monkeypatch), random.normal(size=(2, 6, 8)).astype("float32")
    for layout in LAYOUTS.values():
        for borrowed in (layout(gradient), layout(gradient).astype(">f4")):
            borrowed.flags.writeable = False
            rows = IndexedSlices(borrowed[:3], np.array([0, 2, 5]), (6, 8))
            check_updates(rules, first, [(borrowed, at(1, case.rate)), (rows, at(2, case.rate))])


OTHERS = [
    *(optimizers.Adam(0.1, 0.0, 0.0), optimizers.AdamW(0.1, 0.9, 0.0, amsgrad=True), optimizers.RMSProp(0.1, 0.0)),
    *(optimizers.Momentum(0.1, 0.0, nesterov=True), optimizers.Ftrl(0.1, 3.0, 0.5)),
]


@pytest.mark.parametrize("spec", [*[case.spec for case in WITH_LOOP], *OTHERS], ids=str)
def test_after_a_silent_overflow_every_element_is_what_numpy_makes_of_it(spec, random, monkeypatch):
    """Infinity times zero is NaN, and no comparison holds with one."""
    choices = np.float32([0.0, 1.0, -1.0, 1e-30, 1e19, -1e25, 3e38, -3e38])
    gradients = random.choice(choices, (12, 200))
    results = []
    for rule in both(spec, monkeypatch):
        value = np.linspace(-3, 3, 200, dtype="float32")
        slots = rule.slots(value)
        with np.errstate(all="raise"):
            for number, gradient in enumerate(gradients, 1):
                rule.dense(value, slots, gradient, at(number, 1e30 if number == 12 else 0.1))
        results.append([value, *slots.values()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)  # a NaN has many bit patterns


@pytest.mark.parametrize("use_numba", [False, True])
@pytest.mark.parametrize("indices", [[-1, 2], [2, 4]])
def test_a_row_outside_of_the_variable_is_never_written(indices, use_numba, monkeypatch):
    """Machine code does not look at indices: what a caller has not checked must not become a write anywhere."""
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", use_numba)
    rule, value = rule_for(optimizers.GradientDescent(0.1)), np.zeros((4, 3), "float32")
    rows = IndexedSlices(np.ones((2, 3), "float32"), np.array(indices), (4, 3), check_range=False)
    with pytest.raises(IndexError, match=r"rows -?[0-9]+ to [0-9]+ of 4"):
        rule.sparse(value, {}, rows, at(1, 0.1))
    np.testing.assert_array_equal(value, 0)
    with pytest.raises(ValueError, match=r"of shape \(6, 2\) cannot update one of \(4, 3\)"):
        rule.sparse(value, {}, IndexedSlices(np.ones((1, 2), "float32"), np.array([0]), (6, 2)), at(1, 0.1))


def test_without_numba_rules_are_made_and_work_in_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    numba_compiler.machine_code.cache_clear()
    assert numba_compiler.machine_code(adam._adam) is None
    rule, value = rule_for(optimizers.Adam(0.1)), np.full(3, 10.0, "float32")
    rule.dense(value, rule.slots(value), value.copy(), at(1, 0.1))
    np.testing.assert_allclose(value, 9.9, rtol=1e-6)
    numba_compiler.machine_code.cache_clear()


def test_where_nothing_can_be_kept_loops_are_compiled_for_this_process(monkeypatch):
    kept = []

    def njit(signatures, *, cache, **options):
        kept.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert numba_compiler.machine_code.__wrapped__(adam._adam) is adam._adam.function
    assert kept == [True, False]
