"""Policies over any interleaving of workers that push, rest, leave, die and come back: a race without a shard.

A naive shard of one variable, whose version counts its updates, carries out what the policy says; the rules of each
policy are then checked after every event, from the clocks and updates that have been seen.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.core.members.membership import Membership
from psserver.core.policies import BoundedStaleness, DropStale, ScaleStale, Synchronous
from psserver.core.policies.policy import Apply, CallView, Drop, Policy, Serve, ShardView
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

#: Mostly pushes, so that races get somewhere; who is named does what it can. Repeated names make the fast and the slow.
events = st.lists(
    st.tuples(
        st.sampled_from(["push"] * 12 + ["rest", "leave", "die", "return", "restart"]),
        st.sampled_from("aaaabbbccd" + WORKERS),
    ),
    min_size=40,
    max_size=100,
)
any_race = settings(max_examples=40, deadline=None, derandomize=True)


@dataclass
class Update:
    """What was seen when one was made."""

    version: int
    tickets: tuple[int, ...]
    workers: list[str]
    weights: list[int]
    scale: float
    racing: int
    ending: bool


@dataclass
class Race:
    """Workers, the weights of each, and who waits with a push: ticket -> [worker, its weights, what became of it].

    Updates and drops are noted as they happen.
    """

    policy: Policy
    members: Membership = field(default_factory=lambda: Membership(LEASE))
    version: int = 0
    tickets: int = 0
    weights: dict[str, int] = field(default_factory=dict)
    calls: dict[int, list] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)
    drops: list[tuple[str, int, int, str]] = field(default_factory=list)

    def __post_init__(self):
        for name in WORKERS[:3]:
            self.happen("restart", name)

    def happen(self, event, name):
        """One event, if it can be, and all that follows from it."""
        member = self.members.get(name)
        live = member is not None and member.state == "live"
        computing = live and name not in self.held
        if event == "push" and computing:
            self.members.progress.start(member)
            self.tickets += 1
            self.calls[self.tickets] = [name, self.weights[name], None]
        elif event == "rest" and computing:
            self.members.progress.finish(member)
        elif event == "leave" and computing:
            self.members.leave(member, 0.0)
        elif event == "die" and live:
            member.expires = -1.0
            assert self.members.expire(0.0) == [member]
            self.forget(name)
        elif event == "return" and member is not None and member.state == "lost":
            self.members.join(Join(name, member.incarnation), 0.0)
            self.weights[name] = self.version
        elif event == "restart" and not computing:
            self.members.join(Join(name), 0.0)
            self.weights[name] = self.version
            self.forget(name)
        self.decide()

    def forget(self, name):
        self.calls = {ticket: call for ticket, call in self.calls.items() if call[0] != name}

    @property
    def held(self):
        return [name for name, _, _ in self.calls.values()]

    @property
    def waiting(self):
        return [
            CallView(ticket, name, applied=fate is not None, staleness=0 if fate else self.version - weights)
            for ticket, (name, weights, fate) in self.calls.items()
        ]

    @property
    def view(self):
        return ShardView(self.version, self.members)

    @property
    def clocks(self):
        return {name: member.clock for name, member in self.members.progress.training.items()}

    def decide(self):
        """As a shard does."""
        while self.calls:
            verdicts = self.policy.decide(self.waiting, self.view)
            if not verdicts:
                return
            for verdict in verdicts:
                match verdict:
                    case Apply(tickets, scale):
                        self.update(tickets, scale)
                    case Drop(ticket, reason):
                        name, weights, fate = self.calls[ticket]
                        assert fate is None
                        self.drops.append((name, weights, self.version, reason))
                        self.settle(ticket, "dropped")
                    case Serve(ticket):
                        name, _, fate = self.calls.pop(ticket)
                        assert fate is not None
                        self.weights[name] = self.version

    def update(self, tickets, scale):
        calls = [self.calls[ticket] for ticket in tickets]
        assert all(fate is None for _, _, fate in calls)
        names, weights = [call[0] for call in calls], [call[1] for call in calls]
        racing, ending = len(self.members.progress.training), self.members.progress.ending
        self.updates.append(Update(self.version, tickets, names, weights, scale, racing, ending))
        self.version += 1
        for ticket in tickets:
            self.settle(ticket, "applied")

    def settle(self, ticket, fate):
        self.calls[ticket][2] = fate
        self.members.get(self.calls[ticket][0]).clock += 1


# --- bounded staleness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropping", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
@any_race
@given(events)
def test_nobody_gets_further_ahead_than_the_bound_and_nobody_waits_without_a_slower_one(steps, dropping, events):
    bounded = BoundedStaleness(steps)
    race = Race(DropStale(bounded, 2) if dropping else bounded)
    for event in events:
        race.happen(*event)
        clocks = race.clocks
        if not clocks:
            continue
        least = min(clocks.values())
        assert max(clocks.values()) - least <= steps
        slowest = [name for name, clock in clocks.items() if clock == least and name not in race.held]
        for one in race.waiting:
            assert slowest, "all of the slowest wait"
            assert clocks[one.worker] + 1 > steps + least
            assert all(name in race.policy.explain(one, race.waiting, race.view) for name in slowest)
    assert all(len(update.tickets) == 1 for update in race.updates)
    for name, weights, version, reason in race.drops:
        assert version - weights > 2, f"{name}: {reason}"
        assert f"staleness {version - weights}" in reason
    for update in race.updates:
        assert not dropping or update.version - update.weights[0] <= 2


@any_race
@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=6),
)
def test_bounded_lets_the_largest_set_go_that_keeps_the_bound(steps, racers):
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


# --- synchronous ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
@any_race
@given(events)
def test_an_update_has_exactly_n_gradients_of_its_step_but_at_the_end_of_the_data(workers, events):
    race = Race(Synchronous(workers))
    for event in events:
        race.happen(*event)
        needed = max(1, min(workers, len(race.clocks))) if race.members.progress.ending else workers
        assert len(race.held) < needed, "enough have come"
        for one in race.waiting:
            assert not one.staleness
            sentence = race.policy.explain(one, race.waiting, race.view)
            assert f"{len(race.held)} of {needed} gradients of step {race.version}" in sentence
            for name in race.clocks.keys() - set(race.held):
                assert name in sentence
    for update in race.updates:
        assert update.weights == [update.version] * len(update.weights), "computed with the weights before it"
        assert len(set(update.workers)) == len(update.workers)
        assert list(update.tickets) == sorted(update.tickets), "the first who came"
        exact = min(workers, update.racing) if update.ending else workers
        assert len(update.tickets) == exact
    for _, weights, version, reason in race.drops:
        assert weights < version
        assert f"step {version} needs gradients of the new ones" in reason


@any_race
@given(st.lists(st.sampled_from("aaaabbbccd"), min_size=20, max_size=100))
def test_without_losses_every_push_is_applied_or_late_or_waits_for_the_others(pushing):
    race = Race(Synchronous(2, backup=2))
    race.happen("restart", "d")
    for name in pushing:
        race.happen("push", name)
    assert race.tickets == sum(len(update.tickets) for update in race.updates) + len(race.drops) + len(race.held)
    assert {len(update.tickets) for update in race.updates} <= {2}


# --- staleness --------------------------------------------------------------------------------------------------------


@any_race
@given(events)
def test_scaling_goes_by_the_staleness_at_the_moment_of_the_update(events):
    class TwoAtATime:
        """Answers in pairs, so that the second is staler when its turn comes than when it was asked about."""

        def decide(self, waiting, view):
            pushes = [Apply((one.ticket,)) for one in waiting if not one.applied]
            return [*(pushes if len(pushes) > 1 or view.global_step % 2 else []), *self.serve(waiting)]

        def serve(self, waiting):
            return [Serve(one.ticket) for one in waiting if one.applied]

        def explain(self, one, waiting, view):
            return "waits for another"

    race = Race(ScaleStale(TwoAtATime()))
    for event in events:
        race.happen(*event)
    for update in race.updates:
        assert update.scale == 1 / max(1, update.version - update.weights[0])


# --- following --------------------------------------------------------------------------------------------------------


@any_race
@given(st.lists(st.tuples(st.sampled_from(["come"] * 3 + ["die", "return"]), st.sampled_from(WORKERS)), min_size=10))
def test_a_group_is_one_update_of_those_who_come_and_holds_nobody_for_the_dead(events):
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
