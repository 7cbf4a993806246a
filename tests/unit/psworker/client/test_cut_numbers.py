"""Every change carries one cut number on all shards, and no older one than any shard was shown."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from pswire import messages as ms
from pswire.errors import InvalidMessage
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Bounded
from pswire.tensors.values import TensorSpec
from psworker.client.cut_numbers import CutNumbers
from tests.support.shards import ShardsInProcess

SGD = GradientDescent(learning_rate=1)
DECLARATIONS = [ms.Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), SGD) for name in "ab"]


def numbers(transport, kind):
    """(shard, cut) of the messages of this kind, which are forgotten."""
    found = [(shard, message.cut) for shard, message in transport.messages(kind)]
    transport.sent.clear()
    return found


def gradients(known):
    return [replace(whole, array=np.ones(2)) for whole in known.values()]


def begin_cut(transport, shard, number=0):
    with transport._changed:
        transport._step(shard, 10**6, ms.Cut(number))
        return transport._answers.pop(10**6).number


def test_all_messages_of_a_change_carry_the_newest_number_that_any_shard_had_shown_before_it():
    transport = ShardsInProcess(2)
    number = begin_cut(transport, 1, 3)
    client, known = transport.client("w0", *DECLARATIONS)
    assert set(numbers(transport, ms.Register)) == {(0, 3), (1, 3)}, "as Joined"
    client.push(gradients(known)).result()
    assert numbers(transport, ms.Push) == [(0, 3), (1, 3)]
    number = begin_cut(transport, 1)
    client.push(gradients(known)).result()
    assert numbers(transport, ms.Push) == [(0, 3), (1, 3)], "the answer of shard 1 has the new number"
    client.assign([ms.Assignment(name, np.zeros(2)) for name in "ab"])
    assert numbers(transport, ms.Assign) == [(0, number), (1, number)]
    begin_cut(transport, 0)
    client.blocks.take(ms.QueueSpec(name="data", size=1, block=1, epochs=1), None)
    client.tune(["a", "b"], SGD, ["learning_rate"])
    assert numbers(transport, ms.Tune) == [(0, number + 1), (1, number + 1)]


def test_a_worker_that_joins_a_shard_again_adopts_the_cut_that_began_there_without_it():
    transport = ShardsInProcess(2)
    client, known = transport.client("w0", *DECLARATIONS)
    with transport._changed:
        transport._step(1, 0, ms.Tick(lost=("w0",)))
    begin_cut(transport, 1, 5)
    client.pull("ab")  # its answers have no number
    transport.sent.clear()
    client.push(gradients(known)).result()
    assert numbers(transport, ms.Push) == [(0, 5), (1, 5)]


def test_a_retry_carries_the_number_of_the_first_try_and_the_next_change_the_new_one():
    transport = ShardsInProcess(2)
    client, known = transport.client("w0", *DECLARATIONS)
    lost = iter([True])

    def lose(shard, message):
        if isinstance(message, ms.Push) and shard == 1 and next(lost, False):
            begin_cut(transport, 0, 5)
            client.membership.cuts.note(5)  # as a heartbeat
            return True
        return False

    transport.lose = lose
    transport.sent.clear()
    client.push(gradients(known)).result()
    assert numbers(transport, ms.Push) == [(0, 0), (1, 0), (1, 0)]
    client.push(gradients(known)).result()
    assert numbers(transport, ms.Push) == [(0, 5), (1, 5)]


def test_where_shard_0_decides_the_parts_of_a_push_carry_its_number_at_the_decision():
    transport = ShardsInProcess(2, Bounded(1))
    client, known = transport.client("w0", *DECLARATIONS)
    number = begin_cut(transport, 0)
    transport.sent.clear()
    client.push(gradients(known)).result()
    assert numbers(transport, ms.Push) == [(0, 0), (1, number)]


def test_a_push_that_fails_ends_its_change():
    transport = ShardsInProcess(2)
    client, known = transport.client("w0", *DECLARATIONS)
    begin_cut(transport, 1, 4)
    for refuse in (lambda shard, message: shard == 0 and isinstance(message, ms.Push), lambda shard, message: False):
        transport.refuse = refuse
        wrong = [replace(one, array=np.ones(3)) for one in gradients(known)]
        with pytest.raises(InvalidMessage):
            client.push(gradients(known) if refuse(0, ms.Push(sender=None, sequence=1)) else wrong).result()
        assert client.membership.cuts.to_show() == 4, "no heartbeat holds the cut back"


def test_a_push_that_a_signal_ends_before_it_is_sent_ends_its_change_too():
    transport = ShardsInProcess(2)
    client, known = transport.client("w0", *DECLARATIONS)
    begin_cut(transport, 1, 4)
    client.membership.cuts.note(4)

    def interrupt(shard, message):
        client.membership.cuts.note(5)  # as a heartbeat
        raise KeyboardInterrupt

    transport.refuse = interrupt
    with pytest.raises(KeyboardInterrupt):
        client.push(gradients(known))
    assert client.membership.cuts.to_show() == 5


def test_a_heartbeat_shows_the_newest_number_but_while_a_change_is_open_the_one_that_it_carries():
    cuts = CutNumbers()
    cuts.note(3)
    cuts.note(2)
    with cuts as number:
        cuts.note(7)
        assert (number, cuts.to_show(), cuts.newest) == (3, 3, 7)
    assert cuts.to_show() == 7
    cuts.note(8)
    assert cuts.begin_change() == 8
    cuts.reset(1)
    assert cuts.newest == cuts.to_show() == 1


def test_a_new_number_wakes_the_heartbeats_of_all_shards_as_soon_as_no_change_is_open(monkeypatch):
    monkeypatch.undo()  # the heartbeat starts
    transport = ShardsInProcess(3, lease=1e6)  # no heartbeat is due in this test
    client, known = transport.client("w0", *DECLARATIONS)
    number = begin_cut(transport, 0)
    shown = threading.Event()
    shards = set()

    def note(shard, message):
        if isinstance(message, ms.Renew):
            assert message.cut == number
            shards.add(shard)
        if len(shards) == 3:
            shown.set()
        return False

    transport.lose = note
    pushed = client.push(gradients(known))
    client.membership.cuts.note(number)
    assert not shards
    pushed.result()
    assert shown.wait(10.0)
    client.leave()
    assert len(transport.messages(ms.Renew)) == 3, "each shard is shown it once"
    assert all(not thread.is_alive() for thread in client._heartbeat._threads)


def test_a_newer_number_is_shown_during_a_change_if_shard_0_holds_its_push_and_none_from_before_going_back():
    cuts = CutNumbers()
    cuts.begin_change(awaits_decision=True)
    cuts.note(5)
    assert cuts.to_show() == 0
    cuts.note_held_push(5, resets=0)
    assert cuts.to_show() == 5
    cuts.reset(2)
    cuts.note_held_push(5, resets=0)
    assert cuts.to_show() == 2
    cuts.end_change()
    cuts.begin_change()
    cuts.note_held_push(6, resets=1)
    assert cuts.to_show() == 2, "no shard decides about this change"
