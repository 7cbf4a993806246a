"""Events of a job in the logs of its processes: what the checks need, the checks, and a table for people.

The checks are of examples/softmax_mnist.py under failures in any cluster: tests with a fixture `job` that has `notes`.
"""

import re
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

import pytest

from tests.compose.docker import moment

#: Patterns of notes of shard 0, which are texts of `psserver.core.events`, and of the accuracy.
_NUMBER, _WORKER = r"([\d,]+)", r"'([^']*)'"
_BLOCK = rf"block {_NUMBER} of epoch [\d,]+ of queue '[^']*'"
_NOTES = {
    "epochs": rf"epoch {_NUMBER} of queue '[^']*' is done: mean cost ([\d.]+) over {_NUMBER} examples?",
    "given back": rf"{_BLOCK} .* will be handed out again: worker {_WORKER} had it",
    "handed out": rf"{_BLOCK} goes to worker {_WORKER} \({_WORKER} had it\)",
    "finished": rf"worker {_WORKER} finished after {_NUMBER} steps?",
    "accuracy": r"^test accuracy: ([\d.]+) on the first 3,000",
    "starts": rf"shard {_NUMBER} starts from .*: (?:nothing is lost$|its journal ended with a torn record)",
}
Notes = Mapping[str, list[tuple]]

#: Expected of examples/softmax_mnist.py with default arguments, as in one process.
EPOCHS, EXAMPLES, COST, ACCURACY = 10, 55_000, 0.3924, 0.873

say = partial(print, flush=True)

#: The time, level and origin of a line of a worker, or of one about addresses.
_PREFIX = re.compile(
    r"^\d{4}-\S+ \S+ [A-Z]+ (?:worker|shard) \S+ (?:step \d+ )?(?:psworker\.[\w.]+|pswire\.network\.shard_addresses): "
)


class Event(NamedTuple):
    """An event `what` of process `who` at a time, in seconds since 1970."""

    at: float
    who: str
    what: str


class Story:
    """Events of a test itself, which are printed when they happen; their times are `ahead` of this machine's."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.events: list[Event] = []
        self._ahead = ahead

    def __call__(self, who: str, what: str) -> float:
        self.events.append(Event(time.time() + self._ahead, who, what))
        say(f"{self.events[-1].at - self.start:6.1f} s  {who}: {what}")
        return self.events[-1].at

    @property
    def start(self) -> float:
        return self.events[0].at


def output(log: str) -> list[str]:
    """The lines of `docker logs --timestamps`, without the times."""
    return [line.partition(" ")[2] for line in log.splitlines()]


def events(who: str, log: str, names: Mapping[str, str]) -> list[Event]:
    """The output of `docker logs --timestamps` in the order of time.

    The names of workers (`pswire.system.host.process_name`) are replaced by those of containers, given by host name.
    """
    hosts = re.compile(rf"\b({'|'.join(names)})-[\d.]+\b" if names else r"(?!)")
    lines = [line.partition(" ") for line in log.splitlines()]
    found = [Event(moment(at), who, hosts.sub(lambda host: names[host[1]], text)) for at, _, text in lines]
    return sorted(found, key=lambda event: event.at)


def notes(story: Iterable[Event]) -> Notes:
    """What the checks need, in order, numbers as numbers.

    epochs: (epoch, mean cost, examples); given back: (block, worker); handed out: (block, worker, worker before);
    finished: (worker, steps); accuracy: (on the first 3,000 test images,); starts: (shard,) of servers that have lost
    nothing.
    """
    texts = [event.what for event in story]
    return {
        kind: [tuple(map(_value, found.groups())) for text in texts if (found := re.search(pattern, text))]
        for kind, pattern in _NOTES.items()
    }


def _value(text: str) -> str | int | float:
    if re.fullmatch(r"[\d,.]+", text) is None:
        return text
    return float(text) if "." in text else int(text.replace(",", ""))


def table(story: Iterable[Event], start: float, shard_0: str) -> str:
    """Events of shard 0, which that process is, and other lines of workers in order, in seconds since `start`.

    Without lines that repeat others, the name of the only queue, and advice.
    """
    rows = []
    for at, who, text in sorted(story, key=lambda event: event.at):
        note = re.search(r" psserver\.runtime\.(?:event_log|clock|checkpoint_writer|due_cuts|going_back): (.*)", text)
        if note and (who == shard_0 or " starts from " in text):
            text = note[1]
        elif re.match(
            r"epoch +\d+: |psserver: |.* psserver\.|.* pswire\.network\.shard_addresses: the servers' addresses stay",
            text,
        ):
            continue
        text = _PREFIX.sub("", text)
        text = re.sub(r" of queue '[^']*'|; is it running\?.*|(?:worker )?'(worker-\d+)'", r"\1", text)
        rows.append(f"| {at - start:.1f} | {who} | {text.removeprefix(who).lstrip(': ')} |")
    return "\n".join(["| seconds | process | event |", "| ---: | --- | --- |", *rows])


# --- checks -----------------------------------------------------------------------------------------------------------


def all_epochs_are_complete(job):
    """In order, with all examples."""
    every = [(epoch, EXAMPLES) for epoch in range(1, EPOCHS + 1)]
    assert [(epoch, examples) for epoch, _, examples in job.notes["epochs"]] == every


def the_cost_is_that_of_one_process(job):
    """Of the last epoch."""
    assert [cost for epoch, cost, _ in job.notes["epochs"] if epoch == EPOCHS] == [pytest.approx(COST, abs=0.01)]


def the_accuracy_is_that_of_one_process(job):
    """It is printed once."""
    assert job.notes["accuracy"] == [(pytest.approx(ACCURACY, abs=0.005),)]
