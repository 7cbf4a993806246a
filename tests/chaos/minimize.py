"""Minimizations under faults: `python -m tests.chaos.minimize`; a part of `make chaos`.

Each round minimizes with two servers and some workers, all of them processes. Meanwhile workers are stopped for longer
or shorter than their lease, killed and started, and servers are killed and started again, with a journal or with
checkpoints only. At the end every worker that was not killed must have found the same minimum, that of a run without
faults, and the loss and the gradient of each accepted point must be those of all examples, each counted once, at
weights with which some worker has computed (`tests.cluster.minimize_job`). If not, the exit code is 1, and the logs are
kept.
"""

import itertools
import random
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import click

from tests.cluster.conftest import Commands
from tests.cluster.minimize_job import SHARDS, MinimizeJob

#: The minimum of `tests.cluster.minimize_data`, by numpy's solution of a run without faults.
LOSS = 1.6499669973608886

#: Seconds with faults, and those for the end after the last one.
WITH_FAULTS, TO_END = 12.0, 120.0
PAUSES = 0.2, 1.2
FAULTS = {"stop": 4, "continue": 3, "kill": 1, "start": 1, "restart a server": 1}
MOST_WORKERS = 5
DURABLE = (("--checkpoint-dir", "run", "--journal"), ("--checkpoint-dir", "run", "--checkpoint-every", "1s"))

say = partial(print, flush=True)


class Round:
    """A minimization, and what happens to it: drawn by `seed`."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.seed = random.Random(seed), seed
        (folder / "logs").mkdir()
        (folder / "work").mkdir()
        self.commands = Commands(folder / "work", folder / "logs")
        self.durable = self.random.choice(DURABLE)
        self.job = MinimizeJob(self.commands, serve=self.durable, portion=10)
        self.names, self.numbers = ["w0", "w1", "w2"], itertools.count(3)
        self.stopped: set[str] = set()
        self.done: list[str] = []

    def run(self) -> list[str]:
        """What is wrong at the end."""
        self.job.begin(*self.names)
        end = time.monotonic() + WITH_FAULTS
        while time.monotonic() < end and self.running():
            time.sleep(self.random.uniform(*PAUSES))
            self.fault(*self.random.choices(list(FAULTS), list(FAULTS.values())))
        for worker in sorted(self.stopped):
            self.job.workers[worker].signal(signal.SIGCONT)
        end = time.monotonic() + TO_END
        while self.running() and time.monotonic() < end:
            time.sleep(0.1)
        return self.wrong()

    def running(self) -> list[str]:
        """The workers that have not ended."""
        return [worker for worker in self.names if self.job.workers[worker].popen.poll() is None]

    def fault(self, kind: str) -> None:
        """One fault, if it can be: a worker at least goes on."""
        job, choose = self.job, self.random.choice
        awake = [worker for worker in self.running() if worker not in self.stopped]
        target = ""
        if kind in ("stop", "kill") and len(awake) > 1:
            target = choose(awake)
            if kind == "stop":
                job.workers[target].signal(signal.SIGSTOP)
                self.stopped.add(target)
            else:
                job.workers[target].end(signal.SIGKILL)
                self.names.remove(target)
        elif kind == "continue" and self.stopped:
            target = choose(sorted(self.stopped))
            job.workers[target].signal(signal.SIGCONT)
            self.stopped.remove(target)
        elif kind == "start" and awake and len(self.names) < MOST_WORKERS:
            target = f"w{next(self.numbers)}"
            job.launch(target)
            self.names.append(target)
        elif kind == "restart a server":
            shard = self.random.randrange(SHARDS)
            target = str(shard)
            job.restart(shard, signal.SIGKILL)
        if target:
            self.done.append(f"{kind} {target}")

    def wrong(self) -> list[str]:
        """What is not as it must be."""
        workers = {worker: self.job.workers[worker] for worker in self.names}
        codes = {worker: command.popen.poll() for worker, command in workers.items()}
        wrong = [f"{worker} ended with {code}" for worker, code in codes.items() if code != 0]
        minima = {line for one in workers.values() for line in one.out if line.startswith("minimum ")}
        if len(minima) != 1:
            return [*wrong, f"{len(minima)} minima: {sorted(minima)}"]
        try:
            found = self.job.minimum(minima.pop())
            self.job.check(found, *self.names)
            assert abs(found["loss"] / LOSS - 1) < 1e-10, found
        except AssertionError as error:
            wrong.append(f"{error}")
        return wrong


@click.command(help="Verifies minimizations under injected faults.")
@click.option("--seed", type=int, help="Of the first round; printed if not given.")
@click.option("--rounds", default=12, show_default=True, help="Each takes 15 seconds to a minute.")
def main(seed: int | None, rounds: int) -> None:
    first = random.SystemRandom().randrange(10_000) if seed is None else seed
    failed = 0
    for number in range(first, first + rounds):
        began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="chaos-"))
        one = Round(number, folder)
        try:
            wrong = one.run()
            lines = one.job.lines() if wrong else {}
        finally:
            one.commands.kill()
        result = "wrong" if wrong else "right"
        say(f"seed {number}: {result}, {time.monotonic() - began:.0f} s, {one.durable[-1]}: {', '.join(one.done)}")
        for line in [*wrong, *[f"{name}: {line}" for name, last in lines.items() for line in last]]:
            say(f"    {line}")
        if wrong:
            say(f"    logs: {folder}")
            failed += 1
        else:
            shutil.rmtree(folder)
    say(f"{failed} of {rounds} minimizations were wrong")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
