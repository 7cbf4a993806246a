"""Specs of the family of Adam: moving averages of the gradient and of its square.

May import what specs have in common and the checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pswire.optimizers.base import OptimizerSpec, update
from pswire.specs.field_checks import check_flag, check_number
from pswire.specs.schedules import LearningRate


@dataclass(frozen=True)
class MomentsSpec(OptimizerSpec):
    """What the family of Adam has: the moving averages m of the gradient and v of its square, zero at first.

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g^2
        m_hat = m / (1 - beta1^t),  v_hat = v / (1 - beta2^t)   (t counts the updates of the variable from 1)

    Lazy: rows that are not named keep theirs as they are, and t counts for all rows alike, as in TensorFlow 1's
    LazyAdamOptimizer.
    """

    learning_rate: LearningRate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_number(self, "beta1", 0, 1)
        check_number(self, "beta2", 0, 1)
        check_number(self, "epsilon", 0, open_low=True)

    def slot_names(self) -> tuple[str, ...]:
        """`m` and `v`."""
        return ("m", "v")


@update
@dataclass(frozen=True)
class Adam(MomentsSpec):
    """Adaptive moments. Slots: `m` and `v`, zero at first; t counts the updates of the variable from 1.

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g^2
        w <- w - learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)

    With `amsgrad=True` the root is of v_max <- max(v_max, v) in place of v, so that no element's step grows again when
    its gradients become smaller; another slot, `v_max`, zero at first. The largest is taken of v as it is, and
    corrected with today's t, as torch.optim.Adam does; the paper has no correction.

    Lazy: rows that are not named keep their slots as they are, and t counts for all rows alike, as in TensorFlow 1's
    LazyAdamOptimizer.

    Source: D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1; AMSGrad: S. Reddi,
    S. Kale, S. Kumar, "On the Convergence of Adam and Beyond", ICLR 2018, algorithm 2.
    """

    kind: ClassVar[str] = "adam"
    amsgrad: bool = False

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_flag(self, "amsgrad")

    def slot_names(self) -> tuple[str, ...]:
        """`m` and `v`; `v_max` with AMSGrad."""
        return (*super().slot_names(), *["v_max"] * self.amsgrad)


@update
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled decay of weights: they shrink by a share of themselves, whatever the gradient's size.

        w <- w - learning_rate * (m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w)

    with Adam's slots `m` and `v`, and `v_max` with `amsgrad=True`. Lazy, in the decay too: only rows that are named
    shrink.

    Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2, in the form of
    torch.optim.AdamW: the decay is times the learning rate, schedule and all.
    """

    kind: ClassVar[str] = "adamw"
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_number(self, "weight_decay", 0)


@update
@dataclass(frozen=True)
class Lamb(MomentsSpec):
    """Adam's direction at the scale of the weights, for very large batches. Slots: `m` and `v` as Adam's.

        u = m_hat / (sqrt(v_hat) + epsilon) + weight_decay * w
        w <- w - learning_rate * (|w| / |u|) * u

    |.| is the Euclidean norm over the whole variable; where one of the two norms is 0 or overflows, their ratio counts
    as 1. Lazy: of a gradient by rows, the norms are those of the rows that are named. Of a variable that is split over
    several shards, each shard has the norms of its own rows.

    Source: Y. You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes", ICLR 2020,
    algorithm 2, with the identity for its phi.
    """

    kind: ClassVar[str] = "lamb"
    epsilon: float = 1e-6
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        super().__post_init__()
        check_number(self, "weight_decay", 0)
