"""The rules under test, each with its published formula, written once more: whole arrays of float64, no shortcuts.

And the comparisons of rule and formula that several files of tests make.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pswire import optimizers
from pswire.optimizers import Rule, Step
from pswire.tensors.values import Array, IndexedSlices

STEPS = 100
FLOATING = ("float16", "float32", "float64")
State = dict[str, Array]

#: How a gradient may lie in memory.
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "column by column": np.asfortranarray,
    "backwards": lambda g: np.ascontiguousarray(g[::-1, ::-1])[::-1, ::-1],
    "every other column": lambda g: np.repeat(g, 2, axis=1)[:, ::2],
    "one row again and again": lambda g: np.broadcast_to(g[0], g.shape),
    "at an odd address": lambda g: np.frombuffer(b"\0" + g.tobytes(), g.dtype, offset=1).reshape(g.shape),
}


# --- the formulas: (spec, w, slots, g, step) -> (w, slots), nothing in place -------------------------------------


def gradient_descent(spec, w, slots, g, step):
    return w - step.learning_rate * g, {}


def momentum(spec, w, slots, g, step):
    m = spec.momentum * slots["momentum"] + g
    direction = g + spec.momentum * m if spec.nesterov else m
    return w - step.learning_rate * direction, {"momentum": m}


def adagrad(spec, w, slots, g, step):
    a = slots["accumulator"] + g**2
    return w - step.learning_rate * g / (np.sqrt(a) + spec.epsilon), {"accumulator": a}


def adam(spec, w, slots, g, step):
    m = spec.beta1 * slots["m"] + (1 - spec.beta1) * g
    v = spec.beta2 * slots["v"] + (1 - spec.beta2) * g**2
    m_hat = m / (1 - spec.beta1**step.number)
    v_hat = v / (1 - spec.beta2**step.number)
    return w - step.learning_rate * m_hat / (np.sqrt(v_hat) + spec.epsilon), {"m": m, "v": v}


def amsgrad(spec, w, slots, g, step):
    """As torch's page on Adam has it: the largest v so far, and the correction of today."""
    _, new = adam(spec, w, slots, g, step)
    largest = np.where(new["v"] > slots["v_max"], new["v"], slots["v_max"])
    m_hat, v_hat = new["m"] / (1 - spec.beta1**step.number), largest / (1 - spec.beta2**step.number)
    return w - step.learning_rate * m_hat / (v_hat**0.5 + spec.epsilon), new | {"v_max": largest}


def adamw(spec, w, slots, g, step):
    decayed = w - step.learning_rate * spec.weight_decay * w
    return (amsgrad if spec.amsgrad else adam)(spec, decayed, slots, g, step)


def lamb(spec, w, slots, g, step):
    moved, new = adam(spec, np.zeros_like(w), slots, g, replace(step, learning_rate=1.0))
    u = spec.weight_decay * w - moved
    lengths = [np.sqrt(np.sum(one**2)) for one in (w, u)]
    return w - step.learning_rate * (lengths[0] / lengths[1] if all(lengths) else 1.0) * u, new


def adagrad_decay(spec, w, slots, g, step):
    """One period after the other."""
    a, power = slots["accumulator"].copy(), slots["accumulator_decay_power"].copy()
    while (behind := power < step.global_step // spec.decay_steps).any():
        a[behind] = np.maximum(a[behind] * spec.decay_rate, spec.initial_accumulator)
        power[behind] += 1
    a += g**2
    return w - step.learning_rate * g / a**0.5, {"accumulator": a, "accumulator_decay_power": power}


def rmsprop(spec, w, slots, g, step):
    new = {"mean_square": spec.decay * slots["mean_square"] + (1 - spec.decay) * g**2}
    variance = new["mean_square"]
    if spec.centered:
        new["mean_gradient"] = spec.decay * slots["mean_gradient"] + (1 - spec.decay) * g
        variance = variance - new["mean_gradient"] ** 2
    direction = g / (np.sqrt(variance) + spec.epsilon)
    if spec.momentum:
        direction = new["momentum"] = spec.momentum * slots["momentum"] + direction
    return w - step.learning_rate * direction, new


def ftrl(spec, w, slots, g, step):
    """As the paper writes it, with sigma and two cases, for a z that is not times the learning rate."""
    rate, p = step.learning_rate, spec.learning_rate_power
    n = slots["accumulator"] + g**2
    sigma = (n**p - slots["accumulator"] ** p) / rate
    z = slots["linear"] / rate + g - sigma * w
    solved = -(z - np.sign(z) * spec.l1) / (n**p / rate + spec.l2)
    return np.where(np.abs(z) <= spec.l1, 0.0, solved), {"accumulator": n, "linear": z * rate}


def moving_average(spec, w, slots, x, step):
    return w + (1 - spec.decay) * (x - w), {}


def at(number: int, learning_rate: float) -> Step:
    """The step of a push that is one of three to a shard, the others being for other variables."""
    return Step(number, 3 * number, learning_rate)


@dataclass(frozen=True)
class UnderTest:
    """A rule; `first_slots` are the first values of slots of a variable of ones."""

    name: str
    spec: optimizers.UpdateSpec
    formula: Callable[[Any, Array, State, Array, Step], tuple[Array, State]]
    first_slots: dict[str, float] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether an element depends on others, by a norm."""
        return self.formula is lamb

    @property
    def rate(self) -> float:
        """The learning rate of its spec, if it has one."""
        return getattr(self.spec, "learning_rate", 1.0)


_MOMENTS, _MAX = {"m": 0, "v": 0}, {"m": 0, "v": 0, "v_max": 0}
_DECAYED = {"accumulator": 0.1, "accumulator_decay_power": 0}
_SQUARE, _BOTH = {"mean_square": 0}, {"mean_square": 0, "mean_gradient": 0}
_ROOT = {"accumulator": 0.1, "linear": -(0.1**0.5)}

#: An epsilon as large as 0.1 shows where it stands.
RULES_UNDER_TEST = [
    UnderTest("gradient_descent", optimizers.GradientDescent(0.1), gradient_descent),
    UnderTest("momentum", optimizers.Momentum(0.01), momentum, {"momentum": 0}),
    UnderTest("nesterov", optimizers.Momentum(0.01, momentum=0.8, nesterov=True), momentum, {"momentum": 0}),
    UnderTest("adagrad", optimizers.Adagrad(0.1), adagrad, {"accumulator": 0.1}),
    UnderTest("adagrad_epsilon", optimizers.Adagrad(0.1, 0.0, epsilon=0.1), adagrad, {"accumulator": 0}),
    UnderTest("adam", optimizers.Adam(), adam, _MOMENTS),
    UnderTest("adam_epsilon", optimizers.Adam(0.01, 0.8, 0.95, epsilon=0.1), adam, _MOMENTS),
    UnderTest("amsgrad", optimizers.Adam(0.01, 0.8, 0.7, 0.1, amsgrad=True), amsgrad, _MAX),
    UnderTest("adamw", optimizers.AdamW(0.01, weight_decay=0.3), adamw, _MOMENTS),
    UnderTest("adamw_amsgrad", optimizers.AdamW(0.01, 0.8, 0.7, 0.1, amsgrad=True), adamw, _MAX),
    UnderTest("lamb", optimizers.Lamb(0.01, epsilon=0.1, weight_decay=0.3), lamb, _MOMENTS),
    UnderTest("lamb_without_decay", optimizers.Lamb(weight_decay=0.0), lamb, _MOMENTS),
    UnderTest("adagrad_decay", optimizers.AdagradDecay(0.1, decay_steps=20), adagrad_decay, _DECAYED),
    UnderTest("adagrad_decay_often", optimizers.AdagradDecay(0.1, 0.1, 1, 0.4), adagrad_decay, _DECAYED),
    UnderTest("rmsprop", optimizers.RMSProp(), rmsprop, _SQUARE),
    UnderTest("rmsprop_epsilon", optimizers.RMSProp(0.01, 0.8, epsilon=0.1), rmsprop, _SQUARE),
    UnderTest("rmsprop_momentum", optimizers.RMSProp(momentum=0.7), rmsprop, _SQUARE | {"momentum": 0}),
    UnderTest("rmsprop_centered", optimizers.RMSProp(centered=True), rmsprop, _BOTH),
    UnderTest("rmsprop_both", optimizers.RMSProp(0.01, 0.8, 0.7, 0.1, centered=True), rmsprop, _BOTH | {"momentum": 0}),
    UnderTest("ftrl", optimizers.Ftrl(0.1), ftrl, _ROOT),
    UnderTest("ftrl_l1_l2", optimizers.Ftrl(0.1, l1=3.0, l2=0.5), ftrl, _ROOT),
    UnderTest("ftrl_power", optimizers.Ftrl(0.1, 3, 0.5, 0.3, 0.7), ftrl, {"accumulator": 0.7, "linear": -(0.7**0.3)}),
    UnderTest("moving_average", optimizers.MovingAverage(0.9), moving_average),
    UnderTest("moving_average_without_memory", optimizers.MovingAverage(0), moving_average),
]


def tolerance(dtype: str) -> float:
    """Relative to the largest magnitude in play.

    float32 and float64: a rule rounds at most four times a step on the way to any one array, half an epsilon each;
    in the worst case all roundings of all steps add up. A float16 value is stored by the reference too and computed
    with 13 bits to spare, so the two differ only where that last rounding is nearly a tie: a unit or two now and then.
    """
    eps = float(np.finfo(dtype).eps)
    return 2 * eps if dtype == "float16" else STEPS * 4 * eps / 2


def slot_dtype(dtype: str) -> np.dtype:
    """A float16 slot would lose the squares of small gradients."""
    return np.dtype("float32" if dtype == "float16" else dtype)


def check_against_formula(
    rule: Rule,
    case: UnderTest,
    random: np.random.Generator,
    dtype: str = "float32",
    shape: tuple[int, ...] = (31, 7),
    steps: int = STEPS,
    by_rows: bool = False,
    twin: Rule | None = None,
) -> None:
    """Fails unless `rule` follows the case's formula for random gradients, or random rows of them, and borrows these.

    Each update has a learning rate of its own, around that of the spec; indices are of any integer dtype, and may be
    none. After each, the same updates by `twin`, and by all rows of a dense gradient, must have the same bits.
    """
    stored = "float16" if dtype == "float16" else "float64"
    value = np.array(random.normal(size=shape), dtype)
    slots = rule.slots(value)
    twins = [(twin or rule, value.copy(), rule.slots(value), False)]
    if shape and not by_rows:
        twins.append((twin or rule, value.copy(), rule.slots(value), True))
    expected, expected_slots = value.astype("float64"), {name: slot.astype("float64") for name, slot in slots.items()}
    for t in range(1, steps + 1):
        rows = np.flatnonzero(random.random(shape[0]) < random.choice([0, 0.1, 0.5, 1.0])) if by_rows else ...
        gradient = np.array(random.normal(size=expected[rows].shape), dtype)
        borrowed = gradient.copy()
        step = at(t, case.rate * random.uniform(0.5, 1.5))
        if by_rows:
            indices = rows.astype(random.choice(["int64", "int8", "int32", ">i4", "uint8", "uint64"]))
            pushed = IndexedSlices(borrowed, indices, shape)
        else:
            pushed = borrowed
        update(rule, value, slots, pushed, step)
        for other, other_value, other_slots, all_rows in twins:
            same = IndexedSlices(borrowed, np.arange(shape[0]), shape) if all_rows else pushed
            update(other, other_value, other_slots, same, step)
            for one, another in zip((value, *slots.values()), (other_value, *other_slots.values()), strict=True):
                check_same(case, another, one)
        np.testing.assert_array_equal(borrowed, gradient, err_msg=f"the gradient was changed in step {t}")
        borrowed[...] = np.nan  # for a rule that kept it
        named = {name: slot[rows] for name, slot in expected_slots.items()}
        new, new_slots = case.formula(case.spec, expected[rows], named, gradient.astype("float64"), step)
        expected[rows] = new.astype(stored)
        for name, slot in new_slots.items():
            expected_slots[name][rows] = slot
    for name, actual in {"value": value, **slots}.items():
        wanted, kind = (expected, np.dtype(dtype)) if name == "value" else (expected_slots[name], slot_dtype(dtype))
        assert (actual.dtype, actual.shape) == (kind, shape), f"{name} is another kind of array now"
        atol = tolerance(kind.name) * max(1.0, float(np.abs(wanted).max(initial=0.0)))
        np.testing.assert_allclose(actual.astype("float64"), wanted, rtol=0, atol=atol, err_msg=name)


def update(rule: Rule, value: Array, slots: State, gradient: Array | IndexedSlices, step: Step) -> None:
    """One update by an array or by rows."""
    (rule.sparse if isinstance(gradient, IndexedSlices) else rule.dense)(value, slots, gradient, step)


def check_same(case: UnderTest, one: Array, other: Array) -> None:
    """Fails unless two arrays are equal bit by bit; a norm may be summed in another order, and differ in the last."""
    if case.whole:
        np.testing.assert_allclose(one, other, rtol=0, atol=4 * np.finfo(one.dtype).eps * np.abs(other).max(initial=1))
    else:
        assert one.tobytes() == other.tobytes()
