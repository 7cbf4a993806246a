"""All that a shard keeps, as plain data: for tests that say "nothing has changed" or "these two are the same"."""

import dataclasses
import json
from collections import deque
from enum import Enum
from functools import cache, cached_property
from typing import Any

import numpy as np

from psserver.core.shard import Shard
from psserver.core.state import VariableArrays
from psserver.core.variables.array_tasks import StepResult, run
from psserver.storage.checkpoints import served_arrays, state_from_json, state_to_json
from pswire.messages import Message, Reply
from pswire.tensors.values import Array


def state_of(thing: Any) -> Any:
    """A shard, or anything in it, as tuples and texts that compare by value; floats and arrays bit for bit."""
    return _state(thing, {})


#: Counts for displays, which begin anew with each process.
_COUNTS = {("Member", "counts"), ("Variable", "bytes_in"), ("Variable", "bytes_out"), ("PendingCall", "since")}
_COUNTS |= {("Variable", "rounding"), ("Shard", "_next_samples")}
_COUNTS |= {("Position", "changes"), ("Attendance", "_explained_at"), ("Attendance", "_explanations")}
_PLAIN = frozenset({type(None), bool, int, str, bytes})  # most of all there is


def _state(thing: Any, seen: dict[int, int]) -> Any:
    """`seen` numbers the mutable objects met so far: they refer to each other, and each is written once."""
    kind = type(thing)
    if kind in _PLAIN or isinstance(thing, Enum):
        return thing
    if isinstance(thing, float):
        return float(thing).hex()
    if kind in (tuple, list, deque):
        return tuple([one if type(one) in _PLAIN else _state(one, seen) for one in thing])
    if isinstance(thing, dict):
        return tuple([(_state(key, seen), _state(one, seen)) for key, one in thing.items() if not callable(one)])
    if kind is set:
        return tuple(sorted(thing, key=repr))
    if isinstance(thing, np.ndarray | np.generic):
        return thing.dtype.str, thing.shape, thing.tobytes()
    if isinstance(thing, BaseException):
        return kind.__name__, str(thing)
    if not _is_value(kind):
        if id(thing) in seen:
            return kind.__name__, seen[id(thing)]
        seen[id(thing)] = len(seen)
    fields = _fields(kind)
    if hasattr(thing, "__dict__"):
        cached = [name for name in vars(thing) if isinstance(getattr(kind, name, None), cached_property)]
        fields = tuple(name for name in dict.fromkeys([*fields, *vars(thing)]) if name not in cached)
    fields = tuple([name for name in fields if (kind.__name__, name) not in _COUNTS])
    parts = [getattr(thing, name) for name in fields]
    values = [one if type(one) in _PLAIN else _state(one, seen) for one in parts if not callable(one)]
    return kind.__name__, fields, tuple(values)


@cache
def _is_value(kind: type) -> bool:
    """Whether two that are equal are as good as one."""
    return issubclass(kind, tuple) or (dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen)


@cache
def _fields(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", ())
    return tuple(getattr(kind, "__slots__", ()))


def slots_of(shard: Shard, name: str) -> dict[str, Array]:
    """What the optimizer keeps beside a variable; no message asks for it."""
    return shard._store[name].slots


def restored(shard: Shard, new: Shard, now: float) -> list[Reply]:
    """Gives a new shard the state of another, by way of the text of a manifest; the replies to calls that waited."""
    state = shard.state()
    copies = {one.spec.name: VariableArrays(one.value.copy(), _copies(one.arrays.slots)) for one in shard._store}
    text = json.dumps(state_to_json(state))
    new.restore(state_from_json(json.loads(text), _copies(served_arrays(state))), copies, now)
    return [reply for ticket, message in shard.waiting() for reply in run_step(new, ticket, message, now)]


def _copies(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


def finish_copies(shard: Shard) -> None:
    """Makes the copies of the cut in progress that no change has needed yet."""
    result = StepResult()
    for copy in shard.cuts.current.copies.values():
        copy.start(result)
    run(result.tasks)


def run_step(shard: Shard, ticket: int, message: Message, now: float, **options: Any) -> list[Reply]:
    """One step and its array tasks; returns the replies."""
    result = shard.step(ticket, message, now, **options)
    run(result.tasks)
    return result.replies
