"""Every message comes back as it was; an invalid field is named; garbage is malformed, and no other error."""

import dataclasses
import itertools
import math
import random
from contextlib import suppress
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
from pswire.specs import schedules, vectors
from pswire.specs.encodings import ENCODINGS
from pswire.specs.initializers import RowConstant, RowNormal, RowUniform
from pswire.tensors.compression import FORMS, quantize_int8, to_16_bits, top_k
from pswire.tensors.frame import chunk, incoming, with_data
from pswire.tensors.stream import INLINE_BELOW, StreamReceiver, StreamSender
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import IndexedSlices, Part, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from tests.support.combinations import few_fast, together
from tests.support.shards import state_of

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
REST = np.zeros(W.size, np.float32)
COMPRESSED = {"int8": lambda: quantize_int8(W, REST), "topk": lambda: top_k(W, REST, 2)}
PACKED = tuple([COMPRESSED[form]() if form in COMPRESSED else to_16_bits(W, form) for form in FORMS])
ASSIGNED = ((W, 0), (W, 2**62 - 1), *[(array, None) for array in ARRAYS])
GRADIENTS = (ROWS, UNCHECKED, NO_ROWS, W, *PACKED, IndexedSlices(PACKED[0], ROWS.indices, (5, 2)))


#: Values of fields by their type as it is written, or also by their name: one after the other, or a list for a tuple.
SAMPLES = {
    "int": itertools.count(1),
    "float": itertools.count(0.25),
    "str": map("wörker-{}".format, itertools.count()),
    "bool": itertools.repeat(True),
    "bytes": (f"proof-{number}".encode() for number in itertools.count()),
    "Outcome": itertools.cycle(ms.Outcome),
    "UpdateSpec": itertools.cycle(OPTIMIZERS),
    "TensorSpec": (TensorSpec(f"variable-{number}", (2, 4)) for number in itertools.count()),
    "Part": itertools.repeat(Part(2, 4)),
    "Array": itertools.cycle(ARRAYS),
    "loss: float": itertools.cycle((math.nan, 0.0)),
    "encoding: str": itertools.cycle(ENCODINGS),
    "state: str": itertools.cycle(("live", "lost")),
    "tuple[JobReport, ...]": [
        ms.JobReport(job=ms.Job(3, "a"), state="done", global_step=7, workers=2, epochs=5, cost=0.5),
        ms.JobReport(job=ms.Job(), state="empty"),
    ],
    "known_versions: tuple[int, ...]": [-1, 2**62 - 1],
    "tuple[Value, ...]": [ms.Value(f"name-{n}", 7 + n, one) for n, one in enumerate((*ARRAYS, *PACKED, None))],
    "tuple[Gradient, ...]": [ms.Gradient(f"name-{n}", 7 + n, one) for n, one in enumerate(GRADIENTS)],
    "tuple[Assignment, ...]": [ms.Assignment(f"n{n}", one, first) for n, (one, first) in enumerate(ASSIGNED)],
    "tuple[Operation, ...]": [
        *(vectors.Fill("a", 0.5), vectors.Copy("a", "b-1"), vectors.Scale("a", -2.0), vectors.Axpy("a", 3.0, "b-1")),
        *(vectors.Dot("a", "b-1"), vectors.Norm1("a"), vectors.MaxAbs("a"), vectors.Drop()),
        *(vectors.PseudoGradient("a", "b", "c", 0.1), vectors.KeepSigns("a", "b", "c"), vectors.KeepSigns("a", "b")),
    ],
    "Sequence[float]": itertools.repeat([0.5, 1e-20, math.inf, math.nan]),
    "tuple[Choice, ...]": [ms.Choice("E", ROWS.indices), ms.Choice("E", None, "m"), ms.Choice("v", NO_ROWS.indices)],
    "tuple[Declaration, ...]": [
        ms.Declaration(TensorSpec.of("W", W), W, SGD, None, Part(3, 6)),
        *(ms.Declaration(TensorSpec(f"o{n}", (0, 3)), None, one) for n, one in enumerate((None, *OPTIMIZERS))),
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
every_case = together("message", [*FULL, *map(bare, FULL)])
TRANSFERABLE = {piece.message_type.name for piece in pb.Frame.DESCRIPTOR.fields if piece.message_type}


@every_case
def test_a_message_comes_back_as_it_was_inline_in_chunks_or_in_one_frame_and_no_data_may_be_left(message):
    proto = encode(message, InlineSender())
    data, kind = proto.SerializeToString(), type(proto)
    assert state_of(decode(kind.FromString(data), InlineReceiver())) == state_of(message)
    for few in (0, INLINE_BELOW) if kind.__name__ in TRANSFERABLE else ():
        sender, receiver = StreamSender(few=few), StreamReceiver()
        header = to_frame(message, sender)
        frame = incoming(header.SerializeToString())
        from_frame(frame, receiver)
        receiver.allocate()
        whole = from_frame(frame, receiver)
        for pieces in sender.chunks():
            receiver.feed(incoming(chunk(pieces)))
        assert receiver.complete
        assert state_of(whole) == state_of(message)
        frame = incoming(*sender.frames(header))
        receiver = StreamReceiver(frame.data)
        assert state_of(from_frame(frame, receiver)) == state_of(message)
        assert receiver.nbytes == 0
        for nbytes in {max(0, sender.nbytes - 1), sender.nbytes + 1} - {sender.nbytes}:
            frame = incoming(with_data(header, [memoryview(bytes(nbytes))]))
            other = f"were declared, but {nbytes} bytes were|its frame, {nbytes} bytes, ends"
            with pytest.raises(Malformed, match=other):
                from_frame(frame, StreamReceiver(frame.data))


# --- invalid fields ---------------------------------------------------------------------------------------------------

SENDER = pb.Sender(worker="w", incarnation=1)
DESCENT = {"kind": "gradient_descent"}


def tensor(name="W", dtype="float32", shape=(2,), data=bytes(8), **place):
    return pb.Tensor(name=name, dtype=dtype, shape=shape, **(place or {"inline": data}))


def push(*gradients, **fields):
    return pb.PushRequest(**{"sender": SENDER, "sequence": 1, "gradients": gradients, **fields})


def gradient(version=0, **fields):
    return push(pb.Gradient(tensor=tensor(**fields), version=version))


def rows(of=5, **indices):
    """Two rows of a vector, and their numbers unless told otherwise."""
    return push(pb.Gradient(tensor=tensor(), indices=tensor(**{"name": "", "dtype": "int32", **indices}), rows=of))


def declaration(optimizer=None, first=0, of=5, **fields):
    proto = pb.Declaration(tensor=tensor(**fields), part=pb.Part(first=first, of=of))
    if optimizer is not None:
        proto.optimizer.fields.SetInParent()
        proto.optimizer.fields.update(optimizer)
    return pb.RegisterRequest(sender=SENDER, declarations=[proto])


def compute(*others, **fields):
    return pb.ComputeRequest(sender=SENDER, sequence=1, operations=[*others, pb.Operation(**fields)])


INT8 = pb.Packing(form="int8", parts=[tensor(), tensor(shape=())])
BAD = [
    (pb.Queue(), "Queue is neither a request nor an answer"),
    (pb.JoinRequest(worker="", shards=1), "1 to 256 printable characters, got ''"),
    (pb.JoinRequest(worker="a\nb", shards=1), r"printable characters, got 'a\\nb'"),
    (pb.JoinRequest(worker="w", incarnation=-1, shards=1), "JoinRequest.incarnation must be at least 0, got -1"),
    (pb.JoinRequest(worker="w", shards=0), "shard must be at least 0 and below shards 0, got 0"),
    (pb.JoinReply(incarnation=1, lease=math.nan), "JoinReply.lease must be at least 0.001, got nan"),
    (pb.RenewRequest(), "a name has 1 to 256"),
    (pb.RenewRequest(sender=pb.Sender(worker="w", incarnation=-2)), "Sender.incarnation must be at least 0, got -2"),
    (pb.PullRequest(sender=SENDER, names=["a", ""]), "a name has 1 to 256"),
    (pb.PullRequest(sender=SENDER, names=[*map("v{}".format, range(30_000)), "v29999"]), "'v29999' is in the message"),
    (pb.PullRequest(sender=SENDER, choices=[pb.Choice(name="W", rows=tensor())]), "row numbers of 'W' must be"),
    (push(sequence=0), "PushRequest.sequence must be at least 1, got 0"),
    (push(after=[pb.ChangeId(sender=SENDER, sequence=1)] * 2), "is in the message more than once"),
    (push(shards=[1, -1]), "PushRequest.shards must be at least 0, got -1"),
    (push(known_versions=[-2]), "PushRequest.known_versions must be at least -1, got -2"),
    (push(gradient().gradients[0], gradient().gradients[0]), "'W' is in the message more than once"),
    (gradient(version=-1), "Gradient.version must be at least 0, got -1"),
    (gradient(dtype="float128"), "variable 'W': dtype 'float128' is not one of"),
    (gradient(shape=(-1, -2)), "variable 'W': shape"),
    (gradient(shape=(1,) * 17), "Tensor.shape has 16 entries at most, got 17"),
    (gradient(shape=(2**62, 4)), "exceeds the address space"),
    (gradient(shape=(0, 2**62, 2**62), data=b""), "exceeds the address space"),
    (gradient(shape=(1,)), r"W float32\[1\]: 4 bytes expected, there are 8"),
    (gradient(streamed=True), "its elements are not in the message"),
    (gradient(packing=INT8), r"cannot be in the form 'int8' with the parts float32\[2\], float32\[\]"),
    (rows(of=-1), "Gradient.rows must be at least 0, got -1"),
    (rows(shape=(1, 2)), r"gradient for variable 'W': .* indices of shape \(n,\), .* \(2,\) and \(1, 2\)"),
    (pb.PushReply(outcome=pb.OUTCOME_UNSPECIFIED), "PushReply.outcome cannot be 0"),
    (pb.AssignRequest(sender=SENDER, sequence=1, assignments=[pb.Assignment(tensor=tensor())] * 2), "more than once"),
    (pb.RegisterRequest(sender=SENDER, declarations=[declaration().declarations[0]] * 2), "more than once"),
    (declaration(first=6), "a part must begin at a row from 0 to 5, not at 6"),
    (declaration(first=4), r"variable W float32\[2\] does not fit into 5 rows from row 4 on"),
    (declaration(shape=(), data=bytes(4)), r"variable W float32\[\] does not fit into 5 rows from row 0 on"),
    (declaration({}), "variable 'W': unknown optimizer None"),
    (declaration(DESCENT), r"variable 'W': .*missing \['learning_rate'\]"),
    (declaration(DESCENT | {"learning_rate": None}), "variable .W.: .*learning_rate must be .*, got None"),
    (declaration(DESCENT | {"learning_rate": {"x": 1}}), "variable 'W': unknown schedule None; known kinds: "),
    (compute(kind="Solve"), "Operation.kind cannot be 'Solve'"),
    (compute(kind="Copy", vector="a"), "a vector has a name of small letters, digits and hyphens, got ''"),
    (compute(kind="Fill", vector="A b"), "a vector has a name of small letters, digits and hyphens, got 'A b'"),
    (compute(kind="Axpy", vector="a", source="b", number=math.nan), "Axpy needs a finite factor, got nan"),
    (compute(*[pb.Operation()] * 256), "ComputeRequest.operations has 256 entries at most, got 257"),
    (pb.TakeRequest(sender=SENDER, queue=pb.Queue(name="q", size=1, block=0, epochs=1)), "Queue.block must be"),
    (pb.EvaluateRequest(sender=SENDER, name="fit", evaluation=pb.Evaluation(number=1, examples=1)), "portion must be"),
    (
        pb.EvaluateRequest(sender=SENDER, name="fit", evaluation=pb.Evaluation(number=1, examples=1 << 40, portion=1)),
        "may have 32,768: make them larger",
    ),
    (pb.EvaluateRequest(sender=SENDER, name="fit", end="x" * 4097), "EvaluateRequest.end has 4,096 characters at most"),
    (pb.TakePortionRequest(sender=SENDER, name="fit", holding=range(17)), "holding has 16 entries at most"),
    (pb.TakePortionRequest(sender=SENDER, name="fit", withdrawn=[-1]), "withdrawn must be at least 0"),
    (pb.ClaimPortionRequest(sender=SENDER, name="fit"), "evaluation must be at least 1"),
    (pb.TakeRequest(sender=SENDER, queue=pb.Queue(name="q", block=1, epochs=1)), "without a size has no epochs"),
    (pb.TakeRequest(sender=SENDER, queue=pb.Queue(name="q", size=1, block=1, limit=-1)), "Queue.limit must be"),
    (pb.TakeReply(block=pb.Block(epoch=1, start=1, stop=1)), "Block.start must be at least 0 and below stop 1, got 1"),
    (pb.StatusReply(shards=1, workers=[pb.WorkerStatus(name="w", state="dead")]), "state cannot be 'dead'"),
]


@together(("proto", "reason"), BAD)
def test_an_invalid_field_is_named(proto, reason):
    with pytest.raises(Malformed, match=reason):
        decode(type(proto).FromString(proto.SerializeToString()), InlineReceiver())


@pytest.mark.parametrize("letter", ["w", "é", "名"])
def test_a_name_may_have_256_letters_of_any_alphabet(letter):
    longest = 256 * letter
    message = decode(push(gradient(name=longest).gradients[0], sender=pb.Sender(worker=longest)), InlineReceiver())
    assert message.sender.worker == message.gradients[0].name == longest


def test_values_and_dtypes_that_the_protocol_does_not_have_are_not_sent():
    rows = IndexedSlices(W, np.array([0, 1, 2], np.uint64), (3, 2))
    arrays = [*(np.zeros(2, dtype) for dtype in ("complex64", "U3", "uint32")), rows]
    pushes = [ms.Push(sender=ME, sequence=1, gradients=(ms.Gradient("W", 0, array),)) for array in arrays]
    others = (
        ms.Renewed(global_step=2**63),
        ms.Join(worker="w", shards=2**31),
        ms.Renew(sender=ms.Sender("\ud800", 1)),
        ms.Renewed(global_step="one"),
    )
    for message in (*pushes, *others):
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
            again = kind.FromString(encode(message, InlineSender()).SerializeToString())
            assert state_of(decode(again, receiver)) == state_of(message)


@pytest.mark.parametrize("count", few_fast([12, 1 << 30], slow=0, ids=["some bytes", "all bytes"]))
@every_case
def test_a_message_that_is_cut_or_continued_or_changed_in_a_byte_is_a_message_or_malformed(message, count):
    proto = encode(message, InlineSender())
    data, kind = proto.SerializeToString(), type(proto)
    generator = random.Random(SEED)
    for length in range(0, len(data), 1 + len(data) // count // 3):
        accept_or_refuse(kind, data[:length])
    for tail in (data, *map(generator.randbytes, (1, 2, 3, 10, 100))):
        accept_or_refuse(kind, data + tail)
    for place in generator.sample(range(len(data)), min(len(data), count)):
        for byte in (0, 255, data[place] ^ 1, data[place] ^ 128, generator.randrange(256)):
            accept_or_refuse(kind, data[:place] + bytes([byte]) + data[place + 1 :])


@given(data=st.binary(max_size=200))
@settings(derandomize=True, database=None, max_examples=100)
def test_arbitrary_bytes_are_a_message_a_frame_or_malformed(data):
    for name in pb.DESCRIPTOR.message_types_by_name:
        accept_or_refuse(getattr(pb, name), data)
    with suppress(Malformed):
        frame = incoming(data)
        assert (frame.data or b"") == pb.Frame.FromString(data).data
        from_frame(frame, StreamReceiver(frame.data))
