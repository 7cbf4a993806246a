"""Descriptions of messages and shards as JSON data, by the names of the protocol: what recorded files must still mean.

A message is described by the fields of its protobuf, an array by dtype, shape, the SHA-256 of its bytes and, if it is
small, its elements. So a description stays the same when classes and fields of Python get other names: then only this
module, `tests.recorded.formats` and `tests.recorded.server` change, and no file in `tests/fixtures/`.
"""

import dataclasses
import hashlib
import json
import math
from enum import Enum

import numpy as np

from psserver.storage.checkpoints import served_arrays, state_to_json
from pswire import messages as ms
from pswire.optimizers import UpdateSpec
from pswire.specs import vectors
from pswire.specs.initializers import RowInitializer
from pswire.specs.spec import to_plain
from pswire.tensors.compression import Packed
from pswire.tensors.values import IndexedSlices, TensorSpec

#: Fields that messages have got since they were recorded, with their defaults.
ADDED = {"sums": [], "evaluates": False, "behind": [], "stage": 0}

#: Arrays of more elements are described by their SHA-256 alone.
MOST_ELEMENTS = 24


def describe(value):
    """A message, a part of one, or a field, as JSON data; fields that are absent are left out."""
    special = _SPECIAL.get(type(value))
    if special is not None:
        return special(value)
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return number(value)
        case bytes():
            return value.hex()
        case Enum():
            return f"{type(value).__name__.upper()}_{value.name}"
        case tuple() | list():
            return [describe(one) for one in value]
        case UpdateSpec() | RowInitializer():
            return {"fields": _plain(to_plain(value))}
        case np.ndarray() | Packed():
            return array(value)
    assert dataclasses.is_dataclass(value), f"{type(value).__name__} has no description yet"
    return _present({one.name: getattr(value, one.name) for one in dataclasses.fields(value)})


def _present(fields):
    found = {("tensor" if isinstance(value, TensorSpec) else name): value for name, value in fields.items()}
    return {name: describe(value) for name, value in found.items() if value is not None}


def number(value):
    """A float that JSON has; NaN and infinity as text."""
    return value if math.isfinite(value) else repr(value)


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return number(value) if isinstance(value, float) else value


def array(value, name=None):
    """An array, or the parts of a packed one; with the name of its tensor, if it has one."""
    named = {} if name is None else {"name": name}
    if isinstance(value, Packed):
        packing = {"form": value.form, "parts": [array(one) for one in value.parts]}
        return named | {"dtype": "float32", "shape": list(value.shape), "packing": packing}
    data = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    found = named | {"dtype": value.dtype.name, "shape": list(value.shape), "sha256": sha256(data.tobytes())}
    if value.size <= MOST_ELEMENTS:
        found["elements"] = [number(one) if isinstance(one, float) else one for one in data.ravel().tolist()]
    return found


def sha256(data):
    """The first 64 bits of the digest."""
    return hashlib.sha256(data).hexdigest()[:16]


def _of_value(one):
    tensor = {"name": one.name} if one.array is None else array(one.array, one.name)
    return {"tensor": tensor, "version": one.version}


def _of_gradient(one):
    if not isinstance(one.array, IndexedSlices):
        return {"tensor": array(one.array, one.name), "version": one.version}
    indices = {"tensor": array(one.array.values, one.name), "indices": array(one.array.indices, one.name)}
    return indices | {"version": one.version, "rows": one.array.shape[0]}


def _of_assignment(one):
    return _present({"first_row": one.first_row}) | {"tensor": array(one.array, one.name)}


def _of_declaration(one):
    spec = describe(one.spec) if one.value is None else array(one.value, one.spec.name)
    return {"tensor": spec} | _present({"optimizer": one.optimizer, "initial": one.initial, "part": one.part})


def _of_choice(one):
    rows = {} if one.rows is None else {"rows": array(one.rows, one.name)}
    return {"name": one.name, "slot": one.slot} | rows


def _of_operation(one):
    texts, found = iter(("vector", "source", "other")), {"kind": type(one).__name__}
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        found["number" if isinstance(value, float | int) else next(texts)] = value
    return found


_SPECIAL = {
    ms.Value: _of_value,
    ms.Gradient: _of_gradient,
    ms.Assignment: _of_assignment,
    ms.Declaration: _of_declaration,
    ms.Choice: _of_choice,
    TensorSpec: lambda one: {"name": one.name, "dtype": one.dtype, "shape": list(one.shape)},
    **dict.fromkeys(vectors.Operation.__args__, _of_operation),
}


def describe_shard(shard):
    """All that a shard keeps: its state as in a manifest (`ShardState` as JSON) without growths, and its arrays."""
    state = shard.state()
    stated = state_to_json(state)
    for one in stated.get("variables", ()):
        one.pop("growth", None)  # a bound
    variables = {
        name: {"value": array(one.value), "slots": {slot: array(values) for slot, values in sorted(one.slots.items())}}
        for name, one in shard.arrays().items()
    }
    served = {name: array(one) for name, one in served_arrays(state).items()}
    waiting = [describe(message) for _, message in shard.waiting()]
    found = {"state": stated, "variables": variables, "served": served, "waiting": waiting}
    return found | {"lost": shard.lost}


def summarize_shard(shard):
    """The main things of `describe_shard`, and the SHA-256 of all."""
    found = describe_shard(shard)
    state, digest = found["state"], sha256(json.dumps(as_json(found), sort_keys=True).encode())
    members = {
        one["name"]: [one.get(name, "0") for name in ("incarnation", "settled", "steps", "state")]
        for one in state["members"].get("members", ())
    }
    values = {name: one["value"] for name, one in found["variables"].items()}
    counts = {name: state.get(name, "0") for name in ("cut", "timeline", "global_step", "identity")}
    return counts | {"members": members, "values": values, "lost": found["lost"], "sha256 of all": digest}


def digest(data):
    """The SHA-256 of JSON data whose numbers have nine digits: their last bits depend on the processor."""
    return {"sha256": sha256(json.dumps(rounded(data), sort_keys=True).encode())}


def rounded(data):
    """JSON data with nine digits of each number, as it was recorded."""
    match data:
        case dict():
            return {name: rounded(one) for name, one in as_recorded(data).items()}
        case list():
            return [rounded(one) for one in data]
        case float():
            return float(f"{data:.9g}")
    return data


def as_json(data):
    """The data as it is read from a file, and as it was recorded."""
    return json.loads(json.dumps(data, allow_nan=False), object_hook=as_recorded)


def as_recorded(fields):
    """Fields without those that are `ADDED` and have their default."""
    return {name: one for name, one in fields.items() if name not in ADDED or one != ADDED[name]}
