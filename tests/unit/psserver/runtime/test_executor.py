"""The executor: order of steps, pending and guarded calls, cancelled callers and failures, without a network."""

import asyncio
import logging
from threading import current_thread

import numpy as np
import pytest

from psserver.core import shard as core_shard
from psserver.runtime.executor import MAX_BYTES_INSPECTED_IN_LOOP
from psserver.runtime.task_order import THREADS
from pswire import errors
from pswire import messages as ms
from pswire.optimizers import Ftrl, GradientDescent, Momentum, numba_compiler
from pswire.specs.consistency import Synchronous
from pswire.tensors.values import IndexedSlices
from tests.gated_shard import Gate, at_gate, begun, cancelled, executor_test, join, register, set_to, until, value
from tests.shard_state import run_step

LARGE = MAX_BYTES_INSPECTED_IN_LOOP // 8 + 1  # float64 elements: too many for the event loop to inspect
QUEUE = ms.QueueSpec("train", size=10, block=10, epochs=1)


async def registered(executor, size=LARGE):
    """A worker that has registered `w`, zeros."""
    sender = await join(executor)
    await register(executor, sender, w=np.zeros(size))
    return sender


def push(sender, sequence, name, array, pull=()):
    return ms.Push(sender, sequence, (ms.Gradient(name, 0, array),), None, pull)


# --- cancelled callers ------------------------------------------------------------------------------------------------


@executor_test()
async def test_a_caller_who_goes_or_is_replaced_while_its_message_is_inspected_has_changed_nothing(executor, shard):
    sender = await registered(executor)
    gone = await at_gate(executor, shard.gates[""], set_to(sender, 1, "w", np.ones(LARGE)))
    await cancelled(gone)
    late = await at_gate(executor, shard.gates[""], set_to(sender, 1, "w", np.ones(LARGE)))
    again = await join(executor)
    shard.gates[""].open()
    with pytest.raises(errors.Zombie, match="incarnation 2 has joined since"):
        await late
    assert not (await value(executor, again, "w")).any()
    assert (await executor.step(set_to(again, 1, "w", np.ones(LARGE)))).outcome is ms.Outcome.APPLIED


@executor_test()
async def test_a_caller_cancelled_while_its_tasks_run_leaves_them_whole_and_later_calls_are_served(executor, shard):
    sender = await registered(executor)
    caller = await at_gate(executor, shard.gates["w"], set_to(sender, 1, "w", np.ones(LARGE)))
    await cancelled(caller)
    after = await begun(executor, ms.Pull(sender, ("w",)))
    shard.gates["w"].open()
    assert (await after).values[0].array.all()


# --- pending calls ----------------------------------------------------------------------------------------------------


@executor_test()
async def test_a_pending_call_is_answered_by_a_later_step_or_with_the_error_that_ends_it(executor, shard):
    first, second, third = [await join(executor, name) for name in ("w0", "w1", "w2")]
    block = (await executor.step(ms.Take(first, QUEUE))).block
    replaced, left, answered = [await begun(executor, ms.Take(sender, QUEUE)) for sender in (second, second, third)]
    with pytest.raises(errors.Unavailable, match="another call of this worker has replaced this one"):
        await replaced
    assert not left.done()
    await executor.step(ms.Leave(second))
    with pytest.raises(errors.NotJoined, match="worker 'w1' has left: join again"):
        await left
    assert not answered.done()
    assert (await executor.step(ms.Take(first, QUEUE, ms.Finished(block.number)))).done
    assert (await answered).done


@executor_test()
async def test_the_answer_to_a_cancelled_call_is_dropped(executor, shard):
    first, second = await join(executor, "w0"), await join(executor, "w1")
    block = (await executor.step(ms.Take(first, QUEUE))).block
    await cancelled(await begun(executor, ms.Take(second, QUEUE)))
    with pytest.raises(errors.UnknownVariable):
        await executor.step(ms.Pull(first, ("nowhere",)))
    assert executor._waiting == {}, "nothing is kept of cancelled or refused calls"
    await executor.step(ms.Leave(first))
    assert (await executor.step(ms.Take(second, QUEUE))).block == block


# --- the end ----------------------------------------------------------------------------------------------------------


@executor_test()
async def test_closing_fails_pending_calls_and_later_ones_and_lets_decided_steps_finish(executor, shard):
    first, second, third = [await join(executor, name) for name in ("w0", "w1", "w2")]
    await register(executor, first, w=np.zeros(LARGE))
    block = (await executor.step(ms.Take(first, QUEUE))).block
    pending = await begun(executor, ms.Take(second, QUEUE))
    large = await at_gate(executor, shard.gates["w"], set_to(first, 1, "w", np.ones(LARGE)))
    pull = await begun(executor, ms.Pull(first, ("w",)))
    executor.close()
    for call in (pending, executor.step(ms.Take(third, QUEUE))):
        with pytest.raises(errors.Unavailable, match="the server is stopping"):
            await call
    shard.gates["w"].open()
    assert (await large).outcome is ms.Outcome.APPLIED
    assert (await pull).values[0].array.all()
    assert (await executor.step(ms.Take(first, QUEUE, ms.Finished(block.number)))).done


@executor_test()
async def test_shutting_down_waits_for_all_tasks_also_those_of_cancelled_callers(executor, shard):
    sender = await registered(executor)
    shard.gates["w"].shut()
    for sequence in (1, 2, 3):
        add = ms.Assign(sender, sequence, (ms.Assignment("w", np.ones(LARGE)),), add=True)
        call = asyncio.create_task(executor.step(add))
        await until(lambda sequence=sequence: len(shard.steps) == 2 + sequence)
        await cancelled(call)
    ending = asyncio.create_task(executor.shutdown())
    await until(shard.gates["w"].reached.is_set)
    assert not ending.done()
    shard.gates["w"].open()
    await ending
    pulled = run_step(shard, 0, ms.Pull(sender, ("w",)), 0.0)[0].answer
    np.testing.assert_array_equal(pulled.values[0].array, 3)


# --- checks -----------------------------------------------------------------------------------------------------------


@executor_test()
async def test_large_messages_are_inspected_once_also_while_all_threads_are_busy(executor, shard, monkeypatch):
    threads, inspect = [], core_shard.inspect
    monkeypatch.setattr(core_shard, "inspect", lambda *a: threads.append(current_thread().name[:16]) or inspect(*a))
    sender = await join(executor)
    names = [f"v{number}" for number in range(THREADS)]
    await register(executor, sender, **{name: np.zeros(LARGE) for name in ["w", *names]})
    threads.clear()
    busy = [
        await at_gate(executor, shard.gates[name], set_to(sender, sequence, name, np.ones(LARGE)))
        for sequence, name in enumerate(names, 1)
    ]
    with pytest.raises(errors.NotFinite):
        await executor.step(set_to(sender, 99, "w", np.full(LARGE, np.inf)))
    for name in names:
        shard.gates[name].open()
    assert {answer.outcome for answer in await asyncio.gather(*busy)} == {ms.Outcome.APPLIED}
    assert threads == ["psserver-inspect"] * (THREADS + 1)


@executor_test()
async def test_large_messages_are_checked_before_they_are_inspected(executor, shard):
    """An inspection takes time, and relies on names and shapes."""
    sender = await registered(executor, 2)
    large, rows = np.full(LARGE, np.nan), IndexedSlices(np.zeros((LARGE, 1)), np.arange(LARGE), (LARGE, 1))
    for gradient in (large, rows):
        with pytest.raises(errors.UnknownVariable, match="no variable 'v'"):
            await executor.step(push(sender, 1, "v", gradient))
    with pytest.raises(errors.ShapeMismatch, match=r"assigned value for 'w' is float64\[262145\]"):
        await executor.step(set_to(sender, 1, "w", large))


@executor_test()
async def test_an_answer_that_does_not_fit_is_refused_before_the_step_unless_the_shard_refuses_it_anyway(
    executor, shard
):
    sender, ghost = await registered(executor, 4), ms.Sender("ghost", 1)
    with pytest.raises(errors.TooLarge, match=r"32 bytes of values.*carries 31: use Transfer"):
        await executor.step(ms.Pull(sender, ("w",)), most=31)
    for sequence in (1, 2):
        await executor.step(set_to(sender, sequence, "w", np.ones(4)))
    for error, message in [
        (errors.NotJoined, ms.Push(ghost, 1, (), pull=("nowhere",))),
        (errors.NotJoined, ms.Pull(ghost, ("w",))),
        (errors.UnknownVariable, ms.Push(sender, 3, (), pull=("nowhere",))),
        (errors.OutOfOrder, ms.Push(sender, 1, (), pull=("w",))),
    ]:
        with pytest.raises(error):
            await executor.step(message, most=1)
    assert len((await executor.step(ms.Pull(sender, ("w",)), most=32)).values) == 1


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, LARGE], ids=["small", "large"])
@executor_test(consistency=Synchronous(2))
async def test_a_task_that_fails_fails_all_calls_that_wait_for_it_and_others_go_on(executor, shard, size):
    """It was decided and counts, but no caller may get an answer as if it were done."""

    class Broken:
        element_wise = False

        def dense(self, *_):
            1 // 0  # noqa: B018

    first, second = await join(executor, "w0"), await join(executor, "w1")
    await register(executor, first, GradientDescent(1.0), w=np.zeros(size), v=np.zeros(size))
    shard._store["w"].rule = Broken()
    for call in [asyncio.create_task(executor.step(push(one, 1, "w", np.ones(size)))) for one in (first, second)]:
        with pytest.raises(ZeroDivisionError):
            await call
    assert (await executor.step(set_to(first, 2, "v", np.ones(size)))).outcome is ms.Outcome.APPLIED
    assert (await value(executor, first, "v")).all()
    assert not (await value(executor, second, "w")).any(), "later tasks of the variable run"


# --- guarded steps ----------------------------------------------------------------------------------------------------

WIDE = 1 << 20  # float32 elements: their tasks go to threads


async def guarded_push_in_progress(executor, shard, element):
    """Two workers; a push of the first stands at a gate, and a guarded push of the second waits for it."""
    a, b = await join(executor, "a"), await join(executor, "b")
    await register(executor, a, GradientDescent(1.0), w=np.zeros(WIDE, np.float32), c=np.zeros(3, np.float32))
    first = await at_gate(executor, shard.gates["w"], push(a, 1, "w", np.full(WIDE, -2, np.float32)))
    second = asyncio.create_task(executor.step(push(b, 1, "w", np.full(WIDE, element, np.float32))))
    await until(executor._guarded.locked)
    return a, b, first, second


@executor_test()
async def test_a_guarded_push_sees_the_weights_that_those_before_it_have_made_and_others_wait_for_it(executor, shard):
    a, _, *calls = await guarded_push_in_progress(executor, shard, 1e30)
    calls.append(await begun(executor, push(a, 2, "c", np.ones(3, np.float32))))
    for _ in range(20):
        await asyncio.sleep(0)
    assert [call.done() for call in calls] == [False] * 3
    shard.gates["w"].open()
    answers = [await call for call in calls]
    assert [(one.outcome, one.global_step) for one in answers] == [(ms.Outcome.APPLIED, step) for step in (1, 2, 3)]
    np.testing.assert_array_equal(await value(executor, a, "w"), np.float32(2) - np.full(WIDE, 1e30, np.float32))


@executor_test()
async def test_a_guarded_push_that_is_refused_changes_nothing_and_those_around_it_are_served(executor, shard):
    _, b, first, second = await guarded_push_in_progress(executor, shard, 3e38)
    shard._store["w"].value[0] = -3e38  # as it would be found, had it become so
    executor.tick()
    shard.gates["w"].open()
    assert (await first).outcome is ms.Outcome.APPLIED
    with pytest.raises(errors.NotFinite, match="'w' would make NaN or infinity of 1 of 1,048,576 elements"):
        await second
    third = await executor.step(push(b, 1, "w", np.full(WIDE, -1.0, np.float32)))
    assert (third.outcome, third.staleness, third.global_step) == (ms.Outcome.APPLIED, 1, 2)
    np.testing.assert_array_equal((await value(executor, b, "w"))[1:], 3.0)


@executor_test()
async def test_a_caller_cancelled_while_its_guarded_push_waits_has_changed_nothing_and_delays_no_other(executor, shard):
    a, b, first, second = await guarded_push_in_progress(executor, shard, 1e30)
    await cancelled(second)
    assert (await executor.step(push(b, 1, "c", np.ones(3, np.float32)))).global_step == 2
    shard.gates["w"].open()
    await first
    np.testing.assert_array_equal(await value(executor, a, "w"), 2.0)


# --- compilation and events -------------------------------------------------------------------------------------------


@pytest.fixture
def compiling(monkeypatch):
    """A gate that the compilation of a loop goes through, which finds no numba; `names` has each that was compiled."""
    gate = Gate()
    gate.names = []

    def machine_code(loop):
        name = loop.function.__name__.strip("_")
        if name not in gate.names:
            gate.names.append(name)
            gate.go_through()

    monkeypatch.setattr(numba_compiler, "machine_code", machine_code)
    yield gate
    gate.open()


@executor_test()
async def test_others_are_answered_while_the_loop_of_an_optimizer_is_compiled(executor, shard, compiling):
    first, other = await join(executor, "w0"), await join(executor, "w1")
    array, gradient = np.float32([1, 2, 3]), np.float32([0.5, -1, 2])
    await register(executor, first, Ftrl(1.0, learning_rate_power=0.4), v=array)  # there is a loop for 0.5 alone
    compiling.shut()
    registering = asyncio.create_task(register(executor, first, Momentum(1.0, momentum=0.5), w=array))
    await until(compiling.reached.is_set)
    assert [one.spec.name for one in (await executor.step(ms.Status())).variables] == ["v"]
    compiling.open()
    np.testing.assert_array_equal((await registering).values[0].array, array)
    tuning = await at_gate(executor, compiling, ms.Tune(first, 1, ("v",), Ftrl(1.0), ("learning_rate_power",)))
    pushed = await executor.step(push(other, 1, "w", gradient, pull=("w",)))
    np.testing.assert_array_equal(pushed.values[0].array, array - gradient)
    assert not tuning.done()
    compiling.open()
    assert (await tuning).outcome is ms.Outcome.APPLIED
    assert compiling.names == ["momentum", "ftrl"]


@executor_test(lease=2.5)
async def test_events_of_steps_and_ticks_are_logged_warnings_as_such_and_a_push_is_none(executor, shard, caplog):
    """Their texts are in `tests/scenarios/events.txt`."""
    with caplog.at_level(logging.INFO, "psserver"):
        sender = await join(executor, "100%")
        await register(executor, sender, GradientDescent(1.0), w=np.zeros(3))
        await executor.step(push(sender, 1, "w", np.ones(3)))
        executor._clock = lambda: 3.0
        executor.tick()
        executor.tick()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "worker '100%' joined (number 0, incarnation 1)"),
        ("WARNING", "worker '100%' was silent for 2.5 s: its lease has expired"),
    ]
