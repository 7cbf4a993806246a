"""The moving average of observations. Not an optimizer: it has no slots and no learning rate."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pswire.optimizers.element_wise import ElementWise
from pswire.optimizers.optimizer import Step
from pswire.specs.spec import Share
from pswire.tensors.values import Array


@dataclass(frozen=True)
class MovingAverage(ElementWise, kind="moving_average"):
    """The variable w follows observations x of workers, which are pushed instead of gradients. No slots.

        w <- decay * w + (1 - decay) * x

    Source: S. Ioffe, C. Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal
    Covariate Shift", ICML 2015, section 3.1 (the moving averages that replace the moments of a batch in inference).
    """

    decay: Share

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        return self.decay, 1 - self.decay

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        decay, rest = numbers
        np.multiply(g, rest, out=scratch)
        w *= decay
        w += scratch
