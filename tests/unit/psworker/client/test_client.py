"""The client over several shards: joined answers, each part applied once, and no call left open."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.errors import AlreadyRegistered, ConfigurationError, InvalidMessage, ShapeMismatch, UnknownVariable
from pswire.messages import Assignment, Declaration, Leave, Outcome, Pull, Push
from pswire.optimizers import GradientDescent, Momentum
from pswire.specs.consistency import Bounded, DropStalePushes, Synchronous
from pswire.specs.initializers import RowUniform, rows_of
from pswire.tensors.values import IndexedSlices, TensorSpec
from psworker.client import placement
from psworker.versions import ReadVersion, VersionedArray
from tests.shards_in_process import ShardsInProcess

NAMES = ("a", "b", "c")
ROWS = 7  # of the variable that is split
NUMBERS = np.arange(ROWS * 2.0).reshape(ROWS, 2)
TABLE = RowUniform(-1.0, 1.0, seed=3)

pytestmark = pytest.mark.usefixtures("split_small")
SHARDS = pytest.mark.parametrize("shards", [1, 2, 3])


def declarations(optimizer=GradientDescent(learning_rate=1)):  # noqa: B008
    small = [Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), optimizer) for name in NAMES]
    split = Declaration(TensorSpec("s", (ROWS, 2), "float64"), np.zeros((ROWS, 2)), optimizer)
    return [*small, split, Declaration(TensorSpec("t", (ROWS, 2), "float64"), None, optimizer, TABLE)]


@pytest.fixture
def transport():
    return ShardsInProcess()


@pytest.fixture
def client(transport):
    client, _ = transport.client("w0", *declarations())
    transport.sent.clear()
    return client


def gradient(name, version=0):
    return VersionedArray(name, ReadVersion((version,)), np.full(2, -1.0))


def steps_of(shards):
    """A gradient for all variables, with values that no two rows share."""
    read, rows = ReadVersion((0,) * shards), IndexedSlices(NUMBERS[:3], np.array([0, 1, 0]), (ROWS, 2))
    return [VersionedArray("s", read, NUMBERS), VersionedArray("t", read, rows), *map(gradient, NAMES)]


@SHARDS
def test_registration_returns_the_joined_values_in_order_without_tables(shards):
    client, known = ShardsInProcess(shards).client(
        "w0",
        Declaration(TensorSpec("t", (ROWS, 2), "float64"), None, None, TABLE),
        Declaration(TensorSpec("s", (ROWS, 2), "float64"), NUMBERS),
        Declaration(TensorSpec("a", ()), np.float32(3).reshape(())),
    )
    assert [(one.name, one.versions) for one in known.values()] == [("s", (0,) * shards), ("a", (0,))]
    np.testing.assert_array_equal(known["s"].array, NUMBERS, strict=True)
    table = rows_of(TABLE, np.arange(ROWS), (2,), np.dtype("float64"))
    np.testing.assert_array_equal(client.choose("t").array, table, strict=True)


@SHARDS
def test_one_sequence_of_calls_leaves_the_same_however_many_shards_there_are(shards):
    transport = ShardsInProcess(shards)
    client, _ = transport.client("w0", *declarations(Momentum(learning_rate=0.5, momentum=0.5)))
    pushed = client.push(steps_of(shards), loss=2.0, pull=("s", "b")).result()
    client.push([gradient("b", 1), *steps_of(shards)[:2]]).result()
    client.assign([Assignment("s", np.ones((ROWS, 2))), Assignment("a", np.ones(2))], add=True)
    client.tune(["s", "c"], Momentum(learning_rate=0.25, momentum=0.5), ["learning_rate"])
    client.push(steps_of(shards)).result()

    assert (pushed.outcome, pushed.staleness, pushed.global_step) == (Outcome.APPLIED, 0, 1)
    assert [(one.name, one.versions) for one in pushed.values] == [("s", (1,) * shards), ("b", (1,))]
    np.testing.assert_array_equal(pushed.values[0].array, -0.5 * NUMBERS, strict=True)
    s, c = client.pull(["s", "c"])
    momentum = client.choose("s", slot="momentum").array
    np.testing.assert_array_equal(momentum, 1.75 * NUMBERS)
    np.testing.assert_array_equal(s.array, -0.5 * NUMBERS - 0.75 * NUMBERS + 1 - 0.25 * momentum)
    np.testing.assert_array_equal(c.array, 0.5 + 0.25 * (1 + 0.5))
    for rows in ([6, 0, 3, 3, 0], [1], []):
        chosen = client.choose("s", np.array(rows, np.int32))
        assert chosen.versions == s.versions == (4,) * shards, "each part counts every change, with rows or without"
        np.testing.assert_array_equal(chosen.array, s.array[rows], strict=True)
        np.testing.assert_array_equal(client.choose("s", np.array(rows, int), "momentum").array, momentum[rows])
    assert client.choose("t").versions == (3,) * shards
    assert [transport.status(shard).global_step for shard in range(shards)] == [3] * shards


@pytest.mark.parametrize("refusing", range(3))
def test_a_refusal_by_one_shard_is_raised_when_no_call_is_open_any_more(client, transport, refusing):
    transport.refuse, transport.ended = lambda shard, message: shard == refusing, []
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push([gradient(name) for name in NAMES]).result()
    assert transport.ended == [0, 1, 2, refusing], "the shard that has not applied it is told that it was abandoned"


def of_s(shape, *versions):
    return VersionedArray("s", ReadVersion(versions), np.zeros(shape))


INVALID = {
    "shape": (lambda c: c.push([gradient("a"), of_s((ROWS, 3), 0, 0, 0)]), ShapeMismatch, r"for 's' is float64\[7, 3"),
    "versions": (lambda c: c.push([of_s((ROWS, 2), 0)]), InvalidMessage, "has 1 versions, but .* has 3 partitions"),
    "assigned": (lambda c: c.assign([Assignment("s", np.zeros((ROWS, 3)))]), ShapeMismatch, "assigned value for 's'"),
    "pulled": (lambda c: c.push([gradient("a")], pull=["x"]), UnknownVariable, "'x' has not been registered"),
    "tuned": (lambda c: c.tune(["a", "x"], GradientDescent(0.5), ["learning_rate"]), UnknownVariable, "'x' has not"),
    "row": (lambda c: c.choose("t", np.array([0, 7])), InvalidMessage, r"'t' has no row 7: its rows are 0 \.\.\. 6"),
}


@pytest.mark.parametrize(("call", "error", "message"), INVALID.values(), ids=INVALID)
def test_a_message_with_one_invalid_part_is_not_sent_at_all(client, transport, call, error, message):
    with pytest.raises(error, match=message):
        call(client)
    assert not transport.sent


def test_a_worker_with_another_placement_or_partition_is_refused_and_the_first_goes_on(client, transport, monkeypatch):
    other, _ = transport.client("w1")
    with pytest.raises(AlreadyRegistered, match="'c' is on shard 1, worker 'w1' places it on shard 0"):
        other.register([Declaration(TensorSpec("c", (2,), "float64"), np.zeros(2))])
    with pytest.raises(UnknownVariable):
        other.pull(["c"])  # a refused variable has no placement
    monkeypatch.setattr(placement, "SPLIT_BYTES", 1 << 20)
    with pytest.raises(AlreadyRegistered, match=r"'s' is .*rows from 0 on, of 7.*worker declares it as a whole"):
        other.register([Declaration(TensorSpec("s", (ROWS, 2), "float64"), np.zeros((ROWS, 2)))])
    assert client.push([gradient("c")], pull=("c",)).result().values[0].array[0] == 1


def test_without_a_deciding_policy_a_push_is_sent_to_all_shards_at_once(client, transport):
    client.push(steps_of(3))
    assert [shard for shard, _ in transport.sent] == [0, 1, 2]


def test_where_shard_0_decides_the_others_get_the_group_that_it_made():
    transport = ShardsInProcess(3, Synchronous(2))
    clients = [transport.client(worker, *declarations())[0] for worker in ("w0", "w1")]
    transport.sent.clear()
    handles = [client.push(steps_of(3), pull=("s",)) for client in clients]
    assert [shard for shard, _ in transport.sent] == [0, 0], "the others get it when it is decided"
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda handle: handle.result(), handles))
    groups = [message.group for shard, message in transport.messages(Push) if shard]
    assert len({(group.number, group.members) for group in groups}) == 1
    assert [member.sender.worker for member in groups[0].members] == ["w0", "w1"]
    assert [result.global_step for result in results] == [1, 1]
    for client in clients:
        np.testing.assert_array_equal(client.pull(["s"])[0].array, -NUMBERS)


def test_a_push_that_shard_0_drops_reaches_no_other_and_brings_their_values():
    transport = ShardsInProcess(3, staleness=DropStalePushes(0))
    fast, slow = (transport.client(worker, *declarations())[0] for worker in ("fast", "slow"))
    fast.push(steps_of(3)).result()
    transport.sent.clear()
    result = slow.push(steps_of(3), pull=("s", "c", "a")).result()
    assert result.outcome is Outcome.DROPPED
    assert result.reason
    assert [(shard, type(message)) for shard, message in transport.sent] == [(0, Push), (1, Pull), (2, Pull)]
    assert [(one.name, one.versions) for one in result.values] == [("s", (1, 1, 1)), ("c", (1,)), ("a", (1,))]
    assert [transport.status(shard).global_step for shard in range(3)] == [1, 1, 1]
    again = slow.push([replace(result.values[0], array=np.ones((ROWS, 2)))]).result()
    assert (again.outcome, again.global_step) == (Outcome.APPLIED, 2)


def test_shards_with_different_policies_are_named():
    transport = ShardsInProcess(2)
    transport.machines[1] = Shard(1, 2, consistency=Bounded(3), staleness=DropStalePushes(4))
    text = "shard 0 .*--consistency async --staleness none, shard 1 .*--consistency bounded:3 --staleness drop:4: start"
    with pytest.raises(ConfigurationError, match=text):
        transport.client()


def test_a_fork_of_a_worker_does_not_leave_for_its_parent(client, transport, monkeypatch):
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        client.leave()
    assert transport.messages(Leave) == []
    client.leave()
    assert [shard for shard, _ in transport.messages(Leave)] == [0, 1, 2]
