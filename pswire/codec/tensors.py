"""Tensors in messages, and the parts of messages that have them: checked descriptions, elements by a tensor transport.

May import messages, fields, specs, tensors and the generated code.
"""

import functools
import math
import sys
from operator import attrgetter

from pswire import messages as ms
from pswire.codec.fields import (
    COUNT,
    INITIAL,
    KINDS,
    NAME,
    OPTIMIZER_OR_NONE,
    Field,
    Row,
    check_name,
    many,
    one,
    refuse_length,
)
from pswire.errors import Malformed
from pswire.limits import MAX_CHOICES, MAX_ENTRIES, MAX_PACKED_PARTS
from pswire.tensors.compression import INDEX_DTYPES, Packed, parts_fit
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.tensors.values import DTYPES, MAX_DIMENSIONS, MAX_NAME_LENGTH, Array, IndexedSlices, Part, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

#: By dtype: numpy takes 2 microseconds for each `dtype.name`.
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
    form, parts = tensor.packing.form, tensor.packing.parts
    if len(parts) > MAX_PACKED_PARTS:
        refuse_length(tensor.packing, "parts", MAX_PACKED_PARTS)
    specs = tuple([_get_spec(part, spec.name) for part in parts])
    if spec.dtype != "float32" or not parts_fit(form, spec.shape, specs):
        found = ", ".join(f"{part.dtype}{list(part.shape)}" for part in specs) or "none"
        raise Malformed(f"variable {spec} cannot be in the form {form!r} with the parts {found}")
    arrays = [receiver.get(part, of, own=of.dtype in INDEX_DTYPES) for part, of in zip(parts, specs, strict=True)]
    return Packed(form, spec.shape, tuple(arrays))


def _put_spec(spec: TensorSpec, tensor: pb.Tensor) -> None:
    tensor.name = spec.name
    tensor.dtype = spec.dtype
    tensor.shape.extend(spec.shape)


def _get_spec(tensor: pb.Tensor, name: str | None = None) -> TensorSpec:
    shape = tensor.shape
    if len(shape) > MAX_DIMENSIONS:
        refuse_length(tensor, "shape", MAX_DIMENSIONS)
    return _check_spec(tensor.name if name is None else name, tensor.dtype, tuple(shape))


@functools.lru_cache(4096)
def _check_spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    try:
        if len(name) > MAX_NAME_LENGTH or dtype not in DTYPES:  # not repeated in the error, at any length
            check_name(name)
            raise ValueError(f"variable {name!r}: dtype {dtype[:20]!r} is not one of {', '.join(DTYPES)}")
        spec = TensorSpec(name, shape, dtype)
    except ValueError as error:
        raise Malformed(str(error)) from error
    # Sizes of 0 are left out: numpy refuses a shape whose other sizes are too large, even if it has no elements.
    if math.prod(size or 1 for size in shape) * DTYPES[dtype].itemsize > sys.maxsize:
        raise Malformed(f"variable {spec}: this shape exceeds the address space")
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
        indices = receiver.get(proto.indices, _get_spec(proto.indices, spec.name), own=True)
        shape = (COUNT.get(proto, "rows", receiver), *spec.shape[1:])
        try:  # the indices may not have arrived yet; they are checked when they are used
            rows = IndexedSlices(array, indices, shape, check_range=False)  # type: ignore[arg-type]
            return ms.Gradient(spec.name, version, rows)
        except (ValueError, TypeError) as error:
            raise Malformed(f"gradient for variable {spec.name!r}: {error}") from error


class _Assignment:
    def put(self, message: ms.Assignment, proto: pb.Assignment, sender: TensorSender) -> None:
        if message.first_row is not None:
            proto.first_row = message.first_row
        _put_array(message.name, message.array, proto.tensor, sender)

    def get(self, proto: pb.Assignment, receiver: TensorReceiver) -> ms.Assignment:
        spec = _get_spec(proto.tensor)
        first_row = COUNT.get(proto, "first_row", receiver) if proto.HasField("first_row") else None
        return ms.Assignment(spec.name, receiver.get(proto.tensor, spec), first_row)


_PART = KINDS[pb.Part] = one(Row(Part, pb.Part), optional=True)


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
        try:
            initial, part = INITIAL.get(proto, "initial", receiver), _PART.get(proto, "part", receiver)
            optimizer = OPTIMIZER_OR_NONE.get(proto, "optimizer", receiver)
        except Malformed as error:
            raise Malformed(f"variable {spec.name!r}: {error}") from error
        if part is not None and (not spec.shape or part.first + spec.shape[0] > part.of):
            raise Malformed(f"variable {spec} does not fit into {part.of} rows from row {part.first} on")
        return ms.Declaration(spec, value, optimizer, initial, part)


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
        spec = _get_spec(proto.rows, name)
        if len(spec.shape) != 1 or DTYPES[spec.dtype].kind not in "iu":
            raise Malformed(f"row numbers of {name!r} must be integers of shape (n,), got {spec}")
        return ms.Choice(name, receiver.get(proto.rows, spec, own=True), slot)


SPEC = Field(
    lambda spec, proto, name, sender: _put_spec(spec, getattr(proto, name)),
    lambda proto, name, receiver: _get_spec(getattr(proto, name)),
    attribute="spec",
)
_VARIABLE = Row(ms.VariableStatus, pb.VariableStatus, tensor=SPEC, optimizer=OPTIMIZER_OR_NONE)
VALUES_AND_CHOICES = many(_Value(), limit=MAX_ENTRIES + MAX_CHOICES)  # which may be several of one variable
KINDS |= {
    pb.Declaration: many(_Declaration(), attrgetter("spec.name"), MAX_ENTRIES),
    pb.Value: many(_Value(), attrgetter("name"), MAX_ENTRIES),
    pb.Gradient: many(_Gradient(), attrgetter("name"), MAX_ENTRIES),
    pb.Assignment: many(_Assignment(), attrgetter("name"), MAX_ENTRIES),
    pb.Choice: many(_Choice(), limit=MAX_CHOICES),
    pb.VariableStatus: many(_VARIABLE, attrgetter("spec.name"), MAX_ENTRIES),
}
