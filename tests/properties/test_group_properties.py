"""A group of pushes on a shard that follows shard 0, over drawn interleavings of losses and returns of its workers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire.messages import ChangeId, Gradient, Join, Outcome, Push, Pushed, Register, Renew, Sender, Tick, UpdateGroup
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Synchronous
from tests.shard_driver import A, ShardDriver, declared

WORKERS, LEASE = "abcde", 10.0
GROUP = UpdateGroup(3, tuple(ChangeId(Sender(name, 1), 1) for name in WORKERS))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["push"] * 3 + ["die", "return"]), st.sampled_from(WORKERS)), min_size=10))
def test_a_group_is_one_update_without_the_parts_of_lost_workers(happenings):
    """A part that others went on without comes too late, whenever it comes."""
    driver = ShardDriver(workers="", shard=1, shards=2, lease=LEASE, consistency=Synchronous(len(WORKERS)))
    for name in WORKERS:
        driver.answer(Join(name, 1, 1, 2))
    driver.answer(Register(A, (declared("W", 0.0, GradientDescent(1.0)),)))
    pushed, dead, updates = set(), set(), 0
    for ticket, (happening, name) in enumerate(happenings, 1):
        answers = {}
        if happening == "push" and name not in dead | pushed:
            pushed.add(name)
            answers = driver.step(Push(Sender(name, 1), 1, (Gradient("W", 0, np.ones(())),), group=GROUP), ticket)
        elif happening == "die" and name not in dead:
            driver.now += LEASE / 2 + 1
            dead.add(name)
            for other in set(WORKERS) - dead:
                driver.answer(Renew(Sender(other, 1)))
            driver.now += LEASE / 2
            answers = driver.step(Tick())
        elif happening == "return" and name in dead:
            answers = driver.step(Join(name, 1, 1, 2))
            dead.discard(name)
        outcomes = {answer.outcome for answer in answers.values() if isinstance(answer, Pushed)}
        assert outcomes in (set(), {Outcome.DROPPED if updates else Outcome.APPLIED})
        updates += Outcome.APPLIED in outcomes
        assert driver.shard.global_step == updates <= 1
        if not updates:
            pushed -= dead  # their calls have ended, and may be made again
            assert not pushed or set(WORKERS) - pushed - dead, "the dead are not waited for"
