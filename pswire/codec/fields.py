"""The kinds of fields in messages, each with both directions: into protobuf, and out of it, checked.

Checks need no shard: ranges, lengths, duplicate names. All raise `Malformed` with the name of the field.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as Proto
from google.protobuf.message_factory import GetMessageClass

from pswire import messages as ms
from pswire.errors import Malformed
from pswire.limits import (
    MAX_ANSWER_TEXT_LENGTH,
    MAX_ENTRIES,
    MAX_LABEL_LENGTH,
    MAX_LISTED,
    MAX_NOTE_LENGTH,
    MAX_NUMBER,
    MAX_OPERATIONS,
    MAX_SECRET_BYTES,
    MAX_SHARDS,
    MAX_SPEC_BYTES,
    MAX_TEXT_LENGTH,
)
from pswire.optimizers import UpdateSpec
from pswire.specs import spec as specs
from pswire.specs.initializers import RowInitializer
from pswire.tensors.transport import TensorReceiver, TensorSender
from pswire.tensors.values import MAX_NAME_LENGTH
from pswire.v1 import paramserver_pb2 as pb

#: The largest integer that the protocol carries.
_LARGEST = (1 << 63) - 1


class Field(NamedTuple):
    """`put` writes the field `name` of a protobuf, `get` reads it; `attribute` is its Python name if different.

    `get` refuses a list with more entries than its `limit` before it makes anything of them; `get_any` does not.
    """

    put: Callable[[Any, Proto, str, TensorSender], None]
    get: Callable[[Proto, str, TensorReceiver], Any]
    attribute: str = ""
    get_any: Callable[[Proto, str, TensorReceiver], Any] | None = None
    limit: int = 0


class Part(Protocol):
    """A message or a part of messages."""

    def put(self, message: Any, proto: Any, sender: TensorSender) -> None:  # noqa: ANN401
        """Writes all fields into `proto`."""

    def get(self, proto: Any, receiver: TensorReceiver) -> Any:  # noqa: ANN401
        """Reads and checks all fields. Raises `Malformed`."""


class Row:
    """A `Part` with the fields of its protobuf; `kinds` override the kinds of some fields (`_kind_of`).

    Lists of a `file` may have any number of entries: as many as the shard had.

    Attributes:
        limits: the most entries of each list.
    """

    def __init__(self, message: type, proto: type[Proto], *, file: bool = False, **kinds: Field) -> None:
        self.message, self.proto = message, proto
        fields = {field.name: kinds.get(field.name) or _kind_of(field) for field in proto.DESCRIPTOR.fields}
        self.limits = {name: kind.limit for name, kind in fields.items() if kind.limit}
        self._fields = [
            (kind.attribute or name, name, kind.put, (file and kind.get_any) or kind.get)
            for name, kind in fields.items()
        ]

    def put(self, message: object, proto: Proto, sender: TensorSender) -> None:
        """Writes all fields."""
        for attribute, name, put, _ in self._fields:
            put(getattr(message, attribute), proto, name, sender)

    def get(self, proto: Proto, receiver: TensorReceiver) -> Any:  # noqa: ANN401 - an instance of `message`
        """Reads and checks all fields. Raises `Malformed`."""
        values = {attribute: get(proto, name, receiver) for attribute, name, _, get in self._fields}
        try:
            return self.message(**values)
        except ValueError as error:
            raise Malformed(str(error)) from error


def refuse_length(proto: Proto, name: str, limit: int) -> NoReturn:
    """Raises `Malformed` for a list of more than `limit` entries."""
    count = len(getattr(proto, name))
    raise Malformed(f"{type(proto).__name__}.{name} has {limit:,} entries at most, got {count:,}")


def _list(
    put: Callable[[Any, Proto, str, TensorSender], None],
    get_any: Callable[[Proto, str, TensorReceiver], tuple[Any, ...]],
    limit: int,
) -> Field:
    """A repeated field of `limit` entries at most."""

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> tuple[Any, ...]:
        repeated = getattr(proto, name)
        if not repeated:
            return ()  # as most are, of most messages
        if len(repeated) > limit:
            refuse_length(proto, name, limit)
        return get_any(proto, name, receiver)

    return Field(put, get, get_any=get_any, limit=limit)


def _set(value: object, proto: Proto, name: str, sender: TensorSender) -> None:
    setattr(proto, name, value)


def _set_if_any(value: object, proto: Proto, name: str, sender: TensorSender) -> None:
    if value is not None:
        setattr(proto, name, value)


def _extend(value: Iterable[object], proto: Proto, name: str, sender: TensorSender) -> None:
    getattr(proto, name).extend(value)


def _checked(check: Callable[[Any], object], put: Callable[[Any, Proto, str, TensorSender], None] = _set) -> Field:
    """A field with the value that `check` returns; `check` raises `ValueError` for an invalid one."""

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> object:
        try:
            return check(getattr(proto, name))
        except ValueError as error:
            raise Malformed(f"{type(proto).__name__}.{name} {error}") from error

    return Field(put, get)


def number(low: float, high: float = sys.float_info.max) -> Field:
    """A finite number from `low` to `high`."""

    def check(value: float) -> float:
        if not low <= value <= high:
            raise ValueError(_not_between(low, high, value))
        return value

    return _checked(check)


def integer(low: int, high: int = MAX_NUMBER) -> Field:
    """An integer from `low` to `high`."""
    return number(low, high)


def numbers(low: int, limit: int, high: int = MAX_NUMBER) -> Field:
    """Integers from `low` to `high`, `limit` of them at most."""

    def check(values: Iterable[int]) -> tuple[int, ...]:
        found = tuple(values)
        if found and not low <= min(found) <= max(found) <= high:
            raise ValueError(_not_between(low, high, min(found) if min(found) < low else max(found)))
        return found

    return _list(_extend, _checked(check).get, limit)


def _not_between(low: float, high: float, value: float) -> str:
    return f"must be at most {high}, got {value}" if value > high else f"must be at least {low}, got {value}"


def _any_numbers(limit: int) -> Field:
    """Numbers, also infinite ones and NaN, `limit` of them at most."""
    return _list(_extend, lambda proto, name, receiver: tuple(getattr(proto, name)), limit)


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

    def check(value: object) -> object:
        if value not in back:
            raise ValueError(f"cannot be {value!r:.50}")
        return back[value]

    return _checked(check, put)


@functools.lru_cache(4096)
def check_name(text: str) -> str:
    """The name, if valid."""
    if not text or len(text) > MAX_NAME_LENGTH or not text.isprintable():
        got = f"{text!r}" if len(text) <= MAX_NAME_LENGTH else f"{len(text):,} of them"
        raise Malformed(f"a name has 1 to {MAX_NAME_LENGTH} printable characters, got {got}")
    return text


def check_distinct(names: Sequence[str]) -> None:
    """Raises `Malformed` if a name occurs twice."""
    if len(set(names)) < len(names):
        raise Malformed(f"{Counter(names).most_common(1)[0][0]!r} is in the message more than once")


def _check_names(names: Iterable[str]) -> tuple[str, ...]:
    checked = tuple(map(check_name, names))
    check_distinct(checked)
    return checked


def _check_name_or_none(text: str) -> str:
    return check_name(text) if text else text


def text(limit: int, *, printable: bool = False) -> Field:
    """A text of `limit` characters at most; if `printable`, without line ends and codes that a terminal would obey."""

    def check(value: str) -> str:
        if len(value) > limit:
            raise ValueError(f"has {limit:,} characters at most, got {len(value):,}")
        if printable and not value.isprintable():
            raise ValueError(f"has characters that cannot be printed: {value[:100]!r}")
        return value

    return _checked(check)


def _check_secret(data: bytes) -> bytes:
    if len(data) > MAX_SECRET_BYTES:
        raise ValueError(f"has {MAX_SECRET_BYTES:,} bytes at most, got {len(data):,}")
    return data


def _check_secrets(secrets: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(map(_check_secret, secrets))


#: Any number or flag.
ANY = Field(_set, lambda proto, name, receiver: getattr(proto, name))
#: An optional number (None if missing); NaN is allowed, since a loss can be NaN.
OPTIONAL = Field(_set_if_any, lambda proto, name, receiver: getattr(proto, name) if proto.HasField(name) else None)
#: The name of a worker, a variable or a data queue; names of variables, each once.
NAME, NAMES = _checked(check_name), _list(_extend, _checked(_check_names).get, MAX_ENTRIES)
#: A name that may be left out; a word for displays; a sentence for people, and one in an answer.
NAME_OR_NONE, LABEL = _checked(_check_name_or_none), text(MAX_LABEL_LENGTH, printable=True)
TEXT, ANSWER_TEXT = text(MAX_TEXT_LENGTH, printable=True), text(MAX_ANSWER_TEXT_LENGTH)
#: A text for programs, which shards keep.
NOTE = text(MAX_NOTE_LENGTH, printable=True)
#: A token, a key or a proof; proofs, one for each shard.
SECRET, PROOFS = _checked(_check_secret), _list(_extend, _checked(_check_secrets).get, MAX_SHARDS)
#: Integers, one for each shard unless a row says otherwise; versions, of which -1 is none.
NUMBERS, KNOWN_VERSIONS = numbers(0, MAX_SHARDS), numbers(-1, MAX_ENTRIES)
COUNT, POSITIVE, AMOUNT = integer(0), integer(1), number(0)
#: A number that is drawn at random and only compared; such numbers, one for each shard.
RANDOM, RANDOMS = integer(0, _LARGEST), numbers(0, MAX_SHARDS, _LARGEST)
#: Results of operations, two numbers for each, and losses of portions; infinite ones and NaN are allowed.
RESULTS, LOSSES = _any_numbers(2 * MAX_OPERATIONS), _any_numbers(MAX_ENTRIES)


def one(part: Part, *, optional: bool = False) -> Field:
    """A part; if `optional`, it may be absent (None)."""

    def put(value: object, proto: Proto, name: str, sender: TensorSender) -> None:
        if optional and value is None:
            return
        if optional:
            getattr(proto, name).SetInParent()
        part.put(value, getattr(proto, name), sender)

    def get(proto: Proto, name: str, receiver: TensorReceiver) -> object:
        return None if optional and not proto.HasField(name) else part.get(getattr(proto, name), receiver)

    return Field(put, get)


def many(part: Part, name_of: Callable[[Any], str] | None = None, limit: int = MAX_LISTED) -> Field:
    """Parts in order, `limit` at most; with `name_of`, which returns the name of a part, each name once."""

    def put(value: Sequence[object], proto: Proto, name: str, sender: TensorSender) -> None:
        if not value:
            return  # as most are, of most messages
        repeated = getattr(proto, name)
        for item in value:
            part.put(item, repeated.add(), sender)

    def get_any(proto: Proto, name: str, receiver: TensorReceiver) -> tuple[object, ...]:
        items = tuple([part.get(item, receiver) for item in getattr(proto, name)])
        if name_of is not None and len(items) > 1:
            check_distinct([name_of(item) for item in items])
        return items

    return _list(put, get_any, limit)


class _Spec:
    """An optimizer or a row initializer as the protobuf Struct of its plain data; the spec checks its fields."""

    def __init__(self, proto: type[Proto], from_plain: Callable[[Mapping[str, Any]], specs.Spec]) -> None:
        self._proto, self._from_plain = proto, from_plain
        self._from_bytes = functools.lru_cache(1024)(self._read)  # most variables of a model have the same optimizer

    def put(self, spec: specs.Spec, proto: pb.Optimizer | pb.RowInitializer, sender: TensorSender) -> None:
        proto.fields.update(specs.to_plain(spec))

    def get(self, proto: pb.Optimizer | pb.RowInitializer, receiver: TensorReceiver) -> specs.Spec:
        data = proto.SerializeToString(deterministic=True)
        if len(data) > MAX_SPEC_BYTES:
            raise Malformed(f"{type(proto).__name__} has {MAX_SPEC_BYTES:,} bytes at most, got {len(data):,}")
        return self._from_bytes(data)

    def _read(self, data: bytes) -> specs.Spec:
        proto: Any = self._proto.FromString(data)
        try:
            return self._from_plain(MessageToDict(proto.fields))
        except (ValueError, TypeError) as error:
            raise Malformed(str(error)) from error


_OPTIMIZER = _Spec(pb.Optimizer, partial(specs.from_plain, UpdateSpec))
OPTIMIZER_OR_NONE = one(_OPTIMIZER, optional=True)
INITIAL = one(_Spec(pb.RowInitializer, partial(specs.from_plain, RowInitializer)), optional=True)

#: The kind of fields that are messages, by their protobuf; one row for each, added where the part is defined.
KINDS: dict[type[Proto], Field] = {pb.Optimizer: one(_OPTIMIZER)}


def _kind_of(field: Any) -> Field:  # noqa: ANN401 - a FieldDescriptor
    """The kind of a field by its type: counts, amounts, names, optional numbers, texts and flags; parts by `KINDS`."""
    if field.message_type is not None:
        return KINDS[GetMessageClass(field.message_type)]
    is_text = field.type == FieldDescriptor.TYPE_STRING
    if field.type == FieldDescriptor.TYPE_BYTES:
        return PROOFS if field.is_repeated else SECRET
    if field.is_repeated:
        return NAMES if is_text else NUMBERS
    if field.has_presence:
        return OPTIONAL
    if is_text:
        return ANSWER_TEXT
    if field.type == FieldDescriptor.TYPE_BOOL:
        return ANY
    return AMOUNT if field.type == FieldDescriptor.TYPE_DOUBLE else COUNT


#: A worker and its incarnation.
SENDER = Row(ms.Sender, pb.Sender, worker=NAME)
KINDS[pb.Sender] = one(SENDER)
