"""Parses the logs of containers: lines, events of shard 0 (`psserver.core.events`), accuracies; a table of events.

Pure; standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.compose.docker import moment


@dataclass(frozen=True)
class Event:
    """An event `what` of process `who` at a time, in seconds since 1970."""

    at: float
    who: str
    what: str


def lines(who: str, log: str) -> list[Event]:
    """The output of `docker logs --timestamps` as events, in the order of time."""
    cut = [line.partition(" ") for line in log.splitlines()]
    return sorted((Event(moment(at), who, text) for at, _, text in cut), key=lambda event: event.at)


def rename(events: Iterable[Event], names: Mapping[str, str]) -> list[Event]:
    """Replaces the names of workers (`pswire.system.host.process_name`) by those of containers, given by host name."""
    hosts = re.compile(rf"\b({'|'.join(map(re.escape, names)) or '(?!)'})-[\d.]+\b")
    return [Event(event.at, event.who, hosts.sub(lambda found: names[found[1]], event.what)) for event in events]


# --- events of a shard ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochDone:
    """All examples of an epoch were processed."""

    epoch: int
    cost: float
    examples: int


@dataclass(frozen=True)
class GivenBack:
    """The block of a worker that is gone will be handed out again."""

    block: int
    worker: str


@dataclass(frozen=True)
class HandedOut:
    """A block of another worker is handed out again."""

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
    (re.compile(rf"worker {_WORKER} finished after {_NUMBER} steps?"), lambda found: Ended(found[0], _int(found[1]))),
]


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def notes(events: Iterable[Event]) -> list[Note]:
    return [
        make(found.groups())
        for event in events
        for pattern, make in _NOTES
        if (found := pattern.search(event.what)) is not None
    ]


# --- the training program ---------------------------------------------------------------------------------------------

_ACCURACY = re.compile(r"^test accuracy: ([\d.]+) on the first 3,000")


def accuracies(events: Iterable[Event]) -> list[float]:
    """The accuracies on the first 3,000 test images that examples/softmax_mnist.py has printed."""
    return [float(found[1]) for event in events if (found := _ACCURACY.search(event.what)) is not None]


# --- the table -------------------------------------------------------------------------------------------------------

#: Log lines of a server for people: events, and the reason why it ends by itself.
_NOTE = re.compile(r" psserver\.runtime\.(?:executor|clock): (.*)")
#: Lines of the training program that repeat events, and the advice in messages of workers.
_REPEATED, _ADVICE = re.compile(r"^epoch +\d+: "), re.compile(r"; is it running\?.*")


def worth_telling(events: Iterable[Event]) -> list[Event]:
    """The lines for the table: events of shard 0, and other lines of workers."""
    chosen = []
    for event in events:
        note = _NOTE.search(event.what)
        if event.who == "server-0" and note is not None:
            chosen.append(Event(event.at, event.who, _short(note[1])))
        elif event.who.startswith("worker") and not _REPEATED.search(event.what):
            chosen.append(Event(event.at, event.who, _short(event.what).removeprefix(event.who).lstrip(": ")))
    return chosen


def _short(text: str) -> str:
    """Without the name of the only queue, and without repetition."""
    text = re.sub(r" of queue '[^']*'", "", text)
    text = re.sub(r"(?:worker )?'(worker-\d+)'", r"\1", text)
    return _ADVICE.sub("", text)


def table(events: Iterable[Event], start: float) -> str:
    """The table in the order of time, in seconds since `start`."""
    rows = [
        f"| {event.at - start:.1f} | {event.who} | {event.what} |"
        for event in sorted(events, key=lambda event: event.at)
    ]
    return "\n".join(["| seconds | process | event |", "| ---: | --- | --- |", *rows])
