"""What containers have said: their lines, and what the notes of shard 0 among them mean.

The only place that knows how psserver words its notes (`psserver.core.events`), and how the training program says its
accuracy. Pure; standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.compose.docker import moment


@dataclass(frozen=True)
class Event:
    """Something that happened at a moment, in seconds since 1970, and to whom."""

    at: float
    who: str
    what: str


def lines(who: str, log: str) -> list[Event]:
    """What `docker logs --timestamps` prints of a container, in the order of time."""
    cut = [line.partition(" ") for line in log.splitlines()]
    return sorted((Event(moment(at), who, text) for at, _, text in cut), key=lambda event: event.at)


def rename(events: Iterable[Event], names: Mapping[str, str]) -> list[Event]:
    """With the names of containers in the place of what workers call themselves (`pswire.system.host.process_name`).

    Args:
        events: any.
        names: the names of containers by their host names.
    """
    hosts = re.compile(rf"\b({'|'.join(map(re.escape, names)) or '(?!)'})-[\d.]+\b")
    return [Event(event.at, event.who, hosts.sub(lambda found: names[found[1]], event.what)) for event in events]


# --- the notes of a shard ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochDone:
    """Every example of an epoch was seen."""

    epoch: int
    cost: float
    examples: int


@dataclass(frozen=True)
class GivenBack:
    """A worker is gone that had a block."""

    block: int
    worker: str


@dataclass(frozen=True)
class HandedOut:
    """A block that another worker had is handed out again."""

    block: int
    worker: str
    before: str


@dataclass(frozen=True)
class Ended:
    """A worker finished after so many steps."""

    worker: str
    steps: int


Note = EpochDone | GivenBack | HandedOut | Ended

_NUMBER, _WORKER = r"([\d,]+)", r"'([^']*)'"
_BLOCK = rf"block {_NUMBER} of epoch [\d,]+ of queue '[^']*'"
_NOTES: list[tuple[re.Pattern[str], Callable[[Sequence[str]], Note]]] = [
    (
        re.compile(rf"epoch {_NUMBER} of queue '[^']*' is done: mean cost ([\d.]+) over {_NUMBER} examples?"),
        lambda found: EpochDone(_int(found[0]), float(found[1]), _int(found[2])),
    ),
    (
        re.compile(rf"{_BLOCK} .* will be handed out again: worker {_WORKER} had it"),
        lambda found: GivenBack(_int(found[0]), found[1]),
    ),
    (
        re.compile(rf"{_BLOCK} goes to worker {_WORKER} \({_WORKER} had it\)"),
        lambda found: HandedOut(_int(found[0]), found[1], found[2]),
    ),
    (
        re.compile(rf"worker {_WORKER} finished after {_NUMBER} steps?"),
        lambda found: Ended(found[0], _int(found[1])),
    ),
]


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def notes(events: Iterable[Event]) -> list[Note]:
    """The notes in a server's log that a check wants to know of."""
    return [
        make(found.groups())
        for event in events
        for pattern, make in _NOTES
        if (found := pattern.search(event.what)) is not None
    ]


# --- the training program ---------------------------------------------------------------------------------------------

_ACCURACY = re.compile(r"^test accuracy: ([\d.]+) on the first 3,000")


def accuracies(events: Iterable[Event]) -> list[float]:
    """What examples/softmax_mnist.py says of the first 3,000 test images, each time that it does."""
    return [float(found[1]) for event in events if (found := _ACCURACY.search(event.what)) is not None]
