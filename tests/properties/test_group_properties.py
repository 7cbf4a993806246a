"""A group of pushes on a shard that follows shard 0, over drawn interleavings of losses and returns of its workers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Tick,
    UpdateGroup,
)
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Synchronous
from pswire.tensors.values import TensorSpec
from tests.shard_state import run_step

WORKERS, LEASE = "abcde", 10.0
GROUP = UpdateGroup(3, tuple(ChangeId(Sender(name, 1), 1) for name in WORKERS))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["push"] * 3 + ["die", "return"]), st.sampled_from(WORKERS)), min_size=10))
def test_a_group_is_one_update_without_the_parts_of_lost_workers(happenings):
    """A part that others went on without comes too late, whenever it comes."""
    shard, now = Shard(1, 2, LEASE, consistency=Synchronous(len(WORKERS))), 0.0
    for name in WORKERS:
        run_step(shard, 0, Join(name, 1, 1, 2), now)
    declaration = Declaration(TensorSpec("W", (), "float64"), np.zeros(()), GradientDescent(1.0))
    run_step(shard, 0, Register(Sender("a", 1), (declaration,)), now)
    pushed, dead, updates = set(), set(), 0
    for ticket, (happening, name) in enumerate(happenings, 1):
        replies = []
        if happening == "push" and name not in dead | pushed:
            pushed.add(name)
            message = Push(Sender(name, 1), 1, (Gradient("W", 0, np.ones(())),), group=GROUP)
            replies = run_step(shard, ticket, message, now)
        elif happening == "die" and name not in dead:
            now += LEASE / 2 + 1
            dead.add(name)
            for other in set(WORKERS) - dead:
                run_step(shard, 0, Renew(Sender(other, 1)), now)
            now += LEASE / 2
            replies = run_step(shard, 0, Tick(), now)
        elif happening == "return" and name in dead:
            replies = run_step(shard, 0, Join(name, 1, 1, 2), now)
            dead.discard(name)
        outcomes = {reply.answer.outcome for reply in replies if isinstance(reply.answer, Pushed)}
        assert outcomes in (set(), {Outcome.DROPPED if updates else Outcome.APPLIED})
        updates += Outcome.APPLIED in outcomes
        assert shard.global_step == updates <= 1
        if not updates:
            pushed -= dead  # their calls have ended, and may be made again
            assert not pushed or set(WORKERS) - pushed - dead, "the dead are not waited for"
