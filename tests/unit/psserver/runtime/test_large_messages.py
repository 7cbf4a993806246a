"""Messages with many entries: stepped in a thread, while the event loop goes on and no other step is taken."""

import asyncio
import threading

import numpy as np
import pytest

from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import ArrayTask
from psserver.runtime import executor as executor_module
from psserver.runtime.executor import Executor, is_large
from psserver.runtime.task_order import MAX_INLINE_BYTES, MAX_SMALL_BUNDLES, TASK_OVERHEAD, Bundle, TaskOrder
from pswire import errors
from pswire import messages as ms
from pswire.optimizers import Momentum
from pswire.tensors.values import TensorSpec
from tests.support.commands import BOUND
from tests.support.shards import run_step

MANY = 600
NAMES = tuple(f"v{number}" for number in range(MANY))
ONE = np.ones(1, np.float32)


class SlowShard(Shard):
    """Large steps and checks go through a gate; `steps` has the thread of each step, and its message."""

    def __init__(self):
        super().__init__()
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()
        self.steps = []

    def step(self, ticket, message, now, **options):
        self.steps.append((threading.current_thread().name.partition("_")[0], type(message)))
        if isinstance(message, ms.Push) and is_large(message):
            self.reached.set()
            assert self.gate.wait(BOUND)
        return super().step(ticket, message, now, **options)


def executor_test(scenario):
    """Decorator: a test of a coroutine, which gets an executor and its shard."""

    def test():
        async def main():
            shard = SlowShard()
            executor = Executor(shard, clock=lambda: 0.0)
            try:
                await asyncio.wait_for(scenario(executor, shard), BOUND)
            finally:
                shard.gate.set()
                await executor.shutdown()

        asyncio.run(main())

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


async def registered(executor, names=NAMES, worker="w0"):
    sender = ms.Sender(worker, (await executor.step(ms.Join(worker=worker))).incarnation)
    declared = [ms.Declaration(TensorSpec.of(name, ONE), ONE, Momentum(0.5)) for name in names]
    await executor.step(ms.Register(sender=sender, declarations=tuple(declared)))
    return sender


def push(sender, sequence=1, names=NAMES):
    gradients = [ms.Gradient(name, sequence - 1, sequence * ONE) for name in names]
    return ms.Push(sender=sender, sequence=sequence, gradients=tuple(gradients), pull=names)


async def reached(event):
    """Waits for a thread; the event loop goes on meanwhile."""
    while not event.is_set():
        await asyncio.sleep(0.001)


@executor_test
async def test_a_message_with_many_entries_is_stepped_in_a_thread_and_one_with_few_in_the_event_loop(executor, shard):
    me = await registered(executor)
    await executor.step(push(me))
    await executor.step(push(me, 2, NAMES[:3]))
    assert shard.steps == [
        ("MainThread", ms.Join),
        ("psserver-step", ms.Register),
        ("psserver-step", ms.Push),
        ("MainThread", ms.Push),
    ]


@executor_test
async def test_while_a_large_step_is_in_a_thread_the_loop_goes_on_and_no_other_step_and_no_tick_is_taken(
    executor, shard
):
    me = await registered(executor)
    other = ms.Sender("w1", (await executor.step(ms.Join(worker="w1"))).incarnation)
    shard.gate.clear()
    large = asyncio.create_task(executor.step(push(me)))
    await reached(shard.reached)
    taken = len(shard.steps)
    small = [asyncio.create_task(executor.step(ms.Renew(sender=one))) for one in (other, me)]
    for _ in range(10):
        await asyncio.sleep(0)
        executor.tick()
    assert len(shard.steps) == taken
    assert not any(one.done() for one in (large, *small))
    shard.gate.set()
    answer, *_ = await asyncio.gather(large, *small)
    assert answer.global_step == 1
    assert [kind for _, kind in shard.steps[taken:]] == [ms.Renew, ms.Renew]


@executor_test
async def test_a_large_step_whose_caller_has_gone_is_done_before_the_next_one(executor, shard):
    me = await registered(executor)
    shard.gate.clear()
    gone = asyncio.create_task(executor.step(push(me)))
    await reached(shard.reached)
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled()
    again = asyncio.create_task(executor.step(push(me)))
    await asyncio.sleep(0)
    shard.gate.set()
    assert (await again).outcome is ms.Outcome.REPEATED
    assert shard.global_step == 1


@pytest.mark.slow
@executor_test
async def test_a_large_message_that_is_refused_has_changed_nothing_and_leaves_the_shard_to_others(executor, shard):
    me = await registered(executor)
    with pytest.raises(errors.UnknownVariable, match="'other'"):
        await executor.step(push(me, 1, (*NAMES, "other")))
    bad = push(me)
    bad.gradients[-1].array[0] = np.nan
    with pytest.raises(errors.NotFinite, match=NAMES[-1]):
        await executor.step(bad)
    assert (await executor.step(push(me))).global_step == 1


@pytest.mark.slow
def test_large_steps_give_the_bits_of_the_same_steps_one_after_the_other(monkeypatch):
    async def main(most):
        monkeypatch.setattr(executor_module, "MAX_ENTRIES_IN_LOOP", most)
        executor = Executor(Shard(), clock=lambda: 0.0)
        one, two = await registered(executor), await registered(executor, worker="w1")
        for sequence in range(1, 4):
            await asyncio.gather(*(executor.step(push(worker, sequence)) for worker in (one, two)))
        values = (await executor.step(ms.Pull(sender=one, names=NAMES))).values
        await executor.shutdown()
        return [(value.name, value.version, value.array.tobytes()) for value in values]

    direct = Shard()
    senders = [ms.Sender(w, run_step(direct, 0, ms.Join(worker=w), 0.0)[0].answer.incarnation) for w in ("w0", "w1")]
    declared = [ms.Declaration(TensorSpec.of(name, ONE), ONE, Momentum(0.5)) for name in NAMES]
    run_step(direct, 0, ms.Register(sender=senders[0], declarations=tuple(declared)), 0.0)
    for sequence in range(1, 4):
        for sender in senders:
            run_step(direct, 0, push(sender, sequence), 0.0)
    expected = [(one.spec.name, one.version, one.value.tobytes()) for one in direct.variables.values()]
    assert asyncio.run(main(1)) == asyncio.run(main(10_000)) == expected


# --- bundles of tasks -------------------------------------------------------------------------------------------------


def small_tasks(count, run=lambda: None):
    return [ArrayTask(f"v{number}", 4, run) for number in range(count)]


def test_many_small_tasks_are_few_bundles_and_those_that_wait_for_the_same_tasks_are_together():
    async def main():
        order, gate, count = TaskOrder(), threading.Event(), 10_000
        first = order.bundles(small_tasks(count, lambda: gate.wait(BOUND)))
        assert len(first) <= MAX_SMALL_BUNDLES + 2
        assert len(first[0].tasks) * TASK_OVERHEAD <= MAX_INLINE_BYTES
        assert sorted(task.variable for bundle in first for task in bundle.tasks) == sorted(
            f"v{n}" for n in range(count)
        )
        ends = order.add_bundles([Bundle([], set(), False), *first[1:]])
        second = order.bundles(small_tasks(count))
        waiting = {task.variable for bundle in first[1:] for task in bundle.tasks}
        assert not waiting & {task.variable for task in second[0].tasks}
        assert len(second) <= 2 * MAX_SMALL_BUNDLES + 4
        gate.set()
        await ends
        await order.shutdown()

    asyncio.run(main())
