"""Admission: the bytes of all transfers in progress; others wait, first come, first served, and not for ever."""

import asyncio

import pytest

from psserver.rpc.admission import Admission
from pswire.errors import TooLarge, Unavailable

LIMIT = 10


class Transfer:
    """A transfer of these bytes, which goes on until `end`."""

    def __init__(self, admission, nbytes):
        self._reservation = admission.reserve(nbytes)
        self.admission = asyncio.create_task(self._reservation.__aenter__())

    async def end(self):
        await self._reservation.__aexit__(None, None, None)


async def admitted(transfers):
    for _ in range(5):
        await asyncio.sleep(0)
    return [one.admission.done() for one in transfers]


def test_transfers_go_on_together_while_they_fit_and_later_ones_do_not_overtake_one_that_waits():
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

    asyncio.run(scenario())


@pytest.mark.parametrize("place", [1, 2], ids=["first in line", "second in line"])
def test_a_transfer_that_is_cancelled_leaves_its_place(place):
    async def scenario():
        admission = Admission(LIMIT, timeout=30.0)
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
        async with admission.reserve(6):
            for nbytes, error, text in [
                (11, TooLarge, "11 bytes.*room for 10 at a time"),
                (5, Unavailable, r"5 bytes within 0.01 s: 6 of 10 are in use"),
            ]:
                with pytest.raises(error, match=text):
                    await admission.reserve(nbytes).__aenter__()

    asyncio.run(scenario())
