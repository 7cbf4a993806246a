"""Nothing is lost, or what is lost is said, although servers and workers are killed at any moment.

`SEED=17 pytest tests/simulation/test_crashes.py` runs one seed of each kind; a failing test says its own.
"""

import os
from collections import Counter

import pytest

from tests.simulation.crashes import simulate
from tests.support.combinations import few_fast

#: Shards, consistency, staleness.
JOBS = [(2, "async", "none"), (1, "sync:2", "none"), (2, "bounded:1", "drop:2")]
MORE = [(3, "async", "none"), (2, "sync:2", "none"), (2, "async", "delay-compensated"), (1, "async", "none")]


SEED = os.environ.get("SEED")
SEEDS = [int(SEED)] if SEED else few_fast(range(1, 100))


@pytest.mark.parametrize(("shards", "consistency", "staleness"), few_fast([*JOBS, *MORE]))
@pytest.mark.parametrize("seed", SEEDS)
def test_with_a_journal_no_acknowledged_push_is_lost_or_doubled(seed, shards, consistency, staleness, tmp_path):
    simulate(seed, tmp_path, shards, consistency, staleness, "journal")


#: Jobs some of whose shards have no journal, or refuse to go back.
KINDS = ["none", "mixed", "fail"]
OTHERS = [
    (17, 2, "sync:2", "none", "none"),
    (21, 2, "async", "delay-compensated", "mixed"),
    (4, 3, "async", "none", "fail"),
]
MANY_OTHERS = [
    (25, 1, "async", "none", "none"),
    (10, 2, "sync:2", "none", "mixed"),
    *((seed, *job, kind) for kind in KINDS for job in [*JOBS, *MORE] for seed in (9, 14, 25)),
]
if SEED:
    OTHERS, MANY_OTHERS = [(int(SEED), *job, kind) for kind in KINDS for job in [*JOBS, *MORE]], []


@pytest.mark.parametrize(
    ("seed", "shards", "consistency", "staleness", "kind"),
    few_fast(dict.fromkeys([*OTHERS, *MANY_OTHERS]), slow=4),
)
def test_what_is_lost_without_a_journal_is_reported_and_trained_again_or_refused(
    seed, shards, consistency, staleness, kind, tmp_path
):
    simulate(seed, tmp_path, shards, consistency, staleness, kind)


@pytest.mark.slow
def test_some_jobs_without_a_journal_report_lost_pushes_and_some_end_as_a_shard_with_one_refuses_to_go_back(tmp_path):
    back = (simulate(seed, tmp_path / f"none-{seed}", 1, "async", "none", "none") for seed in range(1, 9))
    assert any(job.status[0].storage.lost_pushes for job in back)
    refused = (simulate(seed, tmp_path / f"fail-{seed}", 3, "async", "none", "fail") for seed in range(5, 12))
    assert any(job.seen["journal of a refusing shard read"] for job in refused)


@pytest.mark.slow
def test_one_seed_makes_one_run_and_everything_happens(tmp_path):
    runs = [
        simulate(seed, tmp_path / str(number), 2, "async", "none", "journal") for number, seed in enumerate((6, 6, 7))
    ]
    first, again, another = [(run.simulation.events, run.simulation.now, run.seen) for run in runs]
    assert first == again
    assert first != another
    seen = sum((run.seen for run in runs), Counter())
    assert seen.keys() >= {"delivered", "lost", "answer lost", "doubled", "delayed", "kill a server", "kill servers"}
