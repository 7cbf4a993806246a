"""Exactly once, although messages and answers are lost, doubled and delayed."""

from collections import Counter

import pytest

from tests.simulation.unreliable import FATES, check_exactly_once, run
from tests.support.combinations import combinations, few_fast


def seeds(count):
    """The seeds, one of which is fast, one slow, and the others exhaustive."""
    return few_fast(range(count))


@pytest.mark.parametrize(("shards", "split"), [(1, False), (2, False), (2, True), (3, True)])
@pytest.mark.parametrize("seed", seeds(25))
def test_every_push_assign_and_example_counts_once(seed, shards, split):
    check_exactly_once(run(seed, shards, split=split))


#: Consistency, staleness, and the greatest staleness of a push that is applied, if there is a promise.
JOBS = [
    *(("bounded:0", "none", None), ("bounded:1", "drop:3", 3), ("sync:2,backup=1", "drop:3", 0), ("sync:3", "none", 0)),
    *(("async", "drop:0", 0), ("async", "drop:1", 1), ("bounded:1", "drop:1", 1), ("sync:2,backup=1", "none", 0)),
]


@pytest.mark.parametrize(("consistency", "staleness", "most", "shards"), combinations(JOBS, [(1,), (2,), (3,)]))
@pytest.mark.parametrize("seed", seeds(6))
def test_held_and_dropped_pushes_count_once_too_and_none_has_more_staleness_than_promised(
    seed, consistency, staleness, most, shards
):
    result = run(seed, shards, split=seed % 2 == 1, consistency=consistency, staleness=staleness)
    check_exactly_once(result)
    if most is not None:
        assert all(max(stalenesses, default=0) <= most for stalenesses in result.stalenesses), result.stalenesses


@pytest.mark.parametrize(("staleness", "most"), [("drop:0", 0), ("drop:1", 1), ("drop:3", 3)])
@pytest.mark.parametrize("seed", seeds(20))
def test_with_expired_leases_a_part_is_applied_in_order_or_its_push_is_known_to_be_half(seed, staleness, most):
    """A worker that goes on after its lease has ended on one shard, and not on the other."""
    result = run(seed, 2, staleness=staleness, lease=2.0)
    assert all(max(stalenesses) <= most for stalenesses in result.stalenesses), result.stalenesses
    missing = [result.values["V"] - result.values["W"], result.values["W"] - result.values["V"]]
    assert [part.clip(0).sum() for part in missing] in ([result.half_pushes, 0], [0, result.half_pushes])
    assert result.seen_half == result.half_pushes, "their workers know of all of them"


@pytest.mark.slow
def test_the_simulation_does_what_it_is_for():
    """Messages have every fate, leases expire, values are kept, and one seed makes one run."""
    first, again, another = run(7, shards=2), run(7, shards=2), run(8, shards=2)
    assert (first.fates, first.status) == (again.fates, again.status)
    assert first.fates != another.fates
    fates = sum((run(seed, shards=1).fates for seed in range(5)), Counter())
    assert set(fates) == set(FATES)
    assert fates["delivered"] < 0.7 * fates.total()
    assert sum(run(seed, 2, staleness="drop:1", lease=2.0).half_pushes for seed in range(6)) > 0
    assert run(1, shards=2, consistency="sync:2,backup=1", staleness="drop:3").kept > 0
