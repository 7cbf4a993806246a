"""Messages may be lost, doubled, delayed and answered to nobody: what the workers meant to do is done, once."""

from collections import Counter

import pytest

from tests.simulation.unreliable import FATES, check_exactly_once, run


@pytest.mark.parametrize(("shards", "split"), [(1, False), (2, False), (2, True), (3, True)])
@pytest.mark.parametrize("seed", range(25))
def test_every_push_assign_and_example_counts_once(seed, shards, split):
    check_exactly_once(run(seed, shards, split=split))


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("staleness", ["none", "drop:3"])
@pytest.mark.parametrize("consistency", ["bounded:0", "bounded:1", "sync:2,backup=1", "sync:3"])
@pytest.mark.parametrize("seed", range(8))
def test_pushes_that_wait_for_others_or_are_dropped_count_once_too(seed, consistency, staleness, shards):
    options = {"split": seed % 2 == 1, "consistency": consistency, "staleness": staleness}
    check_exactly_once(run(seed, shards, **options))


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize(
    ("consistency", "staleness", "most"),
    [
        ("async", "drop:0", 0),
        ("async", "drop:1", 1),
        ("bounded:1", "drop:1", 1),
        ("sync:2", "none", 0),
        ("sync:2,backup=1", "none", 0),
    ],
)
@pytest.mark.parametrize("seed", range(6))
def test_no_shard_applies_a_push_with_more_staleness_than_promised(seed, consistency, staleness, most, shards):
    result = run(seed, shards, split=seed % 2 == 1, consistency=consistency, staleness=staleness)
    check_exactly_once(result)
    assert all(max(stalenesses, default=0) <= most for stalenesses in result.stalenesses), result.stalenesses


def test_the_transport_is_unreliable_in_every_way():
    fates = sum((run(seed, shards=1).fates for seed in range(5)), Counter())
    assert set(fates) == set(FATES)
    assert fates["delivered"] < 0.7 * fates.total()


def test_values_that_a_worker_has_are_kept_while_pushes_are_dropped_and_repeated():
    assert run(1, shards=2, consistency="sync:2,backup=1", staleness="drop:3").kept > 0


def test_one_seed_makes_one_run():
    first, again, another = run(7, shards=2), run(7, shards=2), run(8, shards=2)
    assert first.fates == again.fates != another.fates
    assert first.status == again.status
