"""Messages as protobuf and back: for every message its two directions side by side, and one table of them.

What comes from the network is checked here, field by field, as far as that needs no knowledge of the shard; where
the elements of tensors are is the lane's affair. May import the pure half of pswire, lanes and the generated code.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message as Proto

from pswire import lanes
from pswire.errors import InvalidMessage, Malformed
from pswire.messages import (
    ANSWERS,
    Answer,
    Assign,
    Assigned,
    Assignment,
    Block,
    Declaration,
    EpochReport,
    Finished,
    Gradient,
    Join,
    Joined,
    Leave,
    Left,
    Outcome,
    Pull,
    Pulled,
    Push,
    Pushed,
    QueueSpec,
    Register,
    Registered,
    Renew,
    Renewed,
    Request,
    Sender,
    Status,
    StatusReport,
    Take,
    Taken,
    Value,
    VariableStatus,
    WorkerStatus,
)
from pswire.specs import OptimizerSpec, from_plain, to_plain
from pswire.v1 import paramserver_pb2 as pb
from pswire.values import DTYPES, MAX_NAME_LENGTH, Array, TensorSpec

_Named = TypeVar("_Named", Value, Gradient)

# --- fields -----------------------------------------------------------------------------------------------------


def _at_least(low: int, number: int, what: str) -> int:
    if number < low:
        raise Malformed(f"{what} must be at least {low}, got {number}")
    return number


@functools.lru_cache(4096)
def _name(text: str, what: str) -> str:
    if not text or len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise Malformed(f"{what} has a name of 1 to {MAX_NAME_LENGTH} printable characters, got {text!r}")
    return text


def _names(texts: Iterable[str]) -> tuple[str, ...]:
    return _distinct(tuple(_name(text, "a variable") for text in texts))


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise Malformed(f"variable {double!r} is in the message more than once")
    return names


def _place(shard: int, shards: int) -> tuple[int, int]:
    if not 0 <= shard < shards:
        raise Malformed(f"shard {shard} of {shards}: shards are counted from 0")
    return shard, shards


@functools.lru_cache(4096)
def _sender(worker: str, incarnation: int) -> Sender:
    return Sender(_name(worker, "a worker"), _at_least(0, incarnation, f"worker {worker!r}: incarnation"))


_OUTCOMES = {
    Outcome.APPLIED: pb.OUTCOME_APPLIED,
    Outcome.REPEATED: pb.OUTCOME_REPEATED,
    Outcome.DROPPED: pb.OUTCOME_DROPPED,
}
_OUTCOMES_BACK = {number: outcome for outcome, number in _OUTCOMES.items()}


def _outcome(number: int) -> Outcome:
    outcome = _OUTCOMES_BACK.get(number)
    if outcome is None:
        raise Malformed(f"{number} is no outcome of a push or assign")
    return outcome


# --- tensors ----------------------------------------------------------------------------------------------------

# By dtype and not by `dtype.name`, which numpy puts together anew at every call, in 2 microseconds.
_DTYPE_NAMES = {kind: name for name, dtype in DTYPES.items() for kind in (dtype, dtype.newbyteorder(">"))}


def _describe(spec: TensorSpec, tensor: pb.Tensor) -> None:
    tensor.name, tensor.dtype = spec.name, spec.dtype
    tensor.shape.extend(spec.shape)


@functools.lru_cache(4096)
def _spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    try:
        spec = TensorSpec(name, shape, dtype)
    except ValueError as error:
        raise Malformed(str(error)) from error
    # numpy counts only the sizes that are not 0 when it decides whether an array is too big.
    if math.prod(size or 1 for size in shape) * DTYPES[dtype].itemsize > sys.maxsize:
        raise Malformed(f"variable {spec}: no memory has room for this shape")
    return spec


def _spec_of(tensor: pb.Tensor) -> TensorSpec:
    return _spec(tensor.name, tensor.dtype, tuple(tensor.shape))


def _put(name: str, array: Array, tensor: pb.Tensor, lane: lanes.Sender) -> None:
    dtype = _DTYPE_NAMES.get(array.dtype)
    if dtype is None:
        raise InvalidMessage(f"variable {name!r}: dtype {array.dtype} is none of {', '.join(DTYPES)}")
    tensor.name, tensor.dtype = name, dtype
    tensor.shape.extend(array.shape)
    lane.put(array, tensor)


def _get(tensor: pb.Tensor, lane: lanes.Receiver) -> Array:
    return lane.get(tensor, _spec_of(tensor))


def _put_values(values: Sequence[Value] | Sequence[Gradient], protos: Any, lane: lanes.Sender) -> None:
    for value in values:
        proto = protos.add()
        proto.version = value.version
        _put(value.name, value.array, proto.tensor, lane)


def _get_values(kind: type[_Named], protos: Iterable[pb.Value], lane: lanes.Receiver) -> tuple[_Named, ...]:
    values = []
    for proto in protos:
        spec = _spec_of(proto.tensor)
        version = _at_least(0, proto.version, f"variable {spec.name!r}: version")
        values.append(kind(spec.name, version, lane.get(proto.tensor, spec)))
    _distinct(tuple([value.name for value in values]))
    return tuple(values)
