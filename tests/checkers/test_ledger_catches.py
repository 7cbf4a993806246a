"""The exactly-once check of the simulation must fail when what it relies on is broken."""

import pytest

from psserver.core.dataqueue import DataQueue
from psserver.core.ledger import Ledger
from psserver.core.store import Store
from tests.simulation.unreliable import check_exactly_once, run


def test_it_passes_when_nothing_is_broken():
    check_exactly_once(run(seed=1, shards=1))


def forget_every_answer(monkeypatch):
    monkeypatch.setattr(Ledger, "answered", lambda *_: None)


def forget_to_write_answers_down(monkeypatch):
    monkeypatch.setattr(Ledger, "record", lambda *_: None)


def forget_who_holds_a_block(monkeypatch):
    take = DataQueue.take

    def forgetful(queue, worker):
        block = take(queue, worker)
        queue._out.clear()
        return block

    monkeypatch.setattr(DataQueue, "take", forgetful)


def lose_one_update(monkeypatch):
    apply = Store.apply

    def lossy(store, gradients, global_step):
        apply(store, [] if store["W"].version == 5 else gradients, global_step)

    monkeypatch.setattr(Store, "apply", lossy)


@pytest.mark.parametrize(
    "broken", [forget_every_answer, forget_to_write_answers_down, forget_who_holds_a_block, lose_one_update]
)
def test_the_check_fails_when_the_shard_would(broken, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=r"never, or more than once|handed out|is in what it is served"):
        check_exactly_once(run(seed=1, shards=1))
