"""After shards have lost acknowledged state, all go back to one cut, and workers go on from it."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from psserver.core import registration
from pswire import messages as ms
from pswire.errors import InvalidMessage, StateLost, WrongShard
from pswire.messages import Restored
from pswire.optimizers import GradientDescent, Momentum
from pswire.specs.consistency import Asynchronous, Bounded, DropStalePushes, IgnoreStaleness
from pswire.specs.initializers import RowUniform
from pswire.tensors.values import TensorSpec
from psworker.client.membership import JobChoice
from psworker.client.rollback import common_cut
from tests.support.shards import ShardsInProcess

SGD = GradientDescent(learning_rate=1)
NAMES = ("a", "b")
DECLARATIONS = [ms.Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), SGD) for name in NAMES]
QUEUE = ms.QueueSpec(name="data", size=6, block=2, epochs=1)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([Restored(timeline=1, cuts=(5, 8)), Restored(timeline=1, lost=True, cuts=(5, 8))], (2, 8)),
        ([Restored(timeline=1, cuts=(5, 8)), Restored(timeline=1, lost=True, cuts=(5,))], (2, 5)),
        ([Restored(timeline=1, lost=True, cuts=(3, 5)), Restored(timeline=1, lost=True, cuts=(1, 3, 4))], (2, 3)),
        # another worker has told shard 0 already, or all
        ([Restored(timeline=2, cut=5, cuts=(5,)), Restored(timeline=1, lost=True, cuts=(5, 8))], (2, 5)),
        ([Restored(timeline=2, cut=5, cuts=(5,)), Restored(timeline=1, cuts=(5, 8))], (2, 5)),
        ([Restored(timeline=2, cut=5, cuts=(5, 9)), Restored(timeline=2, cut=5, cuts=(5, 9))], (2, 5)),
        # shard 0 has gone back, and shard 1 cannot follow, or was lost again since
        ([Restored(timeline=2, cut=8, cuts=(5, 8)), Restored(timeline=1, lost=True, cuts=(5,))], (3, 5)),
        ([Restored(timeline=2, cut=5, cuts=(5, 9)), Restored(timeline=2, cut=5, lost=True, cuts=(5,))], (3, 5)),
        ([Restored(timeline=2, cut=5, cuts=(5, 9)), Restored(timeline=2, cut=9, cuts=(5, 9))], (3, 9)),
        ([Restored(lost=True, cuts=(4,))], (1, 4)),
    ],
)
def test_all_shards_go_back_to_the_newest_timeline_that_is_in_force_or_else_to_the_newest_common_cut(answers, expected):
    assert common_cut(answers) == expected
    assert common_cut(answers[::-1]) == expected


def test_without_a_common_cut_the_job_ends_with_what_each_shard_has():
    with pytest.raises(WrongShard, match=r"shard 0 has 3, 5; shard 1 has none.*start all servers again"):
        common_cut([Restored(timeline=1, cuts=(3, 5)), Restored(timeline=1, lost=True)])


POLICIES = [
    *((Asynchronous(), IgnoreStaleness()), (Bounded(9), IgnoreStaleness())),
    *((Asynchronous(), DropStalePushes(99)), (Bounded(9), DropStalePushes(99))),
]


def write_checkpoint(transport, *clients):
    """A cut that is written on all shards."""
    number = transport.show_cuts(*clients, begin=True)
    assert all(number in stored.checkpoints for stored in transport.stored)
    return number


def push(client, known, pull=NAMES):
    """Adds one to both variables."""
    pushed = client.push([replace(one, array=np.full(2, -1.0)) for one in known.values()], pull=pull).result()
    known.update({one.name: one for one in pushed.values})
    return pushed


def values(client):
    return [one.array.tolist() for one in client.pull(NAMES)]


@pytest.mark.parametrize(("consistency", "staleness"), POLICIES)
@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
def test_a_push_is_dropped_when_state_was_lost_and_training_goes_on_from_the_common_cut(
    consistency, staleness, lost, caplog
):
    transport = ShardsInProcess(2, consistency, staleness, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    for _ in range(3):
        push(client, known)
    number = write_checkpoint(transport, client)
    for _ in range(4):
        push(client, known)
    transport.lose_state(*lost)
    pushed = push(client, known)
    assert pushed.outcome is ms.Outcome.DROPPED
    assert pushed.reason.startswith(f"all shards went back to checkpoint {number}: ")
    assert [one.array.tolist() for one in pushed.values] == [[3, 3], [3, 3]], "fresh values"
    assert [record.getMessage() for record in caplog.records if "went back" in record.getMessage()] == [
        f"w0: {pushed.reason}; its push is dropped"
    ]
    assert push(client, known).outcome is ms.Outcome.APPLIED
    assert values(client) == [[4, 4], [4, 4]]
    assert client.rollback.count == 1
    reports = [transport.status(shard).storage for shard in range(2)]
    assert [report.timeline for report in reports] == [1, 1]
    assert all(4 <= report.lost_pushes <= 5 for report in reports), "those after the cut, and the open one"


def test_the_first_call_after_going_back_names_no_change_and_no_step_that_was_given_up():
    transport = ShardsInProcess(2, staleness=DropStalePushes(99), stored=True)
    (client, known), (other, theirs) = [transport.client(name, *DECLARATIONS) for name in ("w0", "w1")]
    push(client, known)
    write_checkpoint(transport, client, other)
    for _ in range(2):
        push(other, theirs)
        push(client, known)
    assert (client.membership.global_step, len(client.membership.frontier.undelivered)) == (5, 1)
    transport.lose_state(0)
    assert client.push([replace(known["a"], array=np.ones(2))]).result().outcome is ms.Outcome.DROPPED
    assert client.membership.global_step == 1
    transport.sent.clear()
    client.choose("b", np.array([1]))
    ((shard, pull),) = transport.messages(ms.Pull)
    assert (shard, pull.after) == (1, ())


def test_lost_pushes_are_counted_once_however_often_the_shards_go_back():
    transport = ShardsInProcess(2, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    late, _ = transport.client("w1", *DECLARATIONS)
    acknowledged = 0
    for lost in (2, 5, 1):
        push(client, known)
        write_checkpoint(transport, client, late)
        for _ in range(lost):
            push(client, known)
        acknowledged += 1 + lost
        transport.lose_state(1, 0)
        client.pull(NAMES)
        known = {one.name: one for one in client.pull(NAMES)}
        late.pull(NAMES)
    assert values(client) == [[3, 3], [3, 3]]
    for shard in range(2):
        assert transport.status(shard).storage.lost_pushes == acknowledged - 3 == 8


def test_a_push_whose_answer_did_not_arrive_hides_none_that_is_lost_later():
    transport = ShardsInProcess(2, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    for _ in range(2):
        push(client, known)
    client.membership.steps.subtract([0, 1])  # as if the answer to the last one had been lost
    write_checkpoint(transport, client)
    for lost in (0, 3):
        for _ in range(lost):
            push(client, known)
        transport.lose_state(0, 1)
        known = {one.name: one for one in client.pull(NAMES)}
        assert [transport.status(shard).storage.lost_pushes for shard in range(2)] == [lost, lost]


def test_pushes_that_were_dropped_are_none_that_is_lost_when_the_shards_go_back():
    transport = ShardsInProcess(1, staleness=DropStalePushes(0), stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    stale = dict(known)
    push(client, known)
    write_checkpoint(transport, client)
    outcomes = [push(client, one).outcome.name for one in (dict(stale), known, dict(stale))]
    assert outcomes == ["DROPPED", "APPLIED", "DROPPED"]
    transport.lose_state(0)
    client.pull(NAMES)
    assert transport.status(0).storage.lost_pushes == 1


def test_the_pushes_of_a_worker_that_joined_after_the_cut_are_counted_as_lost_too():
    transport = ShardsInProcess(2, stored=True)
    first, _ = transport.client("w0", *DECLARATIONS)
    write_checkpoint(transport, first)
    client, known = transport.client("w1", *DECLARATIONS)
    for _ in range(3):
        push(client, known)
    transport.lose_state(1)
    assert values(client) == [[0, 0], [0, 0]]
    assert [transport.status(shard).storage.lost_pushes for shard in range(2)] == [3, 3]


CALLS = {
    "assign": (lambda client: client.assign([ms.Assignment(name, np.full(2, 7.0)) for name in NAMES]), 8),
    "tune": (lambda client: client.tune(NAMES, GradientDescent(learning_rate=10), ["learning_rate"]), 11),
    "register": (lambda client: client.register(DECLARATIONS), 2),
    "choose": (lambda client: client.choose("b", np.array([1])), 2),
    "pull": (lambda client: client.pull(NAMES), 2),
}


@pytest.mark.parametrize(("consistency", "staleness"), POLICIES)
@pytest.mark.parametrize("call", CALLS)
def test_other_calls_are_repeated_with_all_that_they_change(call, consistency, staleness):
    transport = ShardsInProcess(2, consistency, staleness, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    push(client, known)
    write_checkpoint(transport, client)
    push(client, known)
    transport.lose_state(1)
    make, expected = CALLS[call]
    make(client)
    assert client.rollback.count == 1
    push(client, known := {one.name: one for one in client.pull(NAMES)})
    assert values(client) == [[expected] * 2] * 2, "the cut, the call, and a push after it"


def test_a_gradient_of_weights_from_before_is_dropped_without_being_sent():
    transport = ShardsInProcess(2, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    write_checkpoint(transport, client)
    old = dict(known)
    push(client, known)
    transport.lose_state(0)
    rows = client.choose("a", np.array([0]))
    transport.sent.clear()
    pushed = push(client, old, pull=("b",))
    assert pushed.outcome is ms.Outcome.DROPPED
    assert pushed.reason.startswith("all shards went back to checkpoint")
    assert not transport.messages(ms.Push)
    assert [one.name for one in pushed.values] == ["b"]
    new = {"a": replace(rows, name="a"), "b": pushed.values[0]}
    assert push(client, new).outcome is ms.Outcome.APPLIED, "rows that were chosen after it are as fresh"


def test_a_lease_that_ended_drops_no_push():
    transport = ShardsInProcess(2, lease=1.0, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    push(client, known)
    transport.sleep(5.0)
    assert push(client, known).outcome is ms.Outcome.APPLIED
    assert (client.rollback.count, values(client)) == (0, [[2, 2], [2, 2]])


def test_a_message_from_before_that_arrives_late_is_refused():
    transport = ShardsInProcess(2, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    write_checkpoint(transport, client)
    push(client, known)
    late = [message for shard, message in transport.messages(ms.Push) if shard == 0]
    transport.lose_state(1)
    client.pull(NAMES)
    assert client._calls.call(0, late[-1], ms.Pushed).outcome is ms.Outcome.DROPPED
    assert values(client) == [[0, 0], [0, 0]]
    assert transport.status(0).half_pushes == 0


@pytest.mark.parametrize("listed", [1, 1000])
def test_variables_and_optimizers_that_the_cut_does_not_have_are_registered_again_with_the_workers_values(
    caplog, monkeypatch, listed
):
    monkeypatch.setattr(registration, "MAX_LISTED", listed)  # of the variables that one status has
    transport = ShardsInProcess(2, stored=True)
    client, known = transport.client("w0", DECLARATIONS[0])
    write_checkpoint(transport, client)
    without = [replace(DECLARATIONS[1], optimizer=None)]
    table = ms.Declaration(TensorSpec("t", (3, 2), "float64"), None, SGD, RowUniform(-1.0, 1.0, seed=3))
    known |= {one.name: one for one in client.register([*without, table])}
    client.register([ms.Declaration(DECLARATIONS[1].spec, None, Momentum(learning_rate=0.5, momentum=0.5))])
    initial = client.choose("t").array
    push(client, known)
    client.registration.value_of = lambda name: known[name].array
    transport.lose_state(0, 1)
    pushed = push(client, known)
    assert [one.array.tolist() for one in pushed.values] == [[0, 0], [0.5, 0.5]]
    np.testing.assert_array_equal(client.choose("t").array, initial)
    assert "w0 has registered variables again that the checkpoint did not have, with its present values: b, t" in [
        record.getMessage() for record in caplog.records
    ]
    assert push(client, known).outcome is ms.Outcome.APPLIED
    assert values(client) == [[1, 1], [1, 1]], "with its optimizer"


def test_variables_get_the_later_optimizer_again_that_the_cut_does_not_have():
    transport = ShardsInProcess(2, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    write_checkpoint(transport, client)
    momentum = Momentum(learning_rate=0.5, momentum=0.5)
    client.register([ms.Declaration(one.spec, None, momentum, stage=1) for one in DECLARATIONS])
    push(client, known)
    transport.lose_state(0, 1)
    assert push(client, known).outcome is ms.Outcome.DROPPED
    for _ in range(2):
        push(client, known)
    assert values(client) == [[0.5 + 0.75] * 2] * 2


@pytest.mark.parametrize(("consistency", "staleness"), POLICIES[2:])
def test_a_registration_whose_values_are_pulled_in_order_is_repeated_when_state_is_lost_meanwhile(
    consistency, staleness
):
    transport = ShardsInProcess(2, consistency, staleness, stored=True)
    first, known = transport.client("w0", DECLARATIONS[0])
    write_checkpoint(transport, first)
    client, _ = transport.client("w1")
    push(first, known, pull=("a",))

    def lose(shard, message):
        if isinstance(message, ms.Pull):
            transport.refuse = lambda shard, message: False
            transport.lose_state(1)
        return False

    transport.refuse = lose
    known = {one.name: one for one in client.register([DECLARATIONS[0], replace(DECLARATIONS[1], value=np.ones(2))])}
    assert client.rollback.count == 1
    assert [known[name].array.tolist() for name in NAMES] == [[0, 0], [1, 1]]
    assert push(client, known).outcome is ms.Outcome.APPLIED
    client.registration.value_of = lambda name: known[name].array
    transport.lose_state(0, 1)
    assert values(client) == [[0, 0], [2, 2]], "a later recovery registers b again"


def test_a_block_of_examples_from_before_is_not_finished_but_taken_again():
    transport = ShardsInProcess(2, stored=True)
    client, _ = transport.client("w0", *DECLARATIONS)
    block = client.blocks.take(QUEUE, None).block
    write_checkpoint(transport, client)
    second = client.blocks.take(QUEUE, ms.Finished(block.number, 1.0)).block
    assert second.number == block.number + 1
    transport.lose_state(0)
    assert client.blocks.take(QUEUE, ms.Finished(second.number, 1.0)).block == block
    assert transport.status(0).epochs == ()


def test_a_push_with_examples_from_before_is_dropped_also_with_fresh_weights_and_one_with_new_examples_is_not():
    transport = ShardsInProcess(2, stored=True)
    client, _ = transport.client("w0", *DECLARATIONS)
    client.blocks.take(QUEUE, None)
    write_checkpoint(transport, client)
    second = client.blocks.take(QUEUE, ms.Finished(0, 1.0)).block
    transport.lose_state(0)
    fresh = client.pull(NAMES)

    def outcome(block):
        gradients = [replace(one, array=np.ones(2)) for one in fresh]
        progress = ms.Progress(queue="data", block=block.number, position=2)
        return client.push(gradients, progress=(progress,)).result().outcome

    transport.sent.clear()
    assert (outcome(second), transport.messages(ms.Push)) == (ms.Outcome.DROPPED, [])
    first = client.blocks.take(QUEUE, None).block
    assert outcome(first) is ms.Outcome.APPLIED


@pytest.mark.usefixtures("split_small")
@pytest.mark.parametrize("optimizer", [None, SGD], ids=["with its optimizer", "and then its optimizer"])
def test_a_variable_of_which_the_cut_has_one_part_is_registered_again(optimizer):
    """Its first worker was killed between the two shards, or when it added the optimizer."""
    transport = ShardsInProcess(2, stored=True)
    whole = ms.Declaration(TensorSpec("s", (16,), "float64"), np.zeros(16), SGD)
    killed, _ = transport.client("killed")
    if optimizer is not None:
        killed.register([replace(whole, optimizer=None)])
    transport.refuse = lambda shard, message: shard == 1 and isinstance(message, ms.Register) and not message.dry_run
    with pytest.raises(InvalidMessage):
        killed.register([whole])
    transport.refuse = lambda shard, message: False
    killed.leave(failed=True)
    client, _ = transport.client("w0")
    write_checkpoint(transport, client)
    (value,) = client.register([whole])
    client.registration.value_of = lambda name: value.array
    transport.lose_state(1)
    (fresh,) = client.pull("s")
    assert client.push([replace(fresh, array=-np.ones(16))]).result().outcome is ms.Outcome.APPLIED
    assert client.pull("s")[0].array.tolist() == [1] * 16


def test_a_shard_that_refuses_to_go_back_ends_the_worker_with_its_reason():
    transport = ShardsInProcess(2, stored=True)
    client, _ = transport.client("w0", *DECLARATIONS)
    write_checkpoint(transport, client)
    transport.stored[0].refuses = True
    transport.lose_state(1)
    with pytest.raises(WrongShard, match="--on-lost-state fail"):
        client.pull(NAMES)


def test_a_worker_that_joins_finds_shards_of_different_timelines_and_brings_them_together():
    transport = ShardsInProcess(2, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    push(client, known)
    number = write_checkpoint(transport, client)
    transport.call(0, ms.Restore(1, number), 1.0).result()  # by a worker that died before it told shard 1
    second, _ = transport.client("w1", *DECLARATIONS)
    assert values(second) == [[1, 1], [1, 1]]
    assert [transport.status(shard).storage.timeline for shard in range(2)] == [1, 1]
    transport.lose_state(0)
    third, _ = transport.client("w2", *DECLARATIONS)
    assert values(third) == values(second) == values(client) == [[1, 1], [1, 1]]


def test_what_another_worker_has_told_shard_0_meanwhile_holds_for_all():
    transport = ShardsInProcess(2, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    first = transport.show_cuts(client, begin=True)
    push(client, known)
    transport.show_cuts(client, begin=True)
    transport.lose_state(1)

    def meanwhile(shard, message):
        if isinstance(message, ms.Restore) and message.timeline == 1 and not shard:
            transport._step(0, 0, ms.Restore(1, first))  # another worker does not know of the newer cut
        return False

    transport.refuse = meanwhile
    assert values(client) == [[0, 0], [0, 0]]
    assert [transport.status(shard).storage.timeline for shard in range(2)] == [1, 1]


@pytest.mark.parametrize(("consistency", "staleness"), POLICIES)
def test_several_workers_go_back_together_at_the_same_time(consistency, staleness):
    transport = ShardsInProcess(3, consistency, staleness, stored=True)
    clients = {name: transport.client(name, *DECLARATIONS) for name in ("w0", "w1", "w2", "w3")}
    write_checkpoint(transport, *[client for client, _ in clients.values()])
    before_and_after, dropped = threading.Barrier(len(clients), timeout=30.0), []

    def train(name):
        client, known = clients[name]
        push(client, known)
        push(client, known)
        before_and_after.wait()
        if name == "w2":
            transport.lose_state(1)
        before_and_after.wait()
        for _ in range(4):
            outcome = push(client, known).outcome
            if outcome is ms.Outcome.DROPPED:
                dropped.append(name)
        client.leave()

    threads = [threading.Thread(target=train, args=(name,)) for name in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(dropped) == sorted(clients), "each has one push dropped, and goes on"
    assert [transport.status(shard).storage.timeline for shard in range(3)] == [1, 1, 1]
    last, _ = transport.client("w9", *DECLARATIONS)
    assert values(last) == [[12, 12], [12, 12]], "three of each"
    for shard in (0, 1):
        acknowledged = sum(client.membership.steps[shard] for client, _ in clients.values())
        assert acknowledged - transport.status(shard).storage.lost_pushes == 12


def test_a_job_whose_shards_are_lost_all_the_time_ends():
    transport = ShardsInProcess(1, stored=True)
    client, _ = transport.client("w0", *DECLARATIONS)
    write_checkpoint(transport, client)
    transport.lose_state(0)

    def lose(shard, message):
        if isinstance(message, ms.Pull):
            transport.lose_state(0)
        return False

    transport.refuse = lose
    with pytest.raises(StateLost, match="older than what it had acknowledged"):
        client.pull(NAMES)


def test_a_take_from_before_the_shards_went_back_arrives_too_late_to_finish_a_block_that_is_trained_again():
    transport = ShardsInProcess(2, stored=True)
    client, known = transport.client("w0", *DECLARATIONS)
    write_checkpoint(transport, client)
    transport.lose_state(1)
    known = {one.name: one for one in client.pull(NAMES)}
    block = client.blocks.take(QUEUE, None).block
    progress = ms.Progress(queue=QUEUE.name, block=block.number, position=block.start + 1, cost_sum=1.0)
    client.push([replace(one, array=np.full(2, -1.0)) for one in known.values()], progress=(progress,)).result()
    write_checkpoint(transport, client)
    transport.lose_state(1)
    client.pull(NAMES)
    block = client.blocks.take(QUEUE, None).block
    assert block.start == progress.position, "the rest of it"
    assert transport.messages(ms.Take)[-1][1].timeline == client.membership.timeline
    member, finished = client.membership, ms.Finished(block.number)
    late = ms.Take(sender=member.sender, queue=QUEUE, finished=finished, timeline=member.timeline - 1)
    with pytest.raises(StateLost, match="follows timeline"):
        transport.call(0, late, 1.0).result()
    assert client.blocks.take(QUEUE, None).block == block
    assert not any(message.give_back for _, message in transport.messages(ms.Take)), "it might come late, too"
    transport.lose_state(1)
    client.pull(NAMES)
    client.blocks.take(QUEUE, ms.Finished(block.number))
    assert transport.messages(ms.Take)[-1][1].finished is None, "the answer may be lost, and the message repeated"


def test_a_job_that_is_younger_than_the_common_cut_goes_on_from_its_workers_values_and_not_from_the_one_before(caplog):
    transport = ShardsInProcess(2, stored=True)
    first, known = transport.client("w0", *DECLARATIONS)
    push(first, known)
    number = write_checkpoint(transport, first)
    first.leave()
    second, known = transport.client("w0", *DECLARATIONS, job=JobChoice("next"))
    second.registration.value_of = lambda name: known[name].array
    for _ in range(3):
        push(second, known)
    transport.lose_state(0)
    transport.lose_state(1)
    assert push(second, known).outcome is ms.Outcome.DROPPED
    assert f"all shards went back to checkpoint {number}" in caplog.text
    assert values(second) == [[3, 3], [3, 3]], "the present values of the worker"
    assert push(second, known).outcome is ms.Outcome.APPLIED
    assert values(second) == [[4, 4], [4, 4]]
    assert {transport.machines[shard].job.name for shard in range(2)} == {"next"}
    assert [one.state for one in transport.status(0).jobs] == ["ended", "running"], "its end came after the checkpoint"
