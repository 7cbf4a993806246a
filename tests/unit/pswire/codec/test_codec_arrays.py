"""Arrays of every dtype, shape and layout pass through messages bit by bit, and what cannot travel is not sent."""

import math

import numpy as np
import pytest

from pswire import messages as ms
from pswire.codec import encode, from_frame, to_frame
from pswire.errors import InvalidMessage, TooLarge
from pswire.tensors.frames import Incoming
from pswire.tensors.inline import InlineSender
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import INLINE
from pswire.tensors.values import DTYPES, IndexedSlices
from tests.wire import inline, read, same

SEED = 20250607
ME = ms.Sender("worker-0", 3)
W = np.arange(6, dtype=np.float32).reshape(3, 2)


def through_the_wire(array):
    data, kind = inline(ms.Pulled((ms.Value("x", 0, array),), 0))
    return read(kind, data).values[0].array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 3), (1,) * 16])
def test_every_dtype_and_shape_survives_bit_by_bit(dtype, shape):
    generator = np.random.default_rng(SEED)
    size = math.prod(shape)
    array = generator.integers(0, 256, size * DTYPES[dtype].itemsize, np.uint8).view(dtype).reshape(shape)
    if dtype == "bool":
        array = generator.integers(0, 2, size).astype(bool).reshape(shape)
    assert same(through_the_wire(array), array)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int64", "float16"])
def test_a_big_endian_array_arrives_with_its_values(dtype):
    array = np.arange(-3, 3).astype(np.dtype(dtype).newbyteorder(">")).reshape(2, 3)
    arrived = through_the_wire(array)
    assert arrived.dtype == DTYPES[dtype]
    assert (arrived == array).all()


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::-1, ::2],
        lambda a: a[:, 1],
        lambda a: np.broadcast_to(a[0], (4, 6)),
        np.asfortranarray,
    ],
    ids=["transposed", "strided", "column", "broadcast", "fortran"],
)
def test_an_array_of_any_memory_layout_arrives_in_c_order(view):
    array = view(np.arange(24, dtype=np.int32).reshape(4, 6))
    arrived = through_the_wire(array)
    assert arrived.flags.c_contiguous
    assert np.array_equal(arrived, array)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", ">i8", ">i2"])
def test_row_numbers_of_every_integer_dtype_that_travels_arrive(kind):
    rows = IndexedSlices(W[::-1], np.array([1, 0, 100], kind), (101, 2))
    data, proto = inline(ms.Push(ME, 1, (ms.Gradient("E", 0, rows),)))
    arrived = read(proto, data).gradients[0].array
    assert arrived.indices.tolist() == [1, 0, 100]
    assert arrived.dense_shape == (101, 2)
    assert np.array_equal(arrived.values, W[::-1])


def test_row_numbers_are_not_looked_at_before_they_have_come():
    """Where they are outside of the variable is found when all of them are there; what the memory held is nothing."""
    rows = IndexedSlices(np.ones((3, 2)), np.array([-1, 2**62, 3]), (3, 2), check_range=False)
    sender, receiver = StreamSender(few=0), StreamReceiver()
    header = Incoming(to_frame(ms.Push(ME, 1, (ms.Gradient("E", 0, rows),)), sender))
    hollow = from_frame(header, receiver).gradients[0].array
    assert (hollow.nbytes, receiver.nbytes) == (rows.nbytes, rows.nbytes)
    receiver.allocate()
    arrived = from_frame(header, receiver).gradients[0].array
    for pieces in sender.chunks():
        receiver.feed(b"".join(pieces))
    assert same(arrived, rows)
    with pytest.raises(ValueError, match=r"span -1 \.\.\. 4611686018427387904"):
        arrived.check_indices()


def test_a_received_array_is_a_read_only_view_of_the_message():
    arrived = through_the_wire(W)
    assert not arrived.flags.writeable
    assert not arrived.flags.owndata


@pytest.mark.parametrize("dtype", ["complex64", "U3", "datetime64[s]", "uint32"])
def test_an_array_of_a_dtype_that_does_not_travel_is_not_sent(dtype):
    with pytest.raises(InvalidMessage, match="this Push cannot be sent: variable 'W' has the dtype"):
        encode(ms.Push(ME, 1, (ms.Gradient("W", 0, np.zeros(2, dtype)),)), InlineSender())


def test_row_numbers_of_a_dtype_that_does_not_travel_are_not_sent():
    rows = IndexedSlices(W, np.array([0, 1, 2], np.uint64), (3, 2))
    with pytest.raises(InvalidMessage, match="this Push cannot be sent: variable 'E' has the dtype uint64"):
        encode(ms.Push(ME, 1, (ms.Gradient("E", 0, rows),)), InlineSender())


@pytest.mark.parametrize(
    "message",
    [ms.Renewed(2**63), ms.Join("w", shards=2**31), ms.Renew(ms.Sender("\ud800", 1)), ms.Renewed("one")],
    ids=["int64", "int32", "surrogate", "text for a number"],
)
def test_a_value_that_the_protocol_has_no_room_for_is_not_sent(message):
    with pytest.raises(InvalidMessage, match=f"this {type(message).__name__} cannot be sent"):
        encode(message, InlineSender())


def test_more_than_fits_is_not_sent_inline():
    half = np.zeros(INLINE // 2, np.int8)
    fitting = ms.Pulled((ms.Value("a", 0, half), ms.Value("b", 0, half)), 0)
    encode(fitting, InlineSender())
    with pytest.raises(TooLarge, match="with 'c' there are 2097153"):
        encode(ms.Pulled((*fitting.values, ms.Value("c", 0, half[:1])), 0), InlineSender())
