"""The way to the shard: order, parking, and callers who go away, seen without a network."""

import asyncio
import threading

import numpy as np
import pytest

from psserver.core.shard import Shard
from psserver.entrance import SMALL, Entrance
from pswire.errors import NotJoined, TooLarge, Unavailable, UnknownVariable
from pswire.messages import (
    Assign,
    Assignment,
    Declaration,
    Finished,
    Gradient,
    Join,
    Joined,
    Leave,
    Outcome,
    Pull,
    Push,
    QueueSpec,
    Register,
    Sender,
    Status,
    Take,
)
from pswire.specs import GradientDescent
from pswire.values import IndexedSlices, TensorSpec

LARGE = SMALL // 8 + 1  # float64 elements: more than SMALL bytes
QUEUE = QueueSpec("train", size=10, block=10, epochs=1)


class GatedShard(Shard):
    """A shard whose steps over large messages wait until the test opens the gate."""

    def __init__(self):
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def shut(self):
        self.entered.clear()
        self.gate.clear()

    def step(self, ticket, message, now):
        if threading.current_thread() is not threading.main_thread():
            self.entered.set()
            assert self.gate.wait(30)
        return super().step(ticket, message, now)


def run(scenario):
    """Runs `scenario(entrance, shard)` with a new shard, whose clock stands still."""

    async def main():
        shard = GatedShard()
        entrance = Entrance(shard, clock=lambda: 0.0)
        try:
            await asyncio.wait_for(scenario(entrance, shard), 30)
        finally:
            entrance.shutdown()

    asyncio.run(main())


async def join(entrance, worker="w0"):
    joined = await entrance.step(Join(worker))
    assert isinstance(joined, Joined)
    return Sender(worker, joined.incarnation)


async def register(entrance, sender, **arrays):
    declarations = tuple(Declaration(TensorSpec.of(name, array), array) for name, array in arrays.items())
    return await entrance.step(Register(sender, declarations))


async def value(entrance, sender, name):
    return (await entrance.step(Pull(sender, (name,)))).values[0].array


def set_to(sender, sequence, name, array):
    return Assign(sender, sequence, (Assignment(name, array),))


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [3, LARGE], ids=["small", "large"])
def test_the_values_of_an_answer_stay_what_they_were(size):
    async def scenario(entrance, shard):
        sender = await join(entrance)
        await register(entrance, sender, w=np.zeros(size))
        before = await value(entrance, sender, "w")
        await entrance.step(set_to(sender, 1, "w", np.ones(size)))
        assert not before.any()
        assert (await value(entrance, sender, "w")).all()

    run(scenario)


def test_the_loop_goes_on_while_a_large_step_runs_and_later_messages_wait_for_it():
    async def scenario(entrance, shard):
        sender = await join(entrance)
        await register(entrance, sender, w=np.zeros(LARGE))
        shard.shut()
        large = asyncio.create_task(entrance.step(set_to(sender, 1, "w", np.ones(LARGE))))
        await until(shard.entered.is_set)
        small = asyncio.create_task(entrance.step(Status()))
        await asyncio.sleep(0)
        assert not small.done()
        shard.gate.set()
        assert (await large).outcome is Outcome.APPLIED
        assert (await small).variables[0].version == 1

    run(scenario)


def test_a_caller_who_goes_away_during_a_large_step_leaves_it_whole_and_the_way_free():
    async def scenario(entrance, shard):
        sender = await join(entrance)
        await register(entrance, sender, w=np.zeros(LARGE))
        shard.shut()
        caller = asyncio.create_task(entrance.step(set_to(sender, 1, "w", np.ones(LARGE))))
        await until(shard.entered.is_set)
        caller.cancel()
        await asyncio.wait([caller])
        assert caller.cancelled()
        shard.gate.set()
        assert (await value(entrance, sender, "w")).all()

    run(scenario)


def test_a_caller_who_goes_away_before_its_turn_has_changed_nothing():
    async def scenario(entrance, shard):
        sender = await join(entrance)
        await register(entrance, sender, w=np.zeros(LARGE), v=np.zeros(1))
        shard.shut()
        first = asyncio.create_task(entrance.step(set_to(sender, 1, "w", np.ones(LARGE))))
        await until(shard.entered.is_set)
        second = asyncio.create_task(entrance.step(set_to(sender, 2, "v", np.ones(1))))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        shard.gate.set()
        await first
        assert not (await value(entrance, sender, "v")).any()

    run(scenario)


def test_a_parked_call_gets_its_answer_from_a_later_step():
    async def scenario(entrance, shard):
        first, second = await join(entrance, "w0"), await join(entrance, "w1")
        block = (await entrance.step(Take(first, QUEUE))).block
        parked = asyncio.create_task(entrance.step(Take(second, QUEUE)))
        await asyncio.sleep(0)
        assert not parked.done()
        done = await entrance.step(Take(first, QUEUE, Finished(block.number)))
        assert done.done
        assert (await parked).done

    run(scenario)


def test_the_answer_to_a_call_that_was_given_up_is_dropped():
    async def scenario(entrance, shard):
        first, second = await join(entrance, "w0"), await join(entrance, "w1")
        block = (await entrance.step(Take(first, QUEUE))).block
        parked = asyncio.create_task(entrance.step(Take(second, QUEUE)))
        await asyncio.sleep(0)
        parked.cancel()
        await asyncio.wait([parked])
        await entrance.step(Leave(first))
        assert (await entrance.step(Take(second, QUEUE))).block == block

    run(scenario)


def test_closing_sends_away_who_waits_for_others_and_whoever_would_have_to():
    async def scenario(entrance, shard):
        first, second, third = [await join(entrance, name) for name in ("w0", "w1", "w2")]
        block = (await entrance.step(Take(first, QUEUE))).block
        parked = asyncio.create_task(entrance.step(Take(second, QUEUE)))
        await asyncio.sleep(0)
        entrance.close()
        with pytest.raises(Unavailable, match="the server is stopping"):
            await parked
        with pytest.raises(Unavailable, match="the server is stopping"):
            await entrance.step(Take(third, QUEUE))
        assert (await entrance.step(Take(first, QUEUE, Finished(block.number)))).done

    run(scenario)


def test_an_answer_that_does_not_fit_is_refused_before_the_step():
    async def scenario(entrance, shard):
        sender = await join(entrance)
        await register(entrance, sender, w=np.zeros(4), v=np.zeros(4))
        with pytest.raises(TooLarge, match=r"64 bytes of values.*carries 63: use Transfer"):
            await entrance.step(Pull(sender, ("w", "v")), most=63)
        assert len((await entrance.step(Pull(sender, ("w", "v")), most=64)).values) == 2

    run(scenario)


def test_membership_is_refused_before_names():
    async def scenario(entrance, shard):
        with pytest.raises(NotJoined):
            await entrance.step(Push(Sender("ghost", 1), 1, (), pull=("nowhere",)), most=1)
        sender = await join(entrance)
        with pytest.raises(UnknownVariable):
            await entrance.step(Push(sender, 1, (), pull=("nowhere",)), most=1)

    run(scenario)


@pytest.mark.parametrize("size", [1, LARGE], ids=["small", "large"])
def test_a_failure_of_the_shard_itself_is_the_callers_and_the_next_one_is_served(size):
    async def scenario(entrance, shard):
        sender = await join(entrance)
        await register(entrance, sender, w=np.zeros(size))
        works, shard._handlers[Assign] = shard._handlers[Assign], lambda ticket, message: 1 // 0
        with pytest.raises(ZeroDivisionError):
            await entrance.step(set_to(sender, 1, "w", np.ones(size)))
        shard._handlers[Assign] = works
        assert (await entrance.step(set_to(sender, 1, "w", np.ones(size)))).outcome is Outcome.APPLIED

    run(scenario)


def test_admitting_tells_the_bytes_both_ways_and_changes_nothing():
    async def scenario(entrance, shard):
        sender = await join(entrance)
        await register(entrance, sender, w=np.zeros(4))
        hollow = np.broadcast_to(np.zeros(()), (4,))
        assert await entrance.admit(set_to(sender, 1, "w", hollow)) == 32
        assert await entrance.admit(Pull(sender, ("w",))) == 32
        rows = IndexedSlices(hollow, np.broadcast_to(np.zeros((), np.int32), (4,)), (4,))
        await entrance.step(Register(sender, (Declaration(TensorSpec.of("w", hollow), None, GradientDescent(1.0)),)))
        assert await entrance.admit(Push(sender, 2, (Gradient("w", 0, rows),), pull=("w",))) == 32 + 16 + 32
        assert await entrance.admit(Register(sender, (Declaration(TensorSpec.of("w", hollow), hollow),))) == 64
        with pytest.raises(UnknownVariable):
            await entrance.admit(Pull(sender, ("v",)))
        assert (await entrance.step(Status())).variables[0].version == 0

    run(scenario)
