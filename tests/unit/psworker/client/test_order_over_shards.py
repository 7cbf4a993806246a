"""Order over several shards: registrations, stale pushes, and abandoned parts of a push."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from psserver.core.shard import Shard
from pswire.errors import InvalidMessage, NotFinite, TimedOut, TooLarge
from pswire.messages import (
    Assign,
    Assignment,
    ChangeId,
    Declaration,
    Outcome,
    Pull,
    Push,
    Register,
    RemoteWeights,
    Renew,
    Sender,
)
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Asynchronous, Bounded, DropStalePushes, IgnoreStaleness, Synchronous
from pswire.specs.initializers import RowUniform
from pswire.specs.schedules import PiecewiseConstant
from pswire.tensors.values import TensorSpec
from tests.shard_state import state_of
from tests.shards_in_process import ShardsInProcess

SGD = GradientDescent(learning_rate=1)
ORDERED = DropStalePushes(9)


def declared(name, rows, optimizer=SGD):
    return Declaration(TensorSpec(name, (rows,), "float64"), np.zeros(rows), optimizer)


LARGE, MEDIUM, SMALL = declared("large", 100), declared("medium", 9), declared("small", 2)  # each on a shard of its own


def two(transport, *names):
    """Clients that have registered `large` on shard 0 and `small` on shard 1, and their weights."""
    return [transport.client(name, LARGE, SMALL) for name in names]


def gradient(weights):
    return replace(weights, array=np.full(weights.array.shape, -1.0))


def results_of(handles):
    with ThreadPoolExecutor(len(handles)) as threads:
        return list(threads.map(lambda handle: handle.result(), handles))


@pytest.mark.usefixtures("split_small")
def test_no_shard_registers_anything_when_one_objects():
    transport = ShardsInProcess(3)
    transport.machines[2] = Shard(2, 3, memory_limit=4000)
    client, _ = transport.client()
    before = [state_of(machine) for machine in transport.machines]
    table, smaller = (
        Declaration(TensorSpec("t", (rows,), "float64"), None, SGD, RowUniform(-1, 1)) for rows in (3000, 300)
    )
    with pytest.raises(TooLarge, match="variables t with their slots need 8,000 bytes"):
        client.register([declared("a", 2), table])
    assert [state_of(machine) for machine in transport.machines] == before
    assert [one.name for one in client.register([declared("a", 2), smaller])] == ["a"]


def test_several_shards_are_first_asked_without_values_and_one_is_not():
    transport = ShardsInProcess(1)
    transport.client("w0", LARGE)
    assert [(shard, message.dry_run) for shard, message in transport.messages(Register)] == [(0, False)]
    transport = ShardsInProcess(2)
    client, _ = transport.client("w0", LARGE)
    client.register([SMALL])
    sent = transport.messages(Register)
    questions = [(0, True), (1, True)]
    expected = [*questions, (0, False), *questions, (0, False), (1, False)]
    assert [(shard, message.dry_run) for shard, message in sent] == expected
    assert all(one.value is None for _, message in sent if message.dry_run for one in message.declarations)
    assert [[place.shard for place in message.places] for shard, message in sent if not shard] == [[0], [0], [1], [1]]
    bad = replace(declared("new", 2), value=np.array([1.0, np.nan]))
    with pytest.raises(NotFinite, match=r"initial value for 'new' has 1 of 2 elements .* nothing was sent"):
        client.register([LARGE, bad])
    assert transport.messages(Register) == sent


@pytest.mark.parametrize("name", ["large", "small"])
def test_a_push_is_late_whatever_shard_its_gradients_are_on(name):
    transport = ShardsInProcess(2, staleness=DropStalePushes(0))
    (fast, weights), (slow, old) = two(transport, "fast", "slow")
    assert fast.push([gradient(weights[name])]).result().outcome is Outcome.APPLIED
    late = slow.push([gradient(old[name])], pull=["large", "small"]).result()
    assert (late.outcome, late.staleness) == (Outcome.DROPPED, 1)
    (fresh,) = [whole for whole in late.values if whole.name == name]
    assert (fresh.read.served_at, fresh.array[0]) == (1, 1)
    fast.assign([Assignment("small", np.full(2, 5.0))])
    assert slow.push([gradient(fresh)]).result().outcome is (Outcome.DROPPED if name == "small" else Outcome.APPLIED)


def test_a_push_names_to_shard_0_when_weights_on_other_shards_were_served():
    transport = ShardsInProcess(2, staleness=ORDERED)
    ((client, weights),) = two(transport, "w0")
    pushed = client.push([gradient(weights["large"])], pull=["large", "small"]).result()
    client.push([gradient(weights["small"]), gradient(pushed.values[0])]).result()
    client.push([gradient(pushed.values[1])]).result()
    sent = [(shard, message.remote) for shard, message in transport.messages(Push)]
    assert sent == [(0, ()), (0, (RemoteWeights("small", 0),)), (1, ()), (0, (RemoteWeights("small", 1),)), (1, ())]
    assert [message.shards for shard, message in transport.messages(Push) if not shard] == [(), (1,), (1,)]


def test_values_of_other_shards_have_all_that_shard_0_had_decided():
    transport = ShardsInProcess(2, staleness=ORDERED)
    (client, weights), (other, _) = two(transport, "w0", "w1")
    for _ in range(2):
        other.push([gradient(weights["large"]), gradient(weights["small"])]).result()
    ((_, late),) = two(transport, "w2")
    assert (late["small"].read.served_at, late["small"].array[0]) == (2, 2), "also of a later registration"
    transport.sent.clear()
    read = [client.pull(["small"])[0], client.choose("small", np.array([1])), client.choose("small")]
    assert [one.read.served_at for one in (*read, client.choose("large", np.array([99])))] == [2] * 4
    last = (ChangeId(Sender("w1", 1), 2),)  # shard 0 does not know yet that it is applied there
    pulls = [(shard, message.after) for shard, message in transport.messages(Pull)]
    assert pulls == [(0, ()), (1, last), (1, last), (1, last), (0, ())]


def test_a_shard_waits_for_changes_that_are_made_there_and_for_no_others():
    transport = ShardsInProcess(3, staleness=ORDERED)
    (client, _), (other, weights) = (transport.client(worker, LARGE, MEDIUM, SMALL) for worker in ("w0", "w1"))
    other.push([gradient(weights["medium"])]).result()
    client._calls._timeout = 0.0  # a call that waits fails at once
    medium, small = client.pull(["medium", "small"])
    assert (medium.array[0], small.array[0]) == (1, 0)
    after = [message.after for shard, message in transport.messages(Pull) if shard]
    assert after[-2:] == [(ChangeId(Sender("w1", 1), 1),), ()]


@pytest.mark.parametrize(
    ("shards", "consistency", "staleness"),
    [(1, Asynchronous(), ORDERED), (2, Asynchronous(), IgnoreStaleness()), (2, Bounded(9), IgnoreStaleness())],
)
def test_where_no_push_is_refused_for_its_staleness_changes_have_no_order(shards, consistency, staleness):
    transport = ShardsInProcess(shards, consistency, staleness)
    ((client, weights),) = two(transport, "w0")
    transport.sent.clear()
    pushed = client.push([gradient(weights["small"])], pull=["small"]).result()
    read = [weights["small"], pushed.values[0], *client.pull(["small"])]
    assert [one.read.served_at for one in read] == [None] * 3
    assert [(message.remote, message.after) for _, message in transport.messages(Push)] == [((), ())] * shards
    assert len(transport.messages(Pull)) == 1


def test_a_push_goes_to_shard_0_and_to_those_that_have_something_to_do_for_it():
    transport = ShardsInProcess(3)
    client, weights = transport.client("w0", LARGE, MEDIUM, SMALL)
    for pushed, pull in (("large", "large"), ("small", "small"), ("large", "medium")):
        client.push([gradient(weights[pushed])], pull=[pull]).result()
    sent = [(message.sequence, shard, message.shards) for shard, message in transport.messages(Push)]
    assert sent == [(1, 0, ()), (2, 0, (2,)), (2, 2, (2,)), (3, 0, ())]
    assert [message.global_step for shard, message in transport.messages(Push) if shard] == [1]
    assert [(shard, message.names) for shard, message in transport.messages(Pull)] == [(1, ("medium",))]


@pytest.mark.parametrize("staleness", [IgnoreStaleness(), ORDERED])
def test_a_schedule_counts_pushes_of_which_its_shard_has_no_part(staleness):
    optimizer = GradientDescent(PiecewiseConstant([1.5, 2.5, 3.5], [1, 10, 100, 1000]))
    client, weights = ShardsInProcess(2, staleness=staleness).client("w0", LARGE, declared("small", 2, optimizer))
    names = ("large", "large", "small", "large", "small")
    found = [client.push([gradient(weights[name])], pull=["small"]).result().values[0].array[0] for name in names]
    assert found == [0, 0, 10, 10, 1010], "rates of the steps 2 and 4"


@pytest.mark.parametrize("how", ["refuse", "lose"])
def test_a_part_of_a_push_that_failed_on_a_shard_is_not_waited_for(how):
    transport = ShardsInProcess(2, Synchronous(2))
    (good, weights), (bad, _) = two(transport, "good", "bad")
    pushed = results_of([client.push([gradient(weights["small"])], pull=["small"]) for client in (good, bad)])
    first, second = (result.values[0] for result in pushed)

    def from_bad(shard, message):
        return shard == 1 and isinstance(message, Push) and message.sender.worker == "bad" and message.gradients

    setattr(transport, how, from_bad)
    bad._calls._timeout = 0.0  # it abandons the push at once
    handles = [good.push([gradient(first)], pull=["small"]), bad.push([gradient(second)])]
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(handle.result) for handle in handles]
        assert waits[1].exception() is not None
        assert waits[0].result().values[0].array[0] == 2
    assert [(shard, message.settled) for shard, message in transport.messages(Renew) if message.settled] == [(1, 2)]
    assert [transport.status(shard).global_step for shard in range(2)] == [2, 2], "all count the same steps"


def test_a_push_abandoned_at_shard_0_is_reported_to_the_shards_of_its_parts():
    transport = ShardsInProcess(3, Synchronous(2))
    client, weights = transport.client("w0", LARGE, MEDIUM, SMALL)
    transport.refuse = lambda shard, message: isinstance(message, Push)
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push([gradient(weights["large"]), gradient(weights["medium"])]).result()
    assert [shard for shard, _ in transport.messages(Push)] == [0]
    assert [(shard, message.settled) for shard, message in transport.messages(Renew)] == [(1, 1)]


def test_an_abandoned_push_is_reported_before_the_next_change():
    transport = ShardsInProcess(2, staleness=ORDERED)
    ((client, weights),) = two(transport, "w0")
    transport.refuse = lambda shard, message: shard == 1
    with pytest.raises(InvalidMessage, match="not this one"):
        client.push([gradient(weights["small"])]).result()
    transport.refuse = lambda shard, message: False
    transport.sent.clear()
    for _ in range(2):
        client.push([gradient(weights["small"])]).result()
    sent = [(shard, type(message), getattr(message, "settled", 0)) for shard, message in transport.sent]
    assert sent == [(1, Renew, 1), *[(0, Push, 0), (1, Push, 0)] * 2]


@pytest.mark.parametrize(("how", "place"), [("lose", 0), ("refuse", 1)])
def test_an_assign_that_failed_on_a_shard_is_not_waited_for(how, place):
    transport = ShardsInProcess(2, staleness=ORDERED)
    (client, _), (other, _) = two(transport, "w0", "w1")
    setattr(transport, how, lambda shard, message: shard == place and isinstance(message, Assign))
    client._calls._timeout = other._calls._timeout = 0.0  # a call that waits fails at once
    with pytest.raises((InvalidMessage, TimedOut)):
        client.assign([Assignment("small", np.full(2, 5.0))])
    (small,) = other.pull(["small"])
    assert (small.array[0], small.read.served_at) == (0, 1), "shard 0 has decided it, and shard 1 will never have it"
