"""Adam, with AMSGrad and decoupled weight decay (AdamW)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pswire.optimizers.element_wise import ElementWise
from pswire.optimizers.numba_compiler import Loop, Numbers, Slots, loop
from pswire.optimizers.optimizer import OptimizerSpec, Step
from pswire.specs.schedules import LearningRate
from pswire.specs.spec import Flag, NotNegative, Positive, Share
from pswire.tensors.values import Array


@dataclass(frozen=True)
class MomentsSpec(OptimizerSpec):
    """Hyperparameters of the moving averages m of the gradient and v of its square; see `Adam`."""

    _slots = ("m", "v")
    _squares = ("v", "v_max")
    learning_rate: LearningRate = 0.001
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-8


@dataclass(frozen=True)
class Adam(MomentsSpec, ElementWise, kind="adam"):
    """Adaptive moments. Slots: `m` and `v`, zero at first; t counts the updates of the variable from 1.

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g^2
        m_hat = m / (1 - beta1^t)
        v_hat = v / (1 - beta2^t)
        w <- w - learning_rate * m_hat / (sqrt(v_hat) + epsilon)

    With `amsgrad=True`, v_max <- max(v_max, v) replaces v under the root, so that the step of an element does not grow
    again when its gradients become smaller; `v_max` is another slot, initially zero. The maximum is taken over the
    uncorrected v and then corrected with the current t, as in torch.optim.Adam; the paper has no correction.

    Lazy: rows that are not named keep their slots as they are, and t counts for all rows alike, as in TensorFlow 1's
    LazyAdamOptimizer.

    Source: D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1; AMSGrad: S. Reddi,
    S. Kale, S. Kumar, "On the Convergence of Adam and Beyond", ICLR 2018, algorithm 2.

    Args:
        learning_rate: a number from 0 up, or a schedule (`psworker.schedules`) of the server's global step; by default
            0.001.
        beta1, beta2: share of m and of v that remains at each update; from 0 to below 1. By default 0.9 and 0.999.
        epsilon: what is added to the root, so that a step is at most about learning_rate * |m_hat| / epsilon; above 0,
            by default 1e-8.
        amsgrad: whether the largest v so far divides the step; by default not.
    """

    amsgrad: Flag = False

    def slot_names(self) -> tuple[str, ...]:
        """`m` and `v`; `v_max` with AMSGrad."""
        return (*super().slot_names(), *["v_max"] * self.amsgrad)

    def _loop(self) -> Loop | None:
        return _amsgrad if self.amsgrad else _adam

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        # factor * m / (sqrt(v) + epsilon) is learning_rate * m_hat / (sqrt(v_hat) + the spec's epsilon): numerator and
        # denominator are multiplied by sqrt(1 - beta2^t), as at the end of section 2 of the paper
        beta1, beta2 = self.beta1, self.beta2
        root = math.sqrt(1 - beta2**step.number)
        factor, epsilon = step.learning_rate * (root / (1 - beta1**step.number)), max(self.epsilon * root, tiny)
        return beta1, 1 - beta1, beta2, 1 - beta2, factor, epsilon, 1.0

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        m, v, *largest = slots
        beta1, one_minus_beta1, beta2, one_minus_beta2, factor, epsilon, decay_factor = numbers
        move_averages(g, m, v, scratch, beta1, one_minus_beta1, beta2, one_minus_beta2)
        for v_max in largest:
            np.maximum(v_max, v, out=v_max)
        direction(m, largest[0] if largest else v, scratch, factor, epsilon)
        if decay_factor != 1:
            w *= decay_factor
        w -= scratch


@dataclass(frozen=True)
class AdamW(Adam, kind="adamw"):
    """Adam with decoupled weight decay: weights shrink by a fraction of themselves, independently of the gradient.

        w <- w - learning_rate * (m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w)

    with Adam's m_hat and v_hat, its slots `m` and `v`, and `v_max` with `amsgrad=True`. Lazy, in the decay too: only
    rows that are named shrink.

    Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2, in the form of
    torch.optim.AdamW: the decay is multiplied by the learning rate, including its schedule.

    Args:
        learning_rate: a number from 0 up, or a schedule (`psworker.schedules`) of the server's global step; by default
            0.001.
        beta1, beta2, epsilon, amsgrad: as of `Adam`.
        weight_decay: share of a weight, times the learning rate, by which it shrinks at each update; from 0 up, by
            default 0.01.
    """

    weight_decay: NotNegative = 0.01

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        return *super()._numbers(step, tiny)[:-1], 1 - step.learning_rate * self.weight_decay


def move_averages(g: Array, m: Array, v: Array, scratch: Array, *coefficients: float) -> None:
    """Moves both averages towards the gradient and its square, by beta1, 1 - beta1, beta2 and 1 - beta2."""
    beta1, one_minus_beta1, beta2, one_minus_beta2 = coefficients
    np.multiply(g, one_minus_beta1, out=scratch)
    m *= beta1
    m += scratch
    np.multiply(g, g, out=scratch)
    scratch *= one_minus_beta2
    v *= beta2
    v += scratch


def direction(m: Array, v: Array, out: Array, factor: float, epsilon: float) -> None:
    """Writes factor * m / (sqrt(v) + epsilon) into `out`."""
    np.sqrt(v, out=out)
    out += epsilon
    np.divide(m, out, out=out)
    out *= factor


@loop(slots=2, numbers=7)
def _adam(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    m, v = slots
    beta1, one_minus_beta1, beta2, one_minus_beta2, factor, epsilon, decay_factor = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            m[i, j] = m[i, j] * beta1 + g[r, j] * one_minus_beta1
            v[i, j] = v[i, j] * beta2 + g[r, j] * g[r, j] * one_minus_beta2
            w[i, j] = w[i, j] * decay_factor - m[i, j] / (math.sqrt(v[i, j]) + epsilon) * factor


@loop(slots=3, numbers=7)
def _amsgrad(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    m, v, v_max = slots
    beta1, one_minus_beta1, beta2, one_minus_beta2, factor, epsilon, decay_factor = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            m[i, j] = m[i, j] * beta1 + g[r, j] * one_minus_beta1
            now, before = v[i, j] * beta2 + g[r, j] * g[r, j] * one_minus_beta2, v_max[i, j]
            largest = before if before >= now or before != before else now  # NaN, if one is: np.maximum
            v[i, j] = now
            v_max[i, j] = largest
            w[i, j] = w[i, j] * decay_factor - m[i, j] / (math.sqrt(largest) + epsilon) * factor
