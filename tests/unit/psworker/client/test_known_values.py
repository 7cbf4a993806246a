"""Unchanged values do not travel again; versions from before a restart of a server prove nothing."""

from dataclasses import replace

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.messages import (
    Assignment,
    Declaration,
    Gradient,
    Join,
    Outcome,
    Pull,
    Push,
    Register,
    Sender,
)
from pswire.messages.sizes import tensor_bytes
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Asynchronous, DropStalePushes, Synchronous
from pswire.tensors.values import TensorSpec
from psworker.client import partitions
from psworker.client.client import Client
from psworker.client.placement import Placement
from tests.shard_state import run_step
from tests.shards_in_process import ShardsInProcess

SGD = GradientDescent(learning_rate=1)
ROWS = 12
SPECS = {name: TensorSpec(name, (ROWS, 2)) for name in ("frozen", "trained")} | {"bias": TensorSpec("bias", (3,))}
SHARDS = pytest.mark.parametrize("shards", [1, 2, 3])


pytestmark = pytest.mark.usefixtures("split_small")


def some(shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def registered(transport, worker="w0"):
    """A client, and by name what it has registered."""
    client = Client(transport, worker, timeout=60)
    client.join()
    declarations = [Declaration(spec, some(spec.shape), SGD) for spec in SPECS.values()]
    known = {whole.name: whole for whole in client.register(declarations)}
    transport.sent.clear()
    transport.answers.clear()
    return client, known


def gradients(known, *names, seed=2):
    return [replace(known[name], array=some(known[name].array.shape, seed)) for name in names]


def received(transport):
    """Bytes of all values that have come since the last time."""
    found = sum(tensor_bytes(answer) for _, answer in transport.answers)
    transport.answers.clear()
    return found


def bytes_of(*names):
    return sum(SPECS[name].nbytes for name in names)


# --- what does not travel ---------------------------------------------------------------------------------------------


@SHARDS
def test_unchanged_values_are_not_sent_again_and_keep_their_arrays(shards):
    transport = ShardsInProcess(shards)
    client, known = registered(transport)
    pushed = client.push(gradients(known, "trained"), pull=list(SPECS), known_values=known.values()).result()
    assert received(transport) == bytes_of("trained")
    assert [one.name for one in pushed.values] == list(SPECS)
    now = {one.name: one for one in pushed.values}
    assert now["frozen"].array is known["frozen"].array
    assert now["bias"].array is known["bias"].array
    np.testing.assert_array_equal(now["trained"].array, known["trained"].array - some((ROWS, 2), 2), strict=True)
    again = client.pull(list(SPECS), now.values())
    assert received(transport) == 0
    assert [one.array is now[one.name].array for one in again] == [True] * 3
    assert [one.versions for one in again] == [now[name].versions for name in SPECS]


@SHARDS
@pytest.mark.parametrize(
    ("consistency", "staleness"),
    [(Asynchronous(), DropStalePushes(0)), (Synchronous(1), DropStalePushes(0)), (Asynchronous(), DropStalePushes(9))],
    ids=str,
)
def test_values_are_bit_for_bit_those_of_workers_that_name_nothing(shards, consistency, staleness):
    runs = []
    for named in (True, False):
        transport = ShardsInProcess(shards, consistency, staleness)
        workers = [registered(transport, name) for name in ("w0", "w1")]
        seen, outcomes = [], []
        for step in range(12):
            client, known = workers[step % 5 % 2]  # so that some pushes are stale
            names = [name for name in ("trained", "bias") if step % 3 or name == "bias"]
            known_versions = known.values() if named else ()
            pushed = client.push(gradients(known, *names, seed=step), 0.5, list(SPECS), known_versions).result()
            known.update({one.name: one for one in pushed.values})
            if step == 7:
                client.assign([Assignment("frozen", some((ROWS, 2), 99))])
            outcomes.append((pushed.outcome, pushed.staleness, pushed.global_step))
            seen.append([(one.versions, one.read.served_at, one.array.tobytes()) for one in pushed.values])
        runs.append((seen, outcomes))
        if named:
            fewest = received(transport)
    assert runs[0] == runs[1]
    assert fewest < received(transport)
    if staleness.above == 0:
        assert {outcome for outcome, *_ in runs[0][1]} == {Outcome.APPLIED, Outcome.DROPPED}


@pytest.mark.parametrize("shards", [2, 3])
def test_of_a_variable_in_several_parts_those_come_that_have_changed_and_the_old_array_is_not_written(shards):
    transport = ShardsInProcess(shards)
    client, known = registered(transport)
    old, before = known["trained"], known["trained"].array.copy()
    first, count = ROWS // shards, ROWS // shards
    other = Sender("other", 1)
    run_step(transport.machines[1], 0, Join("other", 1, 1, shards, 5), 0.0)
    part = Gradient("trained", 0, some((count, 2), 5))
    run_step(transport.machines[1], 0, Push(other, 1, (part,)), 0.0)
    (now,) = client.pull(["trained"], [old])
    assert received(transport) == bytes_of("trained") // shards
    assert now.versions == tuple(int(shard == 1) for shard in range(shards))
    expected = before.copy()
    expected[first : first + count] -= part.array
    np.testing.assert_array_equal(now.array, expected, strict=True)
    np.testing.assert_array_equal(old.array, before, strict=True)
    assert not np.shares_memory(now.array, old.array)
    assert not now.array.flags.writeable


# --- another life -----------------------------------------------------------------------------------------------------


def start_anew(transport, shard, values):
    """Another life of a shard: it has lost its state, and come to the same versions with other values."""
    machine = transport.machines[shard] = Shard(shard, transport.shards)
    variables = {name: Placement(transport.shards).extended(SPECS.values())[name] for name in SPECS}
    declarations = [
        Declaration(partition.spec, np.full(partition.spec.shape, values, np.float32), SGD, None, partition.part)
        for variable in variables.values()
        for partition in variable.partitions
        if partition.shard == shard
    ]
    run_step(machine, 0, Join("other", 1, shard, transport.shards, 5), 0.0)
    run_step(machine, 0, Register(Sender("other", 1), tuple(declarations)), 0.0)


@pytest.mark.parametrize("lost", [0, 1])
def test_versions_from_before_a_restart_of_a_server_are_not_named(lost):
    transport = ShardsInProcess(2)
    client, known = registered(transport)
    start_anew(transport, lost, values=7)
    now = {one.name: one for one in client.pull(list(SPECS), known.values())}
    for name, variable in ((name, Placement(2).extended(SPECS.values())[name]) for name in SPECS):
        assert now[name].versions == known[name].versions, "as many changes"
        parts = zip(
            variable.partitions,
            *(partitions.split_array(variable, one[name].array) for one in (now, known)),
            strict=True,
        )
        for partition, mine, before in parts:
            expected = np.full(mine.shape, 7, np.float32) if partition.shard == lost else before
            np.testing.assert_array_equal(mine, expected, strict=True)


def has_names(message):
    """Whether it is a pull of whole values, which is what a shard gets of a push that has no gradient for it."""
    return isinstance(message, Pull) and bool(message.names)


@pytest.mark.parametrize("consistency", [Asynchronous(), Synchronous(1)], ids=str)
def test_a_push_sent_after_a_rejoin_names_no_earlier_versions(consistency):
    """Where shard 0 decides, shard 1 gets its part when `result` is called, which may be after a lookup."""
    transport = ShardsInProcess(2, consistency)
    client, known = registered(transport)
    if not consistency.decides:
        transport.lose = lambda shard, message: isinstance(message, Push) or has_names(message)  # until then
    handle = client.push(gradients(known, "bias"), pull=list(SPECS), known_values=known.values())
    start_anew(transport, 1, values=7)
    client.choose("trained", np.array([0, ROWS - 1]))
    transport.lose = lambda shard, message: False
    now = {one.name: one for one in handle.result().values}
    np.testing.assert_array_equal(now["trained"].array[ROWS // 2 :], np.full((ROWS // 2, 2), 7, np.float32))
    np.testing.assert_array_equal(now["frozen"].array[ROWS // 2 :], np.full((ROWS // 2, 2), 7, np.float32))
    transport.answers.clear()
    client.pull(list(SPECS), now.values())
    assert received(transport) == bytes_of(*SPECS), "it was not known whose they are"


def test_a_lease_that_has_ended_costs_whole_answers_until_one_was_asked_for_after_it():
    transport = ShardsInProcess(1, lease=1000.0)
    client, known = registered(transport)
    transport.sleep(2000)
    pushed = client.push(gradients(known, "bias"), pull=list(SPECS), known_values=known.values()).result()
    assert received(transport) == bytes_of(*SPECS)
    again = client.pull(list(SPECS), pushed.values)
    assert received(transport) == bytes_of(*SPECS), "when it was asked for, it was not known in which life"
    client.pull(list(SPECS), again)
    assert received(transport) == 0
    client.leave()
    client.close()


# --- answers that cannot be -------------------------------------------------------------------------------------------
