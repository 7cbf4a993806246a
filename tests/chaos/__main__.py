"""Consistency under faults: `make chaos`, or `python -m tests.chaos` in the repository's root.

Trains a job with real servers and workers under each consistency policy and staleness handling, on one to three shards.
Meanwhile workers are killed, stopped, started twice and made to fail, servers are stopped, and connections are cut,
reset, stalled and refused. Finally the job completes, and the values on the servers are compared with the workers'
records of each push and example (`check`). Prints a table; if a guarantee was broken, the exit code is 1, and records
and logs are kept.

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
TIMEOUT = 25.0  # of calls of a worker, seconds
TO_END = 90.0  # seconds for the job to complete after the last fault
BATCH, EPOCHS = 4, 2
RATES = {"async": 150, "bounded": 60, "sync": 35}  # assumed pushes per second
PAUSE = 0.01  # longest time of a step beside its push, seconds

say = partial(print, flush=True)


@dataclass(frozen=True)
class Configuration:
    """Consistency policy, staleness handling and number of shards of a run."""

    consistency: str
    staleness: str
    shards: int

    def __str__(self) -> str:
        handling = "" if self.staleness == "none" else f" {self.staleness}"
        return f"{self.consistency}{handling}, {self.shards} shard{'s' if self.shards > 1 else ''}"

    @property
    def gradients(self) -> int:
        spec = parse_consistency(self.consistency)
        return spec.workers if isinstance(spec, Synchronous) else 1

    @property
    def workers(self) -> int:
        spec = parse_consistency(self.consistency)
        return spec.workers + spec.backup if isinstance(spec, Synchronous) else 3

    @property
    def arguments(self) -> list[str]:
        return ["--only", self.consistency, "--staleness", self.staleness, "--shards", str(self.shards)]


@dataclass(frozen=True)
class Run:
    """The result of one configuration."""

    configuration: Configuration
    verdict: Verdict
    faults: Counter[str]
    workers: int  # processes
    seconds: float
    folder: Path


def main() -> int:
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
                    run = asyncio.run(run_one(configuration, seed, arguments.seconds, arguments.faults))
                except (KeyboardInterrupt, asyncio.CancelledError):
                    return 130
                finally:
                    sweep()  # shared memory of killed processes
                runs.append(run)
                report(run, seed, arguments)
    say("", *table(results(runs)), "", *table(faults_injected(runs)), sep="\n")
    broken = sum(not run.verdict.passed for run in runs)
    say(f"\nchaos: {broken} of {len(runs)} configurations broke a guarantee; seed {seed}")
    return 1 if broken else 0


async def run_one(configuration: Configuration, seed: int, seconds: float, kinds: Sequence[str]) -> Run:
    """Runs one configuration: servers, workers, faults, verification."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C: leaves nothing behind
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
        await cluster.kill_workers()  # those that have not finished
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
    """Prints the result of a run; removes its folder unless it is needed."""
    kept = run.verdict.passed
    word = "kept" if kept else "BROKEN"
    say(f"{run.configuration}: {word}; {run.seconds:.0f} s, {run.workers} workers, {run.faults.total()} faults")
    for line in run.verdict.lines():
        say(f"    {line}")
    if kept and not arguments.keep:
        shutil.rmtree(run.folder)
    else:
        say(f"    records and logs: {run.folder}")
        again = [*run.configuration.arguments, "--seed", str(seed), "--seconds", f"{arguments.seconds:g}"]
        if arguments.faults != list(WEIGHTS):
            again += ["--faults", ",".join(arguments.faults)]
        say(f"    python -m tests.chaos {shlex.join(again)}")


def results(runs: Sequence[Run]) -> list[list[str]]:
    head = ["", "pushes", "lost", "doubled", "half", "reads", "torn", "dropped", "worst staleness", "examples twice"]
    rows = [[*head, "violations"]]
    for run in runs:
        v = run.verdict
        numbers = [v.acknowledged, v.lost, v.doubled, v.half, v.reads, v.torn, v.dropped, v.worst, v.twice]
        violations = ", ".join(f"{len(every)} {kind}" for kind, every in v.violations.items() if every) or "0"
        rows.append([str(run.configuration), *(f"{number:,}" for number in numbers), violations])
    return rows


def faults_injected(runs: Sequence[Run]) -> list[list[str]]:
    rows = [["faults injected", *WEIGHTS, "workers"]]
    for run in runs:
        rows.append([str(run.configuration), *(str(run.faults[kind]) for kind in WEIGHTS), str(run.workers)])
    return rows


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *others = rows
    lines = [head, ["-" * width for width in widths], *others]
    return [f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines]


def _history(worker: WorkerProcess) -> History:
    lines = worker.log.read_text(errors="replace").split("\n")
    error = next((line for line in reversed(lines) if line), "")
    history = History(worker.column, worker.name, worker.ended_by, worker.code, worker.faults, error)
    return add_events(history, read_events(worker.records))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Verifies guarantees under injected faults."
    )
    parser.add_argument("--only", action="append", metavar="CONSISTENCY", help="may be given several times")
    parser.add_argument("--staleness", action="append", metavar="HANDLING", help="none or drop:T")
    parser.add_argument("--shards", action="append", type=int, choices=SHARDS)
    parser.add_argument("--seed", type=int, help="of the random generator; printed if not given")
    parser.add_argument(
        "--seconds",
        type=float,
        default=8.0,
        help="length of a job without faults; faults are injected for at most twice that time",
    )
    parser.add_argument("--keep", action="store_true", help="keep all records and logs")
    parser.add_argument(
        "--faults",
        type=lambda text: [kind for kind in text.split(",") if kind],
        default=list(WEIGHTS),
        metavar="KINDS",
        help=f"only these, separated by commas: {', '.join(WEIGHTS)}; '' for none",
    )
    arguments = parser.parse_args()
    unknown = set(arguments.faults) - set(WEIGHTS)
    if unknown:
        parser.error(f"--faults: unknown: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
