"""Cuts that a worker begins: held on all shards or on none."""

import pytest

from pswire import messages as ms
from pswire.errors import ConfigurationError, InvalidMessage, TimedOut
from tests.support.shards import ShardsInProcess


def holders(transport):
    """By shard, the workers for which it holds a cut."""
    cuts = [machine.cuts.current for machine in transport.machines]
    return [[one.worker for one in cut.holders] if cut is not None else [] for cut in cuts]


def test_a_cut_that_one_shard_cannot_hold_is_released_on_those_that_hold_it():
    transport = ShardsInProcess(3)
    client, other = transport.client("w0")[0], transport.client("other")[0]
    transport.call(1, ms.Cut(9, other.membership.sender), 1.0).result()
    with pytest.raises(TimedOut, match="shard 1: this shard has no part of cut 1"):
        client.hold_cut((), timeout=0.0)
    assert holders(transport) == [[], ["other"], []]
    assert client.cuts.generation == 0


def test_a_cut_is_released_on_all_shards_whatever_ends_the_wait_for_it():
    transport = ShardsInProcess(3)
    client, _ = transport.client("w0")
    transport.refuse = lambda shard, message: shard == 1 and isinstance(message, ms.Renew)
    with pytest.raises(InvalidMessage, match="not this one"):
        client.hold_cut(())
    assert holders(transport) == [[], [], []]
    transport.refuse = lambda shard, message: False
    transport.show_cuts(client)
    with pytest.raises(ConfigurationError, match="--checkpoint-dir"):
        client.checkpoint()
    assert holders(transport) == [[], [], []]


def test_a_cut_is_held_once_it_is_complete_on_all_shards():
    transport = ShardsInProcess(3)
    client, other = [transport.client(name)[0] for name in ("w0", "other")]

    def show(shard, message):
        """The other worker shows the number to a shard only when that is asked about it."""
        if isinstance(message, ms.Cut) and transport.machines[shard].cuts.number == message.number:
            other.membership.cuts.note(message.number)
            transport._step(shard, 0, other.membership.renewal(shard, 0))
        return False

    transport.refuse = show
    client.hold_cut(())
    number = client.cuts.generation
    assert [machine.cuts.report(number).complete for machine in transport.machines] == [True, True, True]
    client.release_cut()
    assert holders(transport) == [[], [], []]


def test_no_message_shows_a_number_before_the_cut_is_held_on_all_shards():
    transport = ShardsInProcess(2)
    client, _ = transport.client("w0")
    shown = []

    def note(shard, message):
        if isinstance(message, ms.Cut) and shard == 1:
            client.membership.cuts.note(message.number)  # as a heartbeat
            shown.append(client.membership.cuts.to_show())
        return False

    transport.refuse = note
    client.hold_cut(())
    number = client.cuts.generation
    assert (shown[0], client.membership.cuts.to_show()) == (0, number)
