"""Bounded staleness and groups of pushes over drawn interleavings; whole races are in `test_consistency_properties`."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.core.members.membership import Membership
from psserver.core.policies import BoundedStaleness
from psserver.core.policies.policy import Apply, CallView, ShardView
from psserver.core.shard import Shard
from pswire.messages import (
    ChangeId,
    Declaration,
    Gradient,
    Join,
    Outcome,
    Push,
    Pushed,
    Register,
    Renew,
    Sender,
    Status,
    Tick,
    UpdateGroup,
)
from pswire.optimizers import GradientDescent
from pswire.specs import consistency
from pswire.tensors.values import TensorSpec
from tests.shard_state import run_step

WORKERS = "abcde"
LEASE = 10.0

any_race = settings(max_examples=40, deadline=None, derandomize=True)


@any_race
@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=6),
)
def test_bounded_staleness_applies_the_largest_set_that_keeps_the_bound(steps, racers):
    members = Membership(LEASE)
    for number, (clock, _) in enumerate(racers):
        member, _ = members.join(Join(f"w{number}"), 0.0)
        members.progress.start(member)
        member.clock = clock
    held = {number for number, (_, holds) in enumerate(racers) if holds}
    going = set(held)  # all go, without those that would be too far ahead, until that takes nobody away any more
    while True:
        floor = min(clock + (number in going) for number, (clock, _) in enumerate(racers))
        kept = {number for number in going if racers[number][0] + 1 <= steps + floor}
        if kept == going:
            break
        going = kept
    waiting = [CallView(number, f"w{number}", applied=False) for number in sorted(held)]
    verdicts = BoundedStaleness(steps).decide(waiting, ShardView(0, members))
    assert verdicts == [Apply((number,)) for number in sorted(going)]


@any_race
@given(st.lists(st.tuples(st.sampled_from(["come"] * 3 + ["die", "return"]), st.sampled_from(WORKERS)), min_size=10))
def test_a_group_is_one_update_without_the_parts_of_lost_workers(events):
    """By a whole shard: a part that others went on without comes too late, whenever it comes."""
    shard = Shard(1, 2, LEASE, consistency=consistency.Synchronous(len(WORKERS)))
    senders = {name: Sender(name, 1) for name in WORKERS}
    group = UpdateGroup(3, tuple(ChangeId(sender, 1) for sender in senders.values()))
    for name in WORKERS:
        run_step(shard, 0, Join(name, 1, 1, 2), 0.0)
    declaration = Declaration(TensorSpec("W", (), "float64"), np.zeros(()), GradientDescent(1.0))
    run_step(shard, 0, Register(senders[WORKERS[0]], (declaration,)), 0.0)
    now, came, dead, update = 0.0, set(), set(), None
    for ticket, (event, name) in enumerate(events, 1):
        if event == "come" and name not in dead | came:
            came.add(name)
            push = Push(senders[name], 1, (Gradient("W", 0, np.ones(())),), group=group)
            replies = run_step(shard, ticket, push, now)
        elif event == "die" and name not in dead:
            now += LEASE / 2 + 1
            dead.add(name)
            for other in set(WORKERS) - dead:
                run_step(shard, 0, Renew(senders[other]), now)
            now += LEASE / 2
            replies = run_step(shard, 0, Tick(), now)
        elif event == "return" and name in dead:
            replies = run_step(shard, 0, Join(name, 1, 1, 2), now)
            dead.discard(name)
        else:
            continue
        settled = [reply.answer for reply in replies if reply.ticket and isinstance(reply.answer, Pushed)]
        applied = [answer for answer in settled if answer.outcome is Outcome.APPLIED]
        if applied:
            assert update is None, "one update"
            update = len(applied)
        elif settled:
            assert update is not None
            assert {answer.outcome for answer in settled} == {Outcome.DROPPED}
        if update is None:
            came -= dead  # their calls have ended, and may be made again
            assert not came or set(WORKERS) - came - dead, "nobody waits for the dead"
    version = run_step(shard, 0, Status(), now)[0].answer.variables[0].version
    assert version == (update is not None)
