"""Transfers: admission by their bytes, first come, first served; arrays of a message that its answer may overwrite."""

import asyncio

import numpy as np
import pytest

from psserver.rpc.admission import MAX_UNLIMITED, MIN_SMALL_BYTES, Admission
from psserver.rpc.transfer_memory import ReusedArrays
from pswire import messages as ms
from pswire.errors import TooLarge, Unavailable
from pswire.tensors.compression import quantize_int8, to_16_bits, top_k
from pswire.tensors.values import IndexedSlices, TensorSpec

LIMIT, ME, SPEC = 10, ms.Sender("w0", 1), TensorSpec("W", (2, 3))


class Transfer:
    """A transfer of these bytes, by default of a member of its own, which goes on until `end`."""

    def __init__(self, admission, nbytes, member=None):
        self._reservation = admission.reserve(member or repr(id(self)), nbytes)
        self.admission = asyncio.create_task(self._reservation.__aenter__())

    async def end(self):
        await self._reservation.__aexit__(None, None, None)


async def admitted(transfers):
    for _ in range(5):
        await asyncio.sleep(0)
    return [one.admission.done() for one in transfers]


def test_transfers_go_on_while_they_fit_in_their_order_and_one_that_is_cancelled_leaves_its_place():
    async def scenario():
        admission = Admission(LIMIT, timeout=30.0)
        transfers = [Transfer(admission, nbytes) for nbytes in (6, 4, 0, 10, 1)]
        assert await admitted(transfers) == [True, True, True, False, False]
        for one in transfers[:3]:
            await one.end()
        assert await admitted(transfers[3:]) == [True, False]
        await transfers[3].end()
        assert await admitted(transfers[4:]) == [True]
        await transfers[4].end()
        for place in (1, 2):
            transfers = [Transfer(admission, LIMIT) for _ in range(3)]
            assert await admitted(transfers) == [True, False, False]
            transfers.pop(place).admission.cancel()
            await transfers[0].end()
            assert await admitted(transfers) == [True, True]
            await transfers[1].end()

    asyncio.run(scenario())


def test_a_transfer_that_can_never_fit_is_refused_at_once_and_one_that_waits_too_long_with_the_figures():
    async def scenario():
        admission = Admission(LIMIT, timeout=0.01)
        async with admission.reserve("w0", 6):
            for nbytes, error, text in [
                (11, TooLarge, "11 bytes.*room for 10 at a time"),
                (5, Unavailable, r"5 bytes within 0.01 s: 6 of 10 are in use"),
            ]:
                with pytest.raises(error, match=text):
                    await admission.reserve("w1", nbytes).__aenter__()

    asyncio.run(scenario())


@pytest.mark.parametrize("timeout", [0.0, 30.0], ids=["times out", "is cancelled"])
def test_a_transfer_that_ends_in_the_moment_in_which_it_is_admitted_keeps_no_room(timeout):
    async def scenario():
        admission = Admission(LIMIT, timeout)
        first, second = Transfer(admission, LIMIT), Transfer(admission, LIMIT)
        await first.admission
        await first.end()  # it admits the second one, whose timeout of 0 ends it in the same round of the loop
        if timeout:
            second.admission.cancel()
        with pytest.raises((Unavailable, asyncio.CancelledError)):
            await second.admission
        third = Transfer(admission, LIMIT)
        assert await admitted([third]) == [True]
        await third.admission

    asyncio.run(scenario())


def test_when_a_large_transfer_stops_waiting_a_smaller_one_behind_it_goes_on():
    async def scenario():
        admission = Admission(LIMIT, timeout=30.0)
        transfers = [Transfer(admission, nbytes) for nbytes in (6, LIMIT, 4)]
        assert await admitted(transfers) == [True, False, False]
        transfers.pop(1).admission.cancel()
        assert await admitted(transfers) == [True, True]

    asyncio.run(scenario())


def test_members_take_turns_with_transfers_of_which_one_fits_at_a_time_and_leave_no_trace():
    async def scenario():
        admission = Admission(LIMIT, timeout=30.0)
        first, second, third = [Transfer(admission, LIMIT, "many") for _ in range(3)]
        other = Transfer(admission, LIMIT, "one")
        for ends, begins in ((first, second), (second, other), (other, third)):
            assert await admitted([ends, begins]) == [True, False]
            await ends.end()
            assert await admitted([begins]) == [True]
        await third.end()
        assert (admission._used, admission._used_by, admission._waiting) == (0, {}, {})

    asyncio.run(scenario())


def test_a_member_with_transfers_in_progress_has_a_share_and_who_uses_the_least_is_next():
    async def scenario():
        admission = Admission(LIMIT, timeout=30.0)
        first = [Transfer(admission, nbytes, "greedy") for nbytes in (4, 1, 1, 3)]
        assert await admitted(first) == [True, True, False, False], "half of the limit"
        others = [Transfer(admission, nbytes, "other") for nbytes in (3, 2, 1)]
        assert await admitted(others) == [True, True, False]
        await first[0].end()
        assert await admitted([*first[1:], *others]) == [True, True, True, True, True, False]
        await others[0].end()
        assert await admitted(others[2:]) == [True]

    asyncio.run(scenario())


def test_bytes_that_have_arrived_have_room_of_their_own_and_are_refused_at_once_beyond_it():
    async def scenario():
        admission = Admission(LIMIT, timeout=30.0)
        async with admission.reserve("large", LIMIT):
            admission.hold("small", MIN_SMALL_BYTES)
            with pytest.raises(
                Unavailable, match=r"call of 4,097 bytes: 8,388,618 of 8,388,618 are in use, 0 by this worker"
            ):
                admission.hold("third", MAX_UNLIMITED + 1)
            admission.count("third", 7)
            admission.release("third", 7)
            with pytest.raises(Unavailable, match="8,388,608 by this worker"):
                admission.hold("small", MAX_UNLIMITED + 1)
            admission.hold("small", MAX_UNLIMITED)  # such as a heartbeat
            admission.release("small", MAX_UNLIMITED + MIN_SMALL_BYTES)
            admission.hold("third", MAX_UNLIMITED + 1)
            admission.release("third", MAX_UNLIMITED + 1)
        waiting = Transfer(admission, LIMIT)
        assert await admitted([waiting]) == [True]

    asyncio.run(scenario())


def pushed(**arrays):
    return ReusedArrays(
        ms.Push(sender=ME, sequence=1, gradients=tuple(ms.Gradient(name, 0, array) for name, array in arrays.items()))
    )


def zeros(dtype="f4", shape=(2, 3)):
    return np.zeros(shape, dtype)


def test_an_array_is_given_out_once_and_only_for_its_own_variable():
    """Another variable's array task may still read it."""
    own, other, encoded = zeros(), zeros(), to_16_bits(zeros(), "bfloat16")
    allocator = pushed(V=other, W=own, X=encoded)
    assert allocator.take(SPEC) is own
    assert allocator.take(SPEC) is None
    assert allocator.take(TensorSpec("V", (2, 3))) is other
    assert allocator.take(TensorSpec("X", (2, 3), "int16")) is encoded.parts[0]
    declared = ms.Declaration(SPEC, own), ms.Declaration(TensorSpec("V", (2,)), None)
    registered = ReusedArrays(ms.Register(sender=ME, declarations=declared))
    assert registered.take(TensorSpec("V", (2,))) is None
    assert registered.take(SPEC) is own
    assert ReusedArrays(ms.Assign(sender=ME, sequence=1, assignments=(ms.Assignment("W", zeros()),))).take(SPEC) is None


UNFIT = {
    "read-only": np.frombuffer(bytes(24), "f4").reshape(2, 3),
    "column by column": zeros(shape=(3, 2)).T,
    "big-endian": zeros(">f4"),
    "flat": zeros(shape=(6,)),
    "rows": IndexedSlices(zeros(), np.array([0, 1]), (2, 3)),
    "encoded": to_16_bits(zeros(), "float16"),
}


@pytest.mark.parametrize("array", UNFIT.values(), ids=UNFIT)
def test_an_array_that_cannot_hold_the_value_is_not_given_out(array):
    assert pushed(W=array).take(SPEC) is None


@pytest.mark.parametrize("compress", [lambda a, r: top_k(a, r, 6), quantize_int8], ids=["topk", "int8"])
def test_compressed_gradients_are_never_written_over(compress):
    """A stretch of the answer may be written while others of the gradient are still to be read."""
    gradient = compress(np.ones(6, "f4"), np.zeros(6, "f4"))
    assert all(pushed(W=gradient).take(TensorSpec.of("W", part)) is None for part in gradient.parts)
