"""The client over several shards: joined answers, each part applied once, and no call left open."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.errors import (
    AlreadyRegistered,
    ConfigurationError,
    InvalidMessage,
    ShapeMismatch,
    UnknownVariable,
)
from pswire.messages import (
    Assignment,
    Declaration,
    Leave,
    Outcome,
    Pull,
    Push,
)
from pswire.optimizers import GradientDescent, Momentum
from pswire.specs.consistency import Asynchronous, Bounded, DropStalePushes, Synchronous
from pswire.specs.initializers import RowUniform, rows_of
from pswire.tensors.values import IndexedSlices, TensorSpec
from psworker.client import placement
from psworker.client.client import Client
from psworker.versions import ReadVersion, VersionedArray
from tests.shards_in_process import ShardsInProcess

NAMES = ("a", "b", "c")
ROWS = 7  # of the variable that is split
TABLE = RowUniform(-1.0, 1.0, seed=3)


pytestmark = pytest.mark.usefixtures("split_small")


def joined(transport, worker="w0", timeout=60):
    client = Client(transport, worker, timeout)
    client.join()
    return client


def declarations(optimizer=GradientDescent(learning_rate=1)):  # noqa: B008
    small = [Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), optimizer) for name in NAMES]
    split = Declaration(TensorSpec("s", (ROWS, 2), "float64"), np.zeros((ROWS, 2)), optimizer)
    table = Declaration(TensorSpec("t", (ROWS, 2), "float64"), None, optimizer, TABLE)
    return [*small, split, table]


@pytest.fixture
def transport():
    return ShardsInProcess()


@pytest.fixture
def client(transport):
    client = joined(transport)
    client.register(declarations())
    transport.sent.clear()
    yield client
    client.close()


def gradient(name, version=0):
    return VersionedArray(name, ReadVersion((version,)), np.full(2, -1.0))


def steps_of(shards):
    """A gradient for all variables, with values that no two rows share."""
    numbers = np.arange(ROWS * 2.0).reshape(ROWS, 2)
    rows = IndexedSlices(numbers[:3], np.array([0, 1, 0]), (ROWS, 2))
    return [
        VersionedArray("s", ReadVersion((0,) * shards), numbers),
        VersionedArray("t", ReadVersion((0,) * shards), rows),
        *(gradient(name) for name in NAMES),
    ]


# --- whole variables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_registration_returns_the_joined_values_in_order_without_tables(shards):
    values = np.arange(ROWS * 2.0).reshape(ROWS, 2)
    client = joined(ShardsInProcess(shards))
    known = client.register(
        [
            Declaration(TensorSpec("t", (ROWS, 2), "float64"), None, None, TABLE),
            Declaration(TensorSpec("s", (ROWS, 2), "float64"), values),
            Declaration(TensorSpec("a", ()), np.float32(3).reshape(())),
        ]
    )
    assert [(one.name, one.versions) for one in known] == [("s", (0,) * shards), ("a", (0,))]
    np.testing.assert_array_equal(known[0].array, values, strict=True)
    table = rows_of(TABLE, np.arange(ROWS), (2,), np.dtype("float64"))
    np.testing.assert_array_equal(client.choose("t").array, table, strict=True)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_one_sequence_of_calls_leaves_the_same_however_many_shards_there_are(shards):
    transport = ShardsInProcess(shards)
    client = joined(transport)
    client.register(declarations(Momentum(learning_rate=0.5, momentum=0.5)))
    pushed = client.push(steps_of(shards), loss=2.0, pull=("s", "b")).result()
    client.push([gradient("b", 1), *steps_of(shards)[:2]]).result()
    client.assign([Assignment("s", np.ones((ROWS, 2))), Assignment("a", np.ones(2))], add=True)
    client.tune(["s", "c"], Momentum(learning_rate=0.25, momentum=0.5), ["learning_rate"])
    client.push(steps_of(shards)).result()

    numbers = np.arange(ROWS * 2.0).reshape(ROWS, 2)
    assert (pushed.outcome, pushed.staleness, pushed.global_step) == (Outcome.APPLIED, 0, 1)
    assert [(one.name, one.versions) for one in pushed.values] == [("s", (1,) * shards), ("b", (1,))]
    np.testing.assert_array_equal(pushed.values[0].array, -0.5 * numbers, strict=True)
    s, c = client.pull(["s", "c"])
    momentum = client.choose("s", slot="momentum").array
    np.testing.assert_array_equal(momentum, 1.75 * numbers)
    np.testing.assert_array_equal(s.array, -0.5 * numbers - 0.75 * numbers + 1 - 0.25 * momentum)
    np.testing.assert_array_equal(c.array, 0.5 + 0.25 * (1 + 0.5))
    assert s.versions == (4,) * shards, "each part counts every change, with rows or without"
    assert client.choose("t").versions == (3,) * shards
    assert [transport.status(shard).global_step for shard in range(shards)] == [3] * shards


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_chosen_rows_come_in_the_order_asked_for_from_the_value_and_from_a_slot(shards):
    client = joined(ShardsInProcess(shards))
    client.register(declarations(Momentum(learning_rate=1.0)))
    client.push(steps_of(shards)).result()
    value, slot = client.choose("s").array, client.choose("s", slot="momentum").array
    for rows in ([6, 0, 3, 3, 0], [1], [], list(range(ROWS))):
        chosen = client.choose("s", np.array(rows, np.int32))
        assert chosen.versions == (1,) * shards
        np.testing.assert_array_equal(chosen.array, value[rows], strict=True)
        np.testing.assert_array_equal(client.choose("s", np.array(rows, int), "momentum").array, slot[rows])


def test_a_row_that_is_not_there_is_refused_before_anything_is_sent(client, transport):
    with pytest.raises(InvalidMessage, match=r"'t' has no row 7: its rows are 0 \.\.\. 6"):
        client.choose("t", np.array([0, 7]))
    with pytest.raises(TypeError, match="'t'"):
        client.choose("t", np.array([0.5]))
    assert not transport.sent


# --- a push and its answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusing", range(3))
def test_a_refusal_by_one_shard_is_raised_when_no_call_is_open_any_more(client, transport, refusing):
    transport.refuse, transport.ended = lambda shard, message: shard == refusing, []
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push([gradient(name) for name in NAMES]).result()
    assert transport.ended == [0, 1, 2, refusing], "who has not applied it is told last that it was given up"


def test_a_message_with_one_invalid_part_is_not_sent_at_all(client, transport):
    good, bad = gradient("a"), VersionedArray("s", ReadVersion((0, 0, 0)), np.zeros((ROWS, 3)))
    with pytest.raises(ShapeMismatch, match=r"gradient for 's' is float64\[7, 3\]"):
        client.push([good, bad])
    with pytest.raises(InvalidMessage, match="'s' has 1 versions, but the variable has 3 partitions"):
        client.push([good, VersionedArray("s", ReadVersion((0,)), np.zeros((ROWS, 2)))])
    with pytest.raises(ShapeMismatch, match="assigned value for 's'"):
        client.assign([Assignment("a", np.zeros(2)), Assignment("s", np.zeros((ROWS, 3)))])
    with pytest.raises(UnknownVariable, match="'x' has not been registered"):
        client.push([good], pull=["x"])
    with pytest.raises(UnknownVariable, match="'x' has not been registered"):
        client.tune(["a", "x"], GradientDescent(0.5), ["learning_rate"])
    assert not transport.sent


def test_every_part_is_applied_once_when_answers_are_lost(client, transport):
    lost = set()

    def lose_the_first(shard, message):
        first = (shard, type(message)) not in lost
        lost.add((shard, type(message)))
        return first

    transport.lose = lose_the_first
    pushed = client.push(steps_of(3), pull=("s",)).result()
    client.assign([Assignment("s", np.ones((ROWS, 2)))], add=True)
    client.tune(["s", "t", "a"], GradientDescent(0.5), ["learning_rate"])
    assert pushed.outcome is Outcome.REPEATED
    np.testing.assert_array_equal(pushed.values[0].array, -np.arange(ROWS * 2.0).reshape(ROWS, 2))
    np.testing.assert_array_equal(client.pull(["s"])[0].array, 1 - np.arange(ROWS * 2.0).reshape(ROWS, 2))
    said = [(shard, message.sequence) for shard, message in transport.messages(Push)]
    assert sorted(said) == [(0, 1), (0, 1), (1, 1), (1, 1), (2, 1), (2, 1)]


def test_a_worker_with_another_placement_is_refused_and_the_first_goes_on(client, transport):
    other = joined(transport, "w1")
    alone = [Declaration(TensorSpec("c", (2,), "float64"), np.zeros(2))]
    with pytest.raises(AlreadyRegistered, match="'c' is on shard 1, worker 'w1' places it on shard 0"):
        other.register(alone)
    with pytest.raises(UnknownVariable):
        other.pull(["c"])  # what was refused has no place
    other.close()
    assert client.push([gradient("c")], pull=("c",)).result().values[0].array[0] == 1


def test_a_worker_that_splits_a_variable_otherwise_is_told(client, transport, monkeypatch):
    monkeypatch.setattr(placement, "SPLIT_BYTES", 1 << 20)
    other = joined(transport, "w1")
    with pytest.raises(AlreadyRegistered, match=r"'s' is .*rows from 0 on, of 7.*worker declares it as a whole"):
        other.register([Declaration(TensorSpec("s", (ROWS, 2), "float64"), np.zeros((ROWS, 2)))])
    other.close()


# --- shard 0 decides --------------------------------------------------------------------------------------------------


def test_without_a_deciding_policy_a_push_is_sent_to_all_shards_at_once(client, transport):
    handle = client.push(steps_of(3))
    assert [shard for shard, _ in transport.sent] == [0, 1, 2]
    handle.result()
    assert client.consistency == Asynchronous()


@pytest.mark.parametrize("repeated", [False, True])
def test_where_shard_0_decides_the_others_get_the_group_that_it_made(repeated):
    transport = ShardsInProcess(3, Synchronous(2))
    first, second = joined(transport, "w0"), joined(transport, "w1")
    for client in (first, second):
        client.register(declarations())
    assert first.consistency == Synchronous(2)
    transport.sent.clear()
    if repeated:  # the answer that comes when both have pushed, so that both are asked again
        transport.lose = lambda shard, message: isinstance(message, Push) and len(transport.messages(Push)) <= 2
    handles = [client.push(steps_of(3), pull=("s",)) for client in (first, second)]
    assert [shard for shard, _ in transport.sent] == [0, 0], "the others hear of it when it is decided"
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda handle: handle.result(), handles))
    groups = [message.group for shard, message in transport.messages(Push) if shard]
    assert len({(group.number, group.members) for group in groups}) == 1
    assert [member.sender.worker for member in groups[0].members] == ["w0", "w1"]
    assert all(result.global_step == 1 for result in results)
    for client in (first, second):
        np.testing.assert_array_equal(client.pull(["s"])[0].array, -np.arange(ROWS * 2.0).reshape(ROWS, 2))


def test_a_push_that_shard_0_drops_reaches_no_other_and_brings_their_values():
    transport = ShardsInProcess(3, staleness=DropStalePushes(0))
    fast, slow = joined(transport, "fast"), joined(transport, "slow")
    for client in (fast, slow):
        client.register(declarations())
    fast.push(steps_of(3)).result()
    transport.sent.clear()
    result = slow.push(steps_of(3), pull=("s", "c", "a")).result()
    assert result.outcome is Outcome.DROPPED
    assert result.reason
    assert [shard for shard, _ in transport.messages(Push)] == [0]
    assert [shard for shard, _ in transport.messages(Pull)] == [1, 2]
    assert [(one.name, one.versions) for one in result.values] == [("s", (1, 1, 1)), ("c", (1,)), ("a", (1,))]
    assert [transport.status(shard).global_step for shard in range(3)] == [1, 1, 1]
    again = slow.push([replace(result.values[0], array=np.ones((ROWS, 2)))]).result()
    assert (again.outcome, again.global_step) == (Outcome.APPLIED, 2)


def test_shards_with_different_policies_are_named():
    transport = ShardsInProcess(2)
    transport.machines[1] = Shard(1, 2, consistency=Bounded(3), staleness=DropStalePushes(4))
    client = Client(transport, "w0", timeout=60)
    text = "shard 0 .*--consistency async --staleness none, shard 1 .*--consistency bounded:3 --staleness drop:4: start"
    with pytest.raises(ConfigurationError, match=text):
        client.join()
    client.leave()
    client.close()


def test_a_fork_of_a_worker_does_not_leave_for_its_parent(client, transport, monkeypatch):
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        client.leave()
    assert transport.messages(Leave) == []
    client.leave()
    assert [shard for shard, _ in transport.messages(Leave)] == [0, 1, 2]
