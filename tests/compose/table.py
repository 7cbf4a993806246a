"""What happened when: the events of a job as a table in Markdown. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.compose.logs import Event

#: The lines of a server's log that are for people: its notes, and why it ends by itself.
_NOTE = re.compile(r" psserver\.runtime\.(?:executor|clock): (.*)")
#: What the training program repeats of the notes, and what advice adds to what a worker complains of.
_REPEATED, _ADVICE = re.compile(r"^epoch +\d+: "), re.compile(r"; is it running\?.*")


def worth_telling(events: Iterable[Event]) -> list[Event]:
    """Of what containers said, what belongs into the table: notes of shard 0, and what workers say beside these."""
    told = []
    for event in events:
        note = _NOTE.search(event.what)
        if event.who == "server-0" and note is not None:
            told.append(Event(event.at, event.who, _short(note[1])))
        elif event.who.startswith("worker") and not _REPEATED.search(event.what):
            told.append(Event(event.at, event.who, _short(event.what).removeprefix(event.who).lstrip(": ")))
    return told


def _short(text: str) -> str:
    """Without what says nothing in a job of one queue, and whose workers are called workers."""
    text = re.sub(r" of queue '[^']*'", "", text)
    text = re.sub(r"(?:worker )?'(worker-\d+)'", r"\1", text)
    return _ADVICE.sub("", text)


def table(events: Iterable[Event], start: float) -> str:
    """Rows in the order of time, in seconds since `start`."""
    rows = [
        f"| {event.at - start:.1f} | {event.who} | {event.what} |"
        for event in sorted(events, key=lambda event: event.at)
    ]
    return "\n".join(["| seconds | who | what |", "| ---: | --- | --- |", *rows])
