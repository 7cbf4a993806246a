"""The executor, without a network: order of steps and array tasks, pending and checked calls, cancelled callers.

Whatever threads do, the arrays are bit for bit those of the same steps one after the other.
"""

import asyncio
import copy
import dataclasses
import inspect
import itertools
import logging
import random
import sys
import threading
from collections import defaultdict
from functools import partial, wraps

import numpy as np
import pytest

from psserver.core import shard as core_shard
from psserver.core.cuts import cuts
from psserver.core.options import ShardOptions
from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import ArrayTask, run, run_parts, stages
from psserver.rpc.transfer_memory import ReusedArrays
from psserver.runtime import executor, task_order
from psserver.runtime.executor import MAX_BYTES_INSPECTED_IN_LOOP, Executor
from psserver.runtime.task_order import MAX_INLINE_BYTES, TASK_OVERHEAD, THREADS
from pswire import errors
from pswire import messages as ms
from pswire.optimizers import Adagrad, Adam, Ftrl, GradientDescent, Momentum, numba_compiler
from pswire.specs.consistency import Synchronous, parse_consistency, parse_staleness
from pswire.specs.encodings import ENCODINGS
from pswire.specs.initializers import RowNormal
from pswire.tensors.compression import FORMS, quantize_int8, to_16_bits, top_k
from pswire.tensors.values import IndexedSlices, TensorSpec
from tests.support.commands import BOUND
from tests.support.shards import new_shard, run_step, state_of

LARGE = MAX_BYTES_INSPECTED_IN_LOOP // 8 + 1  # float64 elements: too many for the event loop
QUEUE = ms.QueueSpec(name="train", size=10, block=10, epochs=1)


class Gate:
    """Open at first. Attribute `reached`: some thread has come to it since it was shut."""

    def __init__(self):
        self._open, self.reached = threading.Event(), threading.Event()
        self.open = self._open.set
        self.open()

    def shut(self):
        self.reached.clear()
        self._open.clear()

    def go_through(self):
        self.reached.set()
        assert self._open.wait(BOUND), "the test has not opened the gate"


class GatedShard(Shard):
    """What is done in threads goes through a gate: `gates[name]` for a variable's tasks, `gates[""]` for inspections.

    `steps` has of each step its ticket, message (before its arrays are overwritten) and replies, in their order.
    """

    def __init__(self, *arguments, **options):
        super().__init__(ShardOptions(*arguments, **options))
        self.gates = defaultdict(Gate)
        self.steps = []

    def step(self, ticket, message, now, **options):
        before = copy.deepcopy(message)
        result = super().step(ticket, message, now, **options)
        self.steps.append((ticket, before, result.replies))
        return dataclasses.replace(result, tasks=list(map(self._through_its_gate, result.tasks)))

    def _through_its_gate(self, task):
        through = partial(self._gated, task.variable)
        part = task.part and partial(through, task.part)
        return dataclasses.replace(task, run=partial(through, task.run), part=part)

    def inspect(self, message):
        return self._gated("", partial(super().inspect, message))

    def _gated(self, gate, run, *arguments):
        if threading.current_thread() is not threading.main_thread():
            self.gates[gate].go_through()
        return run(*arguments)


def executor_test(**options):
    """Decorator: a test of a coroutine, which gets a new executor and its shard, whose clock stands still at 0."""

    def decorate(scenario):
        @wraps(scenario)
        def test(**parameters):
            async def main():
                shard = GatedShard(**options)
                executor = Executor(shard, clock=lambda: 0.0)
                try:
                    await asyncio.wait_for(scenario(executor, shard, **parameters), BOUND)
                finally:
                    for gate in shard.gates.values():
                        gate.open()
                    await executor.shutdown()

            asyncio.run(main())

        signature = inspect.signature(scenario)
        test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[2:])
        return test

    return decorate


async def join(executor, worker="w0"):
    return ms.Sender(worker, (await executor.step(ms.Join(worker=worker, name_key=b"key"))).incarnation)


async def register(executor, sender, optimizer=None, **arrays):
    declarations = tuple(ms.Declaration(TensorSpec.of(name, array), array, optimizer) for name, array in arrays.items())
    return await executor.step(ms.Register(sender=sender, declarations=declarations))


async def value(executor, sender, name):
    return (await executor.step(ms.Pull(sender=sender, names=(name,)))).values[0].array


def set_to(sender, sequence, name, array):
    return ms.Assign(sender=sender, sequence=sequence, assignments=(ms.Assignment(name, array),))


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


async def begun(executor, message):
    """A call in progress: what can be done of it at once has been done."""
    call = asyncio.create_task(executor.step(message))
    await asyncio.sleep(0)
    return call


async def at_gate(executor, gate, message):
    """A call whose work in a thread stands at the gate."""
    gate.shut()
    call = asyncio.create_task(executor.step(message))
    await until(gate.reached.is_set)
    return call


async def cancelled(call):
    """Returns when the caller has gone."""
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()


async def registered(executor, size=LARGE):
    """A worker that has registered `w`, zeros."""
    sender = await join(executor)
    await register(executor, sender, w=np.zeros(size))
    return sender


def push(sender, sequence, name, array, pull=()):
    return ms.Push(sender=sender, sequence=sequence, gradients=(ms.Gradient(name, 0, array),), loss=None, pull=pull)


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


# --- pending calls ----------------------------------------------------------------------------------------------------


@executor_test()
async def test_a_pending_call_is_answered_by_a_later_step_or_with_the_error_that_ends_it(executor, shard):
    first, second, third = [await join(executor, name) for name in ("w0", "w1", "w2")]
    block = (await executor.step(ms.Take(sender=first, queue=QUEUE))).block
    replaced, left, answered = [
        await begun(executor, ms.Take(sender=sender, queue=QUEUE)) for sender in (second, second, third)
    ]
    with pytest.raises(errors.Unavailable, match="another call of this worker has replaced this one"):
        await replaced
    assert not left.done()
    await executor.step(ms.Leave(second))
    with pytest.raises(errors.NotJoined, match="worker 'w1' has left: join again"):
        await left
    assert not answered.done()
    assert (await executor.step(ms.Take(sender=first, queue=QUEUE, finished=ms.Finished(block.number)))).done
    assert (await answered).done


@executor_test()
async def test_the_answer_to_a_cancelled_call_is_dropped(executor, shard):
    first, second = await join(executor, "w0"), await join(executor, "w1")
    block = (await executor.step(ms.Take(sender=first, queue=QUEUE))).block
    await cancelled(await begun(executor, ms.Take(sender=second, queue=QUEUE)))
    with pytest.raises(errors.UnknownVariable):
        await executor.step(ms.Pull(sender=first, names=("nowhere",)))
    assert executor._waiting == {}, "nothing is kept of cancelled or refused calls"
    await executor.step(ms.Leave(first))
    assert (await executor.step(ms.Take(sender=second, queue=QUEUE))).block == block


# --- the end ----------------------------------------------------------------------------------------------------------


@executor_test()
async def test_closing_fails_pending_calls_and_later_ones_and_lets_decided_steps_finish(executor, shard):
    first, second, third = [await join(executor, name) for name in ("w0", "w1", "w2")]
    await register(executor, first, w=np.zeros(LARGE))
    block = (await executor.step(ms.Take(sender=first, queue=QUEUE))).block
    pending = await begun(executor, ms.Take(sender=second, queue=QUEUE))
    large = await at_gate(executor, shard.gates["w"], set_to(first, 1, "w", np.ones(LARGE)))
    pull = await begun(executor, ms.Pull(sender=first, names=("w",)))
    executor.close()
    for call in (pending, executor.step(ms.Take(sender=third, queue=QUEUE))):
        with pytest.raises(errors.Unavailable, match="the server is stopping"):
            await call
    shard.gates["w"].open()
    assert (await large).outcome is ms.Outcome.APPLIED
    assert (await pull).values[0].array.all()
    assert (await executor.step(ms.Take(sender=first, queue=QUEUE, finished=ms.Finished(block.number)))).done


@executor_test()
async def test_shutting_down_waits_for_all_tasks_also_those_of_cancelled_callers_which_are_left_whole(executor, shard):
    sender = await registered(executor)
    shard.gates["w"].shut()
    for sequence in (1, 2, 3):
        add = ms.Assign(sender=sender, sequence=sequence, assignments=(ms.Assignment("w", np.ones(LARGE)),), add=True)
        call = asyncio.create_task(executor.step(add))
        await until(lambda sequence=sequence: len(shard.steps) == 2 + sequence)
        await cancelled(call)
    ending = asyncio.create_task(executor.shutdown())
    await until(shard.gates["w"].reached.is_set)
    assert not ending.done()
    shard.gates["w"].open()
    await ending
    pulled = run_step(shard, 0, ms.Pull(sender=sender, names=("w",)), 0.0)[0].answer
    np.testing.assert_array_equal(pulled.values[0].array, 3)


# --- checks -----------------------------------------------------------------------------------------------------------


@executor_test()
async def test_large_messages_are_inspected_once_also_while_all_threads_are_busy(executor, shard, monkeypatch):
    threads, inspected, current = [], core_shard.inspect, threading.current_thread
    monkeypatch.setattr(core_shard, "inspect", lambda *a, **_: threads.append(current().name[:16]) or inspected(*a))
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
        await executor.step(ms.Pull(sender=sender, names=("w",)), most=31)
    for sequence in (1, 2):
        await executor.step(set_to(sender, sequence, "w", np.ones(4)))
    for error, message in [
        (errors.NotJoined, ms.Push(sender=ghost, sequence=1, gradients=(), pull=("nowhere",))),
        (errors.NotJoined, ms.Pull(sender=ghost, names=("w",))),
        (errors.UnknownVariable, ms.Push(sender=sender, sequence=3, gradients=(), pull=("nowhere",))),
        (errors.OutOfOrder, ms.Push(sender=sender, sequence=1, gradients=(), pull=("w",))),
    ]:
        with pytest.raises(error):
            await executor.step(message, most=1)
    assert len((await executor.step(ms.Pull(sender=sender, names=("w",)), most=32)).values) == 1


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


# --- checked steps ----------------------------------------------------------------------------------------------------

WIDE = 1 << 20  # float32 elements: their tasks go to threads


async def checked_push_in_progress(executor, shard, element):
    """Two workers; a push of the first stands at a gate, and a checked push of the second waits for it."""
    a, b = await join(executor, "a"), await join(executor, "b")
    await register(executor, a, GradientDescent(1.0), w=np.zeros(WIDE, np.float32), c=np.zeros(3, np.float32))
    first = await at_gate(executor, shard.gates["w"], push(a, 1, "w", np.full(WIDE, -2, np.float32)))
    second = asyncio.create_task(executor.step(push(b, 1, "w", np.full(WIDE, element, np.float32))))
    await until(executor._threads.exclusive.locked)
    return a, b, first, second


@executor_test()
async def test_a_checked_push_sees_the_weights_that_those_before_it_have_made_and_others_wait_for_it(executor, shard):
    a, _, *calls = await checked_push_in_progress(executor, shard, 1e30)
    calls.append(await begun(executor, push(a, 2, "c", np.ones(3, np.float32))))
    for _ in range(20):
        await asyncio.sleep(0)
    assert [call.done() for call in calls] == [False] * 3
    shard.gates["w"].open()
    answers = [await call for call in calls]
    assert [(one.outcome, one.global_step) for one in answers] == [(ms.Outcome.APPLIED, step) for step in (1, 2, 3)]
    np.testing.assert_array_equal(await value(executor, a, "w"), np.float32(2) - np.full(WIDE, 1e30, np.float32))


@executor_test()
async def test_a_checked_push_that_is_refused_changes_nothing_and_those_around_it_are_served(executor, shard):
    _, b, first, second = await checked_push_in_progress(executor, shard, 3e38)
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
async def test_a_caller_cancelled_while_its_checked_push_waits_has_changed_nothing_and_delays_no_other(executor, shard):
    a, b, first, second = await checked_push_in_progress(executor, shard, 1e30)
    await cancelled(second)
    assert (await executor.step(push(b, 1, "c", np.ones(3, np.float32)))).global_step == 2
    shard.gates["w"].open()
    await first
    np.testing.assert_array_equal(await value(executor, a, "w"), 2.0)


# --- compilation and events -------------------------------------------------------------------------------------------


@executor_test()
async def test_others_are_answered_while_the_loop_of_an_optimizer_is_compiled(executor, shard, monkeypatch):
    names, compiling = [], shard.gates["compiling"]

    def machine_code(loop):
        if (name := loop.function.__name__.strip("_")) not in names:
            names.append(name)
            compiling.go_through()

    monkeypatch.setattr(numba_compiler, "machine_code", machine_code)
    first, other = await join(executor, "w0"), await join(executor, "w1")
    array, gradient = np.float32([1, 2, 3]), np.float32([0.5, -1, 2])
    await register(executor, first, Ftrl(1.0, learning_rate_power=0.4), v=array)  # there is a loop for 0.5 alone
    compiling.shut()
    registering = asyncio.create_task(register(executor, first, Momentum(1.0, momentum=0.5), w=array))
    await until(compiling.reached.is_set)
    assert [one.spec.name for one in (await executor.step(ms.Status())).variables] == ["v"]
    compiling.open()
    np.testing.assert_array_equal((await registering).values[0].array, array)
    tuning = await at_gate(
        executor,
        compiling,
        ms.Tune(sender=first, sequence=1, names=("v",), optimizer=Ftrl(1.0), fields=("learning_rate_power",)),
    )
    pushed = await executor.step(push(other, 1, "w", gradient, pull=("w",)))
    np.testing.assert_array_equal(pushed.values[0].array, array - gradient)
    assert not tuning.done()
    compiling.open()
    assert (await tuning).outcome is ms.Outcome.APPLIED
    assert names == ["momentum", "ftrl"]


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


# --- division and order -----------------------------------------------------------------------------------------------


def task(name, done, elements=0):
    """Appends to `done` its name, or with elements also the stretch; "!" in the name: and fails."""

    def part(*stretch):
        done.append((name, *stretch) if stretch else name)
        if "!" in name:
            raise ArithmeticError(f"{name} {stretch}")

    return ArrayTask("W", 8, part, part if elements else None, elements)


def test_tasks_run_in_order_neighbours_by_stretches_and_a_failure_is_raised_when_the_others_are_done():
    done = []
    with pytest.raises(ArithmeticError, match="b!"):
        run([task(name, done) for name in ("a", "b!", "c", "d!")])
    assert done == ["a", "b!", "c", "d!"]
    done.clear()
    with pytest.raises(ArithmeticError, match=r"a! \(0, 4\)"):
        run_parts([task(name, done, 10) for name in ("a!", "b")], iter([(0, 4), (4, 10)]))
    assert done == [("a!", 0, 4), ("b", 0, 4), ("a!", 4, 10), ("b", 4, 10)]
    a, b, c, d = (task(name, [], 10) for name in "abcd")
    whole, other = task("whole", []), task("e", [], elements=7)
    assert stages([a, b, whole, c, other, d]) == [[a, b], [whole], [c], [other], [d]]


@pytest.mark.parametrize("elements", [2, 9, 10, 11, 16, 17])
def test_a_large_variable_is_divided_into_rounds_between_which_others_have_their_turn(elements, monkeypatch):
    """And each round is shared by all threads: here the last one does it all. One stretch is not divided."""
    for name, size in {"MIN_DIVIDED_BYTES": 0, "ELEMENTS_PER_STRETCH": 2, "BYTES_PER_ROUND": 8}.items():
        monkeypatch.setattr(task_order, name, size)
    done, divided = [], elements > 2
    rounds = list(task_order._rounds([task("whole", done), task("a", done, elements)]))
    assert [len(jobs) for jobs in rounds] == [1, *[task_order.THREADS if divided else 1] * -(-elements // 8)]
    for jobs in rounds:
        before = len(done)
        for job in reversed(jobs):
            job()
        assert len(done) - before <= 4
    parts = [("a", start, min(start + 2, elements)) for start in range(0, elements, 2)]
    assert done == ["whole", *(parts if divided else ["a"])]


@pytest.mark.parametrize(("cost", "stretch", "stretches"), [(4, 1 << 18, 16), (8, 1 << 18, 8), (96, 43_690, 4)])
def test_a_round_takes_the_same_time_whatever_an_element_costs(cost, stretch, stretches):
    """And so does a stretch, which is not longer than the cache, nor shorter than what numpy is called for."""
    elements, done = 1 << 23, []
    (first, *_) = task_order._rounds([ArrayTask("W", cost * elements, None, lambda *one: done.append(one), elements)])
    for job in first:
        job()
    assert (len(done), done[0]) == (stretches, (0, stretch))


def initial(name, run, nbytes=task_order.MIN_DIVIDED_BYTES, part=None, elements=0):
    return ArrayTask(name, nbytes, run, part, elements, initial=True)


def test_an_update_runs_after_some_initial_tasks_however_many_there_are_and_however_long_one_takes():
    async def main():
        order, gate, done = task_order.TaskOrder(), Gate(), []
        gate.shut()
        long = [initial(f"long {one}", gate.go_through) for one in range(3)]
        ends = [order.add([task]) for task in long]
        short = [initial(f"short {one}", partial(done.append, one), MAX_INLINE_BYTES + 1) for one in range(100)]
        ends += [order.add([task]) for task in short]
        update = ArrayTask("W", MAX_INLINE_BYTES + 1, partial(done.append, "update"))
        await asyncio.wait_for(order.add([update]), BOUND)
        assert done.index("update") <= 2 * THREADS
        gate.open()
        await asyncio.gather(*ends)
        assert sorted(done[: done.index("update")] + done[done.index("update") + 1 :]) == list(range(100))
        await order.shutdown()

    asyncio.run(main())


@executor_test()
async def test_a_checked_push_waits_for_no_table_that_is_being_filled_and_a_push_to_that_table_waits_alone(
    executor, shard, monkeypatch
):
    monkeypatch.setattr(task_order, "MAX_INLINE_BYTES", -1)
    worker, other = await join(executor), await join(executor, "w1")
    await register(executor, worker, GradientDescent(1.0), W=np.zeros(2, np.float32))
    shard.gates["table"].shut()
    spec = TensorSpec("table", (3, 2), "float32")
    table = ms.Declaration(spec, None, GradientDescent(1.0), RowNormal(1.0))
    registering = await begun(executor, ms.Register(sender=worker, declarations=(table,)))
    await until(shard.gates["table"].reached.is_set)
    rows = IndexedSlices(np.full((1, 2), 1e30, np.float32), np.array([1]), (3, 2))
    waiting = await begun(executor, ms.Push(sender=other, sequence=1, gradients=(ms.Gradient("table", 0, rows),)))
    answer = await executor.step(push(worker, 1, "W", np.full(2, 1e30, np.float32), pull=("W",)))
    np.testing.assert_array_equal(answer.values[0].array, np.full(2, -1e30, np.float32))
    assert not waiting.done()
    shard.gates["table"].open()
    await registering
    assert (await waiting).outcome is ms.Outcome.APPLIED
    np.testing.assert_array_equal((await value(executor, worker, "table"))[1], np.full(2, -1e30, np.float32))


@executor_test()
async def test_large_variables_of_a_push_are_updated_side_by_side_and_each_is_served_when_it_is_done(executor, shard):
    w0, w1 = await join(executor, "w0"), await join(executor, "w1")
    await register(executor, w0, GradientDescent(1.0), w=np.zeros(LARGE), v=np.zeros(LARGE), small=np.zeros(1))
    shard.gates["w"].shut()
    gradients = tuple([ms.Gradient(name, 0, np.ones(LARGE)) for name in "wv"])
    updating = await at_gate(
        executor, shard.gates["v"], ms.Push(sender=w0, sequence=1, gradients=gradients, pull=("w", "v"))
    )
    await until(shard.gates["w"].reached.is_set)
    same = await begun(executor, ms.Pull(sender=w1, names=("w",)))
    row = await begun(executor, push(w1, 1, "w", IndexedSlices(np.ones(1), np.array([0]), (LARGE,))))
    shard.gates["v"].open()
    np.testing.assert_array_equal(await value(executor, w1, "v"), -1)
    assert (await executor.step(push(w1, 2, "small", np.ones(1), ("small",)))).values[0].array.tolist() == [-1]
    assert not updating.done(), "it is answered when all of it is done"
    assert not same.done()
    assert not row.done(), "what is small waits too"
    shard.gates["w"].open()
    for served in (*(await same).values, *(await updating).values):
        assert served.version == 1
        np.testing.assert_array_equal(served.array, -1)


@executor_test()
async def test_very_many_little_tasks_are_not_done_in_the_event_loop_although_their_bytes_are_few(executor, shard):
    """Each costs the calls of a rule, whatever its bytes."""
    few, many = MAX_INLINE_BYTES // TASK_OVERHEAD - 1, MAX_INLINE_BYTES // TASK_OVERHEAD + 1
    sender, names = await join(executor), [f"v{number}" for number in range(many)]
    for name in names:
        await register(executor, sender, **{name: np.zeros(())})
    for count in (few, many):
        assert len((await executor.step(ms.Pull(sender=sender, names=tuple(names[:count])))).values) == count
        assert any(shard.gates[name].reached.is_set() for name in names) == (count == many)


# --- any interleaving -------------------------------------------------------------------------------------------------

WORKERS = 4
CALLS = 30
SHAPES = {"m": (4, 3), "a": (5,), "table": (6, 2), "s": ()}
OPTIMIZERS = {"m": Momentum(0.125, 0.5), "a": Adam(0.125), "table": Adagrad(0.125), "s": GradientDescent(0.125)}


class RandomWorker:
    """A worker that sends random messages, from joining to leaving."""

    def __init__(self, name, seed):
        self.name, self.dice = name, random.Random(seed)
        self.numbers = np.random.default_rng(self.dice.getrandbits(32))
        self.seen = dict.fromkeys(SHAPES, 0)

    def declaration(self, name):
        initial = None if name == "table" else np.full(SHAPES[name], self.dice.random(), "f4")
        rows = RowNormal(1.0, seed=3) if initial is None else None
        return ms.Declaration(TensorSpec(name, SHAPES[name]), initial, OPTIMIZERS[name], rows)

    def gradient(self, name):
        shape, version = SHAPES[name], self.seen[name]
        if name != "table" and (not shape or self.dice.random() < 0.75):
            return ms.Gradient(name, version, self.maybe_packed(np.asarray(self.numbers.normal(size=shape), "f4")))
        indices = self.numbers.integers(0, shape[0], size=self.dice.randint(0, 5))
        rows = self.numbers.normal(size=(len(indices), *shape[1:])).astype("f4")
        return ms.Gradient(name, version, IndexedSlices(self.maybe_packed(rows), indices, shape))

    def maybe_packed(self, array):
        residual, form = np.zeros(array.size, "f4"), self.dice.choice(["", "", *FORMS])
        if form == "int8":
            return quantize_int8(array, residual)
        if form == "topk":
            return top_k(array, residual, max(1, array.size))
        return to_16_bits(array, form) if form else array

    def message(self, sequence):
        me, names = self.sender, self.dice.sample(sorted(SHAPES), self.dice.randint(1, 3))
        pull = tuple(name for name in names if name != "table")
        known = tuple(self.seen[name] for name in pull) if self.dice.random() < 0.5 else ()
        how = {"known_versions": known, "encoding": self.dice.choice(["", *ENCODINGS])}
        match self.dice.choice(["push"] * 6 + ["pull"] * 2 + ["assign", "register", "tune", "idle"]):
            case "push":
                return ms.Push(
                    sender=me,
                    sequence=sequence,
                    gradients=tuple(map(self.gradient, names)),
                    loss=None,
                    pull=pull,
                    **how,
                )
            case "pull":
                rows = np.array([self.dice.randrange(6) for _ in range(self.dice.randint(0, 5))], np.int32)
                return ms.Pull(
                    sender=me,
                    names=pull,
                    choices=(ms.Choice("table", rows), ms.Choice("a", slot=self.dice.choice("mv"))),
                    **how,
                )
            case "assign":
                arrays = [ms.Assignment(name, np.full(SHAPES[name], self.dice.random(), "f4")) for name in names]
                return ms.Assign(sender=me, sequence=sequence, assignments=tuple(arrays), add=self.dice.random() < 0.5)
            case "register":
                return ms.Register(sender=me, declarations=tuple(map(self.declaration, names)))
            case "tune":
                return ms.Tune(
                    sender=me,
                    sequence=sequence,
                    names=("m",),
                    optimizer=Momentum(self.dice.random(), 0.5),
                    fields=("learning_rate",),
                )
        return ms.Renew(sender=me, idle=True)

    async def work(self, executor, allocator_of, answers):
        """`answers` gets the state of each answer when it came, by its id."""
        self.sender = await join(executor, self.name)
        everything = ms.Register(sender=self.sender, declarations=tuple(map(self.declaration, SHAPES)))
        for message in (everything, *map(self.message, range(1, CALLS))):
            allocator = allocator_of(message)
            answer = await executor.step(message, allocator=allocator)
            answers[id(answer)] = state_of(answer)
            for array in getattr(allocator, "arrays", ()):
                array[...] = 77  # the worker reuses its memory as soon as it has its answer
            for served in getattr(answer, "values", ()):
                self.seen[served.name] = max(self.seen[served.name], served.version)
        await executor.step(ms.Leave(self.sender))


class OwnMemory:
    """Memory of a worker."""

    def __init__(self, _):
        self.arrays = []

    def take(self, spec):
        self.arrays.append(np.empty(spec.shape, spec.dtype))
        return self.arrays[-1]


POLICIES = ["async none", "async delay-compensated:0.5", "bounded:1 scale", "sync:2 none", "sync:3,backup=1 drop:2"]
THREADED = {"MAX_INLINE_BYTES": -1}
DIVIDED = THREADED | {
    "MIN_DIVIDED_BYTES": 0,
    "ELEMENTS_PER_STRETCH": 2,
    "MIN_ELEMENTS_PER_STRETCH": 1,
    "BYTES_PER_ROUND": 8,
}
SIZES = {"all in threads": THREADED, "some in threads": {"MAX_INLINE_BYTES": 40}, "all divided": DIVIDED}
ALLOCATORS = (lambda _: None, OwnMemory, ReusedArrays)
#: Every pair of two of the three.
PAIRS = [(how, sizes, ALLOCATORS[(i + j) % 3]) for i, how in enumerate(POLICIES) for j, sizes in enumerate(SIZES)]


@pytest.mark.parametrize(
    ("how", "sizes", "allocator_of"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (number % 8 > 0)) for number, pair in enumerate(PAIRS)],
)
def test_whatever_threads_do_the_arrays_are_those_of_the_same_steps_one_after_the_other(
    how, sizes, allocator_of, monkeypatch, request
):
    """Every case has messages of its own. Threads take turns as often as they can."""
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    for name, size in SIZES[sizes].items():
        monkeypatch.setattr(task_order, name, size)
    consistency, staleness = how.split()
    options = {"consistency": parse_consistency(consistency), "staleness": parse_staleness(staleness)}

    @executor_test(**options)
    async def compare(executor, shard):
        answers, seed = {}, f"{how} {sizes} {allocator_of.__name__}"
        workers = [RandomWorker(f"w{number}", f"{seed} {number}") for number in range(WORKERS)]
        await asyncio.gather(*[worker.work(executor, allocator_of, answers) for worker in workers])
        await executor.shutdown()
        again = new_shard(**options)
        for ticket, message, replies in shard.steps:
            given = [(one.ticket, answers.get(id(one.answer)) or state_of(one.answer)) for one in replies]
            replayed = [(one.ticket, state_of(one.answer)) for one in run_step(again, ticket, message, 0.0)]
            assert replayed == given
        assert state_of(again._store) == state_of(shard._store)
        assert len(shard.steps) > WORKERS * CALLS

    compare()


def test_a_cut_that_took_long_is_followed_by_a_pause(monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr(executor, "perf_counter", lambda: float(next(seconds)))  # each step takes one

    async def ask():
        server = Executor(Shard(), lambda: 7.0)
        numbers = [(await server.step(ms.Cut())).number for _ in range(2)]
        await server.shutdown()
        return numbers, server.shard.cuts.not_before

    assert asyncio.run(ask()) == ([1, 0], 7.0 + cuts.PAUSE)
