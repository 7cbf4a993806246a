"""Restarted shards: no half of a model is trained unnoticed, and versions from before a restart prove nothing.

Unchanged values do not travel again.
"""

from dataclasses import replace

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.errors import WrongShard
from pswire.messages import Declaration, Gradient, Join, Pull, Push, Register, Sender, tensor_bytes
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Asynchronous, Synchronous
from pswire.tensors.values import TensorSpec
from psworker.client.placement import Placement
from tests.shard_state import run_step
from tests.shards_in_process import ShardsInProcess

SGD = GradientDescent(learning_rate=1)
ROWS = 12
SPECS = {name: TensorSpec(name, (ROWS, 2)) for name in ("frozen", "trained")} | {"bias": TensorSpec("bias", (3,))}
ALL_BYTES = sum(spec.nbytes for spec in SPECS.values())

pytestmark = pytest.mark.usefixtures("split_small")


def some(shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


DECLARED = [Declaration(spec, some(spec.shape), SGD) for spec in SPECS.values()]


def registered(transport, worker="w0"):
    """A client, and by name what it has registered."""
    client, known = transport.client(worker, *DECLARED)
    transport.answers.clear()
    return client, known


def gradients(known, *names):
    return [replace(known[name], array=some(known[name].array.shape, 2)) for name in names]


def received(transport):
    """Bytes of all values that have come since the last time."""
    found = sum(tensor_bytes(answer) for _, answer in transport.answers)
    transport.answers.clear()
    return found


@pytest.mark.parametrize("shards", [2, 3])
def test_of_a_variable_in_several_parts_those_come_that_have_changed_and_the_old_array_is_not_written(shards):
    transport = ShardsInProcess(shards)
    client, known = registered(transport)
    old, before, count = known["trained"], known["trained"].array.copy(), ROWS // shards
    part = Gradient("trained", 0, some((count, 2), 5))
    for message in (Join("other", 1, 1, shards, 5), Push(Sender("other", 1), 1, (part,))):
        run_step(transport.machines[1], 0, message, 0.0)
    (now,) = client.pull(["trained"], [old])
    assert received(transport) == SPECS["trained"].nbytes // shards
    assert now.read.versions == tuple(int(shard == 1) for shard in range(shards))
    np.testing.assert_array_equal(old.array, before, strict=True)
    before[count : 2 * count] -= part.array
    np.testing.assert_array_equal(now.array, before, strict=True)
    again = client.pull(list(SPECS), [known["frozen"], now, known["bias"]])
    assert received(transport) == 0
    assert (again[0].array is known["frozen"].array, again[1].array is now.array) == (True, True)


def start_anew(transport, shard):
    """Another life of a shard: it has lost its state, and come to the same versions with values of 7."""
    machine = transport.machines[shard] = Shard(shard, transport.shards)
    placement = Placement(transport.shards).extended(SPECS.values())
    declarations = [
        Declaration(partition.spec, np.full(partition.spec.shape, 7, np.float32), SGD, None, partition.part)
        for name in SPECS
        for partition in placement[name].partitions
        if partition.shard == shard
    ]
    for message in (Join("other", 1, shard, transport.shards, 5), Register(Sender("other", 1), tuple(declarations))):
        run_step(machine, 0, message, 0.0)


@pytest.mark.parametrize("lost", [0, 1])
def test_versions_from_before_a_restart_of_a_server_are_not_named(lost):
    transport = ShardsInProcess(2)
    client, known = registered(transport)
    start_anew(transport, lost)
    for now in client.pull(["frozen", "trained"], known.values()):
        before = known[now.name]
        assert now.read.versions == before.read.versions, "as many changes"
        expected = before.array.copy()
        expected[slice(ROWS // 2) if lost == 0 else slice(ROWS // 2, None)] = 7
        np.testing.assert_array_equal(now.array, expected, strict=True)


@pytest.mark.parametrize("consistency", [Asynchronous(), Synchronous(1)], ids=str)
def test_a_push_sent_after_a_rejoin_names_no_earlier_versions(consistency):
    """Where shard 0 decides, shard 1 gets its part when `result` is called, which may be after a lookup."""
    transport = ShardsInProcess(2, consistency)
    client, known = registered(transport)
    if not consistency.decides:  # until the rejoin: also what a shard gets of a push that has no gradient for it
        transport.lose = lambda shard, message: (
            isinstance(message, Push) or (isinstance(message, Pull) and bool(message.names))
        )
    handle = client.push(gradients(known, "bias"), pull=list(SPECS), known_values=known.values())
    start_anew(transport, 1)
    client.choose("trained", np.array([0, ROWS - 1]))
    transport.lose = lambda shard, message: False
    now = {one.name: one for one in handle.result().values}
    for name in ("trained", "frozen"):
        np.testing.assert_array_equal(now[name].array[ROWS // 2 :], np.full((ROWS // 2, 2), 7, np.float32))
    transport.answers.clear()
    client.pull(list(SPECS), now.values())
    assert received(transport) == ALL_BYTES, "the life that they are from was not known"


LOST = "shard {} was restarted and has lost its state; restart the whole job"


@pytest.fixture
def job():
    """Two shards with identities."""
    job = ShardsInProcess(2, lease=1000.0)
    job.restart(0, 1)
    return job


@pytest.mark.parametrize("lost", [0, 1])
def test_every_call_raises_when_a_shard_has_lost_its_state_and_who_joins_registers_nothing(job, lost):
    workers = [registered(job, f"w{number}") for number in range(4)]
    (first, known), (second, _), (third, _), (fourth, _) = workers
    first.push(gradients(known, *SPECS)).result()
    job.restart(lost)
    calls = (
        lambda: first.push(gradients(known, *SPECS)).result(),
        lambda: second.pull(list(SPECS)),
        lambda: third.register(DECLARED),
        lambda: fourth.tune(list(SPECS), SGD, ["learning_rate"]),
    )
    for call in (*calls, *calls, lambda: registered(job, "new"), lambda: registered(job, "w0")):  # also a second time
        with pytest.raises(WrongShard, match=LOST.format(lost)):
            call()
    assert job.status(lost).variables == ()


def test_a_shard_that_is_restarted_between_dry_run_and_registration_gets_nothing(job):
    registered(job)

    def restart(shard, message):
        if isinstance(message, Register) and not message.dry_run and shard == 0:
            job.restart(1)

    job.refuse = restart
    with pytest.raises(WrongShard, match=LOST.format(1)):
        registered(job, "w1")
    assert job.status(1).variables == ()


def test_a_worker_whose_lease_has_ended_names_the_states_that_it_met_and_goes_on(job):
    worker, known = registered(job)
    job.sleep(2000)
    assert worker.push(gradients(known, *SPECS)).result().global_step == 1
    assert [message.states for _, message in job.messages(Join)] == [(), (), (1, 2), (1, 2)]
    assert {message.states for _, message in job.messages(Register)} == {(1, 2)}
