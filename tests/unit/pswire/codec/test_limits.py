"""Every list and every text of every message has a limit, which is checked before anything is made of its entries."""

import pytest
from google.protobuf.message import Message

from pswire.codec import decode, encode
from pswire.codec.messages import _BY_PROTO
from pswire.errors import Malformed
from pswire.limits import MAX_ANSWER_TEXT_LENGTH, MAX_CHOICES, MAX_ENTRIES, MAX_LISTED, MAX_SHARDS, MAX_SPEC_BYTES
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.v1 import paramserver_pb2 as pb
from tests.support.combinations import few_fast, together
from tests.unit.pswire.codec.test_codec import FULL

TOO_MANY = 1 + max(MAX_ENTRIES + MAX_CHOICES, MAX_ANSWER_TEXT_LENGTH)
SPECS = ("Optimizer", "RowInitializer")
REFUSALS = r"{field} has [\d,]+ (entries|characters|bytes) at most, got 33,769|{field} cannot|{text}"
TEXTS = "|".join(
    (
        "a name has 1 to 256 printable characters, got 33,769 of them",
        "bytes expected, there are 33769",
        "dtype 'xxxxxxxxxxxxxxxxxxxx' is not one of",
        "cannot be in the form",
        "has 32,768 shards at most, got 33,7",
    )
)


def fields_of(proto, path=()):
    """The path of every list, text and bytes within a message, by message type and field; those of specs as one."""
    for field in proto.DESCRIPTOR.fields:
        here = (*path, field.name)
        key = f"{proto.DESCRIPTOR.name}.{field.name}"
        value = getattr(proto, field.name)
        if proto.DESCRIPTOR.name in SPECS:
            yield key, here
            continue
        if field.is_repeated or isinstance(value, str | bytes):
            yield key, here
        parts = value if field.is_repeated else [value]
        present = field.is_repeated or (isinstance(value, Message) and proto.HasField(field.name))
        for place, part in enumerate(parts if present else ()):
            if isinstance(part, Message):
                yield from fields_of(part, (*here, place) if field.is_repeated else here)


def declared(descriptor, seen):
    """The list, text and bytes fields of a message type and of its parts, as `fields_of` names them."""
    if descriptor.name in seen:
        return
    seen.add(descriptor.name)
    for field in descriptor.fields:
        if descriptor.name in SPECS or field.is_repeated or field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            yield f"{descriptor.name}.{field.name}"
        if field.message_type is not None and descriptor.name not in SPECS:
            yield from declared(field.message_type, seen)


def integers_of(proto, path=()):
    """The path of every integer of 64 bits within a message, by message type and field; not those of specs."""
    for field in proto.DESCRIPTOR.fields:
        here, value = (*path, field.name), getattr(proto, field.name)
        if field.type == field.TYPE_INT64:
            yield f"{proto.DESCRIPTOR.name}.{field.name}", here
        elif field.message_type is not None and field.message_type.name not in SPECS:
            present = field.is_repeated or proto.HasField(field.name)
            for place, part in enumerate((value if field.is_repeated else [value]) if present else ()):
                yield from integers_of(part, (*here, place) if field.is_repeated else here)


#: Random numbers, which are only compared; and sizes, whose product is limited by the address space.
RANDOM = {"JoinRequest.process_nonce", "JoinRequest.states", "JoinReply.state", "RegisterRequest.states", "Queue.seed"}
SIZES = {"Tensor.shape", "Shared.offset"}


@together("message", FULL, ids=lambda message: type(message).__name__)
def test_every_integer_is_below_two_to_the_62_unless_it_is_random(message):
    whole = encode(message, InlineSender())
    for key, path in integers_of(whole):
        if key in SIZES:
            continue
        proto = type(whole).FromString(whole.SerializeToString())
        part = proto
        for step in path[:-1]:
            part = part[step] if isinstance(step, int) else getattr(part, step)
        if not getattr(part, path[-1]):
            continue  # of a part that has no such number
        if part.DESCRIPTOR.fields_by_name[path[-1]].is_repeated:
            getattr(part, path[-1])[:1] = [1 << 62]
        else:
            setattr(part, path[-1], 1 << 62)
        if key in RANDOM:
            decode(proto, InlineReceiver())
            continue
        with pytest.raises(Malformed, match=f"{key} must be"):
            decode(proto, InlineReceiver())


def overfill(proto, path):
    """Makes the field at `path` far too long."""
    *outer, name = path
    for step in outer:
        proto = proto[step] if isinstance(step, int) else getattr(proto, step)
    value, field = getattr(proto, name), proto.DESCRIPTOR.fields_by_name[name]
    if type(proto).__name__ in SPECS:
        value.update({str(number): 0.0 for number in range(MAX_SPEC_BYTES // 8)})
    elif isinstance(value, str | bytes):
        setattr(proto, name, TOO_MANY * ("x" if isinstance(value, str) else b"x"))
    elif field.message_type is not None:
        while len(value) < TOO_MANY:
            value.add()
    else:
        make = {field.TYPE_STRING: str, field.TYPE_BYTES: lambda n: b"x"}.get(field.type, int)
        value.extend([make(n) for n in range(TOO_MANY - len(value))])


CASES = {}
for message in FULL:
    for key, path in fields_of(encode(message, InlineSender())):
        CASES.setdefault(key, (message, path))


@together("key", CASES)
def test_a_list_or_text_that_is_too_long_is_refused_with_its_name_its_length_and_the_limit(key):
    message, path = CASES[key]
    proto = encode(message, InlineSender())
    overfill(proto, path)
    spec = key.partition(".")[0] if key.startswith(SPECS) else ""
    refusal = f"{spec} has 8,192 bytes at most, got" if spec else REFUSALS.format(field=key, text=TEXTS)
    with pytest.raises(Malformed, match=refusal):
        decode(type(proto).FromString(proto.SerializeToString()), InlineReceiver())


def test_no_field_of_any_message_is_without_a_limit():
    seen = set()
    every = {key for proto in _BY_PROTO for key in declared(proto.DESCRIPTOR, seen)}
    assert every - CASES.keys() == set()


@pytest.mark.parametrize("count", few_fast([MAX_LISTED, MAX_SHARDS]))
def test_changes_that_name_more_shards_together_than_a_message_may_are_refused(count):
    changes = [
        pb.ChangeId(sender=pb.Sender(worker=f"w{n}"), sequence=1, shards=range(MAX_SHARDS)) for n in range(count)
    ]
    push = pb.PushRequest(sender=pb.Sender(worker="w0"), sequence=1, after=changes[: MAX_ENTRIES // MAX_SHARDS])
    assert len(decode(push, InlineReceiver()).after) == MAX_ENTRIES // MAX_SHARDS
    push.after.extend(changes[MAX_ENTRIES // MAX_SHARDS :])
    total = count * MAX_SHARDS
    with pytest.raises(Malformed, match=f"PushRequest.after has {MAX_ENTRIES:,} shards at most, got {total:,}"):
        decode(push, InlineReceiver())


def test_a_message_with_20000_variables_or_1000_workers_is_within_the_limits():
    assert MAX_ENTRIES >= 20_000
    assert MAX_LISTED >= 1000
    names = tuple(f"layer-{number}/kernel" for number in range(20_000))
    proto = pb.PullRequest(sender=pb.Sender(worker="w", incarnation=1), names=names, known_versions=range(20_000))
    assert decode(proto, InlineReceiver()).names == names
