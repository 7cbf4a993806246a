"""How consistent a job is: whose pushes a server waits for, and what it does about stale ones. As text, and as specs.

Each choice is a frozen dataclass, written down once for the command line, the server's policy
(`psserver.core.policies`) and the status; `str` writes what `parse_consistency` and `parse_staleness` read. Decides
nothing itself. May import the checks and the errors.

To add one: a dataclass with `form`, `pattern` and `__str__`, by `@_consistency` or `@_staleness`; then its policy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from pswire.errors import ConfigurationError
from pswire.specs.field_checks import check_count, check_number

_COUNT = "[0-9]{1,15}"
_DECIMAL = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"


@dataclass(frozen=True)
class PolicySpec:
    """What every choice here has: how it is written, `form` for people and `pattern` with its fields as groups.

    `decides` says whether shard 0 must be asked before the others, since it may hold or refuse a push. Where none of a
    job's choices does, a push goes to all shards at once. `orders` says whether it refuses pushes for their staleness:
    then the other shards make all changes in the order of shard 0's decisions (`pswire.messages.order`).
    """

    form: ClassVar[str]
    pattern: ClassVar[str]
    decides: ClassVar[bool]
    orders: ClassVar[bool] = False


class Consistency(PolicySpec):
    """Whose pushes make an update, and who waits for whom."""


class StalenessSpec(PolicySpec):
    """What is done about the staleness of a push: the changes that its weights had seen since they were served."""


#: Every choice, in the order in which people are told about them.
CONSISTENCIES: list[type[Consistency]] = []
STALENESSES: list[type[StalenessSpec]] = []

_C = TypeVar("_C", bound=type[Consistency])
_S = TypeVar("_S", bound=type[StalenessSpec])


def _consistency(cls: _C) -> _C:
    CONSISTENCIES.append(cls)
    return cls


def _staleness(cls: _S) -> _S:
    STALENESSES.append(cls)
    return cls


# --- consistency --------------------------------------------------------------------------------------------------


@_consistency
@dataclass(frozen=True)
class Asynchronous(Consistency):
    """Every push is an update of its own as it comes; nobody waits for anybody (Downpour SGD).

    Source: J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1.
    """

    form: ClassVar[str] = "async"
    pattern: ClassVar[str] = "async"
    decides: ClassVar[bool] = False

    def __str__(self) -> str:
        return "async"


@_consistency
@dataclass(frozen=True)
class Bounded(Consistency):
    """No worker is more than `steps` steps ahead of the slowest: its push is held until the slowest has moved on.

        clock of any worker <= steps + clock of the slowest            (clock: its steps that have been pushed)

    Stale synchronous parallel. With 0 steps all workers make each step together, one update each.

    Source: Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
    """

    form: ClassVar[str] = "bounded:S (S steps, from 0)"
    pattern: ClassVar[str] = f"bounded:(?P<steps>{_COUNT})"
    decides: ClassVar[bool] = True
    steps: int

    def __post_init__(self) -> None:
        """Checks the field; raises `ValueError` or `TypeError`."""
        check_count(self, "steps", 0)

    def __str__(self) -> str:
        return f"bounded:{self.steps}"


@_consistency
@dataclass(frozen=True)
class Synchronous(Consistency):
    """An update is the mean of the first `workers` gradients that were computed with the weights before it.

        g <- (g_1 + ... + g_N) / N          (the first N to come; later ones of the same weights are dropped)

    A job has `workers + backup` workers, so that an update waits for none of the slowest `backup`.

    Source: J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (arXiv:1604.00981), section 3.
    """

    form: ClassVar[str] = "sync:N or sync:N,backup=B (N gradients, from 1; B backup workers, from 0)"
    pattern: ClassVar[str] = f"sync:(?P<workers>{_COUNT})(?:,backup=(?P<backup>{_COUNT}))?"
    decides: ClassVar[bool] = True
    orders: ClassVar[bool] = True
    workers: int
    backup: int = 0

    def __post_init__(self) -> None:
        """Checks the fields; raises `ValueError` or `TypeError`."""
        check_count(self, "workers")
        check_count(self, "backup", 0)

    def __str__(self) -> str:
        return f"sync:{self.workers}" + (f",backup={self.backup}" if self.backup else "")


# --- staleness ----------------------------------------------------------------------------------------------------


@_staleness
@dataclass(frozen=True)
class IgnoreStaleness(StalenessSpec):
    """A stale push is applied like any other."""

    form: ClassVar[str] = "none"
    pattern: ClassVar[str] = "none"
    decides: ClassVar[bool] = False

    def __str__(self) -> str:
        return "none"


@_staleness
@dataclass(frozen=True)
class ScaleByStaleness(StalenessSpec):
    """The staler a push, the smaller its step.

        learning_rate / max(1, staleness)

    Source: W. Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016.
    """

    form: ClassVar[str] = "scale"
    pattern: ClassVar[str] = "scale"
    decides: ClassVar[bool] = False

    def __str__(self) -> str:
        return "scale"


@_staleness
@dataclass(frozen=True)
class DelayCompensation(StalenessSpec):
    """A stale gradient is moved, by its first-order Taylor term, to what it would be with the weights of now.

        g <- g + strength * g * g * (w_now - w_then)            (elementwise; g * g stands for the Hessian)

    The server keeps w_then, the weights that it served to each worker. What is added to an element is 5e9 at most in
    float32, and 5e79 in float64.

    Source: S. Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017, DC-ASGD-c
    (a constant lambda, here `strength`); the default is that of MXNet's DCASGD.
    """

    form: ClassVar[str] = "delay-compensated or delay-compensated:L (L its strength, from 0)"
    pattern: ClassVar[str] = f"delay-compensated(?::(?P<strength>{_DECIMAL}))?"
    decides: ClassVar[bool] = False
    strength: float = 0.04

    def __post_init__(self) -> None:
        """Checks the field; raises `ValueError` or `TypeError`."""
        check_number(self, "strength", 0)

    def __str__(self) -> str:
        return f"delay-compensated:{float(self.strength)!r}"


@_staleness
@dataclass(frozen=True)
class DropStalePushes(StalenessSpec):
    """A push with more staleness than `above` is not applied; its worker is told so, and goes on with fresh weights."""

    form: ClassVar[str] = "drop:T (T the most staleness that is applied, from 0)"
    pattern: ClassVar[str] = f"drop:(?P<above>{_COUNT})"
    decides: ClassVar[bool] = True
    orders: ClassVar[bool] = True
    above: int

    def __post_init__(self) -> None:
        """Checks the field; raises `ValueError` or `TypeError`."""
        check_count(self, "above", 0)

    def __str__(self) -> str:
        return f"drop:{self.above}"


# --- reading ------------------------------------------------------------------------------------------------------

_Choice = TypeVar("_Choice", bound=PolicySpec)


def parse_consistency(text: str) -> Consistency:
    """What `--consistency` says. Raises `ConfigurationError`, which lists what can be written."""
    return _parse(text, CONSISTENCIES, "consistency")


def parse_staleness(text: str) -> StalenessSpec:
    """What `--staleness` says. Raises `ConfigurationError`, which lists what can be written."""
    return _parse(text, STALENESSES, "way to handle staleness")


def _parse(text: str, choices: list[type[_Choice]], what: str) -> _Choice:
    for choice in choices:
        found = re.fullmatch(choice.pattern, text.strip())
        if found:
            given = {name: number for name, number in found.groupdict().items() if number is not None}
            try:
                return choice(
                    **{name: int(number) if number.isdigit() else float(number) for name, number in given.items()}
                )
            except ValueError as error:
                raise ConfigurationError(f"{text!r}: {error}") from error
    raise ConfigurationError(f"{text!r} is no {what}: write {'; or '.join(choice.form for choice in choices)}")
