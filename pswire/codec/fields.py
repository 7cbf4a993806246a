"""The kinds of fields in messages, each with both directions: into protobuf, and out of it, checked.

Checks need no shard: ranges, lengths, duplicate names. All raise `Malformed` with the name of the field. May import
errors, messages, tensors and protobuf.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Proto
from google.protobuf.message_factory import GetMessageClass

from pswire.errors import Malformed
from pswire.messages import Sender
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.tensors.values import MAX_NAME_LENGTH, Array, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

_M = TypeVar("_M")
_P_contra = TypeVar("_P_contra", bound=Proto, contravariant=True)


class Field(NamedTuple):
    """`put(value, proto, name, sender)` writes the field `name` of `proto`; `get` reads it."""

    put: Callable[[Any, Proto, str, TensorSender], None]
    get: Callable[[Proto, str, TensorReceiver], Any]


class Part(Protocol[_M, _P_contra]):
    """A message or a part of messages: fills a given protobuf, and is read from it."""

    def put(self, message: _M, proto: _P_contra, sender: TensorSender) -> None:
        """Writes all fields."""

    def get(self, proto: _P_contra, receiver: TensorReceiver) -> _M:
        """Reads and checks all fields. Raises `Malformed`."""


class _Nothing:
    """The receiver of a message without tensors."""

    def get(self, tensor: Proto, spec: TensorSpec, *, own: bool = False) -> Array:
        """Raises `Malformed`."""
        raise Malformed(f"{spec} has no elements: this message carries no tensors")


class Row:
    """A message or part whose fields have the same names in the dataclass and in the protobuf.

    Args:
        message, proto: its class here and in protobuf.
        without: a field of the protobuf that the row leaves out.
        kinds: kinds of fields that are not those of their type (`KINDS`).
    """

    def __init__(self, message: type, proto: type[Proto], *, without: str = "", **kinds: Field) -> None:
        self.message, self.proto = message, proto
        fields = {
            field.name: kinds.get(field.name) or _kind_of(field)
            for field in proto.DESCRIPTOR.fields
            if field.name != without
        }
        self._puts = [(name, field.put) for name, field in fields.items()]
        self._gets = [(name, field.get) for name, field in fields.items()]
        self._absent = self._read_of_nothing()

    def _read_of_nothing(self) -> dict[str, Any]:
        """The default values of absent optional fields; all immutable."""
        read = {}
        for name, get in self._gets:
            with suppress(Malformed):
                read[name] = get(self.proto(), name, _Nothing())
        return read

    def put(self, message: object, proto: Proto, sender: TensorSender) -> None:
        """Writes all fields."""
        for name, put in self._puts:
            put(getattr(message, name), proto, name, sender)

    def get(self, proto: Proto, receiver: TensorReceiver) -> Any:  # noqa: ANN401 - an instance of `message`
        """Reads and checks all fields. Raises `Malformed`."""
        read, there = self._absent.copy(), {field.name for field, _ in proto.ListFields()}
        for name, get in self._gets:
            if name in there or name not in read:
                read[name] = get(proto, name, receiver)
        try:
            return self.message(**read)
        except ValueError as error:
            raise Malformed(str(error)) from error


# --- plain fields ---------------------------------------------------------------------------------------------------


def _set(value: object, proto: Proto, name: str, sender: TensorSender) -> None:
    setattr(proto, name, value)


def _set_if_any(value: object, proto: Proto, name: str, sender: TensorSender) -> None:
    if value is not None:
        setattr(proto, name, value)


def _extend(value: Iterable[object], proto: Proto, name: str, sender: TensorSender) -> None:
    getattr(proto, name).extend(value)


def number(low: float) -> Field:
    """A finite number of at least `low`."""

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> float:
        value: float = getattr(proto, name)
        if not low <= value < math.inf:
            raise Malformed(f"{type(proto).__name__}.{name} must be at least {low}, got {value}")
        return value

    return Field(_set, get)


def below(other: str) -> Field:
    """An integer of at least 0 that is less than the field `other` of the same protobuf."""

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> int:
        value: int = getattr(proto, name)
        limit = getattr(proto, other)
        if not 0 <= value < limit:
            raise Malformed(f"{type(proto).__name__}.{name} must be at least 0 and below {other} {limit}, got {value}")
        return value

    return Field(_set, get)


def choice(choices: Mapping[Any, Any]) -> Field:
    """One of a fixed set of values, each with its protobuf counterpart."""
    back = {there: here for here, there in choices.items()}

    def put(value: object, proto: Proto, name: str, sender: TensorSender) -> None:
        setattr(proto, name, choices[value])

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> object:
        value = back.get(getattr(proto, name))
        if value is None:
            raise Malformed(f"{type(proto).__name__}.{name} cannot be {getattr(proto, name)!r}")
        return value

    return Field(put, get)


def _get_optional(proto: Proto, name: str, receiver: TensorReceiver) -> object:
    return getattr(proto, name) if proto.HasField(name) else None


def _get_name(proto: Proto, name: str, receiver: TensorReceiver) -> str:
    return check_name(getattr(proto, name))


def _get_names(proto: Proto, name: str, receiver: TensorReceiver) -> tuple[str, ...]:
    names = tuple(getattr(proto, name))
    return _check_few(names) if len(names) <= _MAX_CACHED_NAMES else _check_names(names)


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, if valid and distinct."""
    for text in names:
        check_name(text)
    check_distinct(names)
    return names


#: Lists up to this length are cached, since a worker sends the same names at every step.
_MAX_CACHED_NAMES = 64
_check_few = functools.lru_cache(1024)(_check_names)


def _numbers(low: int) -> Callable[[Proto, str, TensorReceiver], tuple[int, ...]]:
    """Reads integers of at least `low`."""

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> tuple[int, ...]:
        numbers: tuple[int, ...] = tuple(getattr(proto, name))
        if numbers and min(numbers) < low:
            raise Malformed(f"{type(proto).__name__}.{name} must be at least {low}, got {min(numbers)}")
        return numbers

    return get


#: Any value: a flag, a string, a seed.
ANY = Field(_set, lambda proto, name, receiver: getattr(proto, name))
#: An optional number (None if missing); NaN is allowed, since a loss can be NaN.
OPTIONAL = Field(_set_if_any, _get_optional)
#: The name of a worker, a variable or a data queue.
NAME = Field(_set, _get_name)
#: Names of variables, each once.
NAMES = Field(_extend, _get_names)
#: Non-negative integers.
NUMBERS = Field(_extend, _numbers(0))
#: Versions of variables, -1 for none.
KNOWN_VERSIONS = Field(_extend, _numbers(-1))
COUNT, POSITIVE = number(0), number(1)


# --- parts inside of a message --------------------------------------------------------------------------------------


def one(part: Part[Any, Any]) -> Field:
    """A part that is never absent."""

    def put(value: object, proto: Proto, name: str, sender: TensorSender) -> None:
        part.put(value, getattr(proto, name), sender)

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> object:
        return part.get(getattr(proto, name), receiver)

    return Field(put, get)


def one_or_none(part: Part[Any, Any]) -> Field:
    """A part that may be absent (None)."""

    def put(value: object, proto: Proto, name: str, sender: TensorSender) -> None:
        if value is not None:
            getattr(proto, name).SetInParent()
            part.put(value, getattr(proto, name), sender)

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> object:
        return part.get(getattr(proto, name), receiver) if proto.HasField(name) else None

    return Field(put, get)


def many(part: Part[_M, Any], name_of: Callable[[_M], str] | None = None) -> Field:
    """Parts in order; with `name_of`, which returns the name of a part, each name once."""

    def put(value: Iterable[_M], proto: Proto, name: str, sender: TensorSender) -> None:
        repeated = getattr(proto, name)
        for item in value:
            part.put(item, repeated.add(), sender)

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> tuple[_M, ...]:
        items = tuple([part.get(item, receiver) for item in getattr(proto, name)])
        if name_of is not None and len(items) > 1:
            check_distinct([name_of(item) for item in items])
        return items

    return Field(put, get)


@functools.lru_cache(4096)
def check_name(text: str) -> str:
    """The name, if valid. Raises `Malformed`."""
    if not text or len(text) > MAX_NAME_LENGTH or not text.isprintable():
        raise Malformed(f"a name has 1 to {MAX_NAME_LENGTH} printable characters, got {text!r}")
    return text


def check_distinct(names: Iterable[str]) -> None:
    """Raises `Malformed` if a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Malformed(f"{name!r} is in the message more than once")
        seen.add(name)


# --- senders --------------------------------------------------------------------------------------------------------


class _Sender:
    def put(self, message: Sender, proto: Any, sender: TensorSender) -> None:  # noqa: ANN401 - a pb.Sender
        proto.worker, proto.incarnation = message.worker, message.incarnation

    def get(self, proto: Any, receiver: TensorReceiver) -> Sender:  # noqa: ANN401
        return _check_sender(proto.worker, proto.incarnation)


@functools.lru_cache(4096)
def _check_sender(worker: str, incarnation: int) -> Sender:
    if incarnation < 0:
        raise Malformed(f"Sender.incarnation must be at least 0, got {incarnation}")
    return Sender(check_name(worker), incarnation)


# --- kinds by types -------------------------------------------------------------------------------------------------

#: The kind of fields that are messages, by their protobuf; one row for each, added where the part is defined.
KINDS: dict[type[Proto], Field] = {pb.Sender: one(_Sender())}


def _kind_of(field: Any) -> Field:  # noqa: ANN401 - a FieldDescriptor
    """The kind of a field by its type: counts, distinct names, optional numbers, texts and flags; parts by `KINDS`."""
    if field.message_type is not None:
        return KINDS[GetMessageClass(field.message_type)]
    is_text = field.type == FieldDescriptor.TYPE_STRING
    if field.is_repeated:
        return NAMES if is_text else NUMBERS
    if field.has_presence:
        return OPTIONAL
    return ANY if is_text or field.type == FieldDescriptor.TYPE_BOOL else COUNT
