"""Optimizers and row initializers as protobuf Structs of their plain data, and back; their specs check the fields.

May import optimizers, specs, fields, errors and protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from google.protobuf import struct_pb2
from google.protobuf.message import Message as Proto

from pswire import optimizers
from pswire.codec.fields import KINDS, Field
from pswire.errors import Malformed
from pswire.specs import spec as specs
from pswire.specs.initializers import RowInitializer
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.v1 import paramserver_pb2 as pb

_Spec = TypeVar("_Spec")


def _struct(to_plain: Callable[[_Spec], dict[str, Any]], from_plain: Callable[[Mapping[str, Any]], _Spec]) -> Field:
    """A field that is a message with `fields`, or is absent for None."""

    def put(value: _Spec | None, proto: Proto, name: str, sender: TensorSender) -> None:
        if value is not None:
            getattr(proto, name).fields.update(to_plain(value))

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> _Spec | None:
        if not proto.HasField(name):
            return None
        try:
            return from_plain(_plain_fields(getattr(proto, name).fields))
        except (ValueError, TypeError) as error:
            raise Malformed(str(error)) from error

    return Field(put, get)


def _plain_fields(struct: struct_pb2.Struct) -> dict[str, object]:
    return {key: _plain(value, key) for key, value in struct.fields.items()}


def _plain(value: struct_pb2.Value, key: str) -> object:
    match value.WhichOneof("kind"):
        case "number_value":
            return value.number_value
        case "bool_value":
            return value.bool_value
        case "string_value":
            return value.string_value
        case "struct_value":
            return _plain_fields(value.struct_value)  # protobuf limits the nesting depth to about 30 levels
        case "list_value":
            return [_plain(entry, key) for entry in value.list_value.values]
        case other:
            raise ValueError(f"its {key} cannot be a {other}")


def _required(field: Field, what: str) -> Field:
    def get(proto: Proto, name: str, receiver: TensorReceiver) -> object:
        value = field.get(proto, name, receiver)
        if value is None:
            raise Malformed(f"{type(proto).__name__} needs {what}")
        return value

    return Field(field.put, get)


OPTIMIZER_OR_NONE = _struct(specs.to_plain, partial(specs.from_plain, optimizers.UpdateSpec))
KINDS[pb.Optimizer] = _required(OPTIMIZER_OR_NONE, "an optimizer")
INITIAL = _struct(specs.to_plain, partial(specs.from_plain, RowInitializer))
