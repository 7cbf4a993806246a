"""Nothing is lost, or what is lost is said, although servers and workers are killed at any moment.

`SEED=17 pytest tests/simulation/test_crashes.py` runs one seed of each kind; a failing test says its own.
"""

import os
from collections import Counter

import pytest

from tests.simulation.crashes import simulate

#: Shards, consistency, staleness.
JOBS = [(2, "async", "none"), (1, "async", "none"), (3, "async", "none")]

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else [*range(1, 3)]
MANY = [] if "SEED" in os.environ else [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 100)]


@pytest.mark.parametrize(("shards", "consistency", "staleness"), JOBS)
@pytest.mark.parametrize("seed", [*SEEDS, *MANY])
def test_with_a_journal_no_acknowledged_push_is_lost_or_doubled(seed, shards, consistency, staleness, tmp_path):
    simulate(seed, tmp_path, shards, consistency, staleness, "journal")


def test_one_seed_makes_one_run_and_everything_happens(tmp_path):
    runs = [
        simulate(seed, tmp_path / str(number), 2, "async", "none", "journal") for number, seed in enumerate((4, 4, 5))
    ]
    first, again, another = [(run.simulation.events, run.simulation.now, run.seen) for run in runs]
    assert first == again
    assert first != another
    seen = sum((run.seen for run in runs), Counter())
    assert seen.keys() >= {"delivered", "lost", "answer lost", "doubled", "delayed", "kill a server", "kill servers"}
