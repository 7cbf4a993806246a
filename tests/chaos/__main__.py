"""Consistency under faults: `make chaos`, or `python -m tests.chaos` in the repository's root.

Trains a job with real servers and workers under each consistency and handling of staleness, on one to three shards.
Meanwhile workers are killed, stopped, started twice and made to fail, servers are stopped, and connections are cut,
reset, stalled and refused. Then the job comes to its end, and the servers' values are compared with what the workers
have written down of each push and each example (`check`). Prints a table; the exit code is 1 if a promise was broken,
and ledgers and logs are kept then.

    python -m tests.chaos --only sync:2,backup=2 --staleness none --shards 2 --seed 7        one configuration
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pswire.specs.consistency import Synchronous, parse_consistency, parse_staleness
from pswire.tensors.segments import sweep
from tests.chaos import scheme
from tests.chaos.check import Check, Verdict
from tests.chaos.cluster import Cluster, WorkerProcess
from tests.chaos.faults import WEIGHTS, Faults
from tests.chaos.records import History, add_events, read_events

CONSISTENCIES = ("async", "bounded:2", "sync:3", "sync:2,backup=2")
STALENESSES = ("none", "drop:2")
SHARDS = (1, 2, 3)

LEASE = 4.0
TIMEOUT = 25.0  # of a worker's calls
TO_END = 90.0  # seconds that a job has to come to its end, when no faults are injected any more
BATCH, EPOCHS = 4, 2
RATES = {"async": 150, "bounded": 60, "sync": 35}  # pushes of a second that a job is made for
PAUSE = 0.01  # seconds that a step takes a worker at most, beside its push

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
    def gradients(self) -> int:
        """The most that make an update."""
        spec = parse_consistency(self.consistency)
        return spec.workers if isinstance(spec, Synchronous) else 1

    @property
    def workers(self) -> int:
        """How many the job is meant to have."""
        spec = parse_consistency(self.consistency)
        return spec.workers + spec.backup if isinstance(spec, Synchronous) else 3

    @property
    def arguments(self) -> list[str]:
        """Those by which it is tried alone."""
        return ["--only", self.consistency, "--staleness", self.staleness, "--shards", str(self.shards)]


@dataclass(frozen=True)
class Run:
    """What came of one configuration."""

    configuration: Configuration
    verdict: Verdict
    faults: Counter[str]
    workers: int  # processes
    seconds: float
    folder: Path


def main() -> int:
    """Tries all that was asked for; returns the exit code."""
    arguments = _arguments()
    for shards in SHARDS:
        scheme.Layout(shards).check()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10_000)
    say(f"seed {seed}\n")
    runs = []
    for consistency in arguments.only or CONSISTENCIES:
        for staleness in arguments.staleness or STALENESSES:
            for shards in arguments.shards or SHARDS:
                configuration = Configuration(consistency, staleness, shards)
                try:
                    run = asyncio.run(try_one(configuration, seed, arguments.seconds, arguments.faults))
                except (KeyboardInterrupt, asyncio.CancelledError):
                    return 130
                finally:
                    sweep()  # what killed processes have left in shared memory
                runs.append(run)
                report(run, seed, arguments)
    say("", *table(results(runs)), "", *table(faults_injected(runs)), sep="\n")
    broken = sum(not run.verdict.passed for run in runs)
    say(f"\nchaos: {broken} of {len(runs)} configurations broke a promise; seed {seed}")
    return 1 if broken else 0


async def try_one(configuration: Configuration, seed: int, seconds: float, kinds: Sequence[str]) -> Run:
    """Tries one configuration: servers, workers, faults, and what is found afterwards."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C: nothing is left behind
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    rate = RATES[configuration.consistency.partition(":")[0]]
    examples = max(1, int(rate * seconds) // EPOCHS) * BATCH + 3  # the last batch is a smaller one
    flags = ["--consistency", configuration.consistency, "--staleness", configuration.staleness, "--lease", str(LEASE)]
    program = {
        "seed": seed,
        "unit": scheme.unit_of(configuration.gradients),
        "shards": configuration.shards,
        "examples": examples,
        "batch": BATCH,
        "epochs": EPOCHS,
        "partial": int(configuration.gradients == 1),  # the gradients of a synchronous update are for the same
        "pause": PAUSE,
    }
    cluster = Cluster(folder, configuration.shards, flags, program, TIMEOUT)
    names = [f"w{number}" for number in range(configuration.workers)]
    faults = Faults(cluster, names, LEASE, random.Random(f"{seed}, {configuration}"), kinds)
    try:
        await cluster.open()
        await faults.start()
        await faults.inject(2 * seconds)
        complete = await faults.finish(TO_END)
        await cluster.kill_workers()  # those that have not come to their end
        finals = await asyncio.to_thread(cluster.read)
        half_pushes = await asyncio.to_thread(cluster.half_pushes)
    except BaseException:
        shutil.rmtree(folder)
        raise
    finally:
        await cluster.close()
    facts = {"configuration": str(configuration), "seed": seed, "faults": faults.count, "complete": complete}
    facts["workers"] = [worker.facts() for worker in cluster.workers]
    (folder / "run.json").write_text(json.dumps(facts, indent=1))
    check = Check(
        parse_consistency(configuration.consistency),
        parse_staleness(configuration.staleness),
        [_history(worker) for worker in cluster.workers],
        finals,
        lease=LEASE,
        examples=examples,
        epochs=EPOCHS,
        half_pushes=half_pushes,
        losses=[loss for shard, server in enumerate(cluster.servers) for loss in server.losses(shard)],
        complete=complete,
    )
    return Run(configuration, check(), faults.count, len(cluster.workers), time.monotonic() - began, folder)


def report(run: Run, seed: int, arguments: argparse.Namespace) -> None:
    """Says what came of a run; removes its folder, unless it is of use."""
    kept = run.verdict.passed
    word = "kept" if kept else "BROKEN"
    say(f"{run.configuration}: {word}; {run.seconds:.0f} s, {run.workers} workers, {run.faults.total()} faults")
    for line in run.verdict.lines():
        say(f"    {line}")
    if kept and not arguments.keep:
        shutil.rmtree(run.folder)
    else:
        say(f"    ledgers and logs: {run.folder}")
        again = [*run.configuration.arguments, "--seed", str(seed), "--seconds", f"{arguments.seconds:g}"]
        if arguments.faults != list(WEIGHTS):
            again += ["--faults", ",".join(arguments.faults)]
        say(f"    python -m tests.chaos {shlex.join(again)}")


def results(runs: Sequence[Run]) -> list[list[str]]:
    """What was found, a row for each run."""
    head = ["", "pushes", "lost", "doubled", "half", "reads", "torn", "dropped", "worst staleness", "examples twice"]
    rows = [[*head, "violations"]]
    for run in runs:
        v = run.verdict
        numbers = [v.acknowledged, v.lost, v.doubled, v.half, v.reads, v.torn, v.dropped, v.worst, v.twice]
        violations = ", ".join(f"{len(every)} {kind}" for kind, every in v.violations.items() if every) or "0"
        rows.append([str(run.configuration), *(f"{number:,}" for number in numbers), violations])
    return rows


def faults_injected(runs: Sequence[Run]) -> list[list[str]]:
    """How many of each kind, a row for each run."""
    rows = [["faults injected", *WEIGHTS, "workers"]]
    for run in runs:
        rows.append([str(run.configuration), *(str(run.faults[kind]) for kind in WEIGHTS), str(run.workers)])
    return rows


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as a table in Markdown; the first is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *others = rows
    lines = [head, ["-" * width for width in widths], *others]
    return [f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines]


def _history(worker: WorkerProcess) -> History:
    lines = worker.log.read_text(errors="replace").split("\n")
    error = next((line for line in reversed(lines) if line), "")
    history = History(worker.column, worker.name, worker.ended_by, worker.code, worker.faults, error)
    return add_events(history, read_events(worker.ledger))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Consistency under faults.")
    parser.add_argument("--only", action="append", metavar="CONSISTENCY", help="may be given several times")
    parser.add_argument("--staleness", action="append", metavar="HANDLING", help="none or drop:T")
    parser.add_argument("--shards", action="append", type=int, choices=SHARDS)
    parser.add_argument("--seed", type=int, help="of all that is drawn; without it one is drawn, and printed")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a job; faults go on for twice as long at most")
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
