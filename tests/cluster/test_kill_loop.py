"""Servers and workers are killed again and again: no acknowledged push is lost or doubled."""

import json
import random
import re
import sys

import pytest

from tests.cluster.kill_loop import LEASE, PROGRAM, KillLoop
from tests.support.combinations import few_fast

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses addresses 127.x.y.1")

SEED = 15
COST = re.compile(r"epoch (\d+): cost ([\d.]+) over \d+ examples")
WENT_BACK = r"went back to checkpoint (\d+), timeline \d+"
JOURNAL = "--checkpoint-every", "2s", "--keep", "2", "--journal"


def run(job, seed, kills, victims, pauses=0):
    """Runs the job; kills one of the victims at each of so many moments of its progress, and stops some for a while."""
    draws = random.Random(seed)
    pushes = job.epochs * -(-job.examples // job.batch)
    moments = sorted(draws.sample(range(5, pushes - 20), kills + pauses))
    stops = set(draws.sample(moments, pauses))
    job.begin()
    for moment in moments:
        job.wait_for(moment)
        if not job.live():
            break
        victim = draws.choice(victims)
        if moment in stops:
            # The block of a worker that sleeps longer than its lease is trained by others too.
            job.pause(victim, draws.choice([0.3, 1.0] + [1.5 * LEASE] * (victim in job.servers)))
        else:
            job.kill(victim)
    return job.finish()


@pytest.mark.slow
def test_a_killed_server_and_a_killed_worker_lose_no_acknowledged_push_and_double_none(commands):
    job = KillLoop(commands, examples=4000, epochs=1, storage=JOURNAL)
    job.begin()
    for moment, victim in (8, "server-1"), (16, "w0"), (24, "server-0"):
        job.wait_for(moment)
        job.kill(victim)
    outcome = job.finish()
    outcome.check()
    outcome.check_examples()
    assert sorted(job.costs()) == [1]


@pytest.mark.slow
def test_servers_that_are_killed_and_come_back_at_other_addresses_lose_and_double_nothing(commands):
    job = KillLoop(commands, examples=8000, epochs=1, storage=JOURNAL, moving=True)
    outcome = run(job, SEED, 6, [*job.servers, *job.servers, *job.workers])
    outcome.check()
    outcome.check_examples()
    assert sorted(job.costs()) == [1]
    assert sum(len(job.ended[name]) for name in job.servers) >= 3, "otherwise it tests nothing"


def undisturbed_costs(job):
    """The costs of the epochs in one process without servers."""
    folder = job.commands.folder / "alone"
    folder.mkdir()
    settings = json.dumps(job.settings | {"folder": str(folder)})
    command = job.commands.python(str(PROGRAM), settings, PSWORKER_NAME=job.workers[0], OPENBLAS_NUM_THREADS="1")
    assert command.popen.wait(100) == 0, command.err
    return {int(match[1]): float(match[2]) for match in map(COST.fullmatch, command.out) if match}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("consistency", "staleness", "sync"),
    few_fast(
        [
            ("async", "none", "every"),
            ("bounded:2", "none", "every"),
            ("sync:2", "none", "every"),
            ("async", "drop:0", "every"),
            ("async", "delay-compensated", "every"),
            ("async", "none", "100ms"),
            ("async", "none", "off"),
        ],
        fast=0,
        slow=0,
    ),
)
def test_after_20_kills_each_acknowledged_push_is_there_once_and_the_job_is_as_undisturbed(
    commands, consistency, staleness, sync
):
    """A synchronous update is the mean of two gradients, and dropped pushes are missing: there the cost is higher."""
    storage = (*JOURNAL, "--journal-sync", sync)
    job = KillLoop(commands, examples=55_000, epochs=3, consistency=consistency, staleness=staleness, storage=storage)
    outcome = run(job, SEED, 20, [*job.servers, *job.workers], pauses=4)
    outcome.check()
    outcome.check_examples()
    costs = job.costs()
    assert sorted(costs) == [1, 2, 3]
    if consistency != "sync:2" and staleness != "drop:0":
        assert costs == pytest.approx(undisturbed_costs(job), abs=0.03)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_without_a_journal_only_what_came_after_the_last_checkpoint_is_lost_and_the_servers_report_it(commands):
    """All shards go back together: what is lost is lost on both, and its examples are trained again."""
    storage = "--checkpoint-every", "1s", "--keep", "1000"
    job = KillLoop(commands, examples=30_000, epochs=2, storage=storage)
    draws = random.Random(SEED)
    job.begin()
    for number in range(1, 7):
        job.wait_for(70 * number)
        newest, victims = job.newest_cut(), draws.choice([["server-0"], ["server-1"], job.servers])
        job.kill(*victims)
        job.wait_for(job.acknowledged + 10)
        for server in job.servers:
            went_back = [int(match[1]) for line in job.log(server) if (match := re.search(WENT_BACK, line))]
            assert went_back, (number, victims, job.lines())
            assert went_back[-1] >= newest
    outcome = job.finish()
    for marks in outcome.marks:
        assert set(marks) == {2.0}
    acknowledged, dropped = len(outcome.answers("a")), len(outcome.answers("d"))
    present = [sum(value[job.first :]) for value in outcome.values]
    assert present[0] == present[1]
    lost = acknowledged - present[0]
    assert lost > 0
    for report in outcome.reports:
        # A push that was under way may have been acknowledged by one of the shards.
        assert lost <= report.storage.lost_pushes <= lost + dropped
