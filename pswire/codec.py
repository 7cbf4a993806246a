"""Messages as protobuf and back.

The table `_MESSAGES` has one row for each message: its class, its protobuf, and of what kind each field is. A kind of
field has the two directions side by side, `put` and `get`. What comes from the network is checked in `get`, as far as
that needs no knowledge of the shard; where the elements of tensors are is the lane's affair.
May import the pure half of pswire, lanes and the generated code.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

from google.protobuf.message import Message as Proto

from pswire import lanes
from pswire import messages as ms
from pswire.errors import InvalidMessage, Malformed
from pswire.specs import OptimizerSpec, from_plain, to_plain
from pswire.v1 import paramserver_pb2 as pb
from pswire.values import DTYPES, MAX_NAME_LENGTH, Array, TensorSpec


def encode(message: ms.Request | ms.Answer, lane: lanes.Sender) -> Proto:
    """The protobuf of `message`, whose arrays go to `lane`.

    Raises:
        InvalidMessage: a field has a value that the protocol has no room for, or an array a dtype that cannot travel.
        TooLarge: the lane does not carry so much.
    """
    row = _BY_MESSAGE[type(message)]
    proto = row.proto()
    try:
        row.put(message, proto, lane)
    except (ValueError, TypeError) as error:
        raise InvalidMessage(f"this {type(message).__name__} cannot be sent: {error}") from error
    return proto


def decode(proto: Proto, lane: lanes.Receiver) -> ms.Request | ms.Answer:
    """The message of `proto`, with arrays from `lane`. Raises `Malformed` and nothing else."""
    row = _BY_PROTO.get(type(proto))
    if row is None:
        raise Malformed(f"{type(proto).__name__} is neither a request nor an answer")
    message: ms.Request | ms.Answer = row.get(proto, lane)
    return message


def to_frame(proto: Proto) -> pb.Frame:
    """The first frame of a Transfer of `proto`, one of the messages that may carry tensors."""
    return pb.Frame(**{_PIECES[type(proto)]: proto})


def from_frame(frame: pb.Frame) -> Proto:
    """What the first frame of a Transfer carries. Raises `Malformed`."""
    piece = frame.WhichOneof("piece")
    if piece is None or piece == "chunk":
        raise Malformed(f"a Transfer begins with a message, this one with {'a chunk' if piece else 'nothing'}")
    proto: Proto = getattr(frame, piece)
    return proto


# --- kinds of fields ------------------------------------------------------------------------------------------------


class _Field:
    """A field that protobuf keeps as it is and that needs no check: a flag, a text, a seed."""

    def put(self, value: Any, proto: Any, field: str, lane: lanes.Sender) -> None:
        setattr(proto, field, value)

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        return getattr(proto, field)


class _Number(_Field):
    """A finite number that is `low` at least."""

    def __init__(self, low: float) -> None:
        self._low = low

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        number = getattr(proto, field)
        if not self._low <= number < math.inf:
            raise Malformed(f"{type(proto).__name__}.{field} must be at least {self._low}, got {number}")
        return number


class _Below(_Field):
    """An integer from 0 up, below another field of the same message."""

    def __init__(self, other: str) -> None:
        self._other = other

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        number, limit = getattr(proto, field), getattr(proto, self._other)
        if not 0 <= number < limit:
            raise Malformed(f"{type(proto).__name__}.{field} must be from 0 up and below {limit}, got {number}")
        return number


class _Optional(_Field):
    """A number that may be missing: None. Any number: a loss may well be NaN."""

    def put(self, value: Any, proto: Any, field: str, lane: lanes.Sender) -> None:
        if value is not None:
            setattr(proto, field, value)

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        return getattr(proto, field) if proto.HasField(field) else None


class _Choice(_Field):
    """One of few values, each with its counterpart in protobuf."""

    def __init__(self, choices: dict[Any, Any]) -> None:
        self._there = choices
        self._back = {there: here for here, there in choices.items()}

    def put(self, value: Any, proto: Any, field: str, lane: lanes.Sender) -> None:
        setattr(proto, field, self._there[value])

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        value = self._back.get(getattr(proto, field))
        if value is None:
            raise Malformed(f"{type(proto).__name__}.{field} cannot be {getattr(proto, field)!r}")
        return value


class _Name(_Field):
    """The name of a worker, a variable or a data queue."""

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        return _check_name(getattr(proto, field))


class _Names(_Field):
    """Names of variables, each once."""

    def put(self, value: Any, proto: Any, field: str, lane: lanes.Sender) -> None:
        getattr(proto, field).extend(value)

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        return _distinct(tuple([_check_name(text) for text in getattr(proto, field)]))


class _Versions(_Field):
    """The versions of several variables."""

    def put(self, value: Any, proto: Any, field: str, lane: lanes.Sender) -> None:
        getattr(proto, field).extend(value)

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        return tuple([_check_version(version) for version in getattr(proto, field)])


class _Part(Protocol):
    """What travels inside of a message: `put` fills a protobuf that is there already."""

    def put(self, message: Any, proto: Any, lane: lanes.Sender) -> None: ...
    def get(self, proto: Any, lane: lanes.Receiver) -> Any: ...


class _One(_Field):
    """A part; with `optional`, None when it is missing."""

    def __init__(self, part: _Part, optional: bool = False) -> None:
        self._part, self._optional = part, optional

    def put(self, value: Any, proto: Any, field: str, lane: lanes.Sender) -> None:
        if value is not None:
            nested = getattr(proto, field)
            nested.SetInParent()
            self._part.put(value, nested, lane)

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        if self._optional and not proto.HasField(field):
            return None
        return self._part.get(getattr(proto, field), lane)


class _Many(_Field):
    """Parts in their order; with `name`, which gives a part's name, each name once."""

    def __init__(self, part: _Part, name: Callable[[Any], str] | None = None) -> None:
        self._part, self._name = part, name

    def put(self, value: Any, proto: Any, field: str, lane: lanes.Sender) -> None:
        repeated = getattr(proto, field)
        for part in value:
            self._part.put(part, repeated.add(), lane)

    def get(self, proto: Any, field: str, lane: lanes.Receiver) -> Any:
        parts = tuple([self._part.get(item, lane) for item in getattr(proto, field)])
        if self._name is not None:
            _distinct(tuple([self._name(part) for part in parts]))
        return parts


def _check_version(version: int) -> int:
    if version < 0:
        raise Malformed(f"a version is at least 0, got {version}")
    return version


@functools.lru_cache(4096)
def _check_name(text: str) -> str:
    if not text or len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise Malformed(f"a name has 1 to {MAX_NAME_LENGTH} printable characters, got {text!r}")
    return text


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Malformed(f"variable {name!r} is in the message more than once")
        seen.add(name)
    return names


# --- tensors, and what has one --------------------------------------------------------------------------------------

# By dtype and not by `dtype.name`, which numpy puts together anew each time, in 2 microseconds.
_DTYPE_NAMES = {kind: name for name, dtype in DTYPES.items() for kind in (dtype, dtype.newbyteorder(">"))}


def _put_array(name: str, array: Array, tensor: pb.Tensor, lane: lanes.Sender) -> None:
    dtype = _DTYPE_NAMES.get(array.dtype)
    if dtype is None:
        raise ValueError(f"variable {name!r} has the dtype {array.dtype}, which is none of {', '.join(DTYPES)}")
    tensor.name = name
    tensor.dtype = dtype
    tensor.shape.extend(array.shape)
    lane.put(array, tensor)


def _put_spec(spec: TensorSpec, tensor: pb.Tensor) -> None:
    tensor.name = spec.name
    tensor.dtype = spec.dtype
    tensor.shape.extend(spec.shape)


def _get_spec(tensor: pb.Tensor) -> TensorSpec:
    return _check_spec(tensor.name, tensor.dtype, tuple(tensor.shape))


@functools.lru_cache(4096)
def _check_spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    try:
        spec = TensorSpec(name, shape, dtype)
    except ValueError as error:
        raise Malformed(str(error)) from error
    # Sizes that are 0 do not count: numpy refuses the others even if there is no element at all.
    if math.prod(size or 1 for size in shape) * DTYPES[dtype].itemsize > sys.maxsize:
        raise Malformed(f"variable {spec}: no memory has room for this shape")
    return spec


class _Value:
    """A `Value` or `Gradient`: name, version, array."""

    def __init__(self, kind: type[ms.Value] | type[ms.Gradient]) -> None:
        self._kind = kind

    def put(self, message: ms.Value | ms.Gradient, proto: pb.Value, lane: lanes.Sender) -> None:
        proto.version = message.version
        _put_array(message.name, message.array, proto.tensor, lane)

    def get(self, proto: pb.Value, lane: lanes.Receiver) -> ms.Value | ms.Gradient:
        tensor = proto.tensor
        spec = _get_spec(tensor)
        return self._kind(spec.name, _check_version(proto.version), lane.get(tensor, spec))


class _Assignment:
    def put(self, message: ms.Assignment, proto: pb.Tensor, lane: lanes.Sender) -> None:
        _put_array(message.name, message.array, proto, lane)

    def get(self, proto: pb.Tensor, lane: lanes.Receiver) -> ms.Assignment:
        return ms.Assignment(proto.name, lane.get(proto, _get_spec(proto)))


class _Declaration:
    def put(self, message: ms.Declaration, proto: pb.Declaration, lane: lanes.Sender) -> None:
        _put_optimizer(message.optimizer, proto)
        if message.value is None:
            _put_spec(message.spec, proto.tensor)
        else:
            _put_array(message.spec.name, message.value, proto.tensor, lane)

    def get(self, proto: pb.Declaration, lane: lanes.Receiver) -> ms.Declaration:
        spec = _get_spec(proto.tensor)
        value = lane.get(proto.tensor, spec) if proto.tensor.WhichOneof("place") else None
        return ms.Declaration(spec, value, _get_optimizer(proto))


class _VariableStatus:
    def put(self, message: ms.VariableStatus, proto: pb.VariableStatus, lane: lanes.Sender) -> None:
        proto.version = message.version
        proto.updates = message.updates
        _put_spec(message.spec, proto.tensor)
        _put_optimizer(message.optimizer, proto)

    def get(self, proto: pb.VariableStatus, lane: lanes.Receiver) -> ms.VariableStatus:
        version, updates = _check_version(proto.version), _COUNT.get(proto, "updates", lane)
        return ms.VariableStatus(_get_spec(proto.tensor), version, updates, _get_optimizer(proto))


def _put_optimizer(optimizer: OptimizerSpec | None, proto: pb.Declaration | pb.VariableStatus) -> None:
    if optimizer is not None:
        proto.optimizer.fields.update(to_plain(optimizer))


def _get_optimizer(proto: pb.Declaration | pb.VariableStatus) -> OptimizerSpec | None:
    if not proto.HasField("optimizer"):
        return None
    fields = proto.optimizer.fields.fields.items()
    try:
        return from_plain({key: getattr(value, value.WhichOneof("kind") or "null_value") for key, value in fields})
    except (ValueError, TypeError) as error:
        raise Malformed(f"variable {proto.tensor.name!r}: {error}") from error


# --- the messages ---------------------------------------------------------------------------------------------------


class _Row:
    """A message or part of one whose fields have the same names on both sides."""

    def __init__(self, message: type, proto: type[Proto], **fields: _Field) -> None:
        self.message, self.proto = message, proto
        self._fields = tuple(fields.items())

    def put(self, message: Any, proto: Any, lane: lanes.Sender) -> None:
        for name, field in self._fields:
            field.put(getattr(message, name), proto, name, lane)

    def get(self, proto: Any, lane: lanes.Receiver) -> Any:
        return self.message(*[field.get(proto, name, lane) for name, field in self._fields])


_ANY, _COUNT, _POSITIVE, _OPTIONAL, _NAME, _NAMES = _Field(), _Number(0), _Number(1), _Optional(), _Name(), _Names()
_OUTCOME = _Choice(
    {
        ms.Outcome.APPLIED: pb.OUTCOME_APPLIED,
        ms.Outcome.REPEATED: pb.OUTCOME_REPEATED,
        ms.Outcome.DROPPED: pb.OUTCOME_DROPPED,
    }
)
_STATE = _Choice({state: state for state in ("live", "left", "lost")})
_VALUES = _Many(_Value(ms.Value), attrgetter("name"))

_SENDER = _One(_Row(ms.Sender, pb.Sender, worker=_NAME, incarnation=_COUNT))
_QUEUE = _One(_Row(ms.QueueSpec, pb.Queue, name=_NAME, size=_POSITIVE, block=_POSITIVE, epochs=_POSITIVE, seed=_ANY))
_BLOCK = _One(
    _Row(ms.Block, pb.Block, number=_COUNT, epoch=_POSITIVE, start=_Below("stop"), stop=_COUNT), optional=True
)
_FINISHED = _One(_Row(ms.Finished, pb.Finished, number=_COUNT, cost_sum=_OPTIONAL), optional=True)
_REPORTS = _Many(_Row(ms.EpochReport, pb.EpochReport, queue=_NAME, epoch=_POSITIVE, cost=_OPTIONAL, examples=_COUNT))
_WORKERS = _Many(
    _Row(
        ms.WorkerStatus,
        pb.WorkerStatus,
        name=_NAME,
        incarnation=_COUNT,
        number=_COUNT,
        state=_STATE,
        steps=_COUNT,
        staleness=_COUNT,
        staleness_sum=_COUNT,
        loss=_OPTIONAL,
        epoch=_COUNT,
        lease_left=_ANY,
    )
)

_MESSAGES = (
    _Row(ms.Join, pb.JoinRequest, worker=_NAME, incarnation=_COUNT, shard=_Below("shards"), shards=_POSITIVE),
    _Row(ms.Joined, pb.JoinReply, incarnation=_COUNT, number=_COUNT, lease=_Number(1e-3), global_step=_COUNT),
    _Row(ms.Renew, pb.RenewRequest, sender=_SENDER),
    _Row(ms.Renewed, pb.RenewReply, global_step=_COUNT),
    _Row(ms.Leave, pb.LeaveRequest, sender=_SENDER),
    _Row(ms.Left, pb.LeaveReply),
    _Row(ms.Register, pb.RegisterRequest, sender=_SENDER, declarations=_Many(_Declaration(), attrgetter("spec.name"))),
    _Row(ms.Registered, pb.RegisterReply, values=_VALUES, global_step=_COUNT),
    _Row(ms.Pull, pb.PullRequest, sender=_SENDER, names=_NAMES),
    _Row(ms.Pulled, pb.PullReply, values=_VALUES, global_step=_COUNT),
    _Row(
        ms.Push,
        pb.PushRequest,
        sender=_SENDER,
        sequence=_POSITIVE,
        gradients=_Many(_Value(ms.Gradient), attrgetter("name")),
        loss=_OPTIONAL,
        pull=_NAMES,
    ),
    _Row(
        ms.Pushed,
        pb.PushReply,
        outcome=_OUTCOME,
        staleness=_COUNT,
        global_step=_COUNT,
        values=_VALUES,
        reason=_ANY,
    ),
    _Row(
        ms.Assign,
        pb.AssignRequest,
        sender=_SENDER,
        sequence=_POSITIVE,
        assignments=_Many(_Assignment(), attrgetter("name")),
        add=_ANY,
    ),
    _Row(ms.Assigned, pb.AssignReply, outcome=_OUTCOME, versions=_Versions(), global_step=_COUNT),
    _Row(ms.Take, pb.TakeRequest, sender=_SENDER, queue=_QUEUE, finished=_FINISHED),
    _Row(ms.Taken, pb.TakeReply, block=_BLOCK, done=_ANY, waiting_for=_ANY, reports=_REPORTS),
    _Row(ms.Status, pb.StatusRequest),
    _Row(
        ms.StatusReport,
        pb.StatusReply,
        shard=_Below("shards"),
        shards=_POSITIVE,
        global_step=_COUNT,
        repeated=_COUNT,
        variables=_Many(_VariableStatus(), attrgetter("spec.name")),
        workers=_WORKERS,
        epochs=_REPORTS,
    ),
)
_BY_MESSAGE = {row.message: row for row in _MESSAGES}
_BY_PROTO = {row.proto: row for row in _MESSAGES}
_PIECES = {
    row.proto: field.name
    for row in _MESSAGES
    for field in pb.Frame.DESCRIPTOR.fields
    if field.message_type is row.proto.DESCRIPTOR
}
