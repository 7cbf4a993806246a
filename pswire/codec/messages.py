"""Messages as protobuf and back: `encode` and `decode`, and at the end a table with one row for each message.

Everything from the network that can be checked without the shard is checked here: fields by their kind
(`pswire.codec.fields`), tensors by their description (`pswire.codec.tensors`); a tensor transport moves the elements.
"""

import dataclasses
from operator import attrgetter
from typing import Any, get_args

from google.protobuf.message import Message as Proto

from pswire import messages as ms
from pswire.codec.fields import (
    ANY,
    KINDS,
    KNOWN_VERSIONS,
    LABEL,
    NAME,
    NAME_OR_NONE,
    NOTE,
    POSITIVE,
    RANDOM,
    RANDOMS,
    RESULTS,
    SENDER,
    TEXT,
    Field,
    Row,
    below,
    choice,
    integer,
    many,
    number,
    numbers,
    one,
    text,
)
from pswire.codec.tensors import VALUES_AND_CHOICES
from pswire.errors import InvalidMessage, Malformed, TooLarge
from pswire.limits import (
    MAX_BLOCK,
    MAX_ENTRIES,
    MAX_HELD_PORTIONS,
    MAX_OPERATIONS,
    MAX_RESULT_LENGTH,
    MAX_SMALL_REQUEST,
)
from pswire.specs.encodings import ENCODINGS
from pswire.specs.vectors import Operation, check_operation
from pswire.tensors import wire
from pswire.tensors.frames import Incoming
from pswire.tensors.stream import StreamReceiver
from pswire.tensors.transport import InlineReceiver, TensorReceiver, TensorSender
from pswire.v1 import paramserver_pb2 as pb


def encode(message: ms.Request | ms.Answer, sender: TensorSender) -> Proto:
    """The protobuf of `message`, whose arrays go to `sender`.

    Raises:
        InvalidMessage: a field has a value, or an array a dtype, that the protocol does not have.
        TooLarge: more than the sender's tensor transport carries.
    """
    return fill(_BY_MESSAGE[type(message)].proto(), message, sender)


def fill(proto: Proto, message: ms.Request | ms.Answer, sender: TensorSender) -> Proto:
    """Writes `message` into an empty protobuf of its kind, and returns that; raises as `encode` does."""
    try:
        _BY_MESSAGE[type(message)].put(message, proto, sender)
    except (ValueError, TypeError) as error:
        raise InvalidMessage(f"this {type(message).__name__} cannot be sent: {error}") from error
    return proto


def decode(proto: Proto, receiver: TensorReceiver) -> ms.Request | ms.Answer:
    """The message of `proto`, with arrays from `receiver`. Raises `Malformed` and nothing else."""
    row = _BY_PROTO.get(type(proto))
    if row is None:
        raise Malformed(f"{type(proto).__name__} is neither a request nor an answer")
    message: ms.Request | ms.Answer = row.get(proto, receiver)
    return message


def check_size(kind: type[Proto], nbytes: int) -> None:
    """Raises `TooLarge` for a request of so many bytes if its kind has no lists of variables; before it is parsed."""
    if nbytes > MAX_SMALL_REQUEST and kind in _SMALL:
        raise TooLarge(f"{kind.__name__} has {MAX_SMALL_REQUEST:,} bytes at most, got {nbytes:,}")


def parse(proto: Proto, data: bytes) -> None:
    """Parses a request or answer into an empty `proto`; call it in a thread if it is large (`pswire.tensors.wire`).

    Raises `Malformed` for bytes that are no such message, and for a large one with a list that exceeds its limit.
    """
    row = _BY_PROTO.get(type(proto))
    wire.parse(proto, data, {} if row is None else row.limits)


def sender_of(proto: Any) -> ms.Sender | None:  # noqa: ANN401 - a request
    """The member that sends a request; None if its kind needs no membership. Raises `Malformed` if it is no request."""
    if type(proto) in _OF_MEMBERS:
        sender: ms.Sender = SENDER.get(proto.sender, _NO_TENSORS)
        return sender
    row = _BY_PROTO.get(type(proto))
    if row is None or row.message not in ms.ANSWERS:
        name = type(proto).__name__ if row is None else row.message.__name__
        raise Malformed(f"{name} is an answer, not a request")
    return None


def count_entries(proto: Proto) -> int:
    """The number of entries of all lists of a request or answer."""
    return sum([len(getattr(proto, name)) for name in _BY_PROTO[type(proto)].limits])


def is_of(proto: Any, sender: ms.Sender) -> bool:  # noqa: ANN401 - a request
    """Whether a request is of this member; without making anything of it, since each push is asked."""
    if type(proto) not in _OF_MEMBERS:
        return False
    named = proto.sender
    return bool(named.incarnation == sender.incarnation and named.worker == sender.worker)


def to_frame(message: ms.Request | ms.Answer, sender: TensorSender) -> pb.Frame:
    """The first frame of a call, or of its answer, on a Transfer; raises as `encode` does."""
    frame = pb.Frame()
    proto: Proto = getattr(frame, _PIECES[_BY_MESSAGE[type(message)].proto.DESCRIPTOR])
    proto.SetInParent()
    fill(proto, message, sender)
    return frame


def from_frame(frame: Incoming, receiver: StreamReceiver) -> ms.Request | ms.Answer:
    """The message in the first frame of a call or its answer, or `Malformed`; arrays in chunks have no memory yet."""
    message = decode(request_of(frame), receiver)
    receiver.check_data()
    return message


def request_of(frame: Incoming) -> Proto:
    """The protobuf in the first frame of a call or its answer. Raises `Malformed`."""
    piece = frame.header.WhichOneof("piece")
    if piece is None:
        what = "nothing" if frame.chunk is None else "a chunk"
        raise Malformed(f"a call on a Transfer begins with a message, this one with {what}")
    proto: Proto = getattr(frame.header, piece)
    return proto


# --- the messages ---------------------------------------------------------------------------------------------------
# A field is of the kind of its type in protobuf (`pswire.codec.fields`), unless its row says otherwise.

#: The outcome of a push, and the state of a worker.
OUTCOME = choice({outcome: pb.Outcome.Value(f"OUTCOME_{outcome.name}") for outcome in ms.Outcome})
_ENCODING = choice({form: form for form in ("", *ENCODINGS)})
STATE = choice({state: state for state in ("live", "left", "lost")})
_JOB_STATE = choice({state: state for state in ("running", "done", "ended", "interrupted", "empty")})
#: Numbers of portions, and those of the few that a worker holds; the result of a minimization.
_PORTIONS, _HELD = numbers(0, MAX_ENTRIES), numbers(0, MAX_HELD_PORTIONS)
RESULT = text(MAX_RESULT_LENGTH)


def _changes() -> Field:
    """Changes, of which shards take part `MAX_ENTRIES` times at most, over all of them."""
    kind = many(Row(ms.ChangeId, pb.ChangeId, sequence=POSITIVE), attrgetter("sender.worker"))

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> object:
        changes = getattr(proto, name)
        if changes and (count := sum([len(change.shards) for change in changes])) > MAX_ENTRIES:
            raise Malformed(f"{type(proto).__name__}.{name} has {MAX_ENTRIES:,} shards at most, got {count:,}")
        return kind.get(proto, name, receiver)

    return kind._replace(get=get)


class _Operation:
    """An operation with vectors: its texts and numbers in their order, those that its kind has."""

    def put(self, message: Operation, proto: pb.Operation, sender: TensorSender) -> None:
        proto.kind = type(message).__name__
        texts = iter(("vector", "source", "other"))
        for field in dataclasses.fields(message):
            value = getattr(message, field.name)
            setattr(proto, "number" if isinstance(value, float | int) else next(texts), value)

    def get(self, proto: pb.Operation, receiver: TensorReceiver) -> Operation:
        kind = _OPERATIONS.get(proto.kind)
        if kind is None:
            raise Malformed(f"Operation.kind cannot be {proto.kind!r:.50}")
        texts = iter([LABEL.get(proto, name, receiver) for name in ("vector", "source", "other")])
        try:
            fields = [proto.number if field.type is float else next(texts) for field in dataclasses.fields(kind)]
            operation: Operation = kind(*fields)
            check_operation(operation)
        except ValueError as error:
            raise Malformed(str(error)) from error
        return operation


_OPERATIONS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Operation)}
KINDS[pb.Operation] = many(_Operation(), limit=MAX_OPERATIONS)

KINDS[pb.ChangeId] = _changes()
KINDS[pb.Job] = one(Row(ms.Job, pb.Job, name=NAME_OR_NONE))
KINDS |= {
    pb.Frontier: one(Row(ms.Frontier, pb.Frontier), optional=True),
    pb.UpdateGroup: one(Row(ms.UpdateGroup, pb.UpdateGroup), optional=True),
    pb.RemoteWeights: many(Row(ms.RemoteWeights, pb.RemoteWeights, name=NAME), attrgetter("name"), MAX_ENTRIES),
    pb.Place: many(Row(ms.Place, pb.Place, name=NAME), limit=MAX_ENTRIES),
    pb.Queue: one(Row(ms.QueueSpec, pb.Queue, name=NAME, block=integer(1, MAX_BLOCK), seed=ANY)),
    pb.Block: one(Row(ms.Block, pb.Block, epoch=POSITIVE, start=below("stop"), stop=POSITIVE), optional=True),
    pb.Finished: one(Row(ms.Finished, pb.Finished), optional=True),
    pb.Progress: many(Row(ms.Progress, pb.Progress, queue=NAME, position=POSITIVE), attrgetter("queue")),
    pb.Evaluation: one(
        Row(ms.Evaluation, pb.Evaluation, number=POSITIVE, examples=POSITIVE, portion=POSITIVE), optional=True
    ),
    pb.AcceptedPoint: one(Row(ms.AcceptedPoint, pb.AcceptedPoint, loss=ANY, gradient=ANY, step=ANY), optional=True),
    pb.Portion: one(Row(ms.Portion, pb.Portion, start=below("stop"), stop=POSITIVE), optional=True),
    pb.CountedPortions: one(
        Row(ms.CountedPortions, pb.CountedPortions, name=NAME, evaluation=POSITIVE, numbers=_PORTIONS), optional=True
    ),
    pb.EpochReport: many(Row(ms.EpochReport, pb.EpochReport, queue=NAME, epoch=POSITIVE)),
    pb.WorkerStatus: many(
        Row(ms.WorkerStatus, pb.WorkerStatus, name=NAME, state=STATE, lease_left=ANY, gradient=ANY, gradient_mean=ANY)
    ),
    pb.Totals: one(Row(ms.Totals, pb.Totals)),
    pb.Traffic: one(Row(ms.Traffic, pb.Traffic)),
    pb.Staleness: one(Row(ms.Staleness, pb.Staleness)),
    pb.StalenessCount: many(Row(ms.StalenessCount, pb.StalenessCount)),
    pb.EventReport: many(Row(ms.EventReport, pb.EventReport)),
    pb.WorkerStaleness: many(Row(ms.WorkerStaleness, pb.WorkerStaleness, worker=NAME)),
    pb.Change: many(Row(ms.Change, pb.Change, worker=NAME)),
    pb.StorageStatus: one(Row(ms.StorageStatus, pb.StorageStatus)),
    pb.LastPush: many(Row(ms.LastPush, pb.LastPush, worker=NAME)),
    pb.JobReport: many(Row(ms.JobReport, pb.JobReport, state=_JOB_STATE)),
}
KINDS[pb.StalenessMatrix] = one(Row(ms.StalenessMatrix, pb.StalenessMatrix))
KINDS[pb.StatusDetail] = one(Row(ms.StatusDetail, pb.StatusDetail), optional=True)
KINDS[pb.MinimizationStatus] = many(
    Row(ms.MinimizationStatus, pb.MinimizationStatus, name=NAME, end=RESULT), attrgetter("name")
)
KINDS[pb.QueueStatus] = many(Row(ms.QueueStatus, pb.QueueStatus, epoch=POSITIVE), attrgetter("spec.name"))

_MESSAGES = (
    Row(
        ms.Join,
        pb.JoinRequest,
        worker=NAME,
        shard=below("shards"),
        shards=POSITIVE,
        process_nonce=RANDOM,
        tensor_transport=LABEL,
        states=RANDOMS,
        program=NAME_OR_NONE,
    ),
    Row(ms.Joined, pb.JoinReply, lease=number(1e-3), state=RANDOM),
    Row(ms.Renew, pb.RenewRequest, tensor_transport=LABEL),
    Row(ms.Renewed, pb.RenewReply),
    Row(ms.Leave, pb.LeaveRequest),
    Row(ms.Left, pb.LeaveReply),
    Row(ms.Barrier, pb.BarrierRequest, number=POSITIVE),
    Row(ms.Passed, pb.BarrierReply),
    Row(ms.Stop, pb.StopRequest, reason=TEXT),
    Row(ms.Stopped, pb.StopReply),
    Row(ms.Reset, pb.ResetRequest, number=POSITIVE),
    Row(ms.Emptied, pb.ResetReply),
    Row(ms.Intervene, pb.InterveneRequest, by=NAME, reason=TEXT, scale_learning_rate=number(0)),
    Row(ms.Intervened, pb.InterveneReply),
    Row(ms.Register, pb.RegisterRequest, states=RANDOMS),
    Row(ms.Registered, pb.RegisterReply),
    Row(ms.Pull, pb.PullRequest, known_versions=KNOWN_VERSIONS, encoding=_ENCODING),
    Row(ms.Pulled, pb.PullReply, values=VALUES_AND_CHOICES),
    Row(ms.Push, pb.PushRequest, sequence=POSITIVE, known_versions=KNOWN_VERSIONS, encoding=_ENCODING),
    Row(ms.Pushed, pb.PushReply, outcome=OUTCOME),
    Row(ms.Assign, pb.AssignRequest, sequence=POSITIVE),
    Row(ms.Assigned, pb.AssignReply, outcome=OUTCOME, versions=numbers(0, MAX_ENTRIES)),
    Row(ms.Tune, pb.TuneRequest, sequence=POSITIVE),
    Row(ms.Tuned, pb.TuneReply, outcome=OUTCOME),
    Row(ms.Compute, pb.ComputeRequest, sequence=POSITIVE, minimization=NAME_OR_NONE, note=NOTE),
    Row(ms.Computed, pb.ComputeReply, outcome=OUTCOME, results=RESULTS, note=NOTE),
    Row(ms.Take, pb.TakeRequest),
    Row(ms.Taken, pb.TakeReply),
    Row(ms.Evaluate, pb.EvaluateRequest, name=NAME, end=RESULT),
    Row(ms.Evaluated, pb.EvaluateReply, end=RESULT),
    Row(ms.TakePortion, pb.TakePortionRequest, name=NAME, holding=_HELD, withdrawn=_PORTIONS),
    Row(ms.PortionTaken, pb.TakePortionReply, stop=_HELD, end=RESULT),
    Row(ms.ClaimPortion, pb.ClaimPortionRequest, name=NAME, evaluation=POSITIVE, loss=ANY),
    Row(ms.PortionClaimed, pb.ClaimPortionReply),
    Row(ms.Cut, pb.CutRequest, holder=one(SENDER, optional=True)),
    Row(ms.CutReport, pb.CutReply),
    Row(ms.Restore, pb.RestoreRequest),
    Row(ms.Restored, pb.RestoreReply, cuts=numbers(0, MAX_ENTRIES)),
    Row(ms.Status, pb.StatusRequest),
    Row(ms.StatusReport, pb.StatusReply, shard=below("shards"), shards=POSITIVE),
)

#: The rows of all requests.
REQUESTS = tuple([row for row in _MESSAGES if row.message in ms.ANSWERS])

_BY_MESSAGE = {row.message: row for row in _MESSAGES}
_BY_PROTO = {row.proto: row for row in _MESSAGES}
_SMALL = {
    kind
    for kind in _BY_PROTO
    if not any(one.is_repeated and one.type not in (one.TYPE_INT64, one.TYPE_BYTES) for one in kind.DESCRIPTOR.fields)
}
_OF_MEMBERS = {
    row.proto for row in _MESSAGES if row.message in ms.ANSWERS and "sender" in row.proto.DESCRIPTOR.fields_by_name
}
_NO_TENSORS = InlineReceiver()
_PIECES = {piece.message_type: piece.name for piece in pb.Frame.DESCRIPTOR.fields}
