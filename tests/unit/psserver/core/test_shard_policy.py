"""What a consistency policy can rely on, seen with policies that hold and drop pushes."""

import numpy as np
import pytest

from psserver.core.members.membership import Membership
from psserver.core.policies import Asynchronous
from psserver.core.policies.policy import Apply, CallView, Drop, Serve, ShardView
from psserver.core.shard import Shard
from pswire.errors import NotJoined, OutOfOrder, ParamServerError, Unavailable, UnknownVariable, Zombie
from pswire.messages import (
    Assign,
    Assignment,
    Declaration,
    Gradient,
    Join,
    Leave,
    Outcome,
    Pull,
    Push,
    Register,
    Renew,
    Sender,
    Status,
    Tick,
)
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from tests.shard_state import run_step, state_of

LEASE = 10.0
W = TensorSpec("W", (2,), "float64")


def live_steps(view):
    return {member.name: member.steps for member in view.members if member.state == "live"}


class Explains:
    """What every policy says here of a push that it holds."""

    def explain(self, one, waiting, view):
        return f"{one.worker} waits among {len(waiting)}"


class AllTogether(Explains):
    """Holds pushes until every live worker has one; pulls wait, too, while a push does."""

    def decide(self, waiting, view):
        held = [one for one in waiting if not one.applied]
        if held and len(held) < len(live_steps(view)):
            return []
        return [*(Apply((one.ticket,)) for one in held), *(Serve(one.ticket) for one in waiting)]


class InPairs(Explains):
    """Applies pushes in pairs, as one update, and serves whoever wishes for values at once."""

    def decide(self, waiting, view):
        held = [one.ticket for one in waiting if not one.applied]
        apply = [Apply(tuple(held[:2]))] if len(held) > 1 else []
        return [*apply, *(Serve(one.ticket) for one in waiting if one.applied)]


class DropStale(Explains):
    """Drops what is not computed with the weights of now."""

    def decide(self, waiting, view):
        verdicts = []
        for one in waiting:
            if not one.applied:
                stale = one.staleness > 0
                verdicts.append(Drop(one.ticket, f"{one.staleness} behind") if stale else Apply((one.ticket,)))
            verdicts.append(Serve(one.ticket))
        return verdicts


class Job:
    """A shard with the variable W, zero at first, of which each push takes its gradient off."""

    def __init__(self, policy, workers="abc"):
        self.now = 0.0
        self.shard = Shard(lease=LEASE, policy=policy)
        self.senders = {worker: Sender(worker, 1) for worker in workers}
        for worker in workers:
            self.tell(Join(worker))
        optimizer = GradientDescent(learning_rate=1)
        self.tell(Register(self.senders["a"], (Declaration(W, np.zeros(2), optimizer),)))

    def tell(self, message, ticket=0):
        """The answers that the message sets free, by ticket."""
        return {reply.ticket: reply.answer for reply in run_step(self.shard, ticket, message, self.now)}

    def push(self, ticket, worker, gradient, sequence=1, at=0):
        gradients = (Gradient("W", at, np.full(2, float(gradient))),)
        return self.tell(Push(self.senders[worker], sequence, gradients, None, ("W",)), ticket)

    def pull(self, ticket, worker):
        return self.tell(Pull(self.senders[worker], ("W",)), ticket)

    def tick(self, seconds, *, alive=""):
        """Time passes, in which only those who are `alive` were heard of."""
        self.now += seconds
        for worker in alive:
            self.tell(Renew(self.senders[worker]))
        return self.tell(Tick())


def ended(answers):
    """Takes the calls out of some answers that have ended with an error: its class and text, by ticket."""
    errors = {ticket: answer for ticket, answer in answers.items() if isinstance(answer, ParamServerError)}
    for ticket in errors:
        del answers[ticket]
    return {ticket: (type(error), str(error)) for ticket, error in errors.items()}


REPLACED = Unavailable, "another call of this worker has replaced this one"
GONE_ON = Unavailable, "this worker has gone on to something else meanwhile"
SILENT = NotJoined, f"worker 'b' was silent for more than its lease of {LEASE:g} s: join again"
LEFT = NotJoined, "worker 'b' has left: join again"


def summary(answers):
    """ticket -> (what became of it, version and value of W)."""
    return {
        ticket: (answer.outcome.value, answer.values[0].version, *answer.values[0].array)
        for ticket, answer in answers.items()
    }


def test_a_push_that_is_held_is_answered_by_a_later_step():
    job = Job(AllTogether())
    assert job.push(1, "a", 1) == {}
    assert job.push(2, "b", 10) == {}
    freed = job.push(3, "c", 100)
    assert summary(freed) == dict.fromkeys((1, 2, 3), ("applied", 3, -111, -111))
    assert [answer.global_step for answer in freed.values()] == [3, 3, 3], "a step for each, and served after the last"


def test_a_pull_can_be_held_like_a_push():
    job = Job(AllTogether())
    job.push(1, "a", 1)
    assert job.pull(2, "b") == {}
    freed = job.tell(Leave(job.senders["a"]), 3)
    assert ended(freed) == {1: (NotJoined, "worker 'a' has left: join again")}
    (value,) = freed[2].values
    assert (value.version, value.array.tolist()) == (0, [0, 0]), "the push of a is gone, nobody is held any more"


def test_a_worker_has_one_call_open_and_a_later_one_takes_the_place_of_what_it_gave_up():
    job = Job(AllTogether(), "ab")
    job.push(1, "a", 1)
    assert job.pull(2, "b") == {}
    freed = job.push(3, "b", 1)
    assert ended(freed) == {2: REPLACED}
    assert set(freed) == {1, 3}


def test_a_refusal_while_others_wait_changes_nothing():
    job = Job(AllTogether())
    job.push(1, "a", 1)
    before = state_of(job.shard)
    with pytest.raises(UnknownVariable):
        job.tell(Pull(job.senders["b"], ("nothing",)))
    assert state_of(job.shard) == before


def test_a_retry_of_a_held_push_takes_its_place_and_is_applied_once():
    job = Job(AllTogether(), "ab")
    assert job.push(1, "a", 1) == {}
    freed = job.push(2, "a", 1)
    assert (ended(freed), freed) == ({1: REPLACED}, {})
    assert summary(job.push(3, "b", 10)) == {2: ("applied", 2, -11, -11), 3: ("applied", 2, -11, -11)}
    assert summary(job.push(4, "a", 1)) == {4: ("repeated", 2, -11, -11)}


def test_a_held_push_of_a_worker_that_has_gone_on_is_not_applied_any_more():
    job = Job(AllTogether(), "ab")
    job.push(1, "a", 1)
    assign = Assign(job.senders["a"], 2, (Assignment("W", np.full(2, 5.0)),))
    freed = job.tell(assign, 2)
    assert (ended(freed), set(freed)) == ({1: GONE_ON}, {2})
    assert job.push(3, "b", 10) == {}
    with pytest.raises(OutOfOrder):
        job.push(4, "a", 1)
    (again,) = job.tell(assign, 5).values()
    assert again.outcome is Outcome.REPEATED
    assert summary(job.push(6, "a", 100, sequence=3)) == dict.fromkeys((3, 6), ("applied", 3, -105, -105))


def test_what_comes_late_of_a_worker_leaves_its_held_push_alone():
    job = Job(InPairs(), "ab")
    job.push(1, "a", 1)
    job.push(2, "b", 10)
    assert job.push(3, "a", 100, sequence=2) == {}
    assert set(job.push(4, "a", 1)) == {4}, "a retry of what was acknowledged"
    assert set(job.pull(5, "a")) == {5}
    assert set(job.push(6, "b", 1000, sequence=2)) == {3, 6}


def test_who_leaves_takes_its_held_push_along_and_frees_those_who_waited_for_it():
    job = Job(AllTogether())
    job.push(1, "a", 1)
    job.push(2, "b", 10)
    freed = job.tell(Leave(job.senders["b"]), 3)
    assert (ended(freed), set(freed)) == ({2: LEFT}, {3}), "a still waits, for c"
    freed = job.tell(Leave(job.senders["c"]), 4)
    freed.pop(4)
    assert summary(freed) == {1: ("applied", 1, -1, -1)}


def test_who_is_lost_takes_its_held_push_along_and_frees_those_who_waited_for_it():
    job = Job(AllTogether())
    job.push(1, "a", 1)
    job.push(2, "b", 10)
    freed = job.tick(LEASE + 1, alive="a")
    assert ended(freed) == {2: SILENT}
    assert summary(freed) == {1: ("applied", 1, -1, -1)}


def test_all_who_are_lost_at_once_hear_that_and_no_push_of_theirs_is_applied():
    job = Job(AllTogether())
    job.push(1, "a", 1)
    job.push(2, "b", 10)
    freed = job.tick(LEASE + 1)
    assert ended(freed) == {1: (NotJoined, SILENT[1].replace("'b'", "'a'")), 2: SILENT}
    assert freed == {}
    with pytest.raises(NotJoined):
        job.push(3, "c", 100)
    assert job.shard.global_step == 0


def test_the_held_push_of_a_zombie_is_forgotten():
    job = Job(AllTogether(), "ab")
    job.push(1, "a", 1)
    job.senders["a"] = Sender("a", 2)
    freed = job.tell(Join("a"), 2)
    (error, text) = ended(freed)[1]
    assert (error, set(freed)) == (Zombie, {2})
    assert "sends as incarnation 1, but incarnation 2 has joined since" in text
    assert job.push(3, "b", 10) == {}
    assert summary(job.push(4, "a", 100)) == {3: ("applied", 2, -110, -110), 4: ("applied", 2, -110, -110)}


def test_joining_again_as_the_same_life_leaves_a_held_push_alone():
    job = Job(AllTogether(), "ab")
    job.push(1, "a", 1)
    job.tell(Join("a", 1), 2)
    assert set(job.push(3, "b", 10)) == {1, 3}


def test_a_dropped_push_changes_nothing_and_says_why_also_when_it_is_sent_again():
    job = Job(DropStale(), "ab")
    job.push(1, "a", 1)
    (dropped,) = job.push(2, "b", 10, at=0).values()
    (again,) = job.push(3, "b", 10, at=0).values()
    for answer in (dropped, again):
        assert (answer.outcome, answer.reason, answer.staleness) == (Outcome.DROPPED, "1 behind", 1)
        assert (answer.values[0].version, answer.values[0].array.tolist()) == (1, [-1, -1])
    assert job.shard.global_step == 1
    (applied,) = job.push(4, "b", 10, sequence=2, at=1).values()
    assert applied.outcome is Outcome.APPLIED


def test_values_agree_with_their_versions_when_others_are_applied_after_them():
    class ServesFirst(Explains):
        """Answers those who wait for values before it applies the others, one push each time that it is asked."""

        def decide(self, waiting, view):
            if len(waiting) < 2 and not any(one.applied for one in waiting):
                return []
            serve = [Serve(one.ticket) for one in waiting if one.applied]
            apply = [Apply((one.ticket,)) for one in waiting if not one.applied]
            return [*serve, *apply[:1]]

    job = Job(ServesFirst(), "ab")
    job.push(1, "a", 1)
    freed = job.push(2, "b", 10)
    assert set(freed) == {1, 2}
    for answer in freed.values():
        (value,) = answer.values
        assert (value.version, value.array.tolist()) == (2, [-11, -11])


def test_a_policy_sees_those_who_wait_in_order_and_the_steps_of_the_living():
    seen = []

    class Watches(Asynchronous):
        def decide(self, waiting, view):
            seen.append((list(waiting), view.global_step, live_steps(view)))
            return super().decide(waiting, view)

    job = Job(Watches())
    job.push(7, "b", 1)
    job.tell(Leave(job.senders["c"]))
    job.push(8, "a", 1, at=0)
    assert seen == [
        ([CallView(7, "b", applied=False, staleness=0)], 0, {"a": 0, "b": 0, "c": 0}),
        ([CallView(8, "a", applied=False, staleness=1)], 1, {"a": 0, "b": 1}),
    ]


def test_asynchronous_holds_nobody():
    view = ShardView(5, Membership(LEASE))
    waiting = [CallView(3, "a", applied=False, staleness=99), CallView(1, "b", applied=True)]
    assert Asynchronous().decide(waiting, view) == [Apply((3,)), Serve(3), Serve(1)]


def test_a_status_of_very_many_workers_lists_all_that_live_and_the_newest():
    shard = Shard()
    for number in range(1500):
        run_step(shard, number, Join(f"w{number}"), 0.0)
        if number:
            run_step(shard, number, Leave(Sender(f"w{number}", 1)), 0.0)
    (reply,) = run_step(shard, 0, Status(), 0.0)
    numbers = [worker.number for worker in reply.answer.workers]
    assert numbers == [0, *range(501, 1500)]


class AskedAsynchronous(Asynchronous):
    """The same policy, which the shard does not know, and therefore asks."""


@pytest.mark.parametrize("seed", range(20250713, 20250717))
def test_a_shard_does_without_asking_what_the_asynchronous_policy_would_say(seed):
    """Pushes, retries, pulls and lost leases in any order: the same answers, and the same state at the end."""
    random = np.random.default_rng(seed)
    jobs = Job(Asynchronous()), Job(AskedAsynchronous())
    sequences = dict.fromkeys("abc", 1)
    for ticket in range(1, 60):
        worker, kind, gradient = "abc"[random.integers(3)], random.random(), random.integers(9)
        sequences[worker] += kind < 0.5  # or it is a retry
        if kind < 0.7:
            said = [job.push(ticket, worker, gradient, sequences[worker]) for job in jobs]
        elif kind < 0.9:
            said = [job.pull(ticket, worker) for job in jobs]
        else:
            said = [job.tick(LEASE / 4, alive="abc") for job in jobs]
        assert state_of(said[0]) == state_of(said[1])
    one, other = (state_of(job.tell(Status())) for job in jobs)
    assert one == other
    assert jobs[0].shard.global_step > 20


def test_of_an_update_of_several_pushes_each_counts_with_its_own_staleness():
    job = Job(InPairs(), "ab")
    for sequence in (1, 2, 3):
        job.tell(Assign(job.senders["a"], sequence, (Assignment("W", np.zeros(2)),)))
    job.push(1, "a", 1, sequence=4, at=3)
    assert set(job.push(2, "b", 1, at=0)) == {1, 2}
    status = job.tell(Status())[0]
    assert [worker.staleness for worker in status.workers] == [0, 3]
    assert (status.staleness.p50, status.staleness.p99) == (0, 3)


def test_traffic_counts_every_push_of_an_update_and_the_bytes_of_each_direction():
    """W has 16 bytes: it came, and was served, when it was registered; then two gradients come, and one value goes."""
    job = Job(InPairs(), "ab")
    job.push(1, "a", 1)
    job.tell(Push(job.senders["b"], 1, (Gradient("W", 0, np.ones(2)),)), 2)
    job.now = 2.0
    traffic = job.tell(Status())[0].traffic
    assert (traffic.pushes, traffic.bytes_in, traffic.bytes_out) == (2 / 2, 3 * 16 / 2, 2 * 16 / 2)
