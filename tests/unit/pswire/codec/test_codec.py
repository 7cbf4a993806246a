"""Every message comes back as it was, with arrays of every kind; garbage is malformed, and no other error."""

import dataclasses
import itertools
import math
import random
from dataclasses import MISSING, fields, replace

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire import messages as ms
from pswire import optimizers
from pswire.codec import decode, encode, from_frame, to_frame
from pswire.errors import InvalidMessage, Malformed
from pswire.specs import schedules
from pswire.specs.encodings import ENCODINGS
from pswire.specs.initializers import RowConstant, RowNormal, RowUniform
from pswire.tensors.compression import FORMS, quantize_int8, to_16_bits, top_k
from pswire.tensors.frames import incoming, with_data
from pswire.tensors.stream import INLINE_BELOW, StreamReceiver, StreamSender
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import IndexedSlices, Part, TensorSpec
from pswire.v1 import paramserver_pb2 as pb

SEED = 20250607
ME = ms.Sender("worker-0", 3)
W = np.arange(6, dtype=np.float32).reshape(3, 2)
SGD = optimizers.GradientDescent(0.5)
#: Booleans, lists, text and data within data; plain data of all kinds have tests of their own.
OPTIMIZERS = (
    SGD,
    optimizers.RMSProp(0.01, decay=0.8, momentum=0.7, epsilon=1e-5, centered=True),
    optimizers.Momentum(schedules.PiecewiseConstant([100, 200], [1, 0.1, 0.01])),
    optimizers.Momentum(schedules.WarmUp(10, schedules.WarmUp(20, schedules.CosineDecay(0.1, 1000)))),
)
INITIALS = (RowConstant(0.5), RowUniform(-1.0, 1.0, 7), RowNormal(0.1, 2.0, 2**53 - 1))
ARRAYS = (W, np.array([0.5, -0.0, math.nan]), np.zeros((0, 4), np.int16), np.array([True, False]))
ROWS = IndexedSlices(W, np.array([4, 0, 4]), (5, 2))
UNCHECKED = IndexedSlices(W, np.array([-1, 2**62, 3]), (3, 2), check_range=False)  # until they have come
NO_ROWS = IndexedSlices(np.zeros((0, 2, 2), np.float16), np.zeros(0, np.uint8), (0, 2, 2))
PACKED = (
    *(to_16_bits(W, form) for form in ENCODINGS),
    quantize_int8(W, np.zeros(W.size, np.float32)),
    top_k(W, np.zeros(W.size, np.float32), 2),
)
PACKED_ROWS = IndexedSlices(PACKED[0], ROWS.indices, (5, 2))


def named(kind, *arrays):
    return [kind(f"name-{number}", 7 + number, array) for number, array in enumerate(arrays)]


#: Values of fields by their type as it is written, or also by their name: one after the other, or a list for a tuple.
SAMPLES = {
    "int": itertools.count(1),
    "float": itertools.count(0.25),
    "str": map("wörker-{}".format, itertools.count()),
    "bool": itertools.repeat(True),
    "Outcome": itertools.cycle(ms.Outcome),
    "UpdateSpec": itertools.cycle(OPTIMIZERS),
    "TensorSpec": (TensorSpec(f"variable-{number}", (2, 4)) for number in itertools.count()),
    "Part": itertools.repeat(Part(2, 4)),
    "Array": itertools.cycle(ARRAYS),
    "loss: float": itertools.cycle((math.nan, 0.0)),
    "encoding: str": itertools.cycle(ENCODINGS),
    "state: str": itertools.cycle(("live", "lost")),
    "known_versions: tuple[int, ...]": [-1, 2**62],
    "tuple[Value, ...]": named(ms.Value, *ARRAYS, *PACKED, None),
    "tuple[Gradient, ...]": named(ms.Gradient, ROWS, UNCHECKED, NO_ROWS, W, *PACKED, PACKED_ROWS),
    "tuple[Choice, ...]": [ms.Choice("E", ROWS.indices), ms.Choice("E", None, "m"), ms.Choice("v", NO_ROWS.indices)],
    "tuple[Declaration, ...]": [
        ms.Declaration(TensorSpec.of("W", W), W, SGD, None, Part(3, 6)),
        *(
            ms.Declaration(TensorSpec(f"o{number}", (0, 3)), None, one)
            for number, one in enumerate((None, *OPTIMIZERS))
        ),
        *(ms.Declaration(TensorSpec(one.kind, (2, 8)), None, SGD, one, Part(2, 4)) for one in INITIALS),
    ],
}


def sample(kind):
    """A message or a part with a value in every field."""
    return kind(**{field.name: value_of(field.type.removesuffix(" | None"), field.name) for field in fields(kind)})


def value_of(kind, name):
    samples = SAMPLES.get(f"{name}: {kind}") or SAMPLES.get(kind)
    if isinstance(samples, list):
        return tuple(samples)
    if samples is not None:
        return next(samples)
    if not kind.startswith("tuple["):
        return sample(getattr(ms, kind))
    kind = kind.removeprefix("tuple[").removesuffix(", ...]")
    first, second = value_of(kind, name), value_of(kind, name)
    return (bare(first) if dataclasses.is_dataclass(first) else first, second)


def bare(message):
    """The same with None in every field that may be None, and every default."""
    optional = {field.name: None for field in fields(message) if field.type.endswith(" | None")}
    defaults = {field.name: field.default for field in fields(message) if field.default is not MISSING}
    return replace(message, **optional | defaults)


FULL = [sample(kind) for kind in (*ms.ANSWERS, *ms.ANSWERS.values())]
every_case = pytest.mark.parametrize("message", [*FULL, *map(bare, FULL)], ids=lambda message: type(message).__name__)
PROTOS = [getattr(pb, name) for name in pb.DESCRIPTOR.message_types_by_name]
TRANSFERABLE = {piece.message_type.name for piece in pb.Frame.DESCRIPTOR.fields if piece.message_type}


def same(left, right):
    """Equality that looks into arrays, bit by bit, and knows that NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    return left == right or (left != left and right != right)


def encoded(message):
    """The message's bytes, and its protobuf's class."""
    proto = encode(message, InlineSender())
    return proto.SerializeToString(), type(proto)


def test_every_form_has_a_case():
    assert {one.form for one in PACKED} == set(FORMS)


@every_case
def test_a_message_comes_back_as_it_was_inline_in_chunks_or_in_one_frame_and_no_data_may_be_left(message):
    data, kind = encoded(message)
    assert same(decode(kind.FromString(data), InlineReceiver()), message)
    for few in (0, INLINE_BELOW) if kind.__name__ in TRANSFERABLE else ():
        sender, receiver = StreamSender(few=few), StreamReceiver()
        header = to_frame(message, sender)
        frame = incoming(header.SerializeToString())
        from_frame(frame, receiver)
        receiver.allocate()
        whole = from_frame(frame, receiver)
        for pieces in sender.chunks():
            receiver.feed(b"".join(pieces))
        assert receiver.complete
        assert same(whole, message)
        frame = incoming(*sender.frames(header))
        receiver = StreamReceiver(frame.data)
        assert same(from_frame(frame, receiver), message)
        assert receiver.nbytes == 0
        for nbytes in {max(0, sender.nbytes - 1), sender.nbytes + 1} - {sender.nbytes}:
            frame = incoming(with_data(header, [memoryview(bytes(nbytes))]))
            with pytest.raises(
                Malformed, match=f"were declared, but {nbytes} bytes were|its frame, {nbytes} bytes, ends"
            ):
                from_frame(frame, StreamReceiver(frame.data))


UNSENDABLE = [
    *(ms.Push(ME, 1, (ms.Gradient("W", 0, np.zeros(2, dtype)),)) for dtype in ("complex64", "U3", "uint32")),
    ms.Push(ME, 1, (ms.Gradient("W", 0, IndexedSlices(W, np.array([0, 1, 2], np.uint64), (3, 2))),)),
    ms.Renewed(2**63),
    ms.Join("w", shards=2**31),
    ms.Renew(ms.Sender("\ud800", 1)),
    ms.Renewed("one"),
]


@pytest.mark.parametrize("message", UNSENDABLE, ids=lambda message: type(message).__name__)
def test_values_and_dtypes_that_the_protocol_does_not_have_are_not_sent(message):
    dtype = ": variable 'W' has the dtype" if isinstance(message, ms.Push) else ""
    with pytest.raises(InvalidMessage, match=f"this {type(message).__name__} cannot be sent{dtype}"):
        encode(message, InlineSender())


# --- garbage ----------------------------------------------------------------------------------------------------------


def accept_or_refuse(kind, data):
    """Decodes what may be garbage, inline and streamed: a message, or Malformed, and no other error."""
    for receiver in (InlineReceiver(), StreamReceiver()):
        try:
            message = decode(kind.FromString(data), receiver)
        except (DecodeError, Malformed):
            continue
        if isinstance(receiver, InlineReceiver):
            assert same(decode(kind.FromString(encoded(message)[0]), InlineReceiver()), message)


@pytest.mark.parametrize("count", [12, pytest.param(1 << 30, marks=pytest.mark.slow)], ids=["some bytes", "all bytes"])
@every_case
def test_a_message_that_is_cut_or_continued_or_changed_in_a_byte_is_a_message_or_malformed(message, count):
    data, kind = encoded(message)
    generator = random.Random(SEED)
    for length in range(0, len(data), 1 + len(data) // count // 3):
        accept_or_refuse(kind, data[:length])
    for tail in (data, *map(generator.randbytes, (1, 2, 3, 10, 100))):
        accept_or_refuse(kind, data + tail)
    for place in generator.sample(range(len(data)), min(len(data), count)):
        for byte in (0, 255, data[place] ^ 1, data[place] ^ 128, generator.randrange(256)):
            accept_or_refuse(kind, data[:place] + bytes([byte]) + data[place + 1 :])


@given(data=st.binary(max_size=200))
@settings(derandomize=True, database=None, deadline=None, max_examples=60)
def test_arbitrary_bytes_are_a_message_a_frame_or_malformed(data):
    for kind in PROTOS:
        accept_or_refuse(kind, data)
    try:
        frame = incoming(data)
        from_frame(frame, StreamReceiver(frame.data))
    except Malformed:
        pass


def test_what_is_no_message_is_malformed():
    with pytest.raises(Malformed, match="Queue is neither a request nor an answer"):
        decode(pb.Queue(), InlineReceiver())
    for frame, complaint in ((b"", "this one with nothing"), (pb.Frame(chunk=b"1").SerializeToString(), "a chunk")):
        with pytest.raises(Malformed, match=f"begins with a message, .*{complaint}"):
            from_frame(incoming(frame), StreamReceiver())
