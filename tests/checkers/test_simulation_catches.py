"""The exactly-once check of the simulation must fail when what it relies on is broken."""

import pytest

from psserver.core.data_queue import DataQueue
from psserver.core.members.deduplication import DeduplicationTable
from psserver.core.policies import Follower
from psserver.core.policies.policy import Apply, Serve
from psserver.core.variables.store import Store
from tests.simulation.unreliable import check_exactly_once, run

SYNCHRONOUS = {"shards": 2, "split": True, "consistency": "sync:3"}


@pytest.mark.parametrize("job", [{"shards": 1}, SYNCHRONOUS], ids=["async", "sync"])
def test_it_passes_when_nothing_is_broken(job):
    check_exactly_once(run(seed=1, **job))


def forget_every_answer(monkeypatch):
    monkeypatch.setattr(DeduplicationTable, "find", lambda *_: None)
    monkeypatch.setattr(DeduplicationTable, "last", lambda *_: 0)


def forget_to_write_answers_down(monkeypatch):
    monkeypatch.setattr(DeduplicationTable, "record", lambda *_: None)


def forget_who_holds_a_block(monkeypatch):
    take = DataQueue.take

    def forgetful(queue, worker, result):
        block = take(queue, worker, result)
        queue._out.clear()
        return block

    monkeypatch.setattr(DataQueue, "take", forgetful)


def lose_one_update(monkeypatch):
    update = Store.update

    def lossy(store, pushes, *when):
        update(store, [] if store["W"].version == 5 else pushes, *when)

    monkeypatch.setattr(Store, "update", lossy)


@pytest.mark.parametrize(
    "broken", [forget_every_answer, forget_to_write_answers_down, forget_who_holds_a_block, lose_one_update]
)
def test_the_check_fails_when_the_shard_would(broken, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=r"never, or more than once|handed out|is in what it is served"):
        check_exactly_once(run(seed=1, shards=1))


def lose_one_of_a_group(monkeypatch):
    update = Store.update

    def lossy(store, pushes, *when):
        update(store, pushes[:2], *when)

    monkeypatch.setattr(Store, "update", lossy)


def apply_each_of_a_group_by_itself(monkeypatch):
    def hasty(policy, waiting, view):
        return [Serve(one.ticket) if one.applied else Apply((one.ticket,)) for one in waiting]

    monkeypatch.setattr(Follower, "decide", hasty)


@pytest.mark.parametrize("broken", [lose_one_of_a_group, apply_each_of_a_group_by_itself])
def test_the_check_fails_when_pushes_that_are_applied_together_would(broken, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        check_exactly_once(run(seed=1, **SYNCHRONOUS))
