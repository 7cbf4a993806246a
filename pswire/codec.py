"""Messages as protobuf and back, the two directions side by side.

What comes from the network is checked here, field by field, as far as that needs no knowledge of the shard; where
the elements of tensors are is the lane's affair. May import the pure half of pswire, lanes and the generated code.

Messages without tensors are rows of the table `_PLAIN`, since both sides name their fields alike. Those with tensors
have a pair of functions each, because every step of training passes through them, and a row in `_WITH_TENSORS`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message as Proto

from pswire import lanes
from pswire import messages as ms
from pswire.errors import InvalidMessage, Malformed
from pswire.specs import OptimizerSpec, from_plain, to_plain
from pswire.v1 import paramserver_pb2 as pb
from pswire.values import DTYPES, MAX_NAME_LENGTH, Array, TensorSpec

_Versioned = TypeVar("_Versioned", ms.Value, ms.Gradient)


def encode(message: ms.Request | ms.Answer, lane: lanes.Sender) -> Proto:
    """The protobuf of `message`, whose arrays go to `lane`.

    Raises:
        InvalidMessage: a field has a value that the protocol has no room for, or an array a dtype that cannot travel.
        TooLarge: the lane does not carry so much.
    """
    try:
        return _ENCODERS[type(message)](message, lane)
    except (ValueError, TypeError) as error:
        raise InvalidMessage(f"this {type(message).__name__} cannot be sent: {error}") from error


def decode(proto: Proto, lane: lanes.Receiver) -> ms.Request | ms.Answer:
    """The message of `proto`, with arrays from `lane`. Raises `Malformed` and nothing else."""
    decoder = _DECODERS.get(type(proto))
    if decoder is None:
        raise Malformed(f"{type(proto).__name__} is neither a request nor an answer")
    return decoder(proto, lane)


def to_frame(proto: Proto) -> pb.Frame:
    """The first frame of a Transfer of `proto`, one of the messages that may carry tensors."""
    return pb.Frame(**{_PIECES[type(proto)]: proto})


def from_frame(frame: pb.Frame) -> Proto:
    """What the first frame of a Transfer carries. Raises `Malformed`."""
    piece = frame.WhichOneof("piece")
    if piece is None or piece == "chunk":
        raise Malformed(f"a Transfer begins with a message, this one with {piece and 'a chunk' or 'nothing'}")
    proto: Proto = getattr(frame, piece)
    return proto


# --- the fields of a message ----------------------------------------------------------------------------------------


def _number(proto: Any, field: str, low: int = 0) -> int:
    number: int = getattr(proto, field)
    if number < low:
        raise Malformed(f"{type(proto).__name__}.{field} must be at least {low}, got {number}")
    return number


def _seconds(proto: Any, field: str) -> float:
    number: float = getattr(proto, field)
    if not 0 < number < math.inf:
        raise Malformed(f"{type(proto).__name__}.{field} must be a time in seconds, got {number}")
    return number


def _optional(proto: Any, field: str) -> float | None:
    return getattr(proto, field) if proto.HasField(field) else None


@functools.lru_cache(4096)
def _check_name(text: str) -> str:
    if not text or len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise Malformed(f"a name has 1 to {MAX_NAME_LENGTH} printable characters, got {text!r}")
    return text


def _name(proto: Any, field: str) -> str:
    return _check_name(getattr(proto, field))


def _names(proto: Any, field: str) -> tuple[str, ...]:
    return _distinct(tuple([_check_name(text) for text in getattr(proto, field)]))


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Malformed(f"variable {name!r} is in the message more than once")
        seen.add(name)
    return names


def _numbers(proto: Any, field: str) -> tuple[int, ...]:
    numbers = tuple(getattr(proto, field))
    if min(numbers, default=0) < 0:
        raise Malformed(f"{type(proto).__name__}.{field} must be at least 0, got {min(numbers)}")
    return numbers


_OUTCOMES = {
    ms.Outcome.APPLIED: pb.OUTCOME_APPLIED,
    ms.Outcome.REPEATED: pb.OUTCOME_REPEATED,
    ms.Outcome.DROPPED: pb.OUTCOME_DROPPED,
}
_OUTCOMES_BACK = {number: outcome for outcome, number in _OUTCOMES.items()}


def _outcome(proto: Any, field: str) -> ms.Outcome:
    outcome = _OUTCOMES_BACK.get(getattr(proto, field))
    if outcome is None:
        raise Malformed(f"{type(proto).__name__}.{field}: there is no outcome {getattr(proto, field)}")
    return outcome


def _state(proto: Any, field: str) -> str:
    state: str = getattr(proto, field)
    if state not in ("live", "left", "lost"):
        raise Malformed(f"{type(proto).__name__}.{field} must be live, left or lost, got {state!r}")
    return state


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


# --- messages without tensors ---------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """A kind of field: its value as protobuf takes it, and the checked value of a protobuf's field of some name."""

    put: Callable[[Any], Any]
    get: Callable[[Any, str], Any]


def _scalar(get: Callable[[Any, str], Any]) -> _Kind:
    return _Kind(lambda value: value, get)


def _one(kind: type) -> _Kind:
    return _Kind(_put_plain, lambda proto, field: _get_plain(getattr(proto, field), kind))


def _one_or_none(kind: type) -> _Kind:
    return _Kind(
        lambda value: None if value is None else _put_plain(value),
        lambda proto, field: _get_plain(getattr(proto, field), kind) if proto.HasField(field) else None,
    )


def _many(kind: type) -> _Kind:
    return _Kind(
        lambda values: [_put_plain(value) for value in values],
        lambda proto, field: tuple([_get_plain(item, kind) for item in getattr(proto, field)]),
    )


def _put_variable(variable: ms.VariableStatus) -> pb.VariableStatus:
    proto = pb.VariableStatus(version=variable.version, updates=variable.updates)
    _put_spec(variable.spec, proto.tensor)
    _put_optimizer(variable.optimizer, proto)
    return proto


def _get_variable(proto: pb.VariableStatus) -> ms.VariableStatus:
    version, updates = _number(proto, "version"), _number(proto, "updates")
    return ms.VariableStatus(_get_spec(proto.tensor), version, updates, _get_optimizer(proto))


_ANY, _NAME, _COUNT, _POSITIVE = _scalar(getattr), _scalar(_name), _scalar(_number), _scalar(functools.partial(_number, low=1))
_OPTIONAL, _SENDER = _scalar(_optional), _one(ms.Sender)
_VARIABLES = _Kind(
    lambda variables: [_put_variable(variable) for variable in variables],
    lambda proto, field: tuple([_get_variable(item) for item in getattr(proto, field)]),
)

_PLAIN: dict[type, tuple[type[Proto], dict[str, _Kind]]] = {
    ms.Sender: (pb.Sender, {"worker": _NAME, "incarnation": _COUNT}),
    ms.Join: (pb.JoinRequest, {"worker": _NAME, "incarnation": _COUNT, "shard": _COUNT, "shards": _POSITIVE}),
    ms.Joined: (
        pb.JoinReply,
        {"incarnation": _COUNT, "number": _COUNT, "lease": _scalar(_seconds), "global_step": _COUNT},
    ),
    ms.Renew: (pb.RenewRequest, {"sender": _SENDER}),
    ms.Renewed: (pb.RenewReply, {"global_step": _COUNT}),
    ms.Leave: (pb.LeaveRequest, {"sender": _SENDER}),
    ms.Left: (pb.LeaveReply, {}),
    ms.Pull: (pb.PullRequest, {"sender": _SENDER, "names": _scalar(_names)}),
    ms.Assigned: (
        pb.AssignReply,
        {"outcome": _Kind(_OUTCOMES.__getitem__, _outcome), "versions": _scalar(_numbers), "global_step": _COUNT},
    ),
    ms.QueueSpec: (
        pb.Queue,
        {"name": _NAME, "size": _POSITIVE, "block": _POSITIVE, "epochs": _POSITIVE, "seed": _ANY},
    ),
    ms.Block: (pb.Block, {"number": _COUNT, "epoch": _POSITIVE, "start": _COUNT, "stop": _COUNT}),
    ms.Finished: (pb.Finished, {"number": _COUNT, "cost_sum": _OPTIONAL}),
    ms.Take: (
        pb.TakeRequest,
        {"sender": _SENDER, "queue": _one(ms.QueueSpec), "finished": _one_or_none(ms.Finished)},
    ),
    ms.EpochReport: (pb.EpochReport, {"queue": _NAME, "epoch": _POSITIVE, "cost": _OPTIONAL, "examples": _COUNT}),
    ms.Taken: (
        pb.TakeReply,
        {"block": _one_or_none(ms.Block), "done": _ANY, "waiting_for": _ANY, "reports": _many(ms.EpochReport)},
    ),
    ms.Status: (pb.StatusRequest, {}),
    ms.WorkerStatus: (
        pb.WorkerStatus,
        {
            "name": _NAME,
            "incarnation": _COUNT,
            "number": _COUNT,
            "state": _scalar(_state),
            "steps": _COUNT,
            "staleness": _COUNT,
            "staleness_sum": _COUNT,
            "loss": _OPTIONAL,
            "epoch": _COUNT,
            "lease_left": _ANY,
        },
    ),
    ms.StatusReport: (
        pb.StatusReply,
        {
            "shard": _COUNT,
            "shards": _POSITIVE,
            "global_step": _COUNT,
            "repeated": _COUNT,
            "variables": _VARIABLES,
            "workers": _many(ms.WorkerStatus),
            "epochs": _many(ms.EpochReport),
        },
    ),
}


def _put_plain(message: Any, lane: lanes.Sender | None = None) -> Any:
    proto, fields = _PLAIN[type(message)]
    return proto(**{field: kind.put(getattr(message, field)) for field, kind in fields.items()})


def _get_plain(proto: Any, kind: type) -> Any:
    message = kind(**{field: reads.get(proto, field) for field, reads in _PLAIN[kind][1].items()})
    match message:
        case ms.Join() | ms.StatusReport() if message.shard >= message.shards:
            raise Malformed(f"there is no shard {message.shard} of {message.shards}: they are counted from 0")
        case ms.Block() if message.start > message.stop:
            raise Malformed(f"block {message.number} begins at {message.start} and stops before, at {message.stop}")
    return message


# --- messages with tensors ------------------------------------------------------------------------------------------

# By dtype and not by `dtype.name`, which numpy puts together anew each time, in 2 microseconds.
_DTYPE_NAMES = {kind: name for name, dtype in DTYPES.items() for kind in (dtype, dtype.newbyteorder(">"))}


def _put_tensor(name: str, array: Array, tensor: pb.Tensor, lane: lanes.Sender) -> None:
    dtype = _DTYPE_NAMES.get(array.dtype)
    if dtype is None:
        raise ValueError(f"variable {name!r} has the dtype {array.dtype}, which is none of {', '.join(DTYPES)}")
    tensor.name = name
    tensor.dtype = dtype
    tensor.shape.extend(array.shape)
    lane.put(array, tensor)


def _put_spec(spec: TensorSpec, tensor: pb.Tensor) -> None:
    tensor.name, tensor.dtype = spec.name, spec.dtype
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


def _put_value(value: ms.Value | ms.Gradient, proto: pb.Value, lane: lanes.Sender) -> None:
    proto.version = value.version
    _put_tensor(value.name, value.array, proto.tensor, lane)


def _get_values(kind: type[_Versioned], protos: Iterable[pb.Value], lane: lanes.Receiver) -> tuple[_Versioned, ...]:
    values = []
    for proto in protos:
        tensor = proto.tensor
        spec = _get_spec(tensor)
        values.append(kind(spec.name, _number(proto, "version"), lane.get(tensor, spec)))
    _distinct(tuple([value.name for value in values]))
    return tuple(values)


def _put_sender(sender: ms.Sender, proto: pb.Sender) -> None:
    proto.worker = sender.worker
    proto.incarnation = sender.incarnation


def _get_sender(proto: pb.Sender) -> ms.Sender:
    return ms.Sender(_name(proto, "worker"), _number(proto, "incarnation"))


def _put_register(message: ms.Register, lane: lanes.Sender) -> pb.RegisterRequest:
    proto = pb.RegisterRequest()
    _put_sender(message.sender, proto.sender)
    for declaration in message.declarations:
        item = proto.declarations.add()
        _put_optimizer(declaration.optimizer, item)
        if declaration.value is None:
            _put_spec(declaration.spec, item.tensor)
        else:
            _put_tensor(declaration.spec.name, declaration.value, item.tensor, lane)
    return proto


def _get_register(proto: pb.RegisterRequest, lane: lanes.Receiver) -> ms.Register:
    declarations = []
    for item in proto.declarations:
        spec = _get_spec(item.tensor)
        value = lane.get(item.tensor, spec) if item.tensor.WhichOneof("place") else None
        declarations.append(ms.Declaration(spec, value, _get_optimizer(item)))
    _distinct(tuple([declaration.spec.name for declaration in declarations]))
    return ms.Register(_get_sender(proto.sender), tuple(declarations))


def _put_registered(message: ms.Registered, lane: lanes.Sender) -> pb.RegisterReply:
    proto = pb.RegisterReply(global_step=message.global_step)
    for value in message.values:
        _put_value(value, proto.values.add(), lane)
    return proto


def _get_registered(proto: pb.RegisterReply, lane: lanes.Receiver) -> ms.Registered:
    return ms.Registered(_get_values(ms.Value, proto.values, lane), _number(proto, "global_step"))


def _put_pulled(message: ms.Pulled, lane: lanes.Sender) -> pb.PullReply:
    proto = pb.PullReply(global_step=message.global_step)
    for value in message.values:
        _put_value(value, proto.values.add(), lane)
    return proto


def _get_pulled(proto: pb.PullReply, lane: lanes.Receiver) -> ms.Pulled:
    return ms.Pulled(_get_values(ms.Value, proto.values, lane), _number(proto, "global_step"))


def _put_push(message: ms.Push, lane: lanes.Sender) -> pb.PushRequest:
    proto = pb.PushRequest(sequence=message.sequence, loss=message.loss, pull=message.pull)
    _put_sender(message.sender, proto.sender)
    for gradient in message.gradients:
        _put_value(gradient, proto.gradients.add(), lane)
    return proto


def _get_push(proto: pb.PushRequest, lane: lanes.Receiver) -> ms.Push:
    sender, sequence = _get_sender(proto.sender), _number(proto, "sequence", low=1)
    gradients = _get_values(ms.Gradient, proto.gradients, lane)
    return ms.Push(sender, sequence, gradients, _optional(proto, "loss"), _names(proto, "pull"))


def _put_pushed(message: ms.Pushed, lane: lanes.Sender) -> pb.PushReply:
    proto = pb.PushReply(outcome=_OUTCOMES[message.outcome], staleness=message.staleness, reason=message.reason)
    proto.global_step = message.global_step
    for value in message.values:
        _put_value(value, proto.values.add(), lane)
    return proto


def _get_pushed(proto: pb.PushReply, lane: lanes.Receiver) -> ms.Pushed:
    outcome, staleness = _outcome(proto, "outcome"), _number(proto, "staleness")
    values = _get_values(ms.Value, proto.values, lane)
    return ms.Pushed(outcome, staleness, _number(proto, "global_step"), values, proto.reason)


def _put_assign(message: ms.Assign, lane: lanes.Sender) -> pb.AssignRequest:
    proto = pb.AssignRequest(sequence=message.sequence, add=message.add)
    _put_sender(message.sender, proto.sender)
    for assignment in message.assignments:
        _put_tensor(assignment.name, assignment.array, proto.assignments.add(), lane)
    return proto


def _get_assign(proto: pb.AssignRequest, lane: lanes.Receiver) -> ms.Assign:
    sender, sequence = _get_sender(proto.sender), _number(proto, "sequence", low=1)
    assignments = tuple([ms.Assignment(item.name, lane.get(item, _get_spec(item))) for item in proto.assignments])
    _distinct(tuple([assignment.name for assignment in assignments]))
    return ms.Assign(sender, sequence, assignments, proto.add)


# --- the tables -----------------------------------------------------------------------------------------------------

_WITH_TENSORS: tuple[tuple[type, type[Proto], Callable[..., Any], Callable[..., Any]], ...] = (
    (ms.Register, pb.RegisterRequest, _put_register, _get_register),
    (ms.Registered, pb.RegisterReply, _put_registered, _get_registered),
    (ms.Pulled, pb.PullReply, _put_pulled, _get_pulled),
    (ms.Push, pb.PushRequest, _put_push, _get_push),
    (ms.Pushed, pb.PushReply, _put_pushed, _get_pushed),
    (ms.Assign, pb.AssignRequest, _put_assign, _get_assign),
)
