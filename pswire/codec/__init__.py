"""Messages as protobuf and back: `encode` and `decode`, and at the end one table with a row for each message.

What comes from the network is checked here, as far as that needs no knowledge of the shard: each field by its kind
(`pswire.codec.fields`), tensors by their description; where their elements are is the lane's affair.
May import the pure half of pswire, fields, lanes and the generated code.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter

from google.protobuf.message import Message as Proto

from pswire import messages as ms
from pswire.codec.fields import (
    ANY,
    COUNT,
    HAVE,
    NAME,
    NAMES,
    NUMBERS,
    OPTIONAL,
    POSITIVE,
    SENDER,
    Row,
    below,
    choice,
    many,
    number,
    one,
    one_or_none,
)
from pswire.codec.structs import INITIAL, OPTIMIZER, OPTIMIZER_OR_NONE
from pswire.errors import InvalidMessage, Malformed
from pswire.specs.encodings import ENCODINGS
from pswire.tensors.compression import FORMS, PLACES, Packed
from pswire.tensors.frames import Incoming
from pswire.tensors.stream import StreamReceiver
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.tensors.values import DTYPES, Array, IndexedSlices, Part, TensorSpec
from pswire.v1 import paramserver_pb2 as pb


def encode(message: ms.Request | ms.Answer, sender: TensorSender) -> Proto:
    """The protobuf of `message`, whose arrays go to `sender`.

    Raises:
        InvalidMessage: a field has a value that the protocol has no room for, or an array a dtype that cannot travel.
        TooLarge: the lane does not carry so much.
    """
    proto = _BY_MESSAGE[type(message)].proto()
    _fill(proto, message, sender)
    return proto


def _fill(proto: Proto, message: ms.Request | ms.Answer, sender: TensorSender) -> None:
    try:
        _BY_MESSAGE[type(message)].put(message, proto, sender)
    except (ValueError, TypeError) as error:
        raise InvalidMessage(f"this {type(message).__name__} cannot be sent: {error}") from error


def decode(proto: Proto, receiver: TensorReceiver) -> ms.Request | ms.Answer:
    """The message of `proto`, with arrays from `receiver`. Raises `Malformed` and nothing else."""
    row = _BY_PROTO.get(type(proto))
    if row is None:
        raise Malformed(f"{type(proto).__name__} is neither a request nor an answer")
    message: ms.Request | ms.Answer = row.get(proto, receiver)
    return message


def to_frame(message: ms.Request | ms.Answer, sender: TensorSender) -> pb.Frame:
    """The first frame of a call, or of its answer, on a Transfer; raises as `encode` does."""
    frame = pb.Frame()
    proto: Proto = getattr(frame, _PIECES[_BY_MESSAGE[type(message)].proto])
    proto.SetInParent()
    _fill(proto, message, sender)
    return frame


def from_frame(frame: Incoming, receiver: StreamReceiver) -> ms.Request | ms.Answer:
    """The message that the first frame of a call, or of its answer, carries; arrays that follow are hollow at first.

    Raises `Malformed` and nothing else.
    """
    piece = frame.header.WhichOneof("piece")
    if piece is None:
        what = "nothing" if frame.chunk is None else "a chunk"
        raise Malformed(f"a call on a Transfer begins with a message, this one with {what}")
    message = decode(getattr(frame.header, piece), receiver)
    receiver.check_data()
    return message


# --- tensors, and what has one --------------------------------------------------------------------------------------

# By dtype and not by `dtype.name`, which numpy puts together anew each time, in 2 microseconds.
_DTYPE_NAMES = {kind: name for name, dtype in DTYPES.items() for kind in (dtype, dtype.newbyteorder(">"))}


def _put_array(name: str, array: Array | Packed, tensor: pb.Tensor, sender: TensorSender) -> None:
    dtype = _DTYPE_NAMES.get(array.dtype)
    if dtype is None:
        raise ValueError(f"variable {name!r} has the dtype {array.dtype}, which is none of {', '.join(DTYPES)}")
    tensor.name = name
    tensor.dtype = dtype
    tensor.shape.extend(array.shape)
    if isinstance(array, Packed):
        tensor.packing.form = array.form
        for part in array.parts:
            _put_array(name, part, tensor.packing.parts.add(), sender)
    else:
        sender.put(array, tensor)


def _get_array(tensor: pb.Tensor, spec: TensorSpec, receiver: TensorReceiver) -> Array | Packed:
    if not tensor.HasField("packing"):
        return receiver.get(tensor, spec)
    form, parts = FORMS.get(tensor.packing.form), tensor.packing.parts
    specs = tuple([_check_spec(spec.name, part.dtype, tuple(part.shape)) for part in parts])
    if form is None or spec.dtype != "float32" or not form.fits(spec.shape, specs):
        found = ", ".join(f"{part.dtype}{list(part.shape)}" for part in specs) or "none"
        raise Malformed(f"variable {spec} cannot be in the form {tensor.packing.form!r} with the parts {found}")
    arrays = [receiver.get(part, of, own=of.dtype in PLACES) for part, of in zip(parts, specs, strict=True)]
    return Packed(tensor.packing.form, spec.shape, tuple(arrays))


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
    def put(self, message: ms.Value, proto: pb.Value, sender: TensorSender) -> None:
        proto.version = message.version
        if message.array is None:
            proto.tensor.name = message.name
        else:
            _put_array(message.name, message.array, proto.tensor, sender)

    def get(self, proto: pb.Value, receiver: TensorReceiver) -> ms.Value:
        tensor, version = proto.tensor, COUNT.get(proto, "version", receiver)
        if not (tensor.WhichOneof("place") or tensor.HasField("packing")):
            return ms.Value(NAME.get(tensor, "name", receiver), version, None)
        spec = _get_spec(tensor)
        return ms.Value(spec.name, version, _get_array(tensor, spec, receiver))


class _Gradient:
    def put(self, message: ms.Gradient, proto: pb.Gradient, sender: TensorSender) -> None:
        proto.version = message.version
        array = message.array
        if isinstance(array, IndexedSlices):
            _put_array(message.name, array.values, proto.tensor, sender)
            _put_array(message.name, array.indices, proto.indices, sender)
            proto.rows = array.shape[0]
        else:
            _put_array(message.name, array, proto.tensor, sender)

    def get(self, proto: pb.Gradient, receiver: TensorReceiver) -> ms.Gradient:
        tensor = proto.tensor
        spec = _get_spec(tensor)
        version, array = COUNT.get(proto, "version", receiver), _get_array(tensor, spec, receiver)
        if not proto.HasField("indices"):
            return ms.Gradient(spec.name, version, array)
        indices_spec = _check_spec(spec.name, proto.indices.dtype, tuple(proto.indices.shape))
        indices = receiver.get(proto.indices, indices_spec, own=True)
        shape = (COUNT.get(proto, "rows", receiver), *spec.shape[1:])
        try:  # the indices may still have to come: who uses them looks at them
            rows = IndexedSlices(array, indices, shape, check_range=False)  # type: ignore[arg-type]
            return ms.Gradient(spec.name, version, rows)
        except (ValueError, TypeError) as error:
            raise Malformed(f"gradient for variable {spec.name!r}: {error}") from error


class _Assignment:
    def put(self, message: ms.Assignment, proto: pb.Tensor, sender: TensorSender) -> None:
        _put_array(message.name, message.array, proto, sender)

    def get(self, proto: pb.Tensor, receiver: TensorReceiver) -> ms.Assignment:
        return ms.Assignment(proto.name, receiver.get(proto, _get_spec(proto)))


class _Declaration:
    def put(self, message: ms.Declaration, proto: pb.Declaration, sender: TensorSender) -> None:
        OPTIMIZER_OR_NONE.put(message.optimizer, proto, "optimizer", sender)
        INITIAL.put(message.initial, proto, "initial", sender)
        _PART.put(message.part, proto, "part", sender)
        if message.value is None:
            _put_spec(message.spec, proto.tensor)
        else:
            _put_array(message.spec.name, message.value, proto.tensor, sender)

    def get(self, proto: pb.Declaration, receiver: TensorReceiver) -> ms.Declaration:
        spec = _get_spec(proto.tensor)
        value = receiver.get(proto.tensor, spec) if proto.tensor.WhichOneof("place") else None
        with _about(spec.name):
            initial, part = INITIAL.get(proto, "initial", receiver), _PART.get(proto, "part", receiver)
            optimizer = OPTIMIZER_OR_NONE.get(proto, "optimizer", receiver)
        return ms.Declaration(spec, value, optimizer, initial, _check_part(spec, part))


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Says which variable it is that something is wrong with."""
    try:
        yield
    except Malformed as error:
        raise Malformed(f"variable {name!r}: {error}") from error


class _Part:
    def put(self, message: Part, proto: pb.Part, sender: TensorSender) -> None:
        proto.first, proto.of = message.first, message.of

    def get(self, proto: pb.Part, receiver: TensorReceiver) -> Part:
        try:
            return Part(COUNT.get(proto, "first", receiver), COUNT.get(proto, "of", receiver))
        except ValueError as error:
            raise Malformed(str(error)) from error


_PART = one_or_none(_Part())


def _check_part(spec: TensorSpec, part: Part | None) -> Part | None:
    if part is not None and (not spec.shape or part.first + spec.shape[0] > part.of):
        raise Malformed(f"variable {spec} does not fit into {part.of} rows from row {part.first} on")
    return part


class _Choice:
    def put(self, message: ms.Choice, proto: pb.Choice, sender: TensorSender) -> None:
        proto.name, proto.slot = message.name, message.slot
        if message.rows is not None:
            _put_array(message.name, message.rows, proto.rows, sender)

    def get(self, proto: pb.Choice, receiver: TensorReceiver) -> ms.Choice:
        name = NAME.get(proto, "name", receiver)
        slot = NAME.get(proto, "slot", receiver) if proto.slot else ""
        if not proto.HasField("rows"):
            return ms.Choice(name, None, slot)
        spec = _check_spec(name, proto.rows.dtype, tuple(proto.rows.shape))
        if len(spec.shape) != 1 or DTYPES[spec.dtype].kind not in "iu":
            raise Malformed(f"numbers of rows of {name!r} must be integers of shape (n,), got {spec}")
        return ms.Choice(name, receiver.get(proto.rows, spec, own=True), slot)


_VARIABLE = Row(
    dict,
    pb.VariableStatus,
    version=COUNT,
    updates=COUNT,
    optimizer=OPTIMIZER_OR_NONE,
    slots=NAMES,
    nbytes=COUNT,
    part=_PART,
    table=ANY,
)


class _VariableStatus:
    def put(self, message: ms.VariableStatus, proto: pb.VariableStatus, sender: TensorSender) -> None:
        _VARIABLE.put(message, proto, sender)
        _put_spec(message.spec, proto.tensor)

    def get(self, proto: pb.VariableStatus, receiver: TensorReceiver) -> ms.VariableStatus:
        return ms.VariableStatus(_get_spec(proto.tensor), **_VARIABLE.get(proto, receiver))


# --- the messages ---------------------------------------------------------------------------------------------------

_OUTCOME = choice(
    {
        ms.Outcome.APPLIED: pb.OUTCOME_APPLIED,
        ms.Outcome.REPEATED: pb.OUTCOME_REPEATED,
        ms.Outcome.DROPPED: pb.OUTCOME_DROPPED,
    }
)
_WIRE = choice({form: form for form in ("", *ENCODINGS)})
_STATE = choice({state: state for state in ("live", "left", "lost")})
_DECLARATIONS = many(_Declaration(), attrgetter("spec.name"))
_VALUES = many(_Value(), attrgetter("name"))
_VALUES_AND_CHOICES = many(_Value())  # which may be several of one variable
_GRADIENTS = many(_Gradient(), attrgetter("name"))
_ASSIGNMENTS = many(_Assignment(), attrgetter("name"))
_QUEUE = one(Row(ms.QueueSpec, pb.Queue, name=NAME, size=POSITIVE, block=POSITIVE, epochs=POSITIVE, seed=ANY))
_BLOCK = one_or_none(Row(ms.Block, pb.Block, number=COUNT, epoch=POSITIVE, start=below("stop"), stop=POSITIVE))
_FINISHED = one_or_none(Row(ms.Finished, pb.Finished, number=COUNT, cost_sum=OPTIONAL))
_CHOICES = many(_Choice())
_DELIVERIES = many(
    Row(ms.ChangeId, pb.ChangeId, sender=SENDER, sequence=POSITIVE, shards=NUMBERS), attrgetter("sender.worker")
)
_FRONTIER = one_or_none(Row(ms.Frontier, pb.Frontier, decided=COUNT, undelivered=_DELIVERIES))
_ELSEWHERE = many(Row(ms.RemoteWeights, pb.RemoteWeights, name=NAME, served_at=COUNT), attrgetter("name"))
_GROUP = one_or_none(Row(ms.UpdateGroup, pb.UpdateGroup, number=COUNT, members=_DELIVERIES))
_LAST_PUSHES = many(Row(ms.LastPush, pb.LastPush, worker=NAME, incarnation=COUNT, sequence=COUNT, shards=NUMBERS))
_AGREED = {"places": many(Row(ms.Place, pb.Place, name=NAME, shard=COUNT)), "states": NUMBERS}
_REPORTS = many(Row(ms.EpochReport, pb.EpochReport, queue=NAME, epoch=POSITIVE, cost=OPTIONAL, examples=COUNT))
_VARIABLES = many(_VariableStatus(), attrgetter("spec.name"))
_STEPS = {"steps": COUNT, "staleness": COUNT, "staleness_sum": COUNT, "loss": OPTIONAL, "epoch": COUNT}
_WORKER = {"name": NAME, "incarnation": COUNT, "number": COUNT, "state": _STATE, "lease_left": ANY}
_WORKER |= {"dropped": COUNT, "waiting_for": ANY, "tensor_transport": ANY, "chief": ANY}
_TRAFFIC = one(Row(ms.Traffic, pb.Traffic, pushes=number(0), bytes_in=number(0), bytes_out=number(0)))
_STALENESS = one(Row(ms.Staleness, pb.Staleness, p50=COUNT, p99=COUNT))
_CHANGES = many(Row(ms.Change, pb.Change, global_step=COUNT, worker=NAME, names=NAMES, optimizer=OPTIMIZER))
_WORKERS = many(Row(ms.WorkerStatus, pb.WorkerStatus, **_WORKER, **_STEPS))
_PLACE = {"shard": below("shards"), "shards": POSITIVE}
_CHANGE = {"sender": SENDER, "sequence": POSITIVE}
_RESULT = {"outcome": _OUTCOME, "global_step": COUNT}

_MESSAGES = (
    Row(
        ms.Join,
        pb.JoinRequest,
        worker=NAME,
        incarnation=COUNT,
        **_PLACE,
        life=COUNT,
        tensor_transport=ANY,
        states=NUMBERS,
    ),
    Row(
        ms.Joined,
        pb.JoinReply,
        incarnation=COUNT,
        number=COUNT,
        lease=number(1e-3),
        global_step=COUNT,
        consistency=ANY,
        staleness=ANY,
        chief=ANY,
        state=COUNT,
    ),
    Row(ms.Renew, pb.RenewRequest, sender=SENDER, idle=ANY, tensor_transport=ANY, settled=COUNT, half_pushes=COUNT),
    Row(ms.Renewed, pb.RenewReply, global_step=COUNT, waiting_for=ANY, chief=ANY),
    Row(ms.Leave, pb.LeaveRequest, sender=SENDER, failed=ANY),
    Row(ms.Left, pb.LeaveReply),
    Row(ms.Register, pb.RegisterRequest, sender=SENDER, declarations=_DECLARATIONS, **_AGREED, dry_run=ANY),
    Row(ms.Registered, pb.RegisterReply, values=_VALUES, global_step=COUNT, frontier=_FRONTIER),
    Row(
        ms.Pull,
        pb.PullRequest,
        sender=SENDER,
        names=NAMES,
        choices=_CHOICES,
        known_versions=HAVE,
        encoding=_WIRE,
        after=_DELIVERIES,
    ),
    Row(ms.Pulled, pb.PullReply, values=_VALUES_AND_CHOICES, global_step=COUNT, frontier=_FRONTIER),
    Row(
        ms.Push,
        pb.PushRequest,
        **_CHANGE,
        gradients=_GRADIENTS,
        loss=OPTIONAL,
        pull=NAMES,
        group=_GROUP,
        known_versions=HAVE,
        encoding=_WIRE,
        shards=NUMBERS,
        remote=_ELSEWHERE,
        after=_DELIVERIES,
        global_step=COUNT,
    ),
    Row(
        ms.Pushed,
        pb.PushReply,
        **_RESULT,
        staleness=COUNT,
        values=_VALUES,
        reason=ANY,
        group=_GROUP,
        frontier=_FRONTIER,
    ),
    Row(
        ms.Assign,
        pb.AssignRequest,
        **_CHANGE,
        assignments=_ASSIGNMENTS,
        add=ANY,
        shards=NUMBERS,
        remote=NAMES,
        after=_DELIVERIES,
    ),
    Row(ms.Assigned, pb.AssignReply, **_RESULT, versions=NUMBERS, frontier=_FRONTIER),
    Row(ms.Tune, pb.TuneRequest, **_CHANGE, names=NAMES, optimizer=OPTIMIZER, fields=NAMES),
    Row(ms.Tuned, pb.TuneReply, **_RESULT),
    Row(ms.Take, pb.TakeRequest, sender=SENDER, queue=_QUEUE, finished=_FINISHED, heard=COUNT, give_back=ANY),
    Row(ms.Taken, pb.TakeReply, block=_BLOCK, done=ANY, waiting_for=ANY, reports=_REPORTS, chief=ANY),
    Row(ms.Status, pb.StatusRequest),
    Row(
        ms.StatusReport,
        pb.StatusReply,
        **_PLACE,
        global_step=COUNT,
        repeated=COUNT,
        variables=_VARIABLES,
        workers=_WORKERS,
        epochs=_REPORTS,
        dropped=COUNT,
        nbytes=COUNT,
        consistency=ANY,
        handling=ANY,
        traffic=_TRAFFIC,
        staleness=_STALENESS,
        changes=_CHANGES,
        half_pushes=COUNT,
        last_pushes=_LAST_PUSHES,
    ),
)

_BY_MESSAGE = {row.message: row for row in _MESSAGES}
_BY_PROTO = {row.proto: row for row in _MESSAGES}
_PIECES = {
    row.proto: piece.name
    for row in _MESSAGES
    for piece in pb.Frame.DESCRIPTOR.fields
    if piece.message_type is row.proto.DESCRIPTOR
}
