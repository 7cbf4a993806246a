"""Messages as protobuf and back: `encode` and `decode`, and at the end a table with one row for each message.

Everything from the network that can be checked without the shard is checked here: fields by their kind
(`pswire.codec.fields`), tensors by their description (`pswire.codec.tensors`); a tensor transport moves the elements.
"""

from __future__ import annotations

from operator import attrgetter

from google.protobuf.message import Message as Proto

from pswire import messages as ms
from pswire.codec.fields import (
    ANY,
    COUNT,
    KNOWN_VERSIONS,
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
from pswire.codec.structs import OPTIMIZER
from pswire.codec.tensors import ASSIGNMENTS, CHOICES, DECLARATIONS, GRADIENTS, VALUES, VALUES_AND_CHOICES, VARIABLES
from pswire.errors import InvalidMessage, Malformed
from pswire.specs.encodings import ENCODINGS
from pswire.tensors.frames import Incoming
from pswire.tensors.stream import StreamReceiver
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.v1 import paramserver_pb2 as pb


def encode(message: ms.Request | ms.Answer, sender: TensorSender) -> Proto:
    """The protobuf of `message`, whose arrays go to `sender`.

    Raises:
        InvalidMessage: a field has a value, or an array a dtype, that the protocol does not have.
        TooLarge: more than the sender's tensor transport carries.
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
    """The message in the first frame of a call or of its answer; arrays that follow in chunks are hollow at first.

    Raises `Malformed` and nothing else.
    """
    piece = frame.header.WhichOneof("piece")
    if piece is None:
        what = "nothing" if frame.chunk is None else "a chunk"
        raise Malformed(f"a call on a Transfer begins with a message, this one with {what}")
    message = decode(getattr(frame.header, piece), receiver)
    receiver.check_data()
    return message


# --- the messages ---------------------------------------------------------------------------------------------------

_OUTCOME = choice({outcome: pb.Outcome.Value(f"OUTCOME_{outcome.name}") for outcome in ms.Outcome})
_ENCODING = choice({form: form for form in ("", *ENCODINGS)})
_STATE = choice({state: state for state in ("live", "left", "lost")})
_QUEUE = one(Row(ms.QueueSpec, pb.Queue, name=NAME, size=POSITIVE, block=POSITIVE, epochs=POSITIVE, seed=ANY))
_BLOCK = one_or_none(Row(ms.Block, pb.Block, number=COUNT, epoch=POSITIVE, start=below("stop"), stop=POSITIVE))
_FINISHED = one_or_none(Row(ms.Finished, pb.Finished, number=COUNT, cost_sum=OPTIONAL))
_CHANGE_IDS = many(
    Row(ms.ChangeId, pb.ChangeId, sender=SENDER, sequence=POSITIVE, shards=NUMBERS), attrgetter("sender.worker")
)
_FRONTIER = one_or_none(Row(ms.Frontier, pb.Frontier, decided=COUNT, undelivered=_CHANGE_IDS))
_REMOTE = many(Row(ms.RemoteWeights, pb.RemoteWeights, name=NAME, served_at=COUNT), attrgetter("name"))
_GROUP = one_or_none(Row(ms.UpdateGroup, pb.UpdateGroup, number=COUNT, members=_CHANGE_IDS))
_LAST_PUSHES = many(Row(ms.LastPush, pb.LastPush, worker=NAME, incarnation=COUNT, sequence=COUNT, shards=NUMBERS))
_AGREED = {"places": many(Row(ms.Place, pb.Place, name=NAME, shard=COUNT)), "states": NUMBERS}
_REPORTS = many(Row(ms.EpochReport, pb.EpochReport, queue=NAME, epoch=POSITIVE, cost=OPTIONAL, examples=COUNT))
_STEPS = {"steps": COUNT, "staleness": COUNT, "staleness_sum": COUNT, "loss": OPTIONAL, "epoch": COUNT}
_WORKER = {"name": NAME, "incarnation": COUNT, "number": COUNT, "state": _STATE, "lease_left": ANY}
_WORKER |= {"dropped": COUNT, "waiting_for": ANY, "tensor_transport": ANY, "chief": ANY}
_TRAFFIC = one(Row(ms.Traffic, pb.Traffic, pushes=number(0), bytes_in=number(0), bytes_out=number(0)))
_STALENESS = one(Row(ms.Staleness, pb.Staleness, p50=COUNT, p99=COUNT))
_CHANGES = many(Row(ms.Change, pb.Change, global_step=COUNT, worker=NAME, names=NAMES, optimizer=OPTIMIZER))
_WORKERS = many(Row(ms.WorkerStatus, pb.WorkerStatus, **_WORKER, **_STEPS))
_PLACE = {"shard": below("shards"), "shards": POSITIVE}
_CHANGE = {"sender": SENDER, "sequence": POSITIVE}
_SHARDS = {"shards": NUMBERS, "after": _CHANGE_IDS}
_ORDER = {"group": _GROUP, "frontier": _FRONTIER}
_RESULT = {"outcome": _OUTCOME, "global_step": COUNT}

_PULL = {"known_versions": KNOWN_VERSIONS, "encoding": _ENCODING, "after": _CHANGE_IDS}
_PUSH = {"loss": OPTIONAL, "pull": NAMES, "group": _GROUP, "remote": _REMOTE, "global_step": COUNT}
_JOINED = {"consistency": ANY, "staleness": ANY, "chief": ANY, "state": COUNT}
_COUNTS = {"global_step": COUNT, "repeated": COUNT, "dropped": COUNT, "nbytes": COUNT, "half_pushes": COUNT}
_LISTS = {"variables": VARIABLES, "workers": _WORKERS, "epochs": _REPORTS, "changes": _CHANGES}
_MORE = {"consistency": ANY, "handling": ANY, "traffic": _TRAFFIC, "staleness": _STALENESS}
_MORE |= {"last_pushes": _LAST_PUSHES}
_TRANSPORT = {"tensor_transport": ANY}

_MESSAGES = (
    Row(ms.Join, pb.JoinRequest, worker=NAME, incarnation=COUNT, life=COUNT, states=NUMBERS, **_PLACE, **_TRANSPORT),
    Row(ms.Joined, pb.JoinReply, incarnation=COUNT, number=COUNT, lease=number(1e-3), global_step=COUNT, **_JOINED),
    Row(ms.Renew, pb.RenewRequest, sender=SENDER, idle=ANY, settled=COUNT, half_pushes=COUNT, **_TRANSPORT),
    Row(ms.Renewed, pb.RenewReply, global_step=COUNT, waiting_for=ANY, chief=ANY),
    Row(ms.Leave, pb.LeaveRequest, sender=SENDER, failed=ANY),
    Row(ms.Left, pb.LeaveReply),
    Row(ms.Register, pb.RegisterRequest, sender=SENDER, declarations=DECLARATIONS, **_AGREED, dry_run=ANY),
    Row(ms.Registered, pb.RegisterReply, values=VALUES, global_step=COUNT, frontier=_FRONTIER),
    Row(ms.Pull, pb.PullRequest, sender=SENDER, names=NAMES, choices=CHOICES, **_PULL),
    Row(ms.Pulled, pb.PullReply, values=VALUES_AND_CHOICES, global_step=COUNT, frontier=_FRONTIER),
    Row(ms.Push, pb.PushRequest, **_CHANGE, gradients=GRADIENTS, **_PUSH, **_PULL, shards=NUMBERS),
    Row(
        ms.Pushed, pb.PushReply, **_RESULT, staleness=COUNT, values=VALUES, reason=ANY, group=_GROUP, frontier=_FRONTIER
    ),
    Row(ms.Assign, pb.AssignRequest, **_CHANGE, assignments=ASSIGNMENTS, add=ANY, remote=NAMES, **_SHARDS),
    Row(ms.Assigned, pb.AssignReply, **_RESULT, versions=NUMBERS, frontier=_FRONTIER),
    Row(ms.Tune, pb.TuneRequest, **_CHANGE, names=NAMES, optimizer=OPTIMIZER, fields=NAMES),
    Row(ms.Tuned, pb.TuneReply, **_RESULT),
    Row(ms.Take, pb.TakeRequest, sender=SENDER, queue=_QUEUE, finished=_FINISHED, heard=COUNT, give_back=ANY),
    Row(ms.Taken, pb.TakeReply, block=_BLOCK, done=ANY, waiting_for=ANY, reports=_REPORTS, chief=ANY),
    Row(ms.Status, pb.StatusRequest),
    Row(ms.StatusReport, pb.StatusReply, **_PLACE, **_COUNTS, **_LISTS, **_MORE),
)

_BY_MESSAGE = {row.message: row for row in _MESSAGES}
_BY_PROTO = {row.proto: row for row in _MESSAGES}
_PIECES = {
    row.proto: piece.name
    for row in _MESSAGES
    for piece in pb.Frame.DESCRIPTOR.fields
    if piece.message_type is row.proto.DESCRIPTOR
}
