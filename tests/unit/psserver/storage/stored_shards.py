"""Shards with every kind of state, and their checkpoints; a process that is killed while it writes."""

import dataclasses
import os
from contextlib import contextmanager, suppress

import numpy as np

from psserver.core.shard import Shard
from psserver.core.variable_arrays import VariableArrays
from psserver.storage import checkpoints
from pswire.messages import (
    Assign,
    Assignment,
    Declaration,
    Finished,
    Gradient,
    Pull,
    Push,
    QueueSpec,
    Register,
    Sender,
    Take,
    Tune,
)
from pswire.optimizers import Adam, GradientDescent, Momentum
from pswire.specs.initializers import RowUniform
from pswire.tensors.values import DTYPES, IndexedSlices, Part, TensorSpec
from tests.support.shards import A, B, ShardDriver, state_of
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST


def varied_shard(**options):
    """A driver of a trained shard: all optimizers in all dtypes, all dtypes, shapes of all kinds, a queue, a change."""
    rng = np.random.default_rng(7)
    declarations, gradients = [], {}
    for number, case in enumerate(RULES_UNDER_TEST):
        for dtype in ("float32", "float64", "float16"):
            value = rng.uniform(0.5, 1.0, (3, 2)).astype(dtype)
            name = f"{case.spec.kind}-{number}/{dtype}"
            declarations.append(Declaration(TensorSpec.of(name, value), value, case.spec))
            gradients[name] = rng.uniform(0.01, 0.02, (3, 2)).astype(dtype)
    for dtype in DTYPES:
        value = rng.integers(0, 2, (2, 3, 1)).astype(dtype)
        declarations.append(Declaration(TensorSpec.of(f"of {dtype}", value), value))
    for name, shape in {"scalar": (), "empty": (0,), "no columns": (4, 0), "one row": (1, 5)}.items():
        value = rng.normal(size=shape).astype("float32")
        declarations.append(Declaration(TensorSpec.of(name, value), value, Adam(0.1)))
        gradients[name] = np.full_like(value, 0.25)
    table = TensorSpec("table ü", (5, 3))
    declarations.append(Declaration(table, None, Momentum(0.1, momentum=0.9), RowUniform(-1.0, 1.0, 3), Part(5, 20)))
    gradients[table.name] = IndexedSlices(np.ones((2, 3), np.float32), np.array([4, 0]), (5, 3))
    driver = ShardDriver(*declarations, **options)
    names = tuple(gradients)
    driver.answer(Pull(sender=B, names=names))
    for _ in range(3):
        driver.push(pull=names, loss=0.5, **gradients)
    driver.push("b", pull=names[:3], **{names[0]: gradients[names[0]]})
    ones = np.ones((2, 3, 1), np.uint8)
    driver.answer(Assign(sender=B, sequence=2, assignments=(Assignment("of uint8", ones),)))
    driver.answer(
        Tune(sender=A, sequence=4, names=(names[0],), optimizer=GradientDescent(0.25), fields=("learning_rate",))
    )
    queue = QueueSpec(name="examples", size=10, block=3, epochs=2, seed=1)
    driver.answer(Take(sender=A, queue=queue))
    driver.answer(Take(sender=B, queue=queue))
    driver.answer(Take(sender=A, queue=queue, finished=Finished(0, 1.5)))
    driver.answer(
        Register(
            sender=B,
            declarations=(Declaration(TensorSpec("late", (2,)), np.zeros(2, np.float32), GradientDescent(0.1)),),
        )
    )
    return driver


def arrays_of(shard):
    """The arrays of all variables, in order."""
    return {one.spec.name: VariableArrays(one.value, dict(one.slots)) for one in shard._store}


def write(folder, shard, number=None, late=(), final=False, is_cut=None, **changes):
    """Writes a checkpoint; returns its folder."""
    state = shard.state()
    state = dataclasses.replace(state, cut=state.cut if number is None else number, **changes)
    return checkpoints.write(folder, state, iter(arrays_of(shard).items()), lambda: late, final=final, is_cut=is_cut)


def shard_of(checkpoint):
    """A new shard with the state of a checkpoint, as it was at the snapshot."""
    shard = Shard.for_state(checkpoint.state)
    shard.restore(checkpoint.state, checkpoint.arrays, 0.0)
    return shard


def bits(shard):
    """State and arrays, for comparison."""
    return state_of(shard.state()), state_of(arrays_of(shard))


def push(worker, sequence, cut=0, shards=(), incarnation=1, **gradients):
    """A push whose gradients are of the first version."""
    entries = tuple([Gradient(name, 0, np.asarray(array)) for name, array in gradients.items()])
    return Push(sender=Sender(worker, incarnation), sequence=sequence, gradients=entries, shards=shards, cut=cut)


#: System calls that change files.
MUTATING = ("open", "mkdir", "pwritev", "rename", "replace", "unlink", "rmdir", "truncate", "ftruncate")


class Killed(BaseException):
    """The process was killed: nothing that it does has an effect any more."""


@contextmanager
def killed_after(monkeypatch, calls):
    """All system calls that change files fail after so many of them, those of handlers of errors too."""
    count = 0

    def limited(original):
        def call(*args, **kwargs):
            nonlocal count
            if original.__name__ == "open" and not args[1] & os.O_CREAT:
                return original(*args, **kwargs)
            count += 1
            if count > calls:
                raise Killed
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in MUTATING:
            patch.setattr(os, name, limited(getattr(os, name)))
        with suppress(Killed):
            yield
