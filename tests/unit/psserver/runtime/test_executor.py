"""The executor: order of steps, pending calls, and cancelled callers, without a network."""

import asyncio

import numpy as np
import pytest

from psserver.runtime.executor import MAX_BYTES_INSPECTED_IN_LOOP
from psserver.runtime.task_order import THREADS
from pswire.errors import (
    NotFinite,
    NotJoined,
    OutOfOrder,
    ShapeMismatch,
    TooLarge,
    Unavailable,
    UnknownVariable,
    Zombie,
)
from pswire.messages import (
    Assign,
    Assignment,
    Declaration,
    Finished,
    Gradient,
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
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import Synchronous
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.gated_shard import at_gate, begun, cancelled, join, register, run, set_to, until, value
from tests.shard_state import run_step

LARGE = MAX_BYTES_INSPECTED_IN_LOOP // 8 + 1  # float64 elements: too many for the event loop to inspect
QUEUE = QueueSpec("train", size=10, block=10, epochs=1)


async def registered(executor, size=LARGE):
    """A worker that has registered `w`, zeros."""
    sender = await join(executor)
    await register(executor, sender, w=np.zeros(size))
    return sender


def test_a_caller_cancelled_while_its_message_is_inspected_has_changed_nothing():
    async def scenario(executor, shard):
        sender = await registered(executor)
        caller = await at_gate(executor, shard.gates[""], set_to(sender, 1, "w", np.ones(LARGE)))
        await cancelled(caller)
        shard.gates[""].open()
        assert not (await value(executor, sender, "w")).any()
        assert (await executor.step(set_to(sender, 1, "w", np.ones(LARGE)))).outcome is Outcome.APPLIED

    run(scenario)


def test_a_caller_cancelled_while_its_tasks_run_leaves_them_whole_and_later_calls_are_served():
    async def scenario(executor, shard):
        sender = await registered(executor)
        caller = await at_gate(executor, shard.gates["w"], set_to(sender, 1, "w", np.ones(LARGE)))
        await cancelled(caller)
        after = await begun(executor, Pull(sender, ("w",)))
        shard.gates["w"].open()
        assert (await after).values[0].array.all()

    run(scenario)


def test_a_message_that_has_become_wrong_while_it_was_inspected_is_refused_and_changes_nothing():
    async def scenario(executor, shard):
        sender = await registered(executor)
        late = await at_gate(executor, shard.gates[""], set_to(sender, 1, "w", np.ones(LARGE)))
        again = await join(executor)
        shard.gates[""].open()
        with pytest.raises(Zombie, match="incarnation 2 has joined since"):
            await late
        assert not (await value(executor, again, "w")).any()

    run(scenario)


def test_a_pending_call_gets_its_answer_from_a_later_step():
    async def scenario(executor, shard):
        first, second = await join(executor, "w0"), await join(executor, "w1")
        block = (await executor.step(Take(first, QUEUE))).block
        pending = await begun(executor, Take(second, QUEUE))
        assert not pending.done()
        done = await executor.step(Take(first, QUEUE, Finished(block.number)))
        assert done.done
        assert (await pending).done

    run(scenario)


def test_the_answer_to_a_cancelled_call_is_dropped():
    async def scenario(executor, shard):
        first, second = await join(executor, "w0"), await join(executor, "w1")
        block = (await executor.step(Take(first, QUEUE))).block
        pending = await begun(executor, Take(second, QUEUE))
        await cancelled(pending)
        with pytest.raises(UnknownVariable):
            await executor.step(Pull(first, ("nowhere",)))
        assert executor._waiting == {}, "nothing is kept of cancelled or refused calls"
        await executor.step(Leave(first))
        assert (await executor.step(Take(second, QUEUE))).block == block

    run(scenario)


def test_a_pending_call_that_ends_with_an_error_raises_it():
    async def scenario(executor, shard):
        first, second = await join(executor, "w0"), await join(executor, "w1")
        await executor.step(Take(first, QUEUE))
        earlier = await begun(executor, Take(second, QUEUE))
        later = await begun(executor, Take(second, QUEUE))
        with pytest.raises(Unavailable, match="another call of this worker has replaced this one"):
            await earlier
        assert not later.done()
        await executor.step(Leave(second))
        with pytest.raises(NotJoined, match="worker 'w1' has left: join again"):
            await later

    run(scenario)


def test_large_messages_are_inspected_while_all_threads_are_busy_with_tasks():
    async def scenario(executor, shard):
        sender = await join(executor)
        names = [f"v{number}" for number in range(THREADS)]
        await register(executor, sender, w=np.zeros(LARGE), **{name: np.zeros(LARGE) for name in names})
        busy = []
        for sequence, name in enumerate(names, 1):
            busy.append(await at_gate(executor, shard.gates[name], set_to(sender, sequence, name, np.ones(LARGE))))
        bad = np.full(LARGE, np.inf)
        with pytest.raises(NotFinite):
            await executor.step(set_to(sender, 99, "w", bad))
        for name in names:
            shard.gates[name].open()
        assert {answer.outcome for answer in await asyncio.gather(*busy)} == {Outcome.APPLIED}

    run(scenario)


def test_closing_answers_pending_calls_and_later_ones_with_unavailable():
    async def scenario(executor, shard):
        first, second, third = [await join(executor, name) for name in ("w0", "w1", "w2")]
        block = (await executor.step(Take(first, QUEUE))).block
        pending = await begun(executor, Take(second, QUEUE))
        executor.close()
        with pytest.raises(Unavailable, match="the server is stopping"):
            await pending
        with pytest.raises(Unavailable, match="the server is stopping"):
            await executor.step(Take(third, QUEUE))
        assert (await executor.step(Take(first, QUEUE, Finished(block.number)))).done

    run(scenario)


def test_closing_lets_decided_steps_finish():
    async def scenario(executor, shard):
        sender = await registered(executor)
        large = await at_gate(executor, shard.gates["w"], set_to(sender, 1, "w", np.ones(LARGE)))
        pull = await begun(executor, Pull(sender, ("w",)))
        executor.close()
        shard.gates["w"].open()
        assert (await large).outcome is Outcome.APPLIED
        assert (await pull).values[0].array.all()

    run(scenario)


def test_shutting_down_waits_for_all_tasks_also_those_of_cancelled_callers():
    stored = []

    async def scenario(executor, shard):
        sender = await registered(executor)
        shard.gates["w"].shut()
        for sequence in (1, 2, 3):
            add = Assign(sender, sequence, (Assignment("w", np.ones(LARGE)),), add=True)
            call = asyncio.create_task(executor.step(add))
            await until(lambda sequence=sequence: len(shard.said) == 2 + sequence)
            await cancelled(call)
        ending = asyncio.create_task(executor.shutdown())
        await until(shard.gates["w"].reached.is_set)
        assert not ending.done()
        shard.gates["w"].open()
        await ending
        stored.append(run_step(shard, 0, Pull(sender, ("w",)), 0.0)[0].answer.values[0].array)

    run(scenario)
    np.testing.assert_array_equal(stored[0], 3)


def test_an_answer_that_does_not_fit_is_refused_before_the_step():
    async def scenario(executor, shard):
        sender = await join(executor)
        await register(executor, sender, w=np.zeros(4), v=np.zeros(4))
        with pytest.raises(TooLarge, match=r"64 bytes of values.*carries 63: use Transfer"):
            await executor.step(Pull(sender, ("w", "v")), most=63)
        assert len((await executor.step(Pull(sender, ("w", "v")), most=64)).values) == 2

    run(scenario)


def test_a_message_that_the_shard_refuses_is_refused_for_that_and_not_for_the_size_of_its_answer():
    async def scenario(executor, shard):
        sender = await registered(executor, 4)
        ghost = Sender("ghost", 1)
        for message in (Push(ghost, 1, (), pull=("nowhere",)), Pull(ghost, ("w",))):
            with pytest.raises(NotJoined):
                await executor.step(message, most=1)
        with pytest.raises(UnknownVariable):
            await executor.step(Push(sender, 1, (), pull=("nowhere",)), most=1)
        for sequence in (1, 2):
            await executor.step(set_to(sender, sequence, "w", np.ones(4)))
        with pytest.raises(OutOfOrder):
            await executor.step(Push(sender, 1, (), pull=("w",)), most=1)

    run(scenario)


def test_large_messages_are_checked_before_they_are_inspected():
    """An inspection takes time, and relies on names and shapes."""

    async def scenario(executor, shard):
        sender = await join(executor)
        await register(executor, sender, w=np.zeros(2))
        large, rows = np.full(LARGE, np.nan), IndexedSlices(np.zeros((LARGE, 1)), np.arange(LARGE), (LARGE, 1))
        for gradient in (large, rows):
            with pytest.raises(UnknownVariable, match="no variable 'v'"):
                await executor.step(Push(sender, 1, (Gradient("v", 0, gradient),)))
        with pytest.raises(ShapeMismatch, match=r"assigned value for 'w' is float64\[262145\]"):
            await executor.step(set_to(sender, 1, "w", large))
        with pytest.raises(NotJoined):
            await executor.step(set_to(Sender("ghost", 1), 1, "w", large))

    run(scenario)


@pytest.mark.parametrize("size", [1, LARGE], ids=["small", "large"])
def test_a_failure_of_the_shard_itself_is_the_callers_and_the_next_one_is_served(size):
    async def scenario(executor, shard):
        sender = await join(executor)
        await register(executor, sender, w=np.zeros(size))
        works, shard._store.assign = shard._store.assign, lambda *_: 1 // 0
        with pytest.raises(ZeroDivisionError):
            await executor.step(set_to(sender, 1, "w", np.ones(size)))
        shard._store.assign = works
        assert (await executor.step(set_to(sender, 1, "w", np.ones(size)))).outcome is Outcome.APPLIED

    run(scenario)


@pytest.mark.parametrize("size", [1, LARGE], ids=["small", "large"])
def test_a_task_that_fails_fails_all_calls_that_wait_for_it_and_others_go_on(size):
    """It was decided and counts, but no caller may get an answer as if it were done."""

    class Broken:
        element_wise = False

        def dense(self, *_):
            1 // 0  # noqa: B018

    async def scenario(executor, shard):
        first, second = await join(executor, "w0"), await join(executor, "w1")
        await register(executor, first, GradientDescent(1.0), w=np.zeros(size), v=np.zeros(size))
        shard._store["w"].rule = Broken()
        pushes = [Push(sender, 1, (Gradient("w", 0, np.ones(size)),)) for sender in (first, second)]
        calls = [asyncio.create_task(executor.step(push)) for push in pushes]
        for call in calls:
            with pytest.raises(ZeroDivisionError):
                await call
        assert (await executor.step(set_to(first, 2, "v", np.ones(size)))).outcome is Outcome.APPLIED
        assert (await value(executor, first, "v")).all()
        assert not (await value(executor, second, "w")).any(), "later tasks of the variable run"

    run(scenario, consistency=Synchronous(2))


def test_admission_counts_the_bytes_both_ways_and_changes_nothing():
    async def scenario(executor, shard):
        sender = await registered(executor, 4)
        hollow = np.broadcast_to(np.zeros(()), (4,))
        assert executor.admit(set_to(sender, 1, "w", hollow)) == 32
        assert executor.admit(Pull(sender, ("w",))) == 32
        rows = IndexedSlices(hollow, np.broadcast_to(np.zeros((), np.int32), (4,)), (4,))
        await executor.step(Register(sender, (Declaration(TensorSpec.of("w", hollow), None, GradientDescent(1.0)),)))
        assert executor.admit(Push(sender, 2, (Gradient("w", 0, rows),), pull=("w",))) == 32 + 16 + 32
        assert executor.admit(Register(sender, (Declaration(TensorSpec.of("w", hollow), hollow),))) == 64
        with pytest.raises(UnknownVariable):
            executor.admit(Pull(sender, ("v",)))
        assert (await executor.step(Status())).variables[0].version == 0

    run(scenario)
