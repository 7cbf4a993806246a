"""Consistency policies as specs: which pushes a server holds, and how it handles stale ones.

`psserver.core.policies` implements them. To add one, follow the table in CONTRIBUTING.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Self

from pswire.specs.spec import COUNT, DECIMAL, Count, CountFromZero, NotNegative, TextSpec, check_number, parse


class PolicySpec(TextSpec):
    """Base class of both kinds of specs.

    `decides`: whether it may hold or refuse a push, so that shard 0 must be asked before the others; where none of a
    job's choices does, a push goes to all shards at once. `orders`: whether it refuses pushes for their staleness; then
    the other shards make all changes in the order of shard 0's decisions (`pswire.messages.ChangeId`).
    """

    decides: ClassVar[bool] = False
    orders: ClassVar[bool] = False


class Consistency(PolicySpec):
    """A consistency model: which pushes make an update, and which workers wait."""


class StalenessSpec(PolicySpec):
    """The handling of a push's staleness: the updates that its weights had missed."""


@dataclass(frozen=True)
class Asynchronous(Consistency):
    """Every push is an update of its own on arrival, without waiting (Downpour SGD).

    Source: J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1.
    """

    form: ClassVar[str] = "async"


@dataclass(frozen=True)
class Bounded(Consistency):
    """Stale synchronous parallel: a worker more than `steps` steps ahead of the slowest is held until it advances.

        clock of any worker <= steps + clock of the slowest            (clock: its steps that have been pushed)

    With 0 steps all workers take each step together, one update each.

    Source: Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
    """

    form: ClassVar[str] = "bounded:S (S steps, from 0)"
    pattern: ClassVar[str] = f"bounded:(?P<steps>{COUNT})"
    text: ClassVar[str] = "bounded:{steps}"
    decides: ClassVar[bool] = True
    steps: CountFromZero


class Aggregate(TextSpec):
    """The aggregate of the gradients of a synchronous update."""

    def left_out(self, gradients: int) -> int:
        """Number of smallest values of an element that are left out, and of largest ones, among `gradients`."""
        return 0


@dataclass(frozen=True)
class Mean(Aggregate):
    """Their mean; a single gradient that is wrong can make it anything."""

    form: ClassVar[str] = "mean"


@dataclass(frozen=True)
class Median(Aggregate):
    """Their elementwise median: it lies among the values of right gradients if less than half are wrong."""

    form: ClassVar[str] = "median"

    def left_out(self, gradients: int) -> int:
        """All but the middle one, or the middle two."""
        return (gradients - 1) // 2


@dataclass(frozen=True)
class TrimmedMean(Aggregate):
    """Their elementwise mean without this share of the smallest and of the largest values."""

    form: ClassVar[str] = "trimmed:F (the share F of wrong gradients, above 0 and below 0.5)"
    pattern: ClassVar[str] = f"trimmed:(?P<share>{DECIMAL})"
    text: ClassVar[str] = "trimmed:{share!r}"
    share: Annotated[float, partial(check_number, low=0, high=0.5, open_low=True)]

    def left_out(self, gradients: int) -> int:
        """The share, rounded up; but one or two gradients are left."""
        return min(math.ceil(self.share * gradients - 1e-9), (gradients - 1) // 2)


AGGREGATES: tuple[type[Aggregate], ...] = (Mean, Median, TrimmedMean)


@dataclass(frozen=True)
class Synchronous(Consistency):
    """An update is the mean of the first `workers` gradients that were computed with the weights before it.

        g <- (g_1 + ... + g_N) / N          (the first N to arrive; later ones of the same weights are dropped)

    A job has `workers + backup` workers, so that an update waits for none of the slowest `backup`. In place of the mean
    another `aggregate` withstands workers whose gradients are wrong.

    Sources: J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (arXiv:1604.00981), section 3; of the
    aggregates D. Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
    """

    form: ClassVar[str] = (
        "sync:N, sync:N,backup=B or sync:N,aggregate=A (N gradients, from 1; B backup workers, from 0; "
        "A mean, median or trimmed:F)"
    )
    pattern: ClassVar[str] = (
        f"sync:(?P<workers>{COUNT})(?:,backup=(?P<backup>{COUNT}))?(?:,aggregate=(?P<aggregate>[^,]+))?"
    )
    decides: ClassVar[bool] = True
    orders: ClassVar[bool] = True
    workers: Count
    backup: CountFromZero = 0
    aggregate: Aggregate = Mean()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.aggregate, TrimmedMean) and self.aggregate.share * self.workers > (self.workers - 1) // 2:
            raise ValueError(f"{self.aggregate} of {self.workers} gradients leaves none: choose a smaller share")

    def __str__(self) -> str:
        backup = f",backup={self.backup}" if self.backup else ""
        return f"sync:{self.workers}{backup}" + ("" if self.aggregate == Mean() else f",aggregate={self.aggregate}")

    @classmethod
    def of_texts(cls, texts: Mapping[str, str]) -> Self:
        """As in `TextSpec`."""
        counts: dict[str, Any] = {name: float(text) for name, text in texts.items() if name != "aggregate"}
        return cls(**counts, aggregate=parse(texts.get("aggregate", "mean"), AGGREGATES, "aggregate"))


@dataclass(frozen=True)
class IgnoreStaleness(StalenessSpec):
    """A stale push is applied like any other."""

    form: ClassVar[str] = "none"


@dataclass(frozen=True)
class ScaleByStaleness(StalenessSpec):
    """The learning rate falls with the staleness of a push.

        learning_rate / max(1, staleness)

    Source: W. Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016.
    """

    form: ClassVar[str] = "scale"


@dataclass(frozen=True)
class DelayCompensation(StalenessSpec):
    """A stale gradient is corrected, by its first-order Taylor term, for the change of the weights since.

        g <- g + strength * g * g * (w_now - w_then)            (elementwise; g * g approximates the Hessian)

    The server keeps w_then, the weights that it served to each worker. The correction of an element is at most 5e9 in
    float32, and 5e79 in float64.

    Source: S. Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017, DC-ASGD-c
    (a constant lambda, here `strength`); the default is that of MXNet's DCASGD.
    """

    form: ClassVar[str] = "delay-compensated or delay-compensated:L (L its strength, from 0)"
    pattern: ClassVar[str] = f"delay-compensated(?::(?P<strength>{DECIMAL}))?"
    text: ClassVar[str] = "delay-compensated:{strength!r}"
    strength: NotNegative = 0.04


@dataclass(frozen=True)
class DropStalePushes(StalenessSpec):
    """A push with a staleness above `above` is not applied; its worker learns it, and continues with fresh weights."""

    form: ClassVar[str] = "drop:T (T: the largest staleness that is applied, from 0)"
    pattern: ClassVar[str] = f"drop:(?P<above>{COUNT})"
    text: ClassVar[str] = "drop:{above}"
    decides: ClassVar[bool] = True
    orders: ClassVar[bool] = True
    above: CountFromZero


#: All choices, in the order in which error messages list them.
CONSISTENCIES: tuple[type[Consistency], ...] = (Asynchronous, Bounded, Synchronous)
STALENESSES: tuple[type[StalenessSpec], ...] = (IgnoreStaleness, ScaleByStaleness, DelayCompensation, DropStalePushes)


def parse_consistency(text: str) -> Consistency:
    """The value of `--consistency`. Raises `ConfigurationError`, which lists all forms."""
    return parse(text, CONSISTENCIES, "consistency")


def parse_staleness(text: str) -> StalenessSpec:
    """The value of `--staleness`. Raises `ConfigurationError`, which lists all forms."""
    return parse(text, STALENESSES, "way to handle staleness")
