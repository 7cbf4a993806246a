"""Updates in stretches make the same bits as updates of the whole variable; updates of several gradients their mean."""

import copy
import types

import numpy as np
import pytest

from psserver.core.variables.array_tasks import Update, run, run_parts, stages
from psserver.core.variables.delay_compensation import ServedWeights
from psserver.core.variables.rounding import RoundingSample
from pswire import optimizers
from pswire.messages import Gradient
from pswire.optimizers import Step, numba_compiler, rule_for
from pswire.tensors.compression import Packed, quantize_int8, to_16_bits, top_k
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.support.combinations import together
from tests.support.shards import state_of
from tests.unit.pswire.optimizers.rules_under_test import LAYOUTS, RULES_UNDER_TEST, at

SEED = 20190604
SHAPE = (7, 5)
STRETCHES = [(0, 8), (24, 35), (8, 9), (9, 24)]

#: A float32 gradient in each of the forms.
PACKED = {
    "bfloat16": lambda array: to_16_bits(array, "bfloat16"),
    "float16": lambda array: to_16_bits(array, "float16"),
    "int8": lambda array: quantize_int8(array, np.zeros(array.size, np.float32)),
    "topk": lambda array: top_k(array, np.zeros(array.size, np.float32), 6),
}


@pytest.fixture(params=[SEED], ids="seed {}".format)
def random(request):
    return np.random.default_rng(request.param)


def variable(rule, random, dtype="float32"):
    value = random.normal(size=SHAPE).astype(dtype)
    slots = {name: slot + abs(random.normal(size=SHAPE)).astype(slot.dtype) for name, slot in rule.slots(value).items()}
    rounding = RoundingSample()
    return types.SimpleNamespace(spec=TensorSpec("W", SHAPE), value=value, slots=slots, rounding=rounding)


def task_of(variable, rule, arrays, backups=None, step=None):
    backups = backups or [None] * len(arrays)
    contributions = [(Gradient("W", 0, array), backup, 1.0) for array, backup in zip(arrays, backups, strict=True)]
    return Update(variable, rule, contributions, 0.75, step or at(3, 0.5)).task()


def updated(variable, *arguments, **options):
    """A copy of the variable after an update as a whole."""
    other = copy.deepcopy(variable)
    run([task_of(other, *arguments, **options)])
    return other


def check_same(rule, one, arrays, backups=None, step=None):
    """Updates as a whole, and in stretches in another order than theirs."""
    whole = updated(one, rule, arrays, backups, step)
    (stage,) = stages([task_of(one, rule, arrays, backups, step)])
    assert stage[0].elements == one.value.size
    run_parts(stage, iter(STRETCHES))
    assert state_of(one) == state_of(whole)


@together("case", RULES_UNDER_TEST, ids=lambda case: case.name)
@together(
    ("dtype", "fused", "pushes"),
    [("float16", True, 3), ("float32", False, 1), ("float32", True, 1), ("float32", True, 3), ("float64", False, 3)],
)
def test_an_update_in_stretches_is_the_update_unless_its_rule_looks_at_all_elements(
    case, dtype, fused, pushes, random, monkeypatch
):
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", fused)
    rule = rule_for(case.spec)
    one = variable(rule, random, dtype)
    gradients = [random.normal(size=SHAPE).astype(dtype) for _ in range(pushes)]
    if isinstance(case.spec, optimizers.Lamb):
        assert not task_of(one, rule, gradients).elements
    else:
        check_same(rule, one, gradients, step=Step(3, 70, 0.5))


#: Weights that were served, and those that compensate; an array is not compensated by rows.
SERVED = {
    "nothing": lambda array: (None, None),
    "an array": lambda array: (ServedWeights(0, array),) * 2,
    "bfloat16": lambda array: tuple(ServedWeights(0, one(array)) for one in (PACKED["bfloat16"], unpacked_bfloat16)),
    "rows": lambda array: (ServedWeights(0, array, np.arange(len(array))), None),
}


def unpacked_bfloat16(array):
    return to_16_bits(array, "bfloat16").unpacked()


@together("form", [None, *PACKED])
@together(("served", "others"), [*((served, 0) for served in SERVED), ("bfloat16", 1)])
def test_what_is_packed_updates_as_what_it_holds_whole_and_in_stretches(form, served, others, random):
    rule = rule_for(optimizers.Adam(0.5))
    one = variable(rule, random)
    plain, then, *more = random.normal(size=(2 + others, *SHAPE)).astype(np.float32)
    gradient = plain if form is None else PACKED[form](plain)
    given, compensates = SERVED[served](then)
    unpacked = gradient.unpacked() if isinstance(gradient, Packed) else gradient
    expected = updated(one, rule, [unpacked, *more], [compensates, *[None] * others])
    check_same(rule, one, [gradient, *more], [given, *[None] * others])
    assert state_of(one) == state_of(expected)


@pytest.mark.parametrize("form", ["bfloat16", "float16", "int8"])
def test_packed_rows_update_as_what_they_hold(form, random):
    rule, rows = rule_for(optimizers.Adam(0.5)), PACKED[form](random.normal(size=(3, 5)).astype(np.float32))
    one, indices = variable(rule, random), np.array([6, 1, 6])
    ends = [updated(one, rule, [IndexedSlices(each, indices, SHAPE)]) for each in (rows, rows.unpacked())]
    assert state_of(ends[0]) == state_of(ends[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_that_does_not_lie_in_one_stretch_is_taken_as_a_whole(layout, random):
    rule = rule_for(optimizers.Momentum(0.5, 0.5))
    one, gradient = variable(rule, random), LAYOUTS[layout](random.normal(size=SHAPE).astype(np.float32))
    other = updated(one, rule, [gradient.copy()])
    task = task_of(one, rule, [gradient])
    assert bool(task.elements) == gradient.flags.c_contiguous
    task.run()
    assert state_of(one) == state_of(other)


KINDS = [
    ("rr", "float16"),
    ("aa", "float16"),
    ("ar", "float16"),
    ("rrr", "float32"),
    ("ra", "float64"),
    ("rar", "float32"),
]


@pytest.mark.parametrize(("kinds", "dtype"), KINDS)
def test_an_update_of_several_gradients_takes_their_mean_rows_or_arrays(kinds, dtype, random):
    """In float64, as if rows that a gradient does not have were rows of zeros. The sum may be beyond float16."""
    rule = rule_for(optimizers.GradientDescent(1.0))
    one = variable(rule, random, dtype)
    scale, total, gradients = (40_000, 60_000) if dtype == "float16" else (-1, 1), np.zeros(SHAPE), []
    for kind in kinds:
        indices = random.choice(len(one.value), 4, replace=dtype != "float16") if kind == "r" else np.arange(SHAPE[0])
        values = random.uniform(*scale, size=(len(indices), *SHAPE[1:])).astype(dtype)
        np.add.at(total, indices, values.astype(float))
        gradients.append(IndexedSlices(values, indices, SHAPE) if kind == "r" else values)
    exact = one.value.astype(float) - total / len(kinds)
    after = updated(one, rule, gradients, step=Step(1, 0, 1.0))
    np.testing.assert_allclose(after.value, exact, rtol=0, atol=8 * np.finfo(dtype).eps * max(scale))
