"""Every message comes back as it was, with arrays of every kind; garbage is malformed, and no other error."""

import math
import random

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
from pswire.tensors.frames import Incoming, incoming, with_data
from pswire.tensors.inline import InlineReceiver, InlineSender
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import INLINE_BELOW
from pswire.tensors.values import DTYPES, IndexedSlices, Part, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from tests.encoded_messages import inline, read, same

SEED = 20250607
ME = ms.Sender("worker-0", 3)
W = np.arange(6, dtype=np.float32).reshape(3, 2)
b = np.array([0.5, -0.0, math.nan], np.float64)
OPTIMIZERS = (
    optimizers.GradientDescent(0.5),
    optimizers.Momentum(0.25, momentum=0.5, nesterov=True),
    optimizers.Adagrad(0.1, initial_accumulator=0.3, epsilon=1e-7),
    optimizers.Adam(1e-4, beta1=0.8, beta2=0.99, epsilon=1e-5),
    optimizers.MovingAverage(0.99),
    optimizers.AdagradDecay(0.1, initial_accumulator=0.3, decay_steps=1000, decay_rate=0.75),
    optimizers.RMSProp(0.01, decay=0.8, momentum=0.7, epsilon=1e-5, centered=True),
    optimizers.AdamW(0.01, amsgrad=True, weight_decay=0.3),
    optimizers.Lamb(0.01, weight_decay=0.3),
    optimizers.Ftrl(0.1, l1=0.5, l2=0.25, learning_rate_power=0.75, initial_accumulator=0.2),
)
SCHEDULES = (
    schedules.ExponentialDecay(0.1, 1000, 0.96, staircase=True),
    schedules.PolynomialDecay(0.1, 1000, end=0.01, power=0.5),
    schedules.CosineDecay(0.1, 1000, alpha=0.125),
    schedules.PiecewiseConstant([100, 200], [1, 0.1, 0.01]),
    schedules.WarmUp(10, 0.1),
    schedules.WarmUp(10, schedules.WarmUp(20, schedules.CosineDecay(0.1, 1000))),
)

SCHEDULED = tuple(optimizers.Momentum(schedule) for schedule in SCHEDULES)
ROWS = IndexedSlices(W, np.array([4, 0, 4]), (5, 2))
NO_ROWS = IndexedSlices(np.zeros((0, 2, 2), np.float16), np.zeros(0, np.uint8), (0, 2, 2))
INITIALS = (RowConstant(0.5), RowUniform(-1.0, 1.0, 7), RowNormal(0.1, 2.0, 2**53 - 1))
CHOICES = (ms.Choice("E", ROWS.indices), ms.Choice("E", None, "m"), ms.Choice("E", np.zeros(0, np.uint8), "v"))
CHANGES = ms.ChangeId(ms.Sender("worker-0", 3), 7), ms.ChangeId(ms.Sender("worker-2", 1), 2**40, (1, 3))
FRONTIER = ms.Frontier(2**40, CHANGES)
GROUP = ms.UpdateGroup(12, CHANGES)
NOTHING = np.zeros(W.size, np.float32)
PACKED = (*(to_16_bits(W, form) for form in ENCODINGS), quantize_int8(W, NOTHING.copy()), top_k(W, NOTHING.copy(), 2))
PACKED_ROWS = IndexedSlices(to_16_bits(W, "bfloat16"), ROWS.indices, (5, 2))
PACKED_GRADIENTS = (*(ms.Gradient(one.form, 7, one) for one in PACKED), ms.Gradient("E", 7, PACKED_ROWS))
VALUES = (ms.Value("scope/W", 7, W), ms.Value("b", 0, b), ms.Value("none", 2**62, np.zeros((0, 4), np.int16)))
REPORTS = (ms.EpochReport("train", 1, 0.25, 100), ms.EpochReport("test", 2, None, 0))
DECLARED = ms.Declaration(TensorSpec.of("W", W), W, OPTIMIZERS[0], None, Part(3, 6))
FLAGS = ms.Declaration(TensorSpec.of("flags", np.array([True, False])), np.array([True, False]))
TABLES = [ms.Declaration(TensorSpec(one.kind, (2, 8)), None, OPTIMIZERS[0], one, Part(2, 4)) for one in INITIALS]
VARIABLES = (
    ms.VariableStatus(TensorSpec("b", (10,)), 5, 4, SCHEDULED[-1]),
    ms.VariableStatus(TensorSpec("E", (2, 4)), 5, 4, OPTIMIZERS[2], ("a", "b"), 96, Part(2, 4), True),
)
WORKERS = (
    ms.WorkerStatus("worker-0", 3, 0, "live", 5, 1, 4, 0.5, 1, 12.5),
    ms.WorkerStatus("worker-1", 1, 1, "lost", 0, 0, 0, None, 0, -3.5, 7, "sync:2: for worker-0", "gRPC", True),
)
TUNED = (ms.Change(3, "worker-0", ("W", "b"), OPTIMIZERS[0]),)
LAST_PUSHES = (ms.LastPush("worker-1", 1, 17, (1, 2)), ms.LastPush("worker-1", 2, 3, (1,)))
MORE = ms.Traffic(10.5, 1e9, 0.25), ms.Staleness(1, 30), TUNED, 3, LAST_PUSHES

CASES = [
    ms.Join("worker-0"),
    ms.Join("wörker", 4, 1, 3, 77, "gRPC", (2**62, 0, 1)),
    ms.Joined(1, 0, 15.0, 0),
    ms.Joined(1, 0, 15.0, 0, "sync:3,backup=1", "drop:8", chief=True, state=2**62),
    ms.Renew(ME),
    ms.Renew(ME, idle=True, tensor_transport="gRPC", settled=8, half_pushes=2),
    ms.Renewed(2**40),
    ms.Renewed(2**40, "bounded:2: worker-1 is at step 4, 2 behind", chief=True),
    ms.Leave(ME),
    ms.Leave(ME, failed=True),
    ms.Left(),
    ms.Register(ME, (), (ms.Place("W", 0), ms.Place("exists", 2)), dry_run=True, states=(2**62, 0, 1)),
    ms.Register(ME, (DECLARED, ms.Declaration(TensorSpec("exists", (2, 0), "int8")), FLAGS, *TABLES)),
    *(ms.Register(ME, (ms.Declaration(TensorSpec("o", ()), None, spec),)) for spec in (*OPTIMIZERS, *SCHEDULED)),
    ms.Registered(VALUES, 11, FRONTIER),
    ms.Pull(ME, ("scope/W", "b"), after=CHANGES),
    ms.Pull(ME, ("scope/W", "b"), CHOICES, (-1, 2**62), "float16"),
    ms.Pulled((VALUES[0], *VALUES), 11, FRONTIER),
    ms.Pulled((ms.Value("scope/W", 7, PACKED[1]), ms.Value("b", 2**62, None)), 11),
    ms.Push(ME, 1, ()),
    ms.Push(ME, 9, (ms.Gradient("E", 7, ROWS), ms.Gradient("W", 7, W), ms.Gradient("e", 7, NO_ROWS)), 0.0, ("E",)),
    ms.Push(ME, 9, PACKED_GRADIENTS, math.nan, ("bfloat16", "E"), known_versions=(7, -1), encoding="bfloat16"),
    ms.Push(ME, 9, (ms.Gradient("W", 7, W),), 0.1, ("W",), GROUP, after=CHANGES, global_step=2**40),
    ms.Push(ME, 9, (), shards=(1, 3), remote=(ms.RemoteWeights("V", 0), ms.RemoteWeights("U", 2**40))),
    ms.Pushed(ms.Outcome.APPLIED, 4, 12, VALUES, group=GROUP, frontier=FRONTIER),
    ms.Pushed(ms.Outcome.REPEATED, 0, 12),
    ms.Pushed(ms.Outcome.DROPPED, 9, 12, (), "9 changes behind, at most 8 are allowed"),
    ms.Assign(ME, 3, (ms.Assignment("W", W), ms.Assignment("b", b)), add=True),
    ms.Assign(ME, 3, (), shards=(1,), remote=("V", "U"), after=CHANGES),
    ms.Assigned(ms.Outcome.APPLIED, (8, 0), 12, ms.Frontier(0)),
    ms.Tune(ME, 4, ("W", "b"), OPTIMIZERS[3], ("learning_rate", "decay")),
    ms.Tuned(ms.Outcome.APPLIED, 12),
    ms.Take(ME, ms.QueueSpec("train", 55_000, 800, 10, seed=-1), reports_received=3, give_back=True),
    ms.Take(ME, ms.QueueSpec("train", 1, 1, 1), ms.Finished(0)),
    ms.Take(ME, ms.QueueSpec("train", 1, 1, 1), ms.Finished(5, math.inf)),
    ms.Taken(ms.Block(0, 1, 0, 800), reports=REPORTS),
    ms.Taken(None, done=True, chief=True),
    ms.Taken(None, waiting_for="worker-1, which holds block 68 for 3 s"),
    ms.Status(),
    ms.StatusReport(1, 2, 5, 0),
    ms.StatusReport(0, 1, 5, 2, VARIABLES, WORKERS, REPORTS, 7, 2**40, "bounded:3", "scale", *MORE),
]
TRANSFERABLE = {piece.message_type.name for piece in pb.Frame.DESCRIPTOR.fields if piece.message_type}
STREAMED_CASES = [case for case in CASES if type(encode(case, InlineSender())).__name__ in TRANSFERABLE]


def named(message):
    return type(message).__name__


every_case = pytest.mark.parametrize("message", CASES, ids=named)


def test_every_message_optimizer_and_schedule_has_a_case():
    assert {type(case) for case in CASES} == {*ms.ANSWERS, *ms.ANSWERS.values()}
    assert {type(spec) for spec in OPTIMIZERS} == set(optimizers.UpdateSpec.kinds.values())
    assert {type(schedule) for schedule in SCHEDULES} == set(schedules.Schedule.kinds.values())
    assert {one.form for one in PACKED} == set(FORMS)


@every_case
def test_a_message_comes_back_as_it_was(message):
    data, kind = inline(message)
    assert same(read(kind, data), message)


@pytest.mark.parametrize("few", [0, INLINE_BELOW], ids=["all streamed", "few inside"])
@pytest.mark.parametrize("message", STREAMED_CASES, ids=named)
def test_a_message_comes_back_as_it_was_in_chunks_or_in_one_frame_and_no_data_may_be_left(message, few):
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
            Malformed, match=f"were declared, but {nbytes} bytes were received|its frame, {nbytes} bytes, ends before"
        ):
            from_frame(frame, StreamReceiver(frame.data))


# --- arrays -----------------------------------------------------------------------------------------------------------


def through_the_wire(array):
    data, kind = inline(ms.Pulled((ms.Value("x", 0, array),), 0))
    return read(kind, data).values[0].array


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_shape_and_byte_order_arrives_bit_by_bit_as_a_read_only_view(dtype):
    generator = np.random.default_rng(SEED)
    for shape in [(), (0,), (1,), (3, 5), (2, 0, 3), (1,) * 16]:
        size = math.prod(shape)
        array = generator.integers(0, 256, size * DTYPES[dtype].itemsize, np.uint8).view(dtype).reshape(shape)
        if dtype == "bool":
            array = generator.integers(0, 2, size).astype(bool).reshape(shape)
        arrived = through_the_wire(array)
        assert same(arrived, array)
        assert not arrived.flags.writeable
        assert not arrived.flags.owndata
        assert same(through_the_wire(array.astype(array.dtype.newbyteorder(">"))), array)


def test_row_numbers_are_not_checked_before_they_have_come():
    rows = IndexedSlices(np.ones((3, 2)), np.array([-1, 2**62, 3]), (3, 2), check_range=False)
    sender, receiver = StreamSender(few=0), StreamReceiver()
    header = Incoming(to_frame(ms.Push(ME, 1, (ms.Gradient("E", 0, rows),)), sender))
    hollow = from_frame(header, receiver).gradients[0].array
    assert (hollow.nbytes, receiver.nbytes) == (rows.nbytes, rows.nbytes)
    receiver.allocate()
    arrived = from_frame(header, receiver).gradients[0].array
    for pieces in sender.chunks():
        receiver.feed(b"".join(pieces))
    with pytest.raises(ValueError, match=r"span -1 \.\.\. 4611686018427387904"):
        arrived.check_indices()


UNSENDABLE = [
    *(ms.Push(ME, 1, (ms.Gradient("W", 0, np.zeros(2, dtype)),)) for dtype in ("complex64", "U3", "uint32")),
    ms.Push(ME, 1, (ms.Gradient("W", 0, IndexedSlices(W, np.array([0, 1, 2], np.uint64), (3, 2))),)),
    ms.Renewed(2**63),
    ms.Join("w", shards=2**31),
    ms.Renew(ms.Sender("\ud800", 1)),
    ms.Renewed("one"),
]


@pytest.mark.parametrize("message", UNSENDABLE, ids=named)
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
            assert same(read(kind, inline(message)[0]), message)


def changed(data, places):
    generator = random.Random(SEED)
    for place in places:
        for byte in (0, 255, data[place] ^ 1, data[place] ^ 128, generator.randrange(256)):
            yield data[:place] + bytes([byte]) + data[place + 1 :]


@every_case
def test_a_message_that_is_cut_or_continued_or_changed_in_some_bytes_is_a_message_or_malformed(message):
    data, kind = inline(message)
    generator = random.Random(SEED)
    cut = [data[:length] for length in range(0, len(data), 1 + len(data) // 40)]
    tails = [data + generator.randbytes(length) for length in (1, 2, 3, 10, 100)]
    some = generator.sample(range(len(data)), min(len(data), 12))
    for garbage in (*cut, *tails, data + data, *changed(data, some)):
        accept_or_refuse(kind, garbage)


@pytest.mark.slow
@every_case
def test_a_message_cut_or_changed_at_any_byte_is_a_message_or_malformed(message):
    data, kind = inline(message)
    for garbage in (*(data[:length] for length in range(len(data))), *changed(data, range(len(data)))):
        accept_or_refuse(kind, garbage)


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


PROTOS = [getattr(pb, name) for name in pb.DESCRIPTOR.message_types_by_name]


def test_what_is_no_message_is_malformed():
    with pytest.raises(Malformed, match="Queue is neither a request nor an answer"):
        decode(pb.Queue(), InlineReceiver())
    for frame, complaint in ((b"", "this one with nothing"), (pb.Frame(chunk=b"1").SerializeToString(), "a chunk")):
        with pytest.raises(Malformed, match=f"begins with a message, .*{complaint}"):
            from_frame(incoming(frame), StreamReceiver())
