"""Tensors in messages, and the parts of messages that have them: checked descriptions, elements by a tensor transport.

The parts that are written by hand: those with arrays (`pswire.messages.arrays`), operations, optimizers and row
initializers. The others are in `pswire.codec.generated`. A `get_` function raises `Malformed` and nothing else.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

from google.protobuf.json_format import MessageToDict

from pswire.codec import checks as check
from pswire.errors import Malformed
from pswire.limits import MAX_NUMBER, MAX_PACKED_PARTS, MAX_SPEC_BYTES
from pswire.messages import arrays as ms
from pswire.optimizers import optimizer_from_plain
from pswire.specs import spec as specs
from pswire.specs.initializers import RowInitializer
from pswire.specs.vectors import Operation, check_operation
from pswire.tensors.compression import INDEX_DTYPES, Packed, parts_fit
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.tensors.values import (
    DTYPE_NAMES,
    DTYPES,
    MAX_DIMENSIONS,
    MAX_NAME_LENGTH,
    Array,
    IndexedSlices,
    Part,
    TensorSpec,
)
from pswire.v1 import paramserver_pb2 as pb
from pswire.v1 import state_pb2 as spb


def _put_array(name: str, array: Array | Packed, tensor: pb.Tensor, sender: TensorSender) -> None:
    dtype = DTYPE_NAMES.get(array.dtype)
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


def _get_packed(tensor: pb.Tensor, spec: TensorSpec, receiver: TensorReceiver) -> Packed:
    form, parts = tensor.packing.form, tensor.packing.parts
    if len(parts) > MAX_PACKED_PARTS:
        check.refuse_length(len(parts), "Packing.parts", MAX_PACKED_PARTS)
    specs = tuple([get_spec(part, spec.name) for part in parts])
    if spec.dtype != "float32" or not parts_fit(form, spec.shape, specs):
        found = ", ".join(f"{part.dtype}{list(part.shape)}" for part in specs) or "none"
        raise Malformed(f"variable {spec} cannot be in the form {form!r} with the parts {found}")
    arrays = [receiver.get(part, of, own=of.dtype in INDEX_DTYPES) for part, of in zip(parts, specs, strict=True)]
    return Packed(form, spec.shape, tuple(arrays))


def put_spec(spec: TensorSpec, tensor: pb.Tensor) -> None:
    """Writes a description without elements."""
    tensor.name = spec.name
    tensor.dtype = spec.dtype
    tensor.shape.extend(spec.shape)


def get_spec(tensor: pb.Tensor, name: str | None = None) -> TensorSpec:
    """The description of a tensor, of a variable of this `name`."""
    shape = tensor.shape
    if len(shape) > MAX_DIMENSIONS:
        check.refuse_length(len(shape), "Tensor.shape", MAX_DIMENSIONS)
    return _check_spec(tensor.name if name is None else name, tensor.dtype, tuple(shape))


@functools.lru_cache(4096)
def _check_spec(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    try:
        if len(name) > MAX_NAME_LENGTH or dtype not in DTYPES:  # not repeated in the error, at any length
            check.name(name)
            raise ValueError(f"variable {name!r}: dtype {dtype[:20]!r} is not one of {', '.join(DTYPES)}")
        spec = TensorSpec(name, shape, dtype)
    except ValueError as error:
        raise Malformed(str(error)) from error
    # Sizes of 0 are left out: numpy refuses a shape whose other sizes are too large, even if it has no elements.
    if math.prod(size or 1 for size in shape) * DTYPES[dtype].itemsize > sys.maxsize:
        raise Malformed(f"variable {spec}: this shape exceeds the address space")
    return spec


# --- values, gradients and assignments --------------------------------------------------------------------------------


def put_value(message: ms.Value, proto: pb.Value, tensors: TensorSender) -> None:
    """Writes a value, or only its name if the requester has it."""
    proto.version = message.version
    if message.array is None:
        proto.tensor.name = message.name
    else:
        _put_array(message.name, message.array, proto.tensor, tensors)


def get_value(proto: pb.Value, tensors: TensorReceiver) -> ms.Value:
    """A value."""
    tensor, version = proto.tensor, proto.version
    if not 0 <= version <= MAX_NUMBER:
        check.count(version, "Value.version")
    if not (tensor.WhichOneof("place") or tensor.HasField("packing")):
        return ms.Value(check.name(tensor.name), version, None)
    spec = get_spec(tensor)
    packed = tensor.HasField("packing")
    return ms.Value(spec.name, version, _get_packed(tensor, spec, tensors) if packed else tensors.get(tensor, spec))


def put_gradient(message: ms.Gradient, proto: pb.Gradient, tensors: TensorSender) -> None:
    """Writes a gradient; of rows, their values and then their numbers."""
    proto.version = message.version
    array = message.array
    if isinstance(array, IndexedSlices):
        _put_array(message.name, array.values, proto.tensor, tensors)
        _put_array(message.name, array.indices, proto.indices, tensors)
        proto.rows = array.shape[0]
    else:
        _put_array(message.name, array, proto.tensor, tensors)


def get_gradient(proto: pb.Gradient, tensors: TensorReceiver) -> ms.Gradient:
    """A gradient; the numbers of its rows are checked when they are used, since they may not have arrived yet."""
    tensor, version = proto.tensor, proto.version
    spec = get_spec(tensor)
    if not 0 <= version <= MAX_NUMBER:
        check.count(version, "Gradient.version")
    packed = tensor.HasField("packing")
    array = _get_packed(tensor, spec, tensors) if packed else tensors.get(tensor, spec)
    if not proto.HasField("indices"):
        return ms.Gradient(spec.name, version, array)
    indices = tensors.get(proto.indices, get_spec(proto.indices, spec.name), own=True)
    shape = (check.count(proto.rows, "Gradient.rows"), *spec.shape[1:])
    try:
        rows = IndexedSlices(array, indices, shape, check_range=False)  # type: ignore[arg-type]
        return ms.Gradient(spec.name, version, rows)
    except (ValueError, TypeError) as error:
        raise Malformed(f"gradient for variable {spec.name!r}: {error}") from error


def put_assignment(message: ms.Assignment, proto: pb.Assignment, tensors: TensorSender) -> None:
    """Writes a value to set, or rows of it."""
    if message.first_row is not None:
        proto.first_row = message.first_row
    _put_array(message.name, message.array, proto.tensor, tensors)


def get_assignment(proto: pb.Assignment, tensors: TensorReceiver) -> ms.Assignment:
    """A value to set."""
    spec = get_spec(proto.tensor)
    first_row = check.count(proto.first_row, "Assignment.first_row") if proto.HasField("first_row") else None
    return ms.Assignment(spec.name, tensors.get(proto.tensor, spec), first_row)


def put_choice(message: ms.Choice, proto: pb.Choice, tensors: TensorSender) -> None:
    """Writes which rows are wanted."""
    proto.name, proto.slot = message.name, message.slot
    if message.rows is not None:
        _put_array(message.name, message.rows, proto.rows, tensors)


def get_choice(proto: pb.Choice, tensors: TensorReceiver) -> ms.Choice:
    """The requested rows."""
    name = check.name(proto.name)
    slot = check.name(proto.slot) if proto.slot else ""
    if not proto.HasField("rows"):
        return ms.Choice(name, None, slot)
    spec = get_spec(proto.rows, name)
    if len(spec.shape) != 1 or DTYPES[spec.dtype].kind not in "iu":
        raise Malformed(f"row numbers of {name!r} must be integers of shape (n,), got {spec}")
    return ms.Choice(name, tensors.get(proto.rows, spec, own=True), slot)


# --- declarations -----------------------------------------------------------------------------------------------------


def put_part(message: Part, proto: pb.Part, tensors: TensorSender) -> None:
    """Writes the rows of a part."""
    proto.first, proto.of = message.first, message.of


def get_part(proto: pb.Part, tensors: TensorReceiver) -> Part:
    """The rows of a part."""
    try:
        return Part(check.count(proto.first, "Part.first"), check.count(proto.of, "Part.of"))
    except ValueError as error:
        raise Malformed(str(error)) from error


class _Spec:
    """An optimizer or a row initializer as the protobuf Struct of its plain data; the spec checks its fields."""

    def __init__(self, proto: Any, from_plain: Callable[[Mapping[str, Any]], Any]) -> None:  # noqa: ANN401
        self._proto, self._from_plain = proto, from_plain
        self._from_bytes = functools.lru_cache(1024)(self._read)  # most variables of a model have the same optimizer

    def put(self, spec: Any, proto: Any, tensors: TensorSender) -> None:  # noqa: ANN401
        """Writes all fields."""
        proto.fields.update(specs.to_plain(spec))

    def get(self, proto: Any, tensors: TensorReceiver) -> Any:  # noqa: ANN401
        """The spec."""
        data = proto.SerializeToString(deterministic=True)
        if len(data) > MAX_SPEC_BYTES:
            raise Malformed(f"{type(proto).__name__} has {MAX_SPEC_BYTES:,} bytes at most, got {len(data):,}")
        found = self._from_bytes(data)
        return found if found.is_known() else self._read(data)  # its class may have come, or changed, since

    def _read(self, data: bytes) -> Any:  # noqa: ANN401
        try:
            return self._from_plain(MessageToDict(self._proto.FromString(data).fields))
        except (ValueError, TypeError) as error:
            raise Malformed(str(error)) from error


_OPTIMIZER = _Spec(pb.Optimizer, optimizer_from_plain)
_INITIALIZER = _Spec(pb.RowInitializer, partial(specs.from_plain, RowInitializer))
put_optimizer, get_optimizer = _OPTIMIZER.put, _OPTIMIZER.get
put_row_initializer, get_row_initializer = _INITIALIZER.put, _INITIALIZER.get


def put_declaration(message: ms.Declaration, proto: pb.Declaration, tensors: TensorSender) -> None:
    """Writes a declaration."""
    if message.optimizer is not None:
        proto.optimizer.SetInParent()
        put_optimizer(message.optimizer, proto.optimizer, tensors)
    if message.initial is not None:
        proto.initial.SetInParent()
        put_row_initializer(message.initial, proto.initial, tensors)
    if message.part is not None:
        proto.part.SetInParent()
        put_part(message.part, proto.part, tensors)
    proto.stage = message.stage
    if message.value is None:
        put_spec(message.spec, proto.tensor)
    else:
        _put_array(message.spec.name, message.value, proto.tensor, tensors)


def get_declaration(proto: pb.Declaration, tensors: TensorReceiver) -> ms.Declaration:
    """A declaration, whose value fits its description."""
    spec = get_spec(proto.tensor)
    value = tensors.get(proto.tensor, spec) if proto.tensor.WhichOneof("place") else None
    try:
        initial = get_row_initializer(proto.initial, tensors) if proto.HasField("initial") else None
        part = get_part(proto.part, tensors) if proto.HasField("part") else None
        optimizer = get_optimizer(proto.optimizer, tensors) if proto.HasField("optimizer") else None
    except Malformed as error:
        raise Malformed(f"variable {spec.name!r}: {error}") from error
    if part is not None and (not spec.shape or part.first + spec.shape[0] > part.of):
        raise Malformed(f"variable {spec} does not fit into {part.of} rows from row {part.first} on")
    stage = check.count(proto.stage, "Declaration.stage")
    return ms.Declaration(spec, value, optimizer, initial, part, stage)


# --- operations and served weights ------------------------------------------------------------------------------------

_OPERATIONS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Operation)}


def put_operation(message: Operation, proto: pb.Operation, tensors: TensorSender) -> None:
    """Writes an operation with vectors: the texts and numbers of its kind, in order."""
    proto.kind = type(message).__name__
    texts = iter(("vector", "source", "other"))
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        setattr(proto, "number" if isinstance(value, float | int) else next(texts), value)


def get_operation(proto: pb.Operation, tensors: TensorReceiver) -> Operation:
    """An operation with vectors."""
    kind = _OPERATIONS.get(proto.kind)
    if kind is None:
        raise Malformed(f"Operation.kind cannot be {proto.kind!r:.50}")
    texts = iter([check.label(getattr(proto, name), f"Operation.{name}") for name in ("vector", "source", "other")])
    try:
        fields = [proto.number if field.type is float else next(texts) for field in dataclasses.fields(kind)]
        operation: Operation = kind(*fields)
        check_operation(operation)
    except ValueError as error:
        raise Malformed(str(error)) from error
    return operation


def put_served_state(message: ms.ServedState, proto: spb.ServedState, tensors: TensorSender) -> None:
    """Writes what is known of served weights beside their arrays."""
    proto.worker, proto.name, proto.version = message.worker, message.name, message.version
    proto.form = message.array.form if isinstance(message.array, Packed) else ""
    proto.has_rows = message.rows is not None


def get_served_state(proto: spb.ServedState, tensors: TensorReceiver) -> Any:  # noqa: ANN401
    """The protobuf itself: whoever has the arrays makes the weights (`psserver.storage.checkpoints`)."""
    return proto
