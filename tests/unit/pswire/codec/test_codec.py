"""Every message survives the wire, and nothing that is no message gets through: one list of cases for all of them."""

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
from pswire.errors import Malformed
from pswire.messages.sizes import arrays
from pswire.specs import schedules
from pswire.specs.encodings import ENCODINGS
from pswire.specs.row_initializers import RowConstant, RowNormal, RowUniform
from pswire.tensors.compression import FORMS, largest, packed, quantized
from pswire.tensors.frames import incoming, with_data
from pswire.tensors.inline import InlineReceiver, InlineSender
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import FEW
from pswire.tensors.values import IndexedSlices, Part, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from tests.wire import inline, read, same

SEED = 20250607
DETERMINISTIC = settings(derandomize=True, database=None, deadline=None, max_examples=100)

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
DELIVERIES = ms.ChangeId(ms.Sender("worker-0", 3), 7), ms.ChangeId(ms.Sender("worker-2", 1), 2**40, (1, 3))
FRONTIER = ms.Frontier(2**40, DELIVERIES)
GROUP = ms.UpdateGroup(12, DELIVERIES)
NOTHING = np.zeros(W.size, np.float32)
PACKED = (*(packed(W, form) for form in ENCODINGS), quantized(W, NOTHING.copy()), largest(W, NOTHING.copy(), 2))
PACKED_ROWS = IndexedSlices(packed(W, "bfloat16"), ROWS.indices, (5, 2))
PACKED_GRADIENTS = (*(ms.Gradient(one.form, 7, one) for one in PACKED), ms.Gradient("E", 7, PACKED_ROWS))
VALUES = (ms.Value("scope/W", 7, W), ms.Value("b", 0, b), ms.Value("none", 2**62, np.zeros((0, 4), np.int16)))
REPORTS = (ms.EpochReport("train", 1, 0.25, 100), ms.EpochReport("test", 2, None, 0))

CASES = [
    ms.Join("worker-0"),
    ms.Join("wörker", 4, 1, 3),
    ms.Join("wörker", 4, 1, 3, 77, "gRPC", (2**62, 0, 1)),
    ms.Joined(1, 0, 15.0, 0),
    ms.Joined(1, 0, 15.0, 0, "sync:3,backup=1", "drop:8", chief=True, state=2**62),
    ms.Renew(ME),
    ms.Renew(ME, idle=True),
    ms.Renewed(2**40),
    ms.Renewed(2**40, "bounded:2: worker-1 is at step 4, 2 behind", chief=True),
    ms.Leave(ME),
    ms.Leave(ME, failed=True),
    ms.Left(),
    ms.Register(ME, ()),
    ms.Register(ME, (), states=(2**62, 0, 1)),
    ms.Register(
        ME,
        (
            ms.Declaration(TensorSpec.of("W", W), W, OPTIMIZERS[0]),
            ms.Declaration(TensorSpec("exists", (2, 0), "int8"), None, None),
            ms.Declaration(TensorSpec.of("flags", np.array([True, False])), np.array([True, False]), None),
        ),
        (ms.Place("W", 0), ms.Place("exists", 2)),
    ),
    *(ms.Register(ME, (ms.Declaration(TensorSpec("o", ()), None, spec),)) for spec in (*OPTIMIZERS, *SCHEDULED)),
    ms.Register(
        ME,
        (
            ms.Declaration(TensorSpec.of("W", W), W, None, None, Part(3, 6)),
            *(
                ms.Declaration(TensorSpec(initial.kind, (2, 8)), None, OPTIMIZERS[0], initial, Part(2, 4))
                for initial in INITIALS
            ),
        ),
    ),
    ms.Register(
        ME, (ms.Declaration(TensorSpec("new", (2, 3)), None, OPTIMIZERS[0]),), (ms.Place("new", 1),), dry_run=True
    ),
    ms.Registered(VALUES, 11),
    ms.Pull(ME, ("scope/W", "b")),
    ms.Pull(ME, (), CHOICES),
    ms.Pull(ME, ("scope/W",), CHOICES[:1]),
    ms.Pulled(VALUES, 11),
    ms.Pulled((VALUES[0], VALUES[0]), 11),
    ms.Pull(ME, ("scope/W", "b"), (), (-1, 2**62), "float16"),
    ms.Pulled((ms.Value("scope/W", 7, PACKED[1]), ms.Value("b", 2**62, None)), 11),
    ms.Push(ME, 1, ()),
    ms.Push(ME, 9, (ms.Gradient("W", 7, W), ms.Gradient("b", 0, b)), 0.1, ("W", "b")),
    ms.Push(ME, 9, (ms.Gradient("E", 7, ROWS), ms.Gradient("W", 7, W), ms.Gradient("e", 7, NO_ROWS)), 0.1, ("E",)),
    ms.Push(ME, 9, PACKED_GRADIENTS, 0.1, ("bfloat16", "E"), known_versions=(7, -1), encoding="bfloat16"),
    ms.Push(ME, 9, (), math.nan, ("W",)),
    ms.Push(ME, 9, (), 0.0),
    ms.Push(ME, 9, (ms.Gradient("W", 7, W),), 0.0, ("W",), GROUP),
    ms.Push(ME, 9, (), 0.0, shards=(1, 3), remote=(ms.RemoteWeights("V", 0), ms.RemoteWeights("U", 2**40))),
    ms.Push(ME, 9, (ms.Gradient("W", 7, W),), 0.0, ("W",), after=DELIVERIES, global_step=2**40),
    ms.Pull(ME, ("W",), after=DELIVERIES),
    ms.Pulled(VALUES, 11, FRONTIER),
    ms.Registered(VALUES, 11, FRONTIER),
    ms.Assign(ME, 3, (), shards=(1,), remote=("V", "U"), after=DELIVERIES),
    ms.Assigned(ms.Outcome.APPLIED, (), 12, ms.Frontier(0)),
    ms.Renew(ME, settled=8, half_pushes=2),
    ms.Pushed(ms.Outcome.APPLIED, 4, 12, VALUES),
    ms.Pushed(ms.Outcome.APPLIED, 4, 12, VALUES, group=GROUP, frontier=FRONTIER),
    ms.Pushed(ms.Outcome.REPEATED, 0, 12),
    ms.Pushed(ms.Outcome.DROPPED, 9, 12, (), "9 changes behind, at most 8 are allowed"),
    ms.Assign(ME, 3, (ms.Assignment("W", W), ms.Assignment("b", b)), add=True),
    ms.Assigned(ms.Outcome.APPLIED, (8, 0), 12),
    *(ms.Tune(ME, 4, ("W", "b"), spec, ("learning_rate", "decay")) for spec in OPTIMIZERS),
    ms.Tuned(ms.Outcome.APPLIED, 12),
    ms.Take(ME, ms.QueueSpec("train", 55_000, 800, 10, seed=-1)),
    ms.Take(ME, ms.QueueSpec("train", 1, 1, 1), ms.Finished(0)),
    ms.Take(ME, ms.QueueSpec("train", 1, 1, 1), ms.Finished(5, math.inf)),
    ms.Taken(ms.Block(0, 1, 0, 800), reports=REPORTS),
    ms.Taken(None, done=True),
    ms.Taken(None, done=True, chief=True),
    ms.Taken(None, waiting_for="worker-1, which holds block 68 for 3 s"),
    ms.Status(),
    ms.StatusReport(1, 2, 5, 0),
    ms.StatusReport(
        0,
        1,
        5,
        2,
        (
            ms.VariableStatus(TensorSpec("W", (784, 10)), 5, 4, OPTIMIZERS[3]),
            ms.VariableStatus(TensorSpec("b", (10,)), 5, 4, SCHEDULED[-1]),
        ),
        (
            ms.WorkerStatus("worker-0", 3, 0, "live", 5, 1, 4, 0.5, 1, 12.5),
            ms.WorkerStatus("worker-1", 1, 1, "lost", 0, 0, 0, None, 0, -3.5, 7, "sync:2: for worker-0", "gRPC", True),
        ),
        REPORTS,
        dropped=7,
        nbytes=2**40,
        consistency="bounded:3",
        handling="scale",
        traffic=ms.Traffic(10.5, 1e9, 0.25),
        staleness=ms.Staleness(1, 30),
        changes=(ms.Change(3, "worker-0", ("W", "b"), OPTIMIZERS[0]),),
        half_pushes=3,
        last_pushes=(ms.LastPush("worker-1", 1, 17, (1, 2)), ms.LastPush("worker-1", 2, 3, (1,))),
    ),
    ms.StatusReport(
        0, 1, 5, 0, (ms.VariableStatus(TensorSpec("E", (2, 4)), 5, 4, OPTIMIZERS[2], ("a", "b"), 96, Part(2, 4), True),)
    ),
]
TRANSFERABLE = {piece.message_type.name for piece in pb.Frame.DESCRIPTOR.fields if piece.message_type}
STREAMED_CASES = [case for case in CASES if type(encode(case, InlineSender())).__name__ in TRANSFERABLE]

every_case = pytest.mark.parametrize("message", CASES, ids=lambda message: type(message).__name__)


def accept_or_refuse(kind, data):
    """Decodes what may be garbage, on both lanes: a message, or Malformed, and no other error."""
    for tensor_transport in (InlineReceiver(), StreamReceiver()):
        try:
            message = decode(kind.FromString(data), tensor_transport)
        except (DecodeError, Malformed):
            continue
        if isinstance(tensor_transport, InlineReceiver):
            assert same(read(kind, inline(message)[0]), message)


def test_every_message_optimizer_and_schedule_has_a_case():
    assert {type(case) for case in CASES} == {*ms.ANSWERS, *ms.ANSWERS.values()}
    assert {type(spec) for spec in OPTIMIZERS} == set(optimizers.UPDATES.values())
    assert {type(schedule) for schedule in SCHEDULES} == set(schedules.SCHEDULES.values())
    assert {one.form for one in PACKED} == set(FORMS)


@every_case
def test_a_message_comes_back_as_it_was(message):
    data, kind = inline(message)
    assert same(read(kind, data), message)


@pytest.mark.parametrize("few", [0, FEW], ids=["all in chunks", "few inside"])
@pytest.mark.parametrize("message", STREAMED_CASES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was_through_a_transfer(message, few):
    sender, receiver = StreamSender(few=few), StreamReceiver()
    header = incoming(to_frame(message, sender).SerializeToString())
    hollow = from_frame(header, receiver)
    assert type(hollow) is type(message)
    receiver.allocate()
    whole = from_frame(header, receiver)
    for pieces in sender.chunks():
        receiver.feed(b"".join(pieces))
    assert receiver.complete
    assert same(whole, message)


@pytest.mark.parametrize("few", [0, FEW], ids=["all behind it", "few inside"])
@pytest.mark.parametrize("message", STREAMED_CASES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was_from_a_single_frame_whose_arrays_are_not_copied(message, few):
    sender = StreamSender(few=few)
    (data,) = sender.frames(to_frame(message, sender))
    frame = incoming(data)
    receiver = StreamReceiver(frame.data)
    whole = from_frame(frame, receiver)
    assert receiver.nbytes == 0
    assert same(whole, message)
    for array in arrays(whole):
        assert array.flags.aligned
        assert not array.size or not array.flags.writeable


@pytest.mark.parametrize("message", STREAMED_CASES, ids=lambda message: type(message).__name__)
def test_a_frame_with_more_or_less_data_than_its_tensors_have_is_malformed(message):
    sender = StreamSender()
    header, size = to_frame(message, sender), sender.nbytes
    for nbytes in {max(0, size - 1), size + 1} - {size}:
        frame = incoming(with_data(header, [memoryview(bytes(nbytes))]))
        with pytest.raises(Malformed, match=f"were declared, and {nbytes} came|its frame, {nbytes} bytes, ends before"):
            from_frame(frame, StreamReceiver(frame.data))


@every_case
def test_a_message_cut_at_any_byte_is_a_message_or_malformed(message):
    data, kind = inline(message)
    for length in range(len(data)):
        accept_or_refuse(kind, data[:length])


@every_case
def test_a_message_with_a_tail_is_a_message_or_malformed(message):
    data, kind = inline(message)
    generator = random.Random(SEED)
    for length in (1, 2, 3, 10, 100):
        accept_or_refuse(kind, data + generator.randbytes(length))
    accept_or_refuse(kind, data + data)


@every_case
def test_a_message_with_any_byte_changed_is_a_message_or_malformed(message):
    data, kind = inline(message)
    generator = random.Random(SEED)
    for place in range(len(data)):
        for byte in (0, 255, data[place] ^ 1, data[place] ^ 128, generator.randrange(256)):
            accept_or_refuse(kind, data[:place] + bytes([byte]) + data[place + 1 :])


@pytest.mark.parametrize("name", [message.name for message in pb.DESCRIPTOR.message_types_by_name.values()])
@given(data=st.binary(max_size=200))
@DETERMINISTIC
def test_arbitrary_bytes_are_a_message_or_malformed(name, data):
    accept_or_refuse(getattr(pb, name), data)


@given(data=st.binary(max_size=200))
@DETERMINISTIC
def test_arbitrary_bytes_are_a_frame_or_malformed(data):
    try:
        frame = incoming(data)
        from_frame(frame, StreamReceiver(frame.data))
    except Malformed:
        pass


def test_a_frame_without_a_message_does_not_begin_a_transfer():
    with pytest.raises(Malformed, match="begins with a message, this one with nothing"):
        from_frame(incoming(b""), StreamReceiver())
    with pytest.raises(Malformed, match="this one with a chunk"):
        from_frame(incoming(pb.Frame(chunk=b"1").SerializeToString()), StreamReceiver())


def test_what_is_no_message_is_malformed():
    with pytest.raises(Malformed, match="Queue is neither a request nor an answer"):
        decode(pb.Queue(), InlineReceiver())
