"""The client over several shards: joined answers, each part applied once, order, and no call left open."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from pswire import errors, placement
from pswire import messages as ms
from pswire.optimizers import GradientDescent, Momentum
from pswire.specs.consistency import Asynchronous, Bounded, DropStalePushes, IgnoreStaleness, Synchronous
from pswire.specs.initializers import RowUniform, rows_of
from pswire.specs.schedules import PiecewiseConstant
from pswire.system.interrupts import raise_or_defer
from pswire.tensors.values import IndexedSlices, TensorSpec
from psworker.transport import Future
from psworker.versions import ReadVersion, VersionedArray
from tests.support.shards import ShardsInProcess, new_shard, state_of

NAMES = ("a", "b", "c")
ROWS = 7  # of the variable that is split
NUMBERS = np.arange(ROWS * 2.0).reshape(ROWS, 2)
TABLE = RowUniform(-1.0, 1.0, seed=3)
SGD, ORDERED, ANY = GradientDescent(learning_rate=1), DropStalePushes(9), IgnoreStaleness()

pytestmark = pytest.mark.usefixtures("split_small")


def declarations(optimizer=SGD):
    small = [ms.Declaration(TensorSpec(name, (2,), "float64"), np.zeros(2), optimizer) for name in NAMES]
    split = ms.Declaration(TensorSpec("s", (ROWS, 2), "float64"), NUMBERS, optimizer)
    return [*small, split, ms.Declaration(TensorSpec("t", (ROWS, 2), "float64"), None, optimizer, TABLE)]


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


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_one_sequence_of_calls_leaves_the_same_however_many_shards_there_are(shards):
    transport = ShardsInProcess(shards)
    client, known = transport.client("w0", *declarations(Momentum(learning_rate=0.5, momentum=0.5)))
    assert list(known) == [*NAMES, "s"], "without the table"
    np.testing.assert_array_equal(known["s"].array, NUMBERS, strict=True)
    table = rows_of(TABLE, np.arange(ROWS), (2,), np.dtype("float64"))
    np.testing.assert_array_equal(client.choose("t").array, table, strict=True)
    pushed = client.push(steps_of(shards), loss=2.0, pull=("s", "b")).result()
    client.push([gradient("b", 1), *steps_of(shards)[:2]]).result()
    client.assign([ms.Assignment("s", np.ones((ROWS, 2))), ms.Assignment("a", np.ones(2))], add=True)
    client.tune(["s", "c"], Momentum(learning_rate=0.25, momentum=0.5), ["learning_rate"])
    client.push(steps_of(shards)).result()

    assert (pushed.outcome, pushed.staleness, pushed.global_step) == (ms.Outcome.APPLIED, 0, 1)
    assert [(one.name, one.read.versions) for one in pushed.values] == [("s", (1,) * shards), ("b", (1,))]
    np.testing.assert_array_equal(pushed.values[0].array, 0.5 * NUMBERS, strict=True)
    s, c = client.pull(["s", "c"])
    momentum = client.choose("s", slot="momentum").array
    np.testing.assert_array_equal(momentum, 1.75 * NUMBERS)
    np.testing.assert_array_equal(s.array, 0.5 * NUMBERS - 0.75 * NUMBERS + 1 - 0.25 * momentum)
    np.testing.assert_array_equal(c.array, 0.5 + 0.25 * (1 + 0.5))
    for rows in ([6, 0, 3, 3, 0], [1], []):
        chosen = client.choose("s", np.array(rows, np.int32))
        assert chosen.read.versions == s.read.versions == (4,) * shards, "each part counts every change"
        np.testing.assert_array_equal(chosen.array, s.array[rows], strict=True)
        np.testing.assert_array_equal(client.choose("s", np.array(rows, int), "momentum").array, momentum[rows])
    assert client.choose("t").read.versions == (3,) * shards
    assert [transport.status(shard).global_step for shard in range(shards)] == [3] * shards


@pytest.mark.parametrize(("shards", "staleness"), [(1, ANY), (2, ORDERED), (3, ANY), (3, ORDERED)])
@pytest.mark.parametrize(("first", "count"), [(0, ROWS), (0, 1), (1, 5), (3, 0), (4, 3), (6, 1)])
def test_rows_are_assigned_on_the_shards_that_hold_them_and_no_other_row_changes(shards, staleness, first, count):
    transport = ShardsInProcess(shards, staleness=staleness)
    client, _ = transport.client("w0", *declarations())
    expected = client.choose("t").array.copy()
    expected[first : first + count] = NUMBERS[:count] + 100
    transport.sent.clear()
    client.assign([ms.Assignment("t", NUMBERS[:count] + 100, first)])
    np.testing.assert_array_equal(client.choose("t").array, expected, strict=True)
    changed = [shard for shard, one in transport.sent if isinstance(one, ms.Assign) and one.assignments]
    assert sum(client.choose("t").read.versions) == len(changed) == len(set(changed)) <= min(shards, count)


@pytest.mark.parametrize("refusing", range(3))
def test_a_refusal_by_one_shard_is_raised_when_no_call_is_open_any_more(client, transport, refusing):
    transport.refuse, transport.ended = lambda shard, message: shard == refusing, []
    with pytest.raises(errors.InvalidMessage, match="not this one"):
        client.push([gradient(name) for name in NAMES]).result()
    assert transport.ended == [0, 1, 2, refusing], "the shard that has not applied it is told that it was abandoned"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c: c.push([gradient("a"), gradient("s")]), errors.ShapeMismatch, r"gradient for 's' is float64\[2\]"),
        (lambda c: c.push([steps_of(1)[0]]), errors.InvalidMessage, "has 1 versions, but .* has 3 partitions"),
        (lambda c: c.assign([ms.Assignment("s", NUMBERS[1:])]), errors.ShapeMismatch, "assigned value for 's'"),
        (lambda c: c.assign([ms.Assignment("s", NUMBERS, 1)]), errors.ShapeMismatch, r"s float64\[7, 2\] has no rows"),
        (lambda c: c.assign([ms.Assignment("s", NUMBERS[:, 1], 0)]), errors.ShapeMismatch, r"no rows float64\[7\]"),
        (lambda c: c.push([gradient("a")], pull=["x"]), errors.UnknownVariable, "'x' has not been registered"),
        (lambda c: c.tune(["a", "x"], SGD, ["learning_rate"]), errors.UnknownVariable, "'x' has not"),
        (lambda c: c.register([replace(LARGE, value=np.zeros(3))]), errors.ShapeMismatch, "initial value for 'large'"),
        (lambda c: c.choose("t", np.array([0, 7])), errors.InvalidMessage, "'t' has no row 7: its rows are"),
    ],
)
def test_a_message_with_one_invalid_part_is_not_sent_at_all(client, transport, call, error, message):
    with pytest.raises(error, match=message):
        call(client)
    assert not transport.sent


def test_a_worker_with_another_placement_or_partition_is_refused_and_the_first_goes_on(client, transport, monkeypatch):
    other, _ = transport.client("w1")
    with pytest.raises(errors.AlreadyRegistered, match="'c' is on shard 1, worker 'w1' places it on shard 0"):
        other.register([ms.Declaration(TensorSpec("c", (2,), "float64"), np.zeros(2))])
    with pytest.raises(errors.UnknownVariable):
        other.pull(["c"])  # a refused variable has no placement
    monkeypatch.setattr(placement, "SPLIT_BYTES", 1 << 20)
    with pytest.raises(errors.AlreadyRegistered, match=r"'s' is .*rows from 0 on, of 7.*worker declares it as a whole"):
        other.register([ms.Declaration(TensorSpec("s", (ROWS, 2), "float64"), np.zeros((ROWS, 2)))])
    assert client.push([gradient("c")], pull=("c",)).result().values[0].array[0] == 1


def test_where_shard_0_decides_the_others_get_the_group_that_it_made():
    transport = ShardsInProcess(3, Synchronous(2))
    clients = [transport.client(worker, *declarations())[0] for worker in ("w0", "w1")]
    transport.sent.clear()
    handles = [client.push(steps_of(3), pull=("s",)) for client in clients]
    assert [shard for shard, _ in transport.sent] == [0, 0], "the others get it when it is decided"
    assert [result.global_step for result in results_of(handles)] == [1, 1]
    groups = [message.group for shard, message in transport.messages(ms.Push) if shard]
    assert len({(group.number, group.members) for group in groups}) == 1
    assert [member.sender.worker for member in groups[0].members] == ["w0", "w1"]
    np.testing.assert_array_equal(clients[0].pull(["s"])[0].array, 0 * NUMBERS)


def test_a_push_that_shard_0_drops_reaches_no_other_and_brings_their_values():
    transport = ShardsInProcess(3, staleness=DropStalePushes(0))
    fast, slow = (transport.client(worker, *declarations())[0] for worker in ("fast", "slow"))
    fast.push(steps_of(3)).result()
    transport.sent.clear()
    result = slow.push(steps_of(3), pull=("s", "c", "a")).result()
    assert (result.outcome, bool(result.reason)) == (ms.Outcome.DROPPED, True)
    assert [(shard, type(message)) for shard, message in transport.sent] == [(0, ms.Push), (1, ms.Pull), (2, ms.Pull)]
    assert [(one.name, one.read.versions) for one in result.values] == [("s", (1, 1, 1)), ("c", (1,)), ("a", (1,))]
    assert [transport.status(shard).global_step for shard in range(3)] == [1, 1, 1]
    again = slow.push([replace(result.values[0], array=np.ones((ROWS, 2)))]).result()
    assert (again.outcome, again.global_step) == (ms.Outcome.APPLIED, 2)


def test_shards_with_different_policies_are_named():
    transport = ShardsInProcess(2)
    transport.machines[1] = new_shard(1, 2, consistency=Bounded(3), staleness=DropStalePushes(4))
    text = "shard 0 .*--consistency async --staleness none, shard 1 .*--consistency bounded:3 --staleness drop:4: start"
    with pytest.raises(errors.ConfigurationError, match=text):
        transport.client()


def test_a_fork_of_a_worker_does_not_leave_for_its_parent(client, transport, monkeypatch):
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        client.leave()
    assert transport.messages(ms.Leave) == []
    client.leave()
    assert [shard for shard, _ in transport.messages(ms.Leave)] == [0, 1, 2]


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_shards_without_variables_have_the_same_end_of_the_job_as_the_others(trained, failed):
    transport = ShardsInProcess(3)
    client, known = transport.client("w0", declared("w", 2))
    client.push([up(known["w"])] if trained else []).result()
    client.leave(failed=failed)
    ends = [machine.job_end for machine in transport.machines]
    assert [(end.workers, end.done) for end in ends] == [(1, trained and not failed)] * 3


# --- order ------------------------------------------------------------------------------------------------------------


def declared(name, rows, optimizer=SGD):
    return ms.Declaration(TensorSpec(name, (rows,), "float64"), np.zeros(rows), optimizer)


LARGE, MEDIUM, SMALL = declared("large", 8), declared("medium", 5), declared("small", 2)  # each on a shard of its own


def two(transport, *names):
    """Clients that have registered `large` on shard 0 and `small` on shard 1, and their weights."""
    return [transport.client(name, LARGE, SMALL) for name in names]


def up(weights):
    """The gradient that makes each element one larger."""
    return replace(weights, array=np.full_like(weights.array, -1.0))


def results_of(handles):
    with ThreadPoolExecutor(len(handles)) as threads:
        return list(threads.map(lambda handle: handle.result(), handles))


def test_no_shard_registers_anything_when_one_objects():
    transport = ShardsInProcess(3)
    transport.machines[2] = new_shard(2, 3, memory_limit=4000)
    client, _ = transport.client()
    before = [state_of(machine) for machine in transport.machines]
    table = ms.Declaration(TensorSpec("t", (3000,), "float64"), None, SGD, RowUniform(-1, 1))
    with pytest.raises(errors.TooLarge, match="variables t with their slots need 8,000 bytes"):
        client.register([declared("a", 2), table])
    assert [state_of(machine) for machine in transport.machines] == before
    assert [one.name for one in client.register([declared("a", 2)])] == ["a"]


def test_several_shards_are_first_asked_without_values():
    transport = ShardsInProcess(2)
    client, _ = transport.client("w0", LARGE)
    client.register([SMALL])
    sent = transport.messages(ms.Register)
    dry_run = [(shard, message.dry_run) for shard, message in sent]
    assert dry_run == [(0, True), (1, True), (0, False), (0, True), (1, True), (0, False), (1, False)]
    assert all(one.value is None for _, message in sent if message.dry_run for one in message.declarations)
    assert [[place.shard for place in message.places] for shard, message in sent if not shard] == [[0], [0], [1], [1]]
    with pytest.raises(errors.NotFinite, match=r"initial value for 'new' has 1 of 2 elements .* nothing was sent"):
        client.register([LARGE, replace(declared("new", 2), value=np.array([1.0, np.nan]))])
    assert transport.messages(ms.Register) == sent


@pytest.mark.parametrize("name", ["large", "small"])
def test_a_push_is_late_whatever_shard_its_gradients_are_on(name):
    transport = ShardsInProcess(2, staleness=DropStalePushes(0))
    (fast, weights), (slow, old) = two(transport, "fast", "slow")
    assert fast.push([up(weights[name])]).result().outcome is ms.Outcome.APPLIED
    late = slow.push([up(old[name])], pull=["large", "small"]).result()
    assert (late.outcome, late.staleness) == (ms.Outcome.DROPPED, 1)
    (fresh,) = [whole for whole in late.values if whole.name == name]
    assert (fresh.read.served_at, fresh.array[0]) == (1, 1)
    fast.assign([ms.Assignment("small", np.full(2, 5.0))])
    assert slow.push([up(fresh)]).result().outcome is (ms.Outcome.DROPPED if name == "small" else ms.Outcome.APPLIED)


def test_values_of_other_shards_have_all_that_shard_0_had_decided():
    transport = ShardsInProcess(2, staleness=ORDERED)
    (client, weights), (other, _) = two(transport, "w0", "w1")
    for _ in range(2):
        other.push([up(weights["large"]), up(weights["small"])]).result()
    ((_, late),) = two(transport, "w2")
    assert (late["small"].read.served_at, late["small"].array[0]) == (2, 2), "also of a later registration"
    transport.sent.clear()
    read = [client.pull(["small"])[0], client.choose("small", np.array([1])), client.choose("small")]
    assert [one.read.served_at for one in (*read, client.choose("large", np.array([7])))] == [2] * 4
    last = (ms.ChangeId(ms.Sender("w1", 1), 2, (1,)),)  # shard 0 does not know yet that it is applied there
    pulls = [(shard, message.after) for shard, message in transport.messages(ms.Pull)]
    assert pulls == [(0, ()), (1, last), (1, last), (1, last), (0, ())]


def test_a_shard_waits_for_changes_that_are_made_there_and_for_no_others():
    transport = ShardsInProcess(3, staleness=ORDERED)
    (client, _), (other, weights) = (transport.client(worker, LARGE, MEDIUM, SMALL) for worker in ("w0", "w1"))
    other.push([up(weights["medium"])]).result()
    client._calls._timeout = 0.0  # a call that waits fails at once
    medium, small = client.pull(["medium", "small"])
    assert (medium.array[0], small.array[0]) == (1, 0)
    after = [message.after for shard, message in transport.messages(ms.Pull) if shard]
    assert after[-2:] == 2 * [(ms.ChangeId(ms.Sender("w1", 1), 1, (1,)),)]


@pytest.mark.parametrize(
    ("shards", "consistency", "staleness"),
    [(1, Asynchronous(), ORDERED), (2, Asynchronous(), ANY), (2, Bounded(9), ANY)],
)
def test_where_no_push_is_refused_for_its_staleness_changes_have_no_order(shards, consistency, staleness):
    transport = ShardsInProcess(shards, consistency, staleness)
    ((client, weights),) = two(transport, "w0")
    transport.sent.clear()
    pushed = client.push([up(weights["small"])], pull=["small"]).result()
    read = [weights["small"], pushed.values[0], *client.pull(["small"])]
    assert [one.read.served_at for one in read] == [None] * 3
    assert [(message.remote, message.after) for _, message in transport.messages(ms.Push)] == [((), ())] * shards
    assert len(transport.messages(ms.Pull)) == 1


def test_a_push_goes_to_shard_0_and_to_those_that_have_something_to_do_for_it():
    transport = ShardsInProcess(3)
    client, weights = transport.client("w0", LARGE, MEDIUM, SMALL)
    for pushed, pull in (("large", "large"), ("small", "small"), ("large", "medium")):
        client.push([up(weights[pushed])], pull=[pull]).result()
    sent = [(message.sequence, shard, message.shards) for shard, message in transport.messages(ms.Push)]
    assert sent == [(1, 0, ()), (2, 0, (2,)), (2, 2, (2,)), (3, 0, ())]
    assert [message.global_step for shard, message in transport.messages(ms.Push) if shard] == [1]
    assert [(shard, message.names) for shard, message in transport.messages(ms.Pull)] == [(1, ("medium",))]


@pytest.mark.parametrize("staleness", [ANY, ORDERED])
def test_a_schedule_counts_pushes_of_which_its_shard_has_no_part(staleness):
    optimizer = GradientDescent(PiecewiseConstant([1.5, 2.5, 3.5], [1, 10, 100, 1000]))
    client, weights = ShardsInProcess(2, staleness=staleness).client("w0", LARGE, declared("small", 2, optimizer))
    names = ("large", "large", "small", "large", "small")
    found = [client.push([up(weights[name])], pull=["small"]).result().values[0].array[0] for name in names]
    assert found == [0, 0, 10, 10, 1010], "rates of the steps 2 and 4"


def test_a_part_of_a_push_that_failed_on_a_shard_is_not_waited_for():
    transport = ShardsInProcess(2, Synchronous(2))
    (good, weights), (bad, _) = two(transport, "good", "bad")
    pushed = results_of([client.push([up(weights["small"])], pull=["small"]) for client in (good, bad)])
    first, second = (result.values[0] for result in pushed)
    transport.refuse = lambda shard, message: shard and isinstance(message, ms.Push) and message.sender.worker == "bad"
    bad._calls._timeout = 0.0  # it abandons the push at once
    handles = [good.push([up(first)], pull=["small"]), bad.push([up(second)])]
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(handle.result) for handle in handles]
        assert waits[1].exception() is not None
        assert waits[0].result().values[0].array[0] == 2
    assert [(shard, message.settled) for shard, message in transport.messages(ms.Renew) if message.settled] == [(1, 2)]
    assert [transport.status(shard).global_step for shard in range(2)] == [2, 2], "all count the same steps"


def test_a_push_that_two_shards_have_not_applied_counts_once_as_half_applied(client, transport):
    transport.refuse = lambda shard, message: shard and isinstance(message, ms.Push)
    for pushes in (1, 2):
        with pytest.raises(errors.InvalidMessage, match="not this one"):
            client.push([gradient(name) for name in NAMES]).result()
        assert [len(transport.messages(kind)) for kind in (ms.Push, ms.Renew)] == [3 * pushes, 2 * pushes]
        assert sum(machine.status(0).half_pushes for machine in transport.machines) == pushes


def test_a_push_that_no_shard_has_applied_is_not_half_applied(client, transport):
    transport.refuse = lambda shard, message: isinstance(message, ms.Push)
    with pytest.raises(errors.InvalidMessage, match="not this one"):
        client.push([gradient(name) for name in NAMES]).result()
    assert not transport.messages(ms.Renew)
    assert [machine.status(0).half_pushes for machine in transport.machines] == [0, 0, 0]


def test_a_sum_goes_to_shard_0_last_and_not_if_another_shard_drops_it_or_the_shards_went_back(client, transport):
    client.evaluations.compute([], [], "fit", 1)
    client.evaluations.begin(NAMES, "fit", 1, ms.Evaluation(1, 3, 1))
    arrays = {name: np.ones(2) for name in NAMES}
    for number in range(3):
        assert client.evaluations.take_portion("fit", 1, (), ()).portion.number == number
        assert client.evaluations.claim_portion("fit", 1, number, 1.0)
    transport.sent.clear()
    assert client.evaluations.push_sum(arrays, ms.CountedPortions("fit", 1, (0,)), 0) == ""
    assert [shard for shard, _ in transport.messages(ms.Assign)] == [1, 2, 0]
    (name,) = [one for one in NAMES if client.registration.placement[one].partitions[0].shard == 1]
    client.evaluations.begin([name], "fit", 1, None, end="over")  # on shards 0 and 1 only
    transport.sent.clear()
    assert client.evaluations.push_sum(arrays, ms.CountedPortions("fit", 1, (1,)), 0) == "'fit' is over"
    assert [shard for shard, _ in transport.messages(ms.Assign)] == [1, 2]
    client.rollback.count, client.rollback.reason = 1, "the shards went back"
    transport.sent.clear()
    assert client.evaluations.push_sum(arrays, ms.CountedPortions("fit", 1, (2,)), 0) == "the shards went back"
    assert not transport.sent


def test_no_version_from_before_is_named_to_a_shard_that_was_joined_again_also_if_its_answer_was_lost():
    transport = ShardsInProcess(3)
    client, known = transport.client("w0", *declarations())
    with transport._changed:
        for shard in range(3):
            transport._step(shard, 0, ms.Tick(lost=("w0",)))
    transport.lose = lambda shard, message: isinstance(message, ms.Join)
    transport.sent.clear()
    pulled = client.pull(NAMES, [known[name] for name in NAMES])
    assert [message.known_versions for _, message in transport.messages(ms.Pull)] == [(0,)] * 3 + [()] * 3
    assert [one.array is not known[one.name].array for one in pulled] == [True] * 3


class CutShort(ShardsInProcess):
    """The first push to the shard `slow` is cut short by SIGTERM before the shard has it."""

    slow = -1

    def call(self, shard, message, timeout):
        if shard == self.slow and isinstance(message, ms.Push):
            self.slow = -1
            raise_or_defer(SystemExit(143))
            return Future(partial(self._result, shard, 0, 0.0))
        return super().call(shard, message, timeout)


@pytest.mark.parametrize("policy", [(), (Bounded(3),), (Asynchronous(), ORDERED)])
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_push_that_is_cut_short_on_one_shard_when_the_process_ends_is_on_all_shards_or_none(slow, policy):
    transport = CutShort(3, *policy)
    client, _ = transport.client("w0", *declarations())
    transport.slow = slow
    with pytest.raises(SystemExit):
        client.push([gradient(name) for name in NAMES]).result()
    found = {machine.global_step for machine in transport.machines}
    assert found == ({0} if policy and not slow else {1}), "where shard 0 decides, it has not"
    assert transport.machines[0].status(0).half_pushes == 0


@pytest.mark.parametrize("policy", [(), (Bounded(3),), (Asynchronous(), ORDERED)])
def test_a_signal_during_a_push_is_raised_when_all_shards_have_it(policy):
    transport = ShardsInProcess(3, *policy)
    client, _ = transport.client("w0", *declarations())
    transport.lose = lambda shard, message: isinstance(message, ms.Push) and raise_or_defer(SystemExit(143))
    with pytest.raises(SystemExit):
        client.push([gradient(name) for name in NAMES]).result()
    assert [machine.global_step for machine in transport.machines] == [1, 1, 1]


def test_a_push_abandoned_at_shard_0_is_reported_to_the_shards_of_its_parts():
    transport = ShardsInProcess(3, Synchronous(2))
    client, weights = transport.client("w0", LARGE, MEDIUM, SMALL)
    transport.refuse = lambda shard, message: isinstance(message, ms.Push)
    with pytest.raises(errors.InvalidMessage, match="not this one"):
        client.push([up(weights["large"]), up(weights["medium"])]).result()
    assert [shard for shard, _ in transport.messages(ms.Push)] == [0]
    assert [(shard, message.settled) for shard, message in transport.messages(ms.Renew)] == [(1, 1)]


def test_an_abandoned_push_is_reported_before_the_next_change():
    transport = ShardsInProcess(2, staleness=ORDERED)
    ((client, weights),) = two(transport, "w0")
    transport.refuse = lambda shard, message: shard == 1
    with pytest.raises(errors.InvalidMessage, match="not this one"):
        client.push([up(weights["small"])]).result()
    transport.refuse = lambda shard, message: False
    transport.sent.clear()
    for _ in range(2):
        client.push([up(weights["small"])]).result()
    sent = [(shard, type(message), getattr(message, "settled", 0)) for shard, message in transport.sent]
    assert sent == [(1, ms.Renew, 1), *[(0, ms.Push, 0), (1, ms.Push, 0)] * 2]


@pytest.mark.parametrize(("how", "place"), [("lose", 0), ("refuse", 1)])
def test_an_assign_that_failed_on_a_shard_is_not_waited_for(how, place):
    transport = ShardsInProcess(2, staleness=ORDERED)
    (client, _), (other, _) = two(transport, "w0", "w1")
    setattr(transport, how, lambda shard, message: shard == place and isinstance(message, ms.Assign))
    client._calls._timeout = other._calls._timeout = 0.0  # a call that waits fails at once
    with pytest.raises((errors.InvalidMessage, errors.TimedOut)):
        client.assign([ms.Assignment("small", np.full(2, 5.0))])
    (small,) = other.pull(["small"])
    assert (small.array[0], small.read.served_at) == (0, 1), "shard 0 has decided it, and shard 1 will never have it"


# --- restarted shards -------------------------------------------------------------------------------------------------

EVEN = 12
SPECS = {name: TensorSpec(name, (EVEN, 2)) for name in ("frozen", "trained")} | {"bias": TensorSpec("bias", (3,))}
RANDOM = np.random.default_rng(1)
DECLARED = [ms.Declaration(spec, RANDOM.random(spec.shape, np.float32), SGD) for spec in SPECS.values()]


def received(transport):
    """Bytes of all values that have come since the last time."""
    found = sum(ms.tensor_bytes(answer) for _, answer in transport.answers)
    transport.answers.clear()
    return found


@pytest.mark.parametrize("shards", [2, 3])
def test_of_a_variable_in_several_parts_those_come_that_have_changed_and_the_old_array_is_not_written(shards):
    transport = ShardsInProcess(shards)
    client, known = transport.client("w0", *DECLARED)
    transport.answers.clear()
    old, before, count = known["trained"], known["trained"].array.copy(), EVEN // shards
    part = ms.Gradient("trained", 0, np.ones((count, 2), np.float32))
    transport.call(1, ms.Join(worker="other", incarnation=1, shard=1, shards=shards, process_nonce=5), 0)
    transport.call(1, ms.Push(sender=ms.Sender("other", 1), sequence=1, gradients=(part,)), 0)
    (now,) = client.pull(["trained"], [old])
    assert received(transport) == SPECS["trained"].nbytes // shards
    assert now.read.versions == tuple(int(shard == 1) for shard in range(shards))
    np.testing.assert_array_equal(old.array, before, strict=True)
    before[count : 2 * count] -= 1
    np.testing.assert_array_equal(now.array, before, strict=True)
    again = client.pull(list(SPECS), [known["frozen"], now, known["bias"]])
    unchanged = again[0].array is known["frozen"].array, again[1].array is now.array
    assert (received(transport), unchanged) == (0, (True, True))


def start_anew(transport, shard):
    """Another life of a shard: it has lost its state, and come to the same versions with values of 7."""
    other = ShardsInProcess(transport.shards)
    other.client("other", *[replace(one, value=np.full_like(one.value, 7)) for one in DECLARED])
    transport.machines[shard] = other.machines[shard]


@pytest.mark.parametrize("lost", [0, 1])
def test_versions_from_before_a_restart_of_a_server_are_not_named(lost):
    transport = ShardsInProcess(2)
    client, known = transport.client("w0", *DECLARED)
    start_anew(transport, lost)
    for now in client.pull(["frozen", "trained"], known.values()):
        before = known[now.name]
        assert now.read.versions == before.read.versions, "as many changes"
        halves = np.split(before.array, 2)
        halves[lost] = np.full_like(halves[lost], 7)
        np.testing.assert_array_equal(now.array, np.concatenate(halves), strict=True)


@pytest.mark.parametrize("consistency", [Asynchronous(), Synchronous(1)], ids=str)
def test_a_push_sent_after_a_rejoin_names_no_earlier_versions(consistency):
    """Where shard 0 decides, shard 1 gets its part when `result` is called, which may be after a lookup."""
    transport = ShardsInProcess(2, consistency)
    client, known = transport.client("w0", *DECLARED)
    if not consistency.decides:  # until the rejoin: also what a shard gets of a push that has no gradient for it
        transport.lose = lambda shard, message: isinstance(message, ms.Push) or getattr(message, "names", None)
    handle = client.push([up(known["bias"])], pull=list(SPECS), known_values=known.values())
    start_anew(transport, 1)
    client.choose("trained", np.array([0, EVEN - 1]))
    transport.lose = lambda shard, message: False
    now = {one.name: one for one in handle.result().values}
    assert [(now[name].array[EVEN // 2 :] == 7).all() for name in ("trained", "frozen")] == [True, True]
    transport.answers.clear()
    client.pull(list(SPECS), now.values())
    assert received(transport) == sum(one.value.nbytes for one in DECLARED), "the life they are from was not known"


@pytest.fixture
def job():
    job = ShardsInProcess(2, lease=1000.0)
    job.restart(0, 1)  # they get identities
    return job


@pytest.mark.parametrize("lost", [0, 1])
def test_every_call_raises_when_a_shard_has_lost_its_state_and_who_joins_registers_nothing(job, lost):
    workers = [job.client(f"w{number}", *DECLARED) for number in range(4)]
    (first, known), (second, _), (third, _), (fourth, _) = workers
    first.push([*map(up, known.values())]).result()
    job.restart(lost)
    calls = [
        lambda: first.push([*map(up, known.values())]).result(),
        lambda: second.pull(list(SPECS)),
        lambda: third.register(DECLARED),
        lambda: fourth.tune(list(SPECS), SGD, ["learning_rate"]),
    ]
    for call in (*calls, *calls, *[partial(job.client, name, *DECLARED) for name in ("new", "w0")]):
        with pytest.raises(errors.WrongShard, match=f"shard {lost} was restarted and has lost its state, or has begun"):
            call()
    assert job.status(lost).variables == ()


def test_a_shard_that_is_restarted_between_dry_run_and_registration_gets_nothing(job):
    job.client("w0", *DECLARED)

    def restart(shard, message):
        if isinstance(message, ms.Register) and not message.dry_run and shard == 0:
            job.restart(1)

    job.refuse = restart
    with pytest.raises(errors.WrongShard, match="shard 1 was restarted and has lost its state"):
        job.client("w1", *DECLARED)
    assert job.status(1).variables == ()


def test_a_worker_whose_lease_has_ended_names_the_states_that_it_met_and_goes_on(job):
    worker, known = job.client("w0", *DECLARED)
    job.sleep(2000)
    assert worker.push([*map(up, known.values())]).result().global_step == 1
    assert [message.states for _, message in job.messages(ms.Join)] == [(), (), (1, 2), (1, 2)]
    assert {message.states for _, message in job.messages(ms.Register)} == {(1, 2)}


def test_failed_reports_of_an_idle_or_leaving_worker_are_logged(caplog):
    transport = ShardsInProcess(3)
    client, _ = transport.client()
    transport.refuse = lambda shard, message: shard == 0
    transport.lose = lambda shard, message: shard == 1
    transport.sent.clear()
    with caplog.at_level(logging.INFO, "psworker.client.retry"):
        client.report_idle()
        client.leave()
        client.report_idle()  # after it has left it reports nothing more
    sent = [(shard, type(message)) for shard, message in transport.sent]
    assert sent == [(0, ms.Renew), (0, ms.Leave), (1, ms.Leave), (2, ms.Leave)]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "worker w0, shard 0: could not report that it is idle: not this one"),
        ("WARNING", "worker w0, shard 0: left without an answer: not this one"),
        ("INFO", "worker w0, shard 1: left without an answer: no answer"),
    ]


def test_a_worker_whose_lease_has_ended_goes_on_and_knows_whether_it_is_chief_and_one_whose_name_was_taken_ends():
    transport = ShardsInProcess(1, lease=1000.0)
    client, _ = transport.client("w0", declared("a", 2))
    client.push([gradient("a")]).result()
    other, _ = transport.client("w1")
    assert (client.membership.chief, other.membership.chief) == (True, False)
    queue = ms.QueueSpec(name="q", size=4, block=2, epochs=1)
    held = client.blocks.take(queue, None).block
    transport.sleep(600)
    other.report_idle()
    transport.sleep(600)
    pushed = client.push([gradient("a", 1)], pull=("a",)).result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (ms.Outcome.APPLIED, 2, 2)
    other.report_idle()
    assert (client.membership.chief, other.membership.chief) == (False, True)
    transport.sleep(2000)
    assert client.blocks.take(queue, ms.Finished(held.number)).block == held, (
        "its result counts for nothing, and it is free"
    )
    transport.client("w0")
    for _ in range(2):
        with pytest.raises(errors.Zombie, match="do two workers have the same name"):
            client.push([gradient("a", 2)]).result()
        transport.sleep(2000)


def test_a_held_push_whose_lease_has_ended_is_sent_again_and_counts_once(caplog):
    transport = ShardsInProcess(2, Bounded(0), lease=1000.0)
    (fast, _), (slow, _) = (transport.client(worker, declared("a", 2)) for worker in ("fast", "slow"))
    slow.push([gradient("a")]).result()
    held = fast.push([gradient("a")], pull=["a"])
    transport.sleep(2000)  # both are lost, and their pushes with them
    slow.push([gradient("a", 1)]).result()
    slow.report_idle()
    pushed = held.result()
    assert (pushed.outcome, pushed.global_step, pushed.values[0].array[0]) == (ms.Outcome.APPLIED, 3, 3)
    sent = [shard for shard, message in transport.messages(ms.Push) if message.sender.worker == "fast"]
    assert sent == [0, 0], "shard 1 has nothing to do for it"
    assert "fast joins shard 0 again" in caplog.text


def test_a_worker_that_has_joined_reports_how_tensors_travel_to_each_shard_since_only_a_member_can_ask():
    transport = ShardsInProcess(2)
    transport.tensor_transport = lambda shard: "" if len(transport.messages(ms.Join)) < 2 else f"transport {shard}"
    transport.client("w0")
    assert [transport.status(shard).workers[0].tensor_transport for shard in range(2)] == ["transport 0", "transport 1"]
    assert len(transport.messages(ms.Renew)) == 2
    transport.client("w1")
    assert len(transport.messages(ms.Renew)) == 2, "it was in Join"
