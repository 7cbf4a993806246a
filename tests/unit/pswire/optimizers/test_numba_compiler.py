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

every_loop = pytest.mark.parametrize("case", WITH_LOOP, ids=lambda case: case.name)


@pytest.fixture(params=[20150508], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


@pytest.fixture
def check_updates(monkeypatch):
    """A function that fails unless both rules make the same of a variable, by each of these (gradient, step)."""

    def check(spec, first, updates):
        monkeypatch.setattr(element_wise, "BLOCK", BLOCK)
        states = []
        for use_numba in (False, True):
            monkeypatch.setattr(numba_compiler, "USE_NUMBA", use_numba)
            rule, value, seen = rule_for(spec), first.copy(), []
            slots = rule.slots(value)
            with np.errstate(all="raise"):
                for gradient, step in updates:
                    update = rule.sparse if isinstance(gradient, IndexedSlices) else rule.dense
                    update(value, slots, gradient, step)
                    seen += [array.copy() for array in (value, *slots.values())]
            states.append(seen)
        for plain, compiled in zip(*states, strict=True):
            np.testing.assert_array_equal(compiled, plain, strict=True)  # a NaN has many bit patterns
            np.testing.assert_array_equal(np.signbit(compiled)[compiled == 0], np.signbit(plain)[plain == 0])

    return check


def test_the_hot_rules_have_loops_that_release_the_interpreters_lock_and_round_as_numpy_does():
    kinds = {case.spec.kind for case in WITH_LOOP}
    assert kinds >= {"gradient_descent", "momentum", "adagrad", "rmsprop", "adam", "adamw", "ftrl"}
    for case in WITH_LOOP:
        code = numba_compiler.machine_code(rule_for(case.spec).loop)
        assert code.targetoptions["nogil"] is True
        assert not code.targetoptions.get("fastmath")
        assert len(code.signatures) == 2, "no push may wait for another one"


@every_loop
@pytest.mark.parametrize(
    ("dtype", "shape", "by_rows"),
    [
        ("float32", (), False),
        ("float64", (0,), False),
        ("float16", (7, 13), False),
        ("float32", (3, BLOCK // 2 + 1), False),
        ("float64", (40,), True),
        ("float32", (0, 3), True),
        ("float32", (5, 0), True),
        ("float32", (40, 33), True),
        ("float16", (6, 2, 3), True),
    ],
    ids=str,
)
def test_arrays_and_rows_have_the_bits_of_numpy_after_every_step(case, dtype, shape, by_rows, random, check_updates):
    updates = []
    for number, scale in enumerate(10.0 ** random.integers(-12, 5, 10), 1):
        if by_rows:
            indices = np.flatnonzero(random.random(shape[0]) < 0.5).astype(random.choice(["int64", "int32", "uint8"]))
            rows = random.normal(size=(len(indices), *shape[1:])).astype(dtype)
            gradient = IndexedSlices(rows, indices, shape)
        else:
            gradient = np.array(scale * random.normal(size=shape), dtype)
        updates.append((gradient, at(number, case.rate * random.uniform(0, 2))))
    check_updates(case.spec, np.array(random.normal(size=shape), dtype), updates)


@every_loop
def test_a_gradient_that_loops_do_not_know_is_left_to_numpy(case, random, check_updates):
    first, gradient = random.normal(size=(2, 6, 8)).astype("float32")
    for layout in LAYOUTS.values():
        for borrowed in (layout(gradient), layout(gradient).astype(">f4")):
            borrowed.flags.writeable = False
            rows = IndexedSlices(borrowed[:3], np.array([0, 2, 5]), (6, 8))
            check_updates(case.spec, first, [(borrowed, at(1, case.rate)), (rows, at(2, case.rate))])


OTHERS = [
    *(optimizers.Adam(0.1, 0.0, 0.0), optimizers.AdamW(0.1, 0.9, 0.0, amsgrad=True), optimizers.RMSProp(0.1, 0.0)),
    *(optimizers.Momentum(0.1, 0.0, nesterov=True), optimizers.Ftrl(0.1, 3.0, 0.5)),
]


@pytest.mark.parametrize("spec", [*[case.spec for case in WITH_LOOP], *OTHERS], ids=str)
def test_after_a_silent_overflow_every_element_is_what_numpy_makes_of_it(spec, random, check_updates):
    """Infinity times zero is NaN, and no comparison holds with one."""
    gradients = random.choice(np.float32([0.0, 1.0, -1.0, 1e-30, 1e19, -1e25, 3e38, -3e38]), (12, 200))
    steps = [at(number, 1e30 if number == 12 else 0.1) for number in range(1, 13)]
    check_updates(spec, np.linspace(-3, 3, 200, dtype="float32"), list(zip(gradients, steps, strict=True)))


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


def test_without_numba_there_is_no_loop_and_where_nothing_can_be_kept_it_is_compiled_for_this_process(monkeypatch):
    compile_loop, kept = numba_compiler.machine_code.__wrapped__, []

    def njit(signatures, *, cache, **options):
        kept.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert compile_loop(adam._adam) is adam._adam.function
    assert kept == [True, False]
    monkeypatch.setitem(sys.modules, "numba", None)
    assert compile_loop(adam._adam) is None
    monkeypatch.setattr(numba_compiler, "machine_code", compile_loop)
    rule, value = rule_for(optimizers.Adam(0.1)), np.full(3, 10.0, "float32")
    rule.dense(value, rule.slots(value), value.copy(), at(1, 0.1))
    np.testing.assert_allclose(value, 9.9, rtol=1e-6)
