"""What the guard finds: a failure of training with its cause and a remedy."""

from __future__ import annotations

from dataclasses import dataclass

#: All kinds of findings, in the order in which docs/guard.md describes them.
KINDS = ("staleness", "momentum", "rate", "worker", "data", "rounding")


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure of training that lasts.

    Attributes:
        kind: one of `KINDS`.
        level: "error": training is spoilt, or about to be; "warning": it goes on, with less than it could have.
        worker: the one that it is about; "": the job.
        text: what is seen, and the cause, with the numbers of this job.
        remedy: what to try.
        step: a global step before it began.
        scale_learning_rate: as a remedy that can be applied by itself, what to multiply learning rates by; 1: none.
        quarantine: the remedy is not to apply pushes of the worker.
        harmed: the variables have changed by it, so that going back to a state before `step` helps.
    """

    kind: str
    level: str
    worker: str
    text: str
    remedy: str
    step: int = 0
    scale_learning_rate: float = 1.0
    quarantine: bool = False
    harmed: bool = False

    @property
    def line(self) -> str:
        """Text and remedy on one line."""
        return f"{self.text}. Remedy: {self.remedy}"


def smaller_rate(rate: float, workers: int) -> str:
    """The rate of one worker, divided among all."""
    return f"a learning rate of {rate:.4g} / {workers} = {rate / workers:.4g}"
