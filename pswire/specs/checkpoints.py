"""The interval of checkpoints, by time or by steps of training, and when records of the journal are written."""

import enum
import re
from dataclasses import dataclass
from typing import ClassVar

from pswire.errors import ConfigurationError
from pswire.specs.spec import COUNT, DECIMAL, Count, Positive, TextSpec

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_TEXT = re.compile(f"(?P<time>{DECIMAL})(?P<unit>[smh])|(?P<steps>{COUNT})steps")


class CheckpointEvery(TextSpec):
    """The interval between two checkpoints."""

    def due(self, seconds: float, steps: int) -> bool:
        """True if a checkpoint is due this many seconds and steps of the job after the last one."""
        raise NotImplementedError


@dataclass(frozen=True)
class EverySeconds(CheckpointEvery):
    """By time. Minutes and hours are formatted as seconds."""

    form: ClassVar[str] = "60s, 5m or 1h (seconds, minutes, hours; above 0)"
    seconds: Positive

    def due(self, seconds: float, steps: int) -> bool:
        """By the seconds alone."""
        return seconds >= self.seconds

    def __str__(self) -> str:
        return f"{self.seconds!r}s".replace(".0s", "s")


@dataclass(frozen=True)
class EverySteps(CheckpointEvery):
    """By steps of the job: the global step of shard 0."""

    form: ClassVar[str] = "1000steps (steps of the job, from 1)"
    text: ClassVar[str] = "{steps}steps"
    steps: Count

    def due(self, seconds: float, steps: int) -> bool:
        """By the steps alone."""
        return steps >= self.steps


def parse_checkpoint_every(text: str) -> CheckpointEvery:
    """The value of `--checkpoint-every`. Raises `ConfigurationError`, which lists both forms."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(
            f"{text!r} is not a valid interval between checkpoints: use {EverySeconds.form}; or {EverySteps.form}"
        )
    try:
        if found["steps"]:
            return EverySteps(int(found["steps"]))
        return EverySeconds(float(found["time"]) * _SECONDS[found["unit"]])
    except ValueError as error:
        raise ConfigurationError(f"{text!r}: {error}") from error


class JournalSync(enum.StrEnum):
    """When records count as written.

    `EVERY`: they are on the disk, and survive a loss of power. `INTERVAL`: the kernel has them, so they survive the end
    of the process, and syncs them each 100 ms. `OFF`: the kernel has them, and chooses when to write them.
    """

    EVERY = "every"
    INTERVAL = "100ms"
    OFF = "off"
