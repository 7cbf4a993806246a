"""A shard behind its executor, whose threads stop at gates that a test opens; no network, no sleep."""

import asyncio
import copy
import dataclasses
import functools
import inspect
import threading
from collections import defaultdict
from functools import partial

from psserver.core.shard import Shard
from psserver.runtime.executor import Executor
from pswire.messages import Assign, Assignment, Declaration, Join, Pull, Register, Sender
from pswire.tensors.values import TensorSpec

TIMEOUT = 30  # seconds after which a test has failed; none comes near it


class Gate:
    """Open at first. Attribute `reached`: some thread has come to it since it was shut."""

    def __init__(self):
        self._open, self.reached = threading.Event(), threading.Event()
        self._open.set()

    def shut(self):
        self.reached.clear()
        self._open.clear()

    def open(self):
        self._open.set()

    def go_through(self):
        self.reached.set()
        assert self._open.wait(TIMEOUT), "the test has not opened the gate"


class GatedShard(Shard):
    """What is done in threads goes through a gate: `gates[name]` for a variable's tasks, `gates[""]` for inspections.

    `steps` has of each step its ticket, message (before its arrays are overwritten) and replies, in their order.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
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
        @functools.wraps(scenario)
        def test(**parameters):
            async def main():
                shard = GatedShard(**options)
                executor = Executor(shard, clock=lambda: 0.0)
                try:
                    await asyncio.wait_for(scenario(executor, shard, **parameters), TIMEOUT)
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
    return Sender(worker, (await executor.step(Join(worker))).incarnation)


async def register(executor, sender, optimizer=None, **arrays):
    declarations = tuple(Declaration(TensorSpec.of(name, array), array, optimizer) for name, array in arrays.items())
    return await executor.step(Register(sender, declarations))


async def value(executor, sender, name):
    return (await executor.step(Pull(sender, (name,)))).values[0].array


def set_to(sender, sequence, name, array):
    return Assign(sender, sequence, (Assignment(name, array),))


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
