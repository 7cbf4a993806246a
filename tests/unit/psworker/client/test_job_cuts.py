"""Cuts that a worker begins: held on all shards or on none."""

import pytest

from pswire import messages as ms
from pswire.errors import TimedOut
from tests.shards_in_process import ShardsInProcess


def holders(transport):
    """By shard, the workers for which it holds a cut."""
    cuts = [machine.cuts.current for machine in transport.machines]
    return [[one.worker for one in cut.holders] if cut is not None else [] for cut in cuts]


def test_a_cut_that_one_shard_cannot_hold_is_released_on_those_that_hold_it():
    transport = ShardsInProcess(3)
    client, other = transport.client("w0")[0], transport.client("other")[0]
    transport.call(1, ms.Cut(9, other.sender), 1.0).result()
    with pytest.raises(TimedOut, match="shard 1: this shard has no part of cut 1"):
        client.hold_cut((), timeout=0.0)
    assert holders(transport) == [[], ["other"], []]
    assert client.generation == 0
