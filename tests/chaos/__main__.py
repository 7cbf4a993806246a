"""Consistency under faults: `make chaos`, or `python -m tests.chaos` in the repository's root.

Trains a job with real servers and workers under each consistency and handling of staleness, on one to three shards,
while workers are killed, stopped, doubled and told to fail, servers are stopped, and connections are cut, reset, stalled
and refused; then lets it come to its end, and compares the servers' values with what the workers have written down of
each push and each example (`check`). Prints a table; the exit code is 1 if a promise was broken, and the folder with
ledgers and logs is kept then.

    python -m tests.chaos --only sync:2,backup=2 --shards 2 --seed 7        one configuration, as it was
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pswire.consistency import Synchronous, parse_consistency, parse_staleness
from pswire.lanes.segments import sweep
from tests.chaos import scheme
from tests.chaos.check import Check, Verdict
from tests.chaos.cluster import Cluster
from tests.chaos.faults import WEIGHTS, Faults
from tests.chaos.records import Story, read_events, tell

CONSISTENCIES = ("async", "bounded:2", "sync:3", "sync:2,backup=2")
STALENESSES = ("none", "drop:2")
LEASE = 4.0
TIMEOUT = 25.0  # of a worker's calls
TO_END = 90.0  # seconds that a job has to come to its end, when nothing is done to it any more
BATCH, EPOCHS = 4, 2
RATE = 30  # pushes of a second that a job is made for
PAUSE = 0.015  # seconds that a step takes a worker at most, beside its push

say = partial(print, flush=True)


@dataclass(frozen=True)
class Configuration:
    """What is tried."""

    consistency: str
    staleness: str
    shards: int

    def __str__(self) -> str:
        handling = "" if self.staleness == "none" else f" {self.staleness}"
        return f"{self.consistency}{handling}, {self.shards} shard{'s' if self.shards > 1 else ''}"

    @property
    def workers(self) -> int:
        """How many the job is meant to have."""
        spec = parse_consistency(self.consistency)
        return spec.workers + spec.backup if isinstance(spec, Synchronous) else 3


@dataclass(frozen=True)
class Run:
    """What came of one configuration."""

    configuration: Configuration
    verdict: Verdict
    faults: Counter[str]
    seconds: float
    lives: int
    folder: Path


def main() -> int:
    """All that was asked for; returns the exit code."""
    arguments = _arguments()
    scheme_checked()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10_000)
    say(f"seed {seed}; --seed {seed} draws the same faults again\n")
    runs = []
    for configuration in _configurations(arguments):
        run = asyncio.run(try_one(configuration, seed, arguments.seconds, arguments.faults))
        sweep()  # what killed processes have left in shared memory
        runs.append(run)
        say(line_of(run))
        if run.verdict.passed and not arguments.keep:
            shutil.rmtree(run.folder)
        else:
            for line in run.verdict.lines():
                say(f"    {line}")
            say(f"    ledgers and logs: {run.folder}")
            only = f"--only {configuration.consistency} --staleness {configuration.staleness}"
            say(f"    python -m tests.chaos {only} --shards {configuration.shards} --seed {seed}")
    say("", *table(runs), sep="\n")
    broken = sum(not run.verdict.passed for run in runs)
    say(f"\nchaos: {broken} of {len(runs)} configurations broke a promise; seed {seed}")
    return 1 if broken else 0


def scheme_checked() -> None:
    """The variables lie where the checks look for them."""
    for shards in (1, 2, 3):
        scheme.Layout(shards).check()


async def try_one(configuration: Configuration, seed: int, seconds: float, kinds: Sequence[str]) -> Run:
    """One configuration: servers, workers, faults, and what is found afterwards."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    spec = parse_consistency(configuration.consistency)
    most = spec.workers if isinstance(spec, Synchronous) else 1
    examples = max(1, int(RATE * seconds) // EPOCHS) * BATCH + 3
    program = {
        "seed": seed,
        "unit": scheme.unit_of(most),
        "shards": configuration.shards,
        "examples": examples,
        "batch": BATCH,
        "epochs": EPOCHS,
        "partial": int(most == 1),
        "pause": PAUSE,
    }
    flags = ["--consistency", configuration.consistency, "--staleness", configuration.staleness]
    flags += ["--lease", str(LEASE), "--max-calls", "200"]
    cluster = Cluster(
        folder, configuration.shards, flags, [text for k, v in program.items() for text in (f"--{k}", str(v))], TIMEOUT
    )
    names = [f"w{number}" for number in range(configuration.workers)]
    faults = Faults(cluster, names, LEASE, random.Random(f"{seed}, {configuration}"), kinds)
    try:
        await cluster.open()
        await faults.start()
        await faults.rage(2 * seconds)
        complete = await faults.calm(TO_END)
        finals = await asyncio.to_thread(cluster.read)
    finally:
        await cluster.close()
        cluster.write_down({"configuration": str(configuration), "seed": seed, "faults": faults.count})
    stories = [
        tell(
            Story(life.column, life.name, life.fate, life.code, life.hurt, _last_line(life.log)),
            read_events(life.ledger),
        )
        for life in cluster.lives
    ]
    staleness = parse_staleness(configuration.staleness)
    check = Check(spec, staleness, stories, finals, LEASE, examples, EPOCHS, complete=complete)
    return Run(configuration, check(), faults.count, time.monotonic() - began, len(stories), folder)


def line_of(run: Run) -> str:
    """What is said when one is through."""
    word = "kept" if run.verdict.passed else "BROKEN"
    return f"{run.configuration}: {word}; {run.seconds:.0f} s, {run.lives} lives, {run.faults.total()} faults"


def table(runs: Sequence[Run]) -> list[str]:
    """All runs as a table in Markdown."""
    head = [
        "",
        "pushes",
        "lost",
        "doubled",
        "half",
        "reads",
        "torn",
        "dropped",
        "worst staleness",
        "twice",
        "violations",
    ]
    rows = [[*head, *WEIGHTS]]
    for run in runs:
        v = run.verdict
        numbers = [v.acknowledged, v.lost, v.doubled, v.half, v.reads, v.torn, v.dropped, v.worst, v.twice]
        violations = ", ".join(f"{len(every)} {kind}" for kind, every in v.violations.items() if every) or "0"
        counts = [run.faults[kind] for kind in WEIGHTS]
        rows.append([str(run.configuration), *map(str, numbers), violations, *map(str, counts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _configurations(arguments: argparse.Namespace) -> list[Configuration]:
    return [
        Configuration(consistency, staleness, shards)
        for consistency in arguments.only or CONSISTENCIES
        for staleness in arguments.staleness or STALENESSES
        for shards in arguments.shards or (1, 2, 3)
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="CONSISTENCY", help="this one; may be given several times")
    parser.add_argument("--staleness", action="append", metavar="HANDLING", help="none or drop:T")
    parser.add_argument("--shards", action="append", type=int, choices=(1, 2, 3))
    parser.add_argument("--seed", type=int, help="of all that is drawn; without it, one is drawn, and printed")
    parser.add_argument(
        "--seconds",
        type=float,
        default=15.0,
        help="that a job is made for; faults go on until its end, or for twice as long",
    )
    parser.add_argument("--keep", action="store_true", help="keep all ledgers and logs")
    parser.add_argument(
        "--faults",
        type=lambda text: [kind for kind in text.split(",") if kind],
        default=list(WEIGHTS),
        metavar="KINDS",
        help=f"these alone, commas between: {', '.join(WEIGHTS)}; '' for none",
    )
    arguments = parser.parse_args()
    unknown = set(arguments.faults) - set(WEIGHTS)
    if unknown:
        parser.error(f"--faults: there is no {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
