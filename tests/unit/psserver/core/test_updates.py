"""Updates in stretches make the same bits as updates of the whole variable."""

import types

import numpy as np
import pytest

from psserver.core.array_tasks import run, run_parts, stages
from psserver.core.variables.delay_compensation import ServedWeights
from psserver.core.variables.updates import Update
from pswire import optimizers
from pswire.messages import Gradient
from pswire.optimizers import Step, compiled, rule_for
from pswire.tensors.compression import Packed, largest, packed, quantized
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.shard_state import state_of
from tests.unit.pswire.optimizers.rules_under_test import FLOATING, LAYOUTS, RULES_UNDER_TEST, at

SEED = 20190604
SHAPE = (7, 5)
STRETCHES = [(0, 8), (24, 35), (8, 9), (9, 24)]

every_rule = pytest.mark.parametrize("case", RULES_UNDER_TEST, ids=lambda case: case.name)

#: A float32 gradient in each of the forms.
PACKED = {
    "bfloat16": lambda array: packed(array, "bfloat16"),
    "float16": lambda array: packed(array, "float16"),
    "int8": lambda array: quantized(array, np.zeros(array.size, np.float32)),
    "topk": lambda array: largest(array, np.zeros(array.size, np.float32), 6),
}


@pytest.fixture(params=[SEED], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


def variable(rule, random, dtype="float32"):
    value = random.normal(size=SHAPE).astype(dtype)
    slots = {name: slot + abs(random.normal(size=SHAPE)).astype(slot.dtype) for name, slot in rule.slots(value).items()}
    return types.SimpleNamespace(spec=TensorSpec("W", SHAPE), value=value, slots=slots)


def twin(one):
    return types.SimpleNamespace(
        spec=TensorSpec("W", SHAPE),
        value=one.value.copy(),
        slots={name: slot.copy() for name, slot in one.slots.items()},
    )


def tasks_of(variable, rule, arrays, backups=None, step=None):
    contributions = [
        (Gradient("W", 0, array), backup) for array, backup in zip(arrays, backups or [None] * len(arrays), strict=True)
    ]
    return [Update(variable, rule, contributions, 0.75, step or at(3, 0.5)).task()]


def check_same(rule, one, arrays, backups=None, step=None):
    """As a whole, and in stretches in another order than theirs."""
    other = twin(one)
    run(tasks_of(one, rule, arrays, backups, step))
    (stage,) = stages(tasks_of(other, rule, arrays, backups, step))
    assert stage[0].elements == one.value.size
    run_parts(stage, iter(STRETCHES))
    assert state_of(other) == state_of(one)


@every_rule
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("fused", [False, True], ids=["numpy", "fused"])
@pytest.mark.parametrize("pushes", [1, 3])
def test_an_update_in_stretches_is_the_update_unless_its_rule_looks_at_all_elements(
    case, dtype, fused, pushes, random, monkeypatch
):
    monkeypatch.setattr(compiled, "USE_NUMBA", fused)
    rule = rule_for(case.spec)
    one = variable(rule, random, dtype)
    gradients = [random.normal(size=SHAPE).astype(dtype) for _ in range(pushes)]
    if isinstance(case.spec, optimizers.Lamb):
        assert not tasks_of(one, rule, gradients)[0].elements
    else:
        check_same(rule, one, gradients, step=Step(3, 70, 0.5))


@pytest.mark.parametrize("form", PACKED)
@pytest.mark.parametrize("others", [0, 1])
def test_a_packed_gradient_updates_as_its_unpacked_array(form, others, random):
    rule = rule_for(optimizers.Adam(0.5))
    one = variable(rule, random)
    arrays = [random.normal(size=SHAPE).astype(np.float32) for _ in range(1 + others)]
    gradient = PACKED[form](arrays[0])
    unpacked = twin(one)
    run(tasks_of(unpacked, rule, [gradient.unpacked(), *arrays[1:]]))
    check_same(rule, one, [gradient, *arrays[1:]])
    assert state_of(one) == state_of(unpacked)


@pytest.mark.parametrize("form", ["bfloat16", "float16", "int8"])
def test_rows_with_packed_values_update_as_unpacked_rows(form, random):
    rule = rule_for(optimizers.Adagrad(0.5))
    one = variable(rule, random)
    other = twin(one)
    indices, rows = np.array([6, 1, 6]), random.normal(size=(3, 5)).astype(np.float32)
    gradient = PACKED[form](rows)
    run(tasks_of(one, rule, [IndexedSlices(gradient, indices, SHAPE)]))
    run(tasks_of(other, rule, [IndexedSlices(gradient.unpacked(), indices, SHAPE)]))
    assert state_of(one) == state_of(other)


@pytest.mark.parametrize("form", [None, *PACKED])
@pytest.mark.parametrize("served", [None, "bfloat16"])
def test_delay_compensation_is_the_same_in_stretches_whatever_is_packed(form, served, random):
    rule = rule_for(optimizers.Momentum(0.5, 0.5))
    one = variable(rule, random)
    then = one.value - np.float32(0.5)
    array = random.normal(size=SHAPE).astype(np.float32)
    gradient = array if form is None else PACKED[form](array)
    backup = ServedWeights(0, then if served is None else packed(then, served))
    plain = gradient.unpacked() if isinstance(gradient, Packed) else gradient
    rest = plain.astype(float) ** 2 * (one.value.astype(float) - backup.whole())
    by_hand = twin(one)
    run(tasks_of(by_hand, rule, [(plain + 0.75 * rest).astype(np.float32)]))
    check_same(rule, one, [gradient], [backup])
    np.testing.assert_allclose(one.value, by_hand.value, rtol=1e-5, atol=1e-6)


def test_an_array_is_not_compensated_by_rows_whether_as_a_whole_or_in_stretches(random):
    rule = rule_for(optimizers.Momentum(0.5, 0.5))
    one = variable(rule, random)
    plain = twin(one)
    array, served = random.normal(size=SHAPE).astype(np.float32), random.normal(size=SHAPE).astype(np.float32)
    run(tasks_of(plain, rule, [array]))
    check_same(rule, one, [array], [ServedWeights(0, served, np.arange(len(served)))])
    assert state_of(one) == state_of(plain)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_that_does_not_lie_in_one_stretch_is_taken_as_a_whole(layout, random):
    rule = rule_for(optimizers.Momentum(0.5, 0.5))
    one = variable(rule, random)
    other = twin(one)
    gradient = random.normal(size=SHAPE).astype(np.float32)
    gradient = LAYOUTS[layout](gradient)
    (task,) = tasks_of(one, rule, [gradient])
    assert bool(task.elements) == gradient.flags.c_contiguous
    task.run()
    run(tasks_of(other, rule, [gradient.copy()]))
    assert state_of(one) == state_of(other)


@pytest.mark.parametrize("kinds", ["rr", "rrr", "ra", "ar", "aa", "rar"])
@pytest.mark.parametrize("dtype", FLOATING)
def test_an_update_of_several_gradients_takes_their_mean_rows_or_arrays(kinds, dtype, random):
    """In float64, as if rows that a gradient does not have were rows of zeros."""
    rule = rule_for(optimizers.GradientDescent(1.0))
    one = variable(rule, random, dtype)
    before, total, gradients = one.value.astype(float), np.zeros(SHAPE), []
    for kind in kinds:
        indices = random.integers(0, len(one.value), 4) if kind == "r" else np.arange(len(one.value))
        values = random.normal(size=(len(indices), *SHAPE[1:])).astype(dtype)
        np.add.at(total, indices, values.astype(float))
        gradients.append(IndexedSlices(values, indices, SHAPE) if kind == "r" else values)
    run(tasks_of(one, rule, gradients, step=Step(1, 0, 1.0)))
    exact = before - total / len(kinds)
    np.testing.assert_allclose(one.value, exact, rtol=0, atol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("kinds", ["aa", "ra", "rr"])
def test_the_sum_of_float16_gradients_may_be_beyond_float16_when_their_mean_is_not(kinds, random):
    rule = rule_for(optimizers.GradientDescent(1.0))
    one = variable(rule, random, "float16")
    gradient = np.full(SHAPE, 40_000, np.float16)
    gradients = [
        IndexedSlices(gradient, np.arange(len(gradient)), SHAPE) if kind == "r" else gradient for kind in kinds
    ]
    run(tasks_of(one, rule, gradients, step=Step(1, 0, 1.0)))
    np.testing.assert_array_equal(one.value, np.full(SHAPE, -40_000, np.float16))
