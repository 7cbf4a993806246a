"""The state of a shard as JSON, for the manifest of a checkpoint: checked field by field when it is read.

The JSON is that of the protobuf `ShardState` (`protos/pswire/v1/state.proto`). Arrays are in files beside it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from pswire import messages as ms
from pswire.codec.generated import get_shard_state, put_shard_state
from pswire.errors import Malformed
from pswire.tensors.compression import Packed
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import Array
from pswire.v1 import state_pb2 as spb


def to_json(state: ms.ShardState) -> dict[str, Any]:
    """The state as JSON data, without arrays."""
    proto = spb.ShardState()
    put_shard_state(state, proto, InlineSender())
    data: dict[str, Any] = MessageToDict(proto, preserving_proto_field_name=True)
    return data


def from_json(data: dict[str, Any], arrays: Mapping[str, Array]) -> ms.ShardState:
    """The state, whose served weights have `arrays` (see `served_arrays`). Raises `Malformed`."""
    try:
        proto = ParseDict(data, spb.ShardState())
    except ParseError as error:
        raise Malformed(f"not the state of a shard: {error}") from error
    state = get_shard_state(proto, InlineReceiver())
    try:
        unread = cast(Iterable[spb.ServedState], state.served)  # without their arrays
        return replace(state, served=tuple([_with_arrays(n, one, arrays) for n, one in enumerate(unread)]))
    except KeyError as error:
        raise Malformed(f"the served weights {error} are missing") from None


def served_arrays(state: ms.ShardState) -> dict[str, Array]:
    """The arrays of served weights by their names in the file, in the order of the state."""
    arrays: dict[str, Array] = {}
    for place, weights in enumerate(state.served):
        arrays[_key(place)] = weights.array.parts[0] if isinstance(weights.array, Packed) else weights.array
        if weights.rows is not None:
            arrays[f"{_key(place)}/rows"] = weights.rows
    return arrays


def _key(place: int) -> str:
    return f"served-{place}"


def _with_arrays(place: int, proto: spb.ServedState, arrays: Mapping[str, Array]) -> ms.ServedState:
    array = arrays[_key(place)]
    packed = Packed(proto.form, array.shape, (array,)) if proto.form else array
    rows = arrays[f"{_key(place)}/rows"] if proto.has_rows else None
    return ms.ServedState(proto.worker, proto.name, proto.version, packed, rows)
