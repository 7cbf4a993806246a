"""The transcript of a job as a table of docs/deploy/slurm.md: what was done to it, and what its processes logged."""

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

#: Of servers, with notes that `psserver.core.events` words; and of deploy/slurm/train.sbatch.
_SERVER = re.compile(
    r"(\S+ \S+) \w+ shard \d+ (?:step \d+ )?psserver\.runtime\.(?:event_log|checkpoint_writer|going_back): (.*)"
)
_SCRIPT = re.compile(r"(\d\d:\d\d:\d\d\.\d+) (.*)")


class Event(NamedTuple):
    """An event `what` of a process or machine `who`."""

    at: datetime
    who: str
    what: str


def events(log: Path, day: datetime, who: str = "") -> Iterable[Event]:
    """Those in the output of a process, which is named as its file unless `who` is given."""
    for line in log.read_text().splitlines():
        if found := _SERVER.match(line):
            yield Event(datetime.fromisoformat(found[1]), who or log.stem, found[2])
        elif found := _SCRIPT.match(line):
            yield Event(
                datetime.combine(day, datetime.strptime(found[1], "%H:%M:%S.%f").time()), who or log.stem, found[2]
            )


def table(done: list[Event], output: Path, run: Path) -> str:
    """Events of shard 0, starts of other processes, and what was done, in order; seconds since the first of `done`."""
    found = [*done, *events(output, done[0].at, "job")]
    for log in sorted((run / "logs").glob("*.log")):
        found += [event for event in events(log, done[0].at) if log.stem == "server-0" or "start" in event.what]
    found.sort(key=lambda event: event.at)
    rows = [f"| {(at - done[0].at).total_seconds():.1f} | {who} | {_shorter(what, run)} |" for at, who, what in found]
    return "\n".join(["| seconds | process | event |", "| ---: | --- | --- |", *rows])


def _shorter(text: str, run: Path) -> str:
    """Without the name of the only data queue, and with a short name of the folder."""
    return re.sub(r" of queue '[^']*'|worker (?=')", "", text.replace(str(run), f"runs/{run.name}"))
