"""Guarded steps behind the executor: they wait until what is under way is done, and others wait for them."""

import asyncio

import numpy as np
import pytest

from pswire.errors import NotFinite
from pswire.messages import Gradient, Outcome, Push
from pswire.optimizers import GradientDescent
from tests.gated_shard import begun, cancelled, join, register, run, until, value

LARGE = 1 << 20  # elements: their tasks go to threads


def push(sender, sequence, name, array):
    return Push(sender, sequence, (Gradient(name, 0, array),))


def guarded(sender, sequence, element):
    return push(sender, sequence, "W", np.full(LARGE, element, np.float32))


async def with_one_under_way(executor, shard):
    """Two workers; an ordinary push of `a` has been decided, and its task stands at a gate."""
    a, b = await join(executor, "a"), await join(executor, "b")
    await register(executor, a, GradientDescent(1.0), W=np.zeros(LARGE, np.float32), c=np.zeros(3, np.float32))
    shard.gates["W"].shut()
    call = await begun(executor, push(a, 1, "W", np.full(LARGE, -2.0, np.float32)))
    await until(shard.gates["W"].reached.is_set)
    return a, b, call


def test_a_guarded_push_sees_the_weights_that_those_before_it_have_made():
    async def scenario(executor, shard):
        a, b, first = await with_one_under_way(executor, shard)
        second = await begun(executor, guarded(b, 1, 1e30))
        await until(executor._guarded.locked)
        small = await begun(executor, push(a, 2, "c", np.ones(3, np.float32)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert [one.done() for one in (first, second, small)] == [False] * 3
        shard.gates["W"].open()
        answers = [await one for one in (first, second, small)]
        assert [answer.outcome for answer in answers] == [Outcome.APPLIED] * 3
        assert [answer.global_step for answer in answers] == [1, 2, 3]
        found = await value(executor, a, "W")
        np.testing.assert_array_equal(found, np.float32(2.0) - np.full(LARGE, 1e30, np.float32))

    run(scenario)


def test_one_that_is_refused_changes_nothing_and_those_around_it_are_served():
    async def scenario(executor, shard):
        _, b, first = await with_one_under_way(executor, shard)
        shard._store["W"].value[0] = -3e38  # as it would be found, had it become so
        second = await begun(executor, guarded(b, 1, 3e38))
        await until(executor._guarded.locked)
        executor.tick()
        shard.gates["W"].open()
        assert (await first).outcome is Outcome.APPLIED
        with pytest.raises(NotFinite, match="'W' would make NaN or infinity of 1 of 1,048,576 elements"):
            await second
        third = await executor.step(push(b, 1, "W", np.full(LARGE, -1.0, np.float32)))
        assert (third.outcome, third.staleness, third.global_step) == (Outcome.APPLIED, 1, 2)
        found = await value(executor, b, "W")
        np.testing.assert_array_equal(found[1:], 3.0)

    run(scenario)


def test_a_caller_cancelled_while_its_guarded_push_waits_has_changed_nothing_and_delays_no_other():
    async def scenario(executor, shard):
        a, b, first = await with_one_under_way(executor, shard)
        second = await begun(executor, guarded(b, 1, 1e30))
        await until(executor._guarded.locked)
        await cancelled(second)
        small = await executor.step(push(b, 1, "c", np.ones(3, np.float32)))
        assert small.global_step == 2
        shard.gates["W"].open()
        await first
        np.testing.assert_array_equal(await value(executor, a, "W"), 2.0)

    run(scenario)
