"""The events of a job as a Markdown table. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.compose.logs import Event

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
