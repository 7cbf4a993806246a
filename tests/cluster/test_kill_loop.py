"""Servers and workers are killed again and again: no acknowledged push is lost or doubled.

They are the processes, records and checks of `make chaos` (`tests.chaos`); here they are killed by the progress of the
job, not by the clock.
"""

import json
import random
import re
import signal
import sys
import time
from collections import Counter, defaultdict

import pytest

from psserver.storage import retention
from pswire.specs.consistency import parse_consistency, parse_staleness
from tests.chaos import scheme
from tests.chaos.check import Check, History
from tests.chaos.cluster import LEASE, Cluster
from tests.support.combinations import few_fast
from tests.support.commands import BOUND

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="uses addresses 127.x.y.1"), pytest.mark.slow]

SEED = 15
SHARDS = 2
BATCH = 100
STALLED = 60.0  # seconds without progress after which the job counts as hanging
WENT_BACK = r"went back to checkpoint (\d+), timeline \d+"
JOURNAL = "--checkpoint-every", "2s", "--keep", "2", "--journal"
SERVERS, WORKERS = ["server-0", "server-1"], ["w0", "w1"]


class KillLoop:
    """Two servers and two workers, which are killed, and started again with the commands that they had."""

    def __init__(
        self, commands, *, examples, epochs, consistency="async", staleness="none", storage=JOURNAL, moving=False
    ):
        self.examples, self.epochs = examples, epochs
        self.policies = parse_consistency(consistency), parse_staleness(staleness)
        unit = scheme.unit_of(getattr(self.policies[0], "workers", 1))
        settings = {"seed": SEED, "unit": unit, "batch": BATCH, "epochs": epochs, "pause": 0.0, "examples": examples}
        settings |= {"partial": False, "images": True, "marks": "--journal" not in storage}
        settings |= {"compensated": staleness.startswith("delay")}
        flags = ["--consistency", consistency, "--staleness", staleness]
        options = {"moving": moving, "environment": commands.environment}
        self.cluster = Cluster(commands.folder, SHARDS, flags, settings, storage, **options)
        self.current = {}  # workers by name
        self.killed = Counter()

    def begin(self):
        for server in self.cluster.servers:
            server.wait_for("listening on")
        for name in WORKERS:
            self.start(name)

    def start(self, name):
        self.current[name] = self.cluster.launch(name, timeout=BOUND)

    def kill(self, *names):
        """Kills processes, and starts them again at once."""
        self.killed.update(names)
        self.cluster.kill_servers(*[SERVERS.index(name) for name in names if name in SERVERS])
        for name in set(names) & set(WORKERS):
            worker = self.current[name]
            worker.ended_by = "kill"
            worker.faults.append((time.monotonic(), "kill"))
            worker.command.end(signal.SIGKILL)
            self.start(name)

    def pause(self, name, seconds):
        """Stops a process for a while."""
        process = self.cluster.servers[SERVERS.index(name)] if name in SERVERS else self.current[name].command
        process.signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.signal(signal.SIGCONT)

    @property
    def acknowledged(self):
        """The number of acknowledged pushes so far."""
        files = [worker.records for worker in self.cluster.workers if worker.records.exists()]
        return sum(file.read_bytes().count(b'"event":"answer"') for file in files)

    def wait_for(self, acknowledged):
        """Waits until so many pushes are acknowledged, or all workers have ended; whether any goes on."""
        before, since = -1, time.monotonic()
        while (now := self.acknowledged) < acknowledged and self.cluster.running():
            if now > before:
                before, since = now, time.monotonic()
            assert time.monotonic() < since + STALLED, f"no progress after {now} pushes: {self.lines()}"
            time.sleep(0.05)
        return bool(self.cluster.running())

    def lines(self):
        """The last lines of each process."""
        processes = [*self.cluster.servers, *[worker.command for worker in self.current.values()]]
        return [[*process.out[-4:], *process.err[-6:]] for process in processes]

    def end(self):
        """Waits for the end of the job; the values on the servers, which then stop, and its status."""
        self.wait_for(10**9)
        assert [self.current[name].command.wait() for name in WORKERS] == [0, 0], self.lines()
        finals, status = self.cluster.finals()
        assert self.cluster.stop_servers() == [0, 0], self.lines()
        self.cluster.read_records()
        return finals, status

    def check(self):
        """The end of the job, with nothing lost or doubled."""
        finals, status = self.end()
        facts = {"examples": self.examples, "epochs": self.epochs, "half_pushes": status.half_pushes}
        workers, cuts = self.cluster.workers, self.cluster.cuts()
        check = Check(*self.policies, workers, finals, LEASE, **facts, complete=True, cuts=cuts)
        assert not check.violations, dict(check.violations)
        assert check.counts["pushes"] > 0
        assert {epoch for worker in workers for epoch, *_ in worker.reports} == set(range(1, self.epochs + 1))
        assert not check.counts["examples twice"], "no worker was lost while it lived"

    def costs(self, *histories):
        """The mean cost of the images of each epoch."""
        found, counts = defaultdict(float), Counter()
        for push in [push for history in histories or self.cluster.workers for push in history.pushes]:
            if push.answered is not None:
                found[push.epoch] += push.cost * len(push.examples)
                counts[push.epoch] += len(push.examples)
        return {epoch: found[epoch] / counts[epoch] for epoch in sorted(found)}

    def undisturbed_costs(self):
        """Those in one process without servers."""
        records, history = self.cluster.folder / "alone.jsonl", History(1, "w0")
        command = self.cluster.alone(records)
        assert command.wait() == 0, command.err
        for line in records.read_text().splitlines():
            history.add(**json.loads(line))
        return self.costs(history)


@pytest.fixture
def start(commands):
    """A function that makes a job; its processes are ended."""
    jobs = []

    def start(**options):
        jobs.append(KillLoop(commands, **options))
        jobs[-1].begin()
        return jobs[-1]

    yield start
    for job in jobs:
        job.cluster.close()


def disturb(job, kills, victims, pauses=0):
    """Kills one of the victims at each of so many moments of the job's progress, and stops some for a while."""
    draws = random.Random(SEED)
    pushes = job.epochs * -(-job.examples // BATCH)
    moments = sorted(draws.sample(range(5, pushes - 20), kills + pauses))
    stops = set(draws.sample(moments, pauses))
    for moment in moments:
        if not job.wait_for(moment):
            break
        victim = draws.choice(victims)
        if moment in stops:
            # The block of a worker that sleeps longer than its lease is trained by others too.
            job.pause(victim, draws.choice([0.3, 1.0] + [1.5 * LEASE] * (victim in SERVERS)))
        else:
            job.kill(victim)


def test_a_killed_server_and_a_killed_worker_lose_no_acknowledged_push_and_double_none(start):
    job = start(examples=4000, epochs=1)
    for moment, victim in (8, "server-1"), (16, "w0"), (24, "server-0"):
        job.wait_for(moment)
        job.kill(victim)
    job.check()


def test_servers_that_are_killed_and_come_back_at_other_addresses_lose_and_double_nothing(start):
    job = start(examples=8000, epochs=1, moving=True)
    disturb(job, 6, [*SERVERS, *SERVERS, *WORKERS])
    job.check()
    assert sum(job.killed[name] for name in SERVERS) >= 3, "otherwise it tests nothing"


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("consistency", "staleness", "sync"),
    few_fast(
        [
            ("bounded:2", "none", "every"),
            ("async", "none", "every"),
            ("sync:2", "none", "every"),
            ("async", "drop:0", "every"),
            ("async", "delay-compensated", "every"),
            ("async", "none", "100ms"),
            ("async", "none", "off"),
        ],
        fast=0,
        slow=1,
    ),
)
def test_after_20_kills_each_acknowledged_push_is_there_once_and_the_job_is_as_undisturbed(
    start, consistency, staleness, sync
):
    """A synchronous update is the mean of two gradients, and dropped pushes are missing: there the cost is higher."""
    storage = (*JOURNAL, "--journal-sync", sync)
    job = start(examples=55_000, epochs=3, consistency=consistency, staleness=staleness, storage=storage)
    disturb(job, 20, [*SERVERS, *WORKERS], pauses=4)
    job.check()
    costs = job.costs()
    assert sorted(costs) == [1, 2, 3]
    if consistency != "sync:2" and staleness != "drop:0":
        assert costs == pytest.approx(job.undisturbed_costs(), abs=0.03)


@pytest.mark.timeout(400)
def test_without_a_journal_only_what_came_after_the_last_checkpoint_is_lost_and_the_servers_report_it(start):
    """All shards go back together: what is lost is lost on both, and its examples are trained again."""
    job = start(examples=30_000, epochs=2, storage=("--checkpoint-every", "1s", "--keep", "20"))
    draws = random.Random(SEED)
    for number in range(1, 7):
        job.wait_for(70 * number)
        newest, victims = max(stored(job)), draws.choice([["server-0"], ["server-1"], SERVERS])
        job.kill(*victims)
        job.wait_for(job.acknowledged + 10)
        for shard in range(SHARDS):
            log = job.cluster.server_log(shard)
            went_back = [int(match[1]) for line in log if (match := re.search(WENT_BACK, line))]
            assert went_back, (number, victims, job.lines())
            assert went_back[-1] >= newest
    finals, status = job.end()
    assert [set(final.marks) for final in finals] == [{2}, {2}]
    answers = [push.dropped for worker in job.cluster.workers for push in worker.pushes if push.answered is not None]
    present = [sum(scheme.count_updates(value)[0] for value in final.first[1:]) for final in finals]
    assert present[0] == present[1]
    lost, dropped = answers.count(False) - present[0], answers.count(True)
    assert lost > 0
    for answer in status.answers:
        # A push that was under way may have been acknowledged by one of the shards.
        assert lost <= answer.report.storage.lost_pushes <= lost + dropped


def stored(job):
    """The checkpoints that both shards have."""
    return set.intersection(*[set(retention.cuts(job.cluster.checkpoints, shard, SHARDS)) for shard in range(SHARDS)])
