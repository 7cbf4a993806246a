"""RMSProp, plain, centered and with momentum."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pswire.optimizers.element_wise import ElementWise
from pswire.optimizers.numba_compiler import Loop, Numbers, Slots, loop
from pswire.optimizers.optimizer import OptimizerSpec, Step
from pswire.specs.schedules import LearningRate
from pswire.specs.spec import Flag, Positive, Share
from pswire.tensors.values import Array


@dataclass(frozen=True)
class RMSProp(OptimizerSpec, ElementWise, kind="rmsprop"):
    """A learning rate for each element, by a moving average of squared gradients.

        s <- decay * s + (1 - decay) * g^2
        c <- decay * c + (1 - decay) * g                        (centered; otherwise c = 0)
        d = g / (sqrt(max(0, s - c^2)) + epsilon)
        b <- momentum * b + d                                   (without momentum b = d)
        w <- w - learning_rate * b

    Slots, zero at first: `mean_square` s; `mean_gradient` c if centered; `momentum` b if momentum is more than 0.
    Lazy: rows that are not named keep theirs as they are.

    Source: T. Tieleman, G. Hinton, "Lecture 6.5 - RMSProp", Coursera: Neural Networks for Machine Learning, 2012;
    centered and with momentum: A. Graves, "Generating Sequences with Recurrent Neural Networks", 2013, equations 38 to
    41. In the form of torch.optim.RMSprop: epsilon outside of the root and the learning rate outside of b, where
    TensorFlow 1's RMSPropOptimizer has both inside, and s starts at one.

    Args:
        learning_rate: a number from 0 up, or a schedule (`psworker.schedules`) of the server's global step; by default
            0.001.
        decay: share of s and c that remains at each update; from 0 to below 1, by default 0.9.
        momentum: share of b that remains at each update; from 0 to below 1, by default 0, without a slot.
        epsilon: what is added to the root; above 0, by default 1e-8.
        centered: whether s is centered by the mean c of the gradients; by default not.
    """

    _squares = ("mean_square",)
    learning_rate: LearningRate = 0.001
    decay: Share = 0.9
    momentum: Share = 0.0
    epsilon: Positive = 1e-8
    centered: Flag = False

    def slot_names(self) -> tuple[str, ...]:
        """`mean_square`; `mean_gradient` if centered; `momentum` if that is more than 0."""
        return ("mean_square", *["mean_gradient"] * self.centered, *["momentum"] * (self.momentum > 0))

    def _loop(self) -> Loop | None:
        return None if self.centered or self.momentum > 0 else _rmsprop

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        return self.decay, 1 - self.decay, step.learning_rate, max(self.epsilon, tiny)

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        s, *more = slots
        decay, rest, rate, epsilon = numbers
        np.multiply(g, g, out=scratch)
        scratch *= rest
        s *= decay
        s += scratch
        if self.centered:
            c, *more = more
            np.multiply(g, rest, out=scratch)
            c *= decay
            c += scratch
            np.multiply(c, c, out=scratch)
            np.subtract(s, scratch, out=scratch)
            np.maximum(scratch, 0, out=scratch)  # rounding can make a variance of zero slightly negative
            np.sqrt(scratch, out=scratch)
        else:
            np.sqrt(s, out=scratch)
        scratch += epsilon
        np.divide(g, scratch, out=scratch)
        if self.momentum > 0:
            (b,) = more
            b *= self.momentum
            b += scratch
            np.multiply(b, rate, out=scratch)
        else:
            scratch *= rate
        w -= scratch


@loop(slots=1, numbers=4)
def _rmsprop(index: Array, w: Array, g: Array, slots: Slots, numbers: Numbers) -> None:
    (s,) = slots
    decay, rest, rate, epsilon = numbers
    for r in range(len(index)):
        i = index[r]
        for j in range(w.shape[1]):
            s[i, j] = s[i, j] * decay + g[r, j] * g[r, j] * rest
            w[i, j] -= g[r, j] / (math.sqrt(s[i, j]) + epsilon) * rate
