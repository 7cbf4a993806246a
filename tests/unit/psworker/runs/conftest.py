"""Folders of runs, written as the launcher and the workers write them, with values that a test can compute."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from psworker.runs.process_identity import ProcessIdentity
from psworker.runs.run_events import RunEvents
from psworker.runs.run_file import Life, Results, Run, Start, write_run

#: When runs begin, in seconds since 1970.
BEGIN = 1_700_000_000.0

#: A process that has been on this host before it booted.
GONE = replace(ProcessIdentity.of_this_process(), boot="another boot")


def start(*, workers=1, arguments=(), versions=(), process=GONE, **options):
    return Start(
        command=("psworker", "local", "train.py"),
        directory="/home",
        script="programs/train.py",
        arguments=tuple(arguments),
        options={"workers": workers, "shards": 1, "consistency": "async", **options},
        versions={"paramserver": "1.0", **dict(versions)},
        system="Linux",
        cores=2,
        process=process,
    )


def life(begin=BEGIN, seconds=10.0, state="completed", results=None, **options):
    results = Results(0, 100, 8.0, 0.25, 1.5) if results is None else results
    return Life(start(**options), begin, state, begin + seconds, seconds, begin + seconds, 0, "", results)


def point(time, step, cost=None, **fields):
    """A point of a worker, `time` seconds after BEGIN."""
    return {"time": BEGIN + time, "step": step, "cost": cost, **fields}


@pytest.fixture
def make_run(tmp_path):
    """A function that writes a run: its lives, points of its workers by name, and events as arguments of `add`."""

    def make(name="a", *, lives=None, points=None, events=(), **options) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        write_run(folder, Run(id="1", lives=tuple(lives or [life(**options)])))
        for worker, lines in (points or {}).items():
            write_points(folder, worker, lines)
        writer = RunEvents(folder)
        for kind, about, seconds, step, *more in events:
            fields = {"source": "shard 0", **dict(*more)}
            writer.add(kind, f"{about} {kind}", worker=about, step=step, time=BEGIN + seconds, **fields)
        return Path(os.path.relpath(folder))

    return make


def write_points(folder, worker, lines, begin=BEGIN):
    """Appends a life of a worker to its file."""
    (folder / "scalars").mkdir(exist_ok=True)
    head = {"worker": worker, "incarnation": 1, "number": 0, "time": begin, "process": 1}
    with (folder / "scalars" / f"{worker}.jsonl").open("a") as file:
        file.write("".join(f"{json.dumps(line)}\n" for line in [head, *lines]))


@pytest.fixture(autouse=True)
def in_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
