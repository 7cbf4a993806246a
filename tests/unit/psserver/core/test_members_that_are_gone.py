"""Members that are gone, and pushes that are held: what a step costs, counted in operations, and what is remembered."""

import numpy as np
import pytest

from psserver.core.members import membership
from psserver.core.members.progress_timeout import ProgressTimeout
from psserver.core.policies.synchronous import Synchronous
from psserver.core.shard import Shard
from psserver.core.updates.pending_calls import PendingCalls
from psserver.core.updates.staleness import Staleness
from pswire import errors
from pswire import messages as ms
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency, parse_staleness
from tests.support.shards import ShardDriver, declared, run_step, state_of

W = declared("W", np.zeros(2), GradientDescent(1.0))


class Counting(dict):
    """A dict that counts the values that are looked at one after another."""

    looked_at = 0

    def values(self):
        for value in super().values():
            Counting.looked_at += 1
            yield value

    def items(self):
        for item in super().items():
            Counting.looked_at += 1
            yield item


def visited(function, *arguments):
    Counting.looked_at = 0
    function(*arguments)
    return Counting.looked_at


@pytest.fixture
def few(monkeypatch):
    """At most 4 members are remembered after they are gone."""
    monkeypatch.setattr(membership, "MAX_GONE", 4)


def churn(job, workers, first=0):
    """So many workers join and leave, one after another."""
    senders = []
    for number in range(first, first + workers):
        sender = ms.Sender(f"w{number}", job.answer(ms.Join(worker=f"w{number}")).incarnation)
        job.answer(ms.Leave(sender))
        senders.append(sender)
    return senders


def counted(monkeypatch, owner, name):
    """The calls of a method from now on, as a list that grows."""
    calls, method = [], getattr(owner, name)

    def count(*arguments, **options):
        calls.append(arguments)
        return method(*arguments, **options)

    monkeypatch.setattr(owner, name, count)
    return calls


def test_a_tick_and_a_message_cost_the_live_members_however_many_have_left():
    job = ShardDriver(W, workers="ab")
    churn(job, 500)
    for name in ("_members", "_gone", "_live"):
        members = job.shard._members
        setattr(members, name, Counting(getattr(members, name)))
    assert visited(job.shard.due, 1.0) <= 2
    assert visited(job.step, ms.Tick()) == 0
    assert visited(job.push) == 0
    assert visited(job.answer, ms.Renew(sender=ms.Sender("a", 1))) == 0


def test_explaining_why_pushes_are_held_costs_as_much_for_many_workers_as_for_one(monkeypatch):
    workers = [f"w{number}" for number in range(60)]
    job = ShardDriver(workers=workers, consistency=parse_consistency("sync:61"))
    job.answer(ms.Register(sender=ms.Sender("w0", 1), declarations=(W,)))
    computed = counted(monkeypatch, Staleness, "_computed")
    for ticket, worker in enumerate(workers, 1):
        assert job.push(worker, ticket, W=np.ones(2)) == {}
    assert len(computed) == len(workers), "the staleness of a held push is computed once until a variable changes"
    views, explained = counted(monkeypatch, PendingCalls, "_views"), counted(monkeypatch, Synchronous, "explain")
    report = job.answer(ms.Status())
    assert {one.waiting_for for one in report.workers} == {
        "sync:61: 60 of 61 gradients of step 0 have arrived; workers: w0, w1, w2, w3 and 56 others; start 1 more "
        "worker or lower N"
    }
    for worker in workers:
        assert job.answer(ms.Renew(sender=ms.Sender(worker, 1))).waiting_for == report.workers[0].waiting_for
    assert (len(views), len(explained), len(computed)) == (1, 1, 60)


def test_the_longest_gone_are_forgotten_and_their_messages_and_joins_refused(few):
    job = ShardDriver(W, workers="a")
    gone = churn(job, 9)
    report = job.answer(ms.Status())
    assert [one.name for one in report.workers] == ["a", "w5", "w6", "w7", "w8"]
    assert report.jobs[-1].workers == 10, "all count that ever joined"
    for sender in gone[:5]:
        job.refuse(
            ms.Push(sender=sender, sequence=1, gradients=(ms.Gradient("W", 0, np.ones(2)),)),
            errors.Zombie,
            "so long ago",
        )
        job.refuse(
            ms.Join(worker=sender.worker, incarnation=sender.incarnation),
            errors.Zombie,
            "has forgotten it: this process must end",
        )
    for sender in gone[5:]:
        job.refuse(ms.Renew(sender=sender), errors.NotJoined, "has left: join again")


def test_a_forgotten_name_gets_an_incarnation_above_all_that_were_forgotten_on_any_shard(few):
    shards, incarnations = [ShardDriver(workers="", shard=shard, shards=2) for shard in range(2)], []
    for shard in shards:
        shard.answer(ms.Join(worker="stays", incarnation=0, shard=shard.shard.shard, shards=2))
    for _ in range(3):
        for number in range(8):
            incarnation = 0
            for index, shard in enumerate(shards):
                incarnation = shard.answer(
                    ms.Join(worker=f"w{number}", incarnation=incarnation, shard=index, shards=2)
                ).incarnation
            sender = ms.Sender(f"w{number}", incarnation)
            for shard in shards:
                shard.answer(ms.Leave(sender))
        incarnations.append(incarnation)
    assert incarnations[1] >= incarnations[0] + 8
    assert incarnations[2] == incarnations[1] + 8


def test_who_comes_back_while_it_is_remembered_repeats_nothing(few):
    job = ShardDriver(W, workers="az")
    assert job.push("a", 1, W=np.ones(2))[1].outcome is ms.Outcome.APPLIED
    job.step(ms.Tick(lost=("a",)))
    churn(job, 3)
    job.answer(ms.Join(worker="a", incarnation=1))
    assert job.push("a", 1, sequence=1, W=np.ones(2))[1].outcome is ms.Outcome.REPEATED


def test_a_job_is_still_interrupted_and_has_still_finished_when_those_workers_are_forgotten(few):
    job = ShardDriver(W, workers="abz", consistency=parse_consistency("sync:2"))
    job.push("a", 1, W=np.ones(2))
    job.push("b", 2, W=np.ones(2))
    job.answer(ms.Leave(ms.Sender("a", 1)))
    churn(job, 6)
    assert set(job.push("b", 3, version=1, W=np.ones(2))) == {3}, "a worker has finished: b goes on alone"
    job.step(ms.Tick(lost=("b",)))
    for number in range(10, 18):
        sender = ms.Sender(f"w{number}", job.answer(ms.Join(worker=f"w{number}")).incarnation)
        job.answer(ms.Leave(sender, failed=True))
    assert job.shard._members.some_were_lost
    assert "b" not in [one.name for one in job.answer(ms.Status()).workers]


def test_a_restored_shard_forgets_the_same_members_and_keeps_the_counts(few):
    job = ShardDriver(W, workers="ab")
    job.push("a", 1, W=np.ones(2))
    churn(job, 4)
    job.step(ms.Tick(lost=("a",)))
    state = job.shard.state()
    again = Shard.for_state(state)
    again.restore(state, job.shard.arrays(), 0.0)
    assert again.state() == state
    for shard in (job.shard, again):
        run_step(shard, 1, ms.Leave(ms.Sender("b", 1)), 0.0)
        run_step(shard, 2, ms.Join(worker="new"), 0.0)
    assert state_of(again) == state_of(job.shard)


def test_a_stalled_worker_that_is_lost_and_forgotten_is_in_no_state(few):
    job = ShardDriver(W, workers="abz", consistency=parse_consistency("sync:2"))
    job.push("a", 1, W=np.ones(2))
    job.push("b", 2, W=np.ones(2))
    job.push("a", 3, version=1, W=np.ones(2))
    job.step(ms.Tick(stalled=("b",)))
    assert job.shard.state().members.stalled == ("b",)
    job.step(ms.Tick(lost=("b",)))
    churn(job, 4)
    state = job.shard.state()
    assert state.members.stalled == ()
    again = Shard.for_state(state)
    again.restore(state, job.shard.arrays(), 0.0)
    assert again.state() == state


def test_nobody_waits_for_a_new_incarnation_nor_calls_a_worker_stalled_that_is_idle_or_of_the_loop_before():
    job = ShardDriver(W, workers="abz", consistency=parse_consistency("bounded:1"))

    def stall():
        job.push("a", 1, W=np.ones(2))
        job.push("b", 2, W=np.ones(2))
        job.push("b", 3, W=np.ones(2))
        job.push("b", 4, W=np.ones(2))
        job.step(ms.Tick(stalled=("a",)))
        assert job.shard.state().members.stalled == ("a",)

    stall()
    job.answer(ms.Renew(sender=ms.Sender("a", 1), idle=True))
    assert job.shard.state().members.stalled == ()
    stall()
    for worker in "abz":
        job.answer(ms.Leave(ms.Sender(worker, 1), failed=True))
    assert job.shard.state().members.stalled == ("a",)
    for process in (7, 8):
        joined = job.answer(ms.Join(worker="c", process_nonce=process, name_key=b"key", resume=True))
        assert (job.shard.state().members.stalled, job.shard.state().members.training) == ((), ())
        job.answer(
            ms.Push(
                sender=ms.Sender("c", joined.incarnation), sequence=1, gradients=(ms.Gradient("W", 0, np.ones(2)),)
            ),
            5,
        )
        assert job.shard.state().members.training == ("c",)


def test_a_restored_state_has_what_is_known_of_forgotten_workers_and_of_earlier_incarnations(few):
    job = ShardDriver(W, workers="abz", shards=2, staleness=parse_staleness("drop:5"))
    for worker in "ab":
        job.answer(
            ms.Push(sender=ms.Sender(worker, 1), sequence=1, gradients=(ms.Gradient("W", 0, np.ones(2)),), shards=(1,)),
            1,
        )
        job.answer(ms.Renew(sender=ms.Sender(worker, 1), half_pushes=3))
        job.answer(ms.Leave(ms.Sender(worker, 1)))
    assert [one.sender.worker for one in job.shard.state().order.undelivered] == ["a", "b"]
    assert job.answer(ms.Status()).half_pushes == 6
    for number in range(4):
        job.answer(ms.Join(worker=f"w{number}", incarnation=0, shard=0, shards=2))
        job.answer(ms.Leave(ms.Sender(f"w{number}", job.shard._members[f"w{number}"].incarnation)))
    report, state = job.answer(ms.Status()), job.shard.state()
    assert (report.half_pushes, state.order.undelivered, state.members.chief) == (6, (), ms.Sender("a", 1))
    assert [one.worker for one in report.last_pushes] == ["a", "b"]
    again = Shard.for_state(state)
    again.restore(state, job.shard.arrays(), 0.0)
    assert again.state() == state
    again.step(1, ms.Register(sender=ms.Sender("z", 1), declarations=(W,)), 0.0)
    assert again.state().groups == state.groups


def test_the_time_without_progress_begins_anew_when_nobody_has_waited_in_between():
    timeout, awaited = ProgressTimeout(10.0), {"a": ("a", 1)}
    assert timeout.stalled(awaited, 0.0) == timeout.stalled({}, 9.0) == timeout.stalled(awaited, 11.0) == ()
    assert timeout.stalled({"b": ("b", 1)}, 20.0) == timeout.stalled(awaited, 22.0) == ()
    assert timeout.stalled(awaited, 32.0) == ("a",)


def test_all_forgotten_incarnations_are_refused_also_when_lower_ones_are_forgotten_later(few):
    job = ShardDriver(workers="z")
    for worker, incarnation in (("high", 7), ("low", 3)):
        job.answer(ms.Join(worker=worker, incarnation=incarnation))
        job.answer(ms.Leave(ms.Sender(worker, incarnation)))
    churn(job, 4)
    for worker, incarnation in (("high", 7), ("low", 3)):
        job.refuse(
            ms.Join(worker=worker, incarnation=incarnation), errors.Zombie, "has forgotten it: this process must end"
        )


def test_incarnations_after_a_restart_are_above_those_of_forgotten_workers(few):
    job = ShardDriver(workers="")
    for worker, incarnation in (("high", 7), ("w0", 1), ("w1", 1), ("w2", 1), ("w3", 1)):
        job.answer(ms.Join(worker=worker, incarnation=incarnation))
        job.answer(ms.Leave(ms.Sender(worker, incarnation)))
    again = ShardDriver(workers="")
    again.shard.restore(job.shard.state(), {}, 0.0)
    assert again.answer(ms.Join(worker="high")).incarnation == 8
