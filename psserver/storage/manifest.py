"""The state of a shard as JSON, for the manifest of a checkpoint: checked field by field when it is read.

The JSON is that of the protobuf `ShardState` (`protos/pswire/v1/state.proto`). Arrays are in files beside it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias, cast

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message as Proto

from psserver.core import state as st
from pswire import codec  # noqa: F401 - fills KINDS with the parts of messages
from pswire import messages as ms
from pswire.codec.fields import (
    ANY,
    INITIAL,
    KINDS,
    LOSSES,
    NAME,
    NAME_OR_NONE,
    NOTE,
    OPTIMIZER_OR_NONE,
    POSITIVE,
    RANDOM,
    RANDOMS,
    RESULTS,
    Field,
    Row,
    below,
    integer,
    many,
    one,
)
from pswire.codec.messages import OUTCOME, RESULT, STATE
from pswire.codec.tensors import SPEC
from pswire.errors import Malformed
from pswire.tensors.compression import Packed
from pswire.tensors.transport import InlineReceiver, InlineSender, TensorReceiver, TensorSender
from pswire.tensors.values import Array
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1 import state_pb2 as spb

#: Worker, name, version, form and whether there are rows.
_Unread: TypeAlias = tuple[str, str, int, str, bool]


class _Served:
    """Served weights; their arrays are put back by `with_served`."""

    def put(self, message: st.ServedState, proto: spb.ServedState, sender: TensorSender) -> None:
        proto.worker, proto.name, proto.version = message.worker, message.name, message.version
        proto.form = message.array.form if isinstance(message.array, Packed) else ""
        proto.has_rows = message.rows is not None

    def get(self, proto: spb.ServedState, receiver: TensorReceiver) -> _Unread:
        return proto.worker, proto.name, proto.version, proto.form, proto.has_rows


#: A checkpoint has as many entries as its shard had.
_Row = partial(Row, file=True)


def _answer(message: type, proto: type[Proto]) -> Field:
    return one(_Row(message, proto, outcome=OUTCOME), optional=True)


_LAST_PUSH = _Row(ms.LastPush, pb.LastPush, worker=NAME)
_MEMBER = _Row(
    st.MemberState,
    spb.MemberState,
    name=NAME,
    process_nonce=RANDOM,
    state=STATE,
    pushed=_answer(ms.Pushed, pb.PushReply),
    assigned=_answer(ms.Assigned, pb.AssignReply),
    tuned=_answer(ms.Tuned, pb.TuneReply),
    computed=one(_Row(ms.Computed, pb.ComputeReply, outcome=OUTCOME, results=RESULTS, note=NOTE), optional=True),
    last_push=one(_LAST_PUSH, optional=True),
)
# In this order: the kinds of a part's own parts come first.
KINDS[spb.VariableState] = many(
    _Row(
        st.VariableState,
        spb.VariableState,
        tensor=SPEC,
        growth=ANY,
        declared=OPTIMIZER_OR_NONE,
        optimizer=OPTIMIZER_OR_NONE,
        initial=INITIAL,
    ),
    attrgetter("spec.name"),
)
KINDS[spb.ServedState] = many(_Served())
KINDS[spb.MemberState] = many(_MEMBER, attrgetter("name"))
_SENDER = one(_Row(ms.Sender, pb.Sender, worker=NAME), optional=True)
KINDS[spb.MembershipState] = one(_Row(st.MembershipState, spb.MembershipState, chief=_SENDER))
KINDS[spb.Holding] = many(_Row(st.Holding, spb.Holding))
KINDS[spb.OpenEpoch] = many(_Row(st.OpenEpoch, spb.OpenEpoch, epoch=POSITIVE, cost_sum=ANY))
KINDS[spb.QueueState] = many(_Row(st.QueueState, spb.QueueState), attrgetter("spec.name"))
KINDS[spb.OutPortion] = many(_Row(st.OutPortion, spb.OutPortion))
KINDS[spb.WorkerPortions] = many(_Row(st.WorkerPortions, spb.WorkerPortions, worker=NAME_OR_NONE), attrgetter("worker"))
KINDS[spb.PortionsState] = one(_Row(st.PortionsState, spb.PortionsState, losses=LOSSES), optional=True)
KINDS[spb.MinimizationState] = many(
    _Row(st.MinimizationState, spb.MinimizationState, name=NAME, end=RESULT, coordinator=_SENDER, note=NOTE),
    attrgetter("name"),
)
KINDS[spb.LastEpoch] = many(_Row(st.LastEpoch, spb.LastEpoch, worker=NAME), attrgetter("worker"))
KINDS[spb.VariableChanges] = many(_Row(st.VariableChanges, spb.VariableChanges, name=NAME), attrgetter("name"))
KINDS[spb.OrderState] = one(_Row(st.OrderState, spb.OrderState), optional=True)
KINDS[spb.VariableGroup] = many(_Row(st.VariableGroup, spb.VariableGroup))
_SHARD = _Row(
    st.ShardState,
    spb.ShardState,
    shard=below("shards"),
    shards=POSITIVE,
    identity=RANDOM,
    last_step=integer(-1),
    states=RANDOMS,
    changes=many(_Row(ms.Change, pb.Change, worker=NAME)),
)


def to_json(state: st.ShardState) -> dict[str, Any]:
    """The state as JSON data, without arrays."""
    proto = spb.ShardState()
    _SHARD.put(state, proto, InlineSender())
    data: dict[str, Any] = MessageToDict(proto, preserving_proto_field_name=True)
    return data


def from_json(data: dict[str, Any], arrays: Mapping[str, Array]) -> st.ShardState:
    """The state, whose served weights have `arrays` (see `served_arrays`). Raises `Malformed`."""
    try:
        proto = ParseDict(data, spb.ShardState())
    except ParseError as error:
        raise Malformed(f"not the state of a shard: {error}") from error
    state: st.ShardState = _SHARD.get(proto, InlineReceiver())
    try:
        unread = cast(Iterable[_Unread], state.served)
        return replace(state, served=tuple([_with_arrays(n, one, arrays) for n, one in enumerate(unread)]))
    except KeyError as error:
        raise Malformed(f"the served weights {error} are missing") from None


def served_arrays(state: st.ShardState) -> dict[str, Array]:
    """The arrays of served weights by their names in the file, in the order of the state."""
    arrays: dict[str, Array] = {}
    for place, weights in enumerate(state.served):
        arrays[_key(place)] = weights.array.parts[0] if isinstance(weights.array, Packed) else weights.array
        if weights.rows is not None:
            arrays[f"{_key(place)}/rows"] = weights.rows
    return arrays


def _key(place: int) -> str:
    return f"served-{place}"


def _with_arrays(place: int, unread: _Unread, arrays: Mapping[str, Array]) -> st.ServedState:
    worker, name, version, form, has_rows = unread
    array = arrays[_key(place)]
    packed = Packed(form, array.shape, (array,)) if form else array
    return st.ServedState(worker, name, version, packed, arrays[f"{_key(place)}/rows"] if has_rows else None)
