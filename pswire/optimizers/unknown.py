"""Optimizers whose class this process does not have, such as a display of a job with a custom optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pswire.optimizers.optimizer import OptimizerSpec, UpdateSpec
from pswire.specs.schedules import Schedule
from pswire.specs.spec import check_number, from_plain


@dataclass(frozen=True, repr=False)
class UnknownOptimizer(OptimizerSpec):
    """Name and hyperparameters of an optimizer without a class here. It has no update rule (`rule_for` refuses it)."""

    kind: str = ""  # type: ignore[misc]  # of the object
    others: tuple[tuple[str, float], ...] = ()

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in self.hyperparameters().items())})"

    def hyperparameters(self) -> dict[str, Any]:
        """As of any spec."""
        return {"learning_rate": self.learning_rate, **dict(self.others)}


def optimizer_from_plain(plain: Mapping[str, Any]) -> UpdateSpec:
    """As `from_plain`; an optimizer with the form of a custom one that is not known here is an `UnknownOptimizer`."""
    kind = plain.get("kind")
    if not isinstance(kind, str) or kind in UpdateSpec.kinds or not kind.isidentifier() or "learning_rate" not in plain:
        return from_plain(UpdateSpec, plain)
    rate, others = plain["learning_rate"], []
    for name, value in sorted(plain.items()):
        if name not in ("kind", "learning_rate"):
            others.append((name, value if isinstance(value, bool) else check_number(f"{kind}: {name}", value)))
    return UnknownOptimizer(from_plain(Schedule, rate) if isinstance(rate, Mapping) else rate, kind, tuple(others))
