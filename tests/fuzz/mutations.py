"""Changes of inputs that keep them well-formed: of packets, and of the fields of the protobufs in them."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from tests.fuzz.packets import Packet, pack, unpack

_INTEGERS = (
    0,
    1,
    2,
    -1,
    7,
    64,
    255,
    1 << 15,
    1 << 20,
    1 << 31,
    (1 << 31) - 1,
    1 << 48,
    1 << 53,
    (1 << 63) - 1,
    -(1 << 63),
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-3, 1e30, 1e308, 5e-324, float("inf"), float("nan"))
_TEXTS = (
    "",
    "w0",
    "w1",
    "W",
    "b",
    "float32",
    "int8",
    "topk",
    "bool",
    "\x1b[2J",
    "a\nb",
    "é" * 300,
    "kind",
    "adam",
    "0",
)

Mutate = Callable[[bytes, int], bytes]


def mutated(data: bytes, most: int, seed: int, kinds: Mapping[int, type[Proto]], any_bytes: Mutate) -> bytes:
    """The input after a change of at most some packets; `any_bytes` changes bytes without regard to what they are."""
    rng = random.Random(seed)
    packets = unpack(data)
    if not packets or rng.random() < 0.1:
        return any_bytes(data, most)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(packets, rng, kinds, any_bytes)
    return pack(packets)[:most]


def _change(packets: list[Packet], rng: random.Random, kinds: Mapping[int, type[Proto]], any_bytes: Mutate) -> None:
    place = rng.randrange(len(packets))
    tag, part = packets[place]
    match rng.randrange(10):
        case 0 if len(packets) > 1:
            del packets[place]
        case 1:
            packets.insert(rng.randrange(len(packets) + 1), (tag, part))
        case 2:
            other = rng.randrange(len(packets))
            packets[place], packets[other] = packets[other], packets[place]
        case 3:
            packets[place] = rng.choice([*kinds, rng.randrange(256)]), part
        case 4 | 5:
            packets[place] = tag, any_bytes(part, len(part) + 64)
        case _ if tag in kinds:
            packets[place] = tag, _with_other_field(part, kinds[tag], rng)
        case _:
            packets[place] = tag, any_bytes(part, len(part) + 64)


def _with_other_field(part: bytes, kind: type[Proto], rng: random.Random) -> bytes:
    try:
        proto = kind.FromString(part)
        _change_field(proto, rng)
        return proto.SerializeToString()
    except (DecodeError, ValueError, UnicodeError):
        return part


def _change_field(proto: Any, rng: random.Random) -> None:
    """Another value of one field, of the message or of one inside it."""
    fields = proto.DESCRIPTOR.fields
    if not fields:
        return
    there = [field for field, _ in proto.ListFields()]
    field = rng.choice(there if there and rng.random() < 0.8 else fields)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entries = getattr(proto, field.name)
        if entries and rng.random() < 0.8:
            name = rng.choice(sorted(entries))
            _change_field(entries[name], rng)
        else:
            entries[rng.choice(_TEXTS)].SetInParent()
    elif field.is_repeated:
        _change_list(getattr(proto, field.name), field, rng)
    elif field.message_type is not None:
        if rng.random() < 0.1:
            proto.ClearField(field.name)
        else:
            inner = getattr(proto, field.name)
            inner.SetInParent()
            _change_field(inner, rng)
    elif rng.random() < 0.1:
        proto.ClearField(field.name)
    else:
        setattr(proto, field.name, _value(field, rng, getattr(proto, field.name)))


def _change_list(values: Any, field: Field, rng: random.Random) -> None:
    action = rng.random()
    if values and action < 0.2:
        del values[rng.randrange(len(values))]
    elif field.message_type is None:
        if values and action < 0.6:
            place = rng.randrange(len(values))
            values[place] = _value(field, rng, values[place])
        else:
            values.append(_value(field, rng, values[0] if values else None))
    elif values and action < 0.8:
        _change_field(rng.choice(values), rng)
    elif values:
        values.add().CopyFrom(rng.choice(values))
    else:
        values.add()


def _value(field: Field, rng: random.Random, before: Any) -> Any:
    if field.type == Field.TYPE_STRING:
        return rng.choice(_TEXTS)
    if field.type == Field.TYPE_BYTES:
        return rng.choice((b"", rng.randbytes(rng.choice((1, 4, 8, 24, 100))), bytes(before or b"")[:-1]))
    if field.type == Field.TYPE_BOOL:
        return not before
    if field.type in (Field.TYPE_DOUBLE, Field.TYPE_FLOAT):
        return rng.choice(_FLOATS)
    if field.type == Field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    number = rng.choice((*_INTEGERS, (before or 0) + 1, (before or 0) - 1, rng.randrange(100)))
    bits, signed = {
        Field.TYPE_INT32: (32, True),
        Field.TYPE_UINT32: (32, False),
        Field.TYPE_UINT64: (64, False),
    }.get(field.type, (64, True))
    low = -(1 << bits - 1) if signed else 0
    return min(max(number, low), (1 << bits - signed) - 1)
