"""The rules under test, each with its published formula, written once more: whole arrays of float64, no shortcuts."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pswire import optimizers
from pswire.optimizers import Step
from pswire.tensors.values import Array

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
