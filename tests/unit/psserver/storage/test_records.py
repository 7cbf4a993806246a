"""A message is the same after its record was written and read, without a copy of its arrays; garbage is malformed."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.storage import records
from pswire import messages as ms
from pswire.codec import framed, to_frame
from pswire.errors import Malformed
from pswire.tensors.frame import incoming
from pswire.tensors.stream import StreamSender
from tests.support.combinations import together
from tests.support.shards import state_of
from tests.unit.pswire.codec.test_codec import FULL, bare

SEED = 20261122
TICK = ms.Tick(
    lost=("wörker-0", "b"),
    overdue=tuple([ms.Overdue(*one) for one in (("a", "queue"), ("a", "other queue"), ("b", "queue"))]),
)
TAKEN = [one for one in (*FULL, TICK) if isinstance(one, ms.Message) and not isinstance(one, ms.Status)]
every_message = together("message", [*TAKEN, *map(bare, TAKEN)], lambda one: type(one).__name__)


def record(message):
    return b"".join(records.encode(message))


@pytest.mark.parametrize(
    "message",
    [one for one in TAKEN if not isinstance(one, ms.Tick) and framed(type(one))],
    ids=lambda one: type(one).__name__,
)
def test_the_record_of_a_received_frame_has_the_bytes_of_an_encoded_message(message):
    sender = StreamSender()
    (frame,) = sender.frames(to_frame(message, sender))
    assert b"".join(records.received(incoming(frame))) == record(message)
    assert records.received(incoming(frame + to_frame(message, StreamSender()).SerializeToString())) is None


@every_message
def test_a_message_comes_back_as_it_was_and_no_byte_may_be_missing_or_left(message):
    data = record(message)
    for buffer in (data, bytearray(data), memoryview(data)):
        assert state_of(records.decode(buffer)) == state_of(message)
    for length in range(0, len(data), 1 + len(data) // 500):
        with pytest.raises(Malformed):
            records.decode(data[:length])
    with pytest.raises(Malformed, match="bytes were declared, but"):
        records.decode(data + b"x")


def test_every_message_that_a_shard_takes_has_a_record_but_status_which_changes_nothing():
    assert {type(one) for one in TAKEN} == {*ms.ANSWERS, ms.Tick} - {ms.Status}


def test_large_arrays_are_not_copied_in_either_direction_and_cannot_be_written():
    value, rows = np.arange(600_000, dtype=np.float32), np.arange(1_000, dtype=np.int64)
    push = ms.Push(
        sender=ms.Sender("a", 1), sequence=1, gradients=(ms.Gradient("W", 0, value), ms.Gradient("E", 0, rows))
    )
    parts = records.encode(push)
    own = [np.frombuffer(part, np.uint8) for part in parts if isinstance(part, memoryview)]
    assert sum(part.nbytes for part in own) == value.nbytes + rows.nbytes
    assert all(np.shares_memory(part, value) or np.shares_memory(part, rows) for part in own)
    data = b"".join(parts)
    for gradient in records.decode(data).gradients:
        assert np.shares_memory(gradient.array, np.frombuffer(data, np.uint8))
        assert not gradient.array.flags.writeable
        assert gradient.array.flags.aligned


@pytest.mark.slow
@every_message
def test_a_record_that_is_changed_in_a_byte_is_a_message_or_malformed(message):
    data, generator = record(message), random.Random(SEED)
    for place in generator.sample(range(len(data)), min(len(data), 40)):
        for byte in (0, 255, data[place] ^ 1, data[place] ^ 128):
            accept_or_refuse(data[:place] + bytes([byte]) + data[place + 1 :])


@given(data=st.binary(max_size=200))
@settings(derandomize=True, database=None, deadline=None, max_examples=100)
def test_arbitrary_bytes_are_a_message_or_malformed(data):
    accept_or_refuse(data)
    accept_or_refuse(len(data).to_bytes(4, "little") + data)


def accept_or_refuse(data):
    try:
        message = records.decode(data)
    except Malformed:
        return
    assert state_of(records.decode(record(message))) == state_of(message)
