"""Every cut has each push on all of its shards, or on none; after a loss all shards go back to one of them."""

import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from pswire.messages import Tick
from tests.simulation.cuts import elements, run, status
from tests.simulation.test_unreliable_transport import seeds
from tests.support.combinations import combinations
from tests.support.shards import run_step

POLICIES = [
    *(("async", "none"), ("async", "drop:2"), ("bounded:0", "none"), ("bounded:1", "drop:2")),
    *(("sync:2", "none"), ("sync:2,backup=1", "drop:3"), ("sync:3", "none")),
]
CASE = ("shards", "split", "consistency", "staleness")


@pytest.mark.parametrize(CASE, combinations([(1, False), (2, False), (2, True), (3, False), (3, True)], POLICIES))
@pytest.mark.parametrize("seed", seeds(20))
def test_in_every_cut_all_shards_have_the_same_pushes(seed, consistency, staleness, shards, split):
    result = run(seed, shards, split=split, consistency=consistency, staleness=staleness)
    numbers, before = result.cuts(), 0.0
    assert numbers
    for number in numbers:
        values = elements(result.restored(number))
        if values.size:
            assert (values == values[0]).all(), f"cut {number}: {values}"
            assert values[0] >= before, "a later cut has no fewer"
            before = values[0]


def half_pushes(shards):
    """The pushes that only some of these shards have, as `psserver status` counts them when no worker is back."""
    for shard in shards:
        run_step(shard, 0, Tick(lost=tuple([one.name for one in status(shard).workers])), 0.0)
    answers = [ShardAnswer(f"shard-{number}", status(shard)) for number, shard in enumerate(shards)]
    return merge_reports(answers).half_pushes


@pytest.mark.parametrize(CASE, combinations([(2, False), (2, True), (3, True)], POLICIES))
@pytest.mark.parametrize("seed", seeds(20))
def test_with_workers_that_are_killed_shards_differ_by_no_more_than_the_half_pushes_that_are_counted(
    seed, consistency, staleness, shards, split
):
    result = run(seed, shards, split=split, consistency=consistency, staleness=staleness, lease=20.0, kill=0.005)
    for number in result.cuts():
        restored = result.restored(number)
        values = elements(restored)
        if values.size:
            assert values.max() - values.min() <= half_pushes(restored), f"cut {number}: {values}"


#: Those in which each push is one update.
ONE_BY_ONE = [one for one in POLICIES if not one[0].startswith("sync")]


@pytest.mark.parametrize(CASE, combinations([(1, False), (2, False), (2, True), (3, True)], ONE_BY_ONE))
@pytest.mark.parametrize("seed", seeds(20))
def test_what_shards_have_after_losses_is_what_they_acknowledged_without_what_they_report_as_lost(
    seed, consistency, staleness, shards, split
):
    result = run(seed, shards, split=split, consistency=consistency, staleness=staleness, lose=0.05)
    machines = [link.stored.shard for link in result.transport.links]
    values = elements(machines)
    assert (values == values[0]).all(), "all went back together"
    for shard, machine in enumerate(machines):
        report = status(machine)
        assert report.global_step == result.acknowledged[shard] - report.storage.lost_pushes


@pytest.mark.slow
def test_the_simulation_does_what_it_is_for():
    """There are cuts with late changes, numbers shown while a push is held, killed workers, half pushes, lost state."""
    cuts = late = killed = halves = losses = dropped = shown_while_held = 0
    for seed in range(3):
        result = run(seed, 2, split=True)
        cuts += len(result.cuts())
        late += sum(len(one.late) for link in result.transport.links for one in link.stored.checkpoints.values())
        shown_while_held += run(seed, 2, split=True, consistency="sync:2").shown_while_held
        result = run(seed, 2, split=True, lease=20.0, kill=0.01)
        killed += result.killed
        halves += sum(half_pushes(result.restored(number)) for number in result.cuts())
        result = run(seed, 2, split=True, lose=0.05)
        losses, dropped = losses + result.losses, dropped + result.dropped
    assert min(cuts, late, killed, halves, losses, dropped, shown_while_held) > 0
