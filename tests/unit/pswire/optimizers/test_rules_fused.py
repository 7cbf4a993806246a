"""The fused loops: the same bits as the rules in numpy, whatever they are given; and rules without numba."""

import sys

import numba
import numpy as np
import pytest

from pswire import optimizers
from pswire.optimizers import adam, compiled, element_wise, rule_for
from pswire.tensors.values import IndexedSlices
from tests.unit.pswire.optimizers.rules_under_test import LAYOUTS, RULES_UNDER_TEST, at

SEED = 20150508
FUSED = [case for case in RULES_UNDER_TEST if rule_for(case.spec).loop is not None]
LOOPS = sorted({rule_for(case.spec).loop for case in FUSED}, key=lambda loop: loop.function.__name__)

BLOCK = 1 << 14

every_loop = pytest.mark.parametrize("case", FUSED, ids=lambda case: case.name)


@pytest.fixture(params=[SEED], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


def both(spec, monkeypatch):
    """The rule in numpy, in small blocks, and as it is with numba."""
    monkeypatch.setattr(element_wise, "BLOCK", BLOCK)
    monkeypatch.setattr(compiled, "USE_NUMBA", False)
    plain = rule_for(spec)
    monkeypatch.setattr(compiled, "USE_NUMBA", True)
    return plain, rule_for(spec)


def arrays(value, slots):
    return [value, *slots.values()]


def check_same_bits(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left.view(f"u{left.itemsize}"), right.view(f"u{right.itemsize}"))


def test_the_hot_rules_have_a_loop_and_every_loop_a_rule():
    assert {case.spec.kind for case in FUSED} >= {"gradient_descent", "momentum", "adagrad", "rmsprop", "adam", "adamw"}
    assert len(LOOPS) == 8


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.function.__name__)
def test_loops_release_the_interpreters_lock_and_round_as_numpy_does(loop):
    options = compiled.machine_code(loop).targetoptions
    assert options["nogil"] is True
    assert not options.get("fastmath")
    assert len(compiled.machine_code(loop).signatures) == 2  # and no push may wait for another one


@every_loop
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 13), (3, BLOCK // 2 + 1)], ids=str)
def test_whole_arrays_have_the_bits_of_numpy_after_every_step(case, dtype, shape, random, monkeypatch):
    rules = both(case.spec, monkeypatch)
    values = [np.array(random.normal(size=shape), dtype)]
    values.append(values[0].copy())
    slots = [rule.slots(value) for rule, value in zip(rules, values, strict=True)]
    for number in range(1, 11):
        scale = 10.0 ** random.integers(-12, 5)
        gradient, step = (
            np.array(scale * random.normal(size=shape), dtype),
            at(number, case.rate * random.uniform(0, 2)),
        )
        for rule, value, own in zip(rules, values, slots, strict=True):
            rule.dense(value, own, gradient, step)
        check_same_bits(arrays(values[0], slots[0]), arrays(values[1], slots[1]))


@every_loop
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (40,), (0, 3), (5, 0), (40, 1), (40, 33), (6, 2, 3)], ids=str)
def test_rows_have_the_bits_of_numpy_after_every_step(case, dtype, shape, random, monkeypatch):
    rules = both(case.spec, monkeypatch)
    values = [random.normal(size=shape).astype(dtype)]
    values.append(values[0].copy())
    slots = [rule.slots(value) for rule, value in zip(rules, values, strict=True)]
    for number in range(1, 11):
        indices = np.flatnonzero(random.random(shape[0]) < 0.5).astype(random.choice(["int64", "int32", "uint8"]))
        gradient = random.normal(size=(len(indices), *shape[1:])).astype(dtype)
        step, rows = at(number, case.rate), IndexedSlices(gradient, indices, shape)
        for rule, value, own in zip(rules, values, slots, strict=True):
            rule.sparse(value, own, rows, step)
        check_same_bits(arrays(values[0], slots[0]), arrays(values[1], slots[1]))


@every_loop
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_that_loops_do_not_know_is_left_to_numpy(case, layout, random, monkeypatch):
    rules = both(case.spec, monkeypatch)
    first, gradient = random.normal(size=(2, 6, 8)).astype("float32")
    for lent in (LAYOUTS[layout](gradient), LAYOUTS[layout](gradient).astype(">f4")):
        lent.flags.writeable = False
        results = []
        for rule in rules:
            value = first.copy()
            slots = rule.slots(value)
            rule.dense(value, slots, lent, at(1, case.rate))
            rule.sparse(value, slots, IndexedSlices(lent[:3], np.array([0, 2, 5]), (6, 8)), at(2, case.rate))
            results.append(arrays(value, slots))
        check_same_bits(*results)


@every_loop
def test_what_overflows_is_silent_and_ends_where_numpy_does(case, monkeypatch):
    results = []
    for rule in both(case.spec, monkeypatch):
        value = np.array([0.0, 1.0, -1.0], "float32")
        largest = np.finfo("float32").max
        with np.errstate(all="raise"):
            slots = rule.slots(value)
            for number in (1, 2, 3):
                rule.dense(value, slots, np.array([largest, -largest, 0.0], "float32"), at(number, 1e30))
        results.append(arrays(value, slots))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)  # a NaN has many bit patterns


@pytest.mark.parametrize(
    "spec",
    [
        *[case.spec for case in FUSED],
        optimizers.Adam(0.1, 0.0, 0.0),
        optimizers.Adam(0.1, 0.9, 0.0, amsgrad=True),
        optimizers.AdamW(0.1, 0.9, 0.0, amsgrad=True),
        optimizers.RMSProp(0.1, 0.0),
        optimizers.Momentum(0.1, 0.0, nesterov=True),
        optimizers.Ftrl(0.1, 3.0, 0.5),
    ],
    ids=str,
)
def test_after_an_overflow_every_element_is_what_numpy_makes_of_it(spec, monkeypatch):
    """Infinity times zero is NaN, and no comparison holds with one."""
    random = np.random.default_rng(SEED)
    choices = np.float32([0.0, 1.0, -1.0, 1e-30, 1e19, -1e25, 3e38, -3e38])
    gradients = random.choice(choices, (12, 200))
    results = []
    for rule in both(spec, monkeypatch):
        value = np.linspace(-3, 3, 200, dtype="float32")
        slots = rule.slots(value)
        for number, gradient in enumerate(gradients, 1):
            rule.dense(value, slots, gradient, at(number, 0.1))
        results.append(arrays(value, slots))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("use_fused", [False, True])
@pytest.mark.parametrize("indices", [[-1, 2], [2, 4]])
def test_a_row_outside_of_the_variable_is_never_written(indices, use_fused, monkeypatch):
    """Machine code does not look at indices: what a caller has not checked must not become a write anywhere."""
    monkeypatch.setattr(compiled, "USE_NUMBA", use_fused)
    value = np.zeros((4, 3), "float32")
    rows = IndexedSlices(np.ones((2, 3), "float32"), np.array(indices), (4, 3), check_range=False)
    with pytest.raises(IndexError, match=r"rows -?[0-9]+ to [0-9]+ of 4"):
        rule_for(optimizers.GradientDescent(0.1)).sparse(value, {}, rows, at(1, 0.1))
    np.testing.assert_array_equal(value, 0)


def test_rows_of_another_shape_are_refused():
    value = np.zeros((4, 3), "float32")
    rows = IndexedSlices(np.ones((1, 2), "float32"), np.array([0]), (6, 2))
    with pytest.raises(ValueError, match=r"of shape \(6, 2\) cannot update one of \(4, 3\)"):
        rule_for(optimizers.GradientDescent(0.1)).sparse(value, {}, rows, at(1, 0.1))


def test_without_numba_rules_are_made_and_work_in_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled.machine_code.cache_clear()
    assert compiled.machine_code(adam._adam) is None
    rule, value = rule_for(optimizers.Adam(0.1)), np.full(3, 10.0, "float32")
    rule.dense(value, rule.slots(value), value.copy(), at(1, 0.1))
    np.testing.assert_allclose(value, 9.9, rtol=1e-6)
    compiled.machine_code.cache_clear()


def test_where_nothing_can_be_kept_loops_are_compiled_for_this_process(monkeypatch):
    kept = []

    def njit(signatures, *, cache, **options):
        kept.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled.machine_code.__wrapped__(adam._adam) is adam._adam.function
    assert kept == [True, False]
