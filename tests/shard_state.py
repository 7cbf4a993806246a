"""All that a shard keeps, as plain data: for tests that say "nothing has changed" or "these two are the same".

The one place in the tests that looks into a shard's private attributes.
"""

import dataclasses
from enum import Enum
from typing import Any

import numpy as np

from psserver.core.shard import Shard
from pswire.values import Array


def state_of(thing: Any) -> Any:
    """A shard, or anything in it, as tuples and texts that compare by value; floats and arrays bit for bit."""
    match thing:
        case None | bool() | int() | str() | Enum():
            return thing
        case float():
            return thing.hex()
        case np.ndarray():
            return thing.dtype.str, thing.shape, thing.tobytes()
        case dict():
            return tuple((state_of(key), state_of(value)) for key, value in thing.items() if not callable(value))
        case list() | tuple():
            return tuple(map(state_of, thing))
    if dataclasses.is_dataclass(thing):
        named = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    else:
        named = vars(thing)
    return type(thing).__name__, state_of(named)


def slots_of(shard: Shard, name: str) -> dict[str, Array]:
    """What the optimizer keeps beside a variable; no message asks for it."""
    return shard._store[name].slots
