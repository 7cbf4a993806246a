"""The exactly-once check of the simulation must fail when what it relies on is broken."""

import pytest

from psserver.core.data_queue import DataQueue
from psserver.core.members.membership import Membership
from psserver.core.policies import Follower
from psserver.core.policies.policy import Apply
from psserver.core.variables.store import Store
from tests.simulation.unreliable import check_exactly_once, run

ASYNCHRONOUS, SYNCHRONOUS = {"shards": 1}, {"shards": 2, "split": True, "consistency": "sync:3"}
take, update = DataQueue.take, Store.update


def forget_holders(queue, worker, result):
    block = take(queue, worker, result)
    queue._out.clear()
    return block


def lose_one_update(store, pushes, *when):
    update(store, [] if store["W"].version == 5 else pushes, *when)


def lose_one_of_a_group(store, pushes, *when):
    update(store, pushes[:2], *when)


def apply_each_by_itself(policy, pushes, shard):
    return [Apply((one.ticket,)) for one in pushes]


#: The job, and the broken methods.
FAULTS = {
    "answers are forgotten": (ASYNCHRONOUS, [(Membership, "settled_before", lambda *_: False)]),
    "no answer is recorded": (ASYNCHRONOUS, [(Membership, "record", lambda *_: None)]),
    "holders of blocks are forgotten": (ASYNCHRONOUS, [(DataQueue, "take", forget_holders)]),
    "one update is lost": (ASYNCHRONOUS, [(Store, "update", lose_one_update)]),
    "one of a group is lost": (SYNCHRONOUS, [(Store, "update", lose_one_of_a_group)]),
    "each of a group is applied by itself": (SYNCHRONOUS, [(Follower, "decide", apply_each_by_itself)]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_fails_when_the_shard_would(fault, monkeypatch):
    job, broken = FAULTS[fault]
    for method in broken:
        monkeypatch.setattr(*method)
    with pytest.raises(AssertionError, match=r"never, or more|handed out|served|updates"):
        check_exactly_once(run(seed=1, **job))


@pytest.mark.parametrize("job", [ASYNCHRONOUS, SYNCHRONOUS], ids=["async", "sync"])
def test_it_passes_when_nothing_is_broken(job):
    check_exactly_once(run(seed=1, **job))
