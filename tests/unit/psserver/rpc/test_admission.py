"""Admission: the bytes of all transfers in progress; others wait, first come, first served, and not for ever."""

import asyncio

import pytest

from psserver.rpc.admission import Admission
from pswire.errors import TooLarge, Unavailable

LIMIT = 10


class Transfer:
    """A transfer that goes on until `end`."""

    def __init__(self, admission, nbytes):
        self.admitted, self._end = False, asyncio.Event()
        self.task = asyncio.create_task(self._run(admission, nbytes))

    async def _run(self, admission, nbytes):
        async with admission.reserve(nbytes):
            self.admitted = True
            await self._end.wait()

    async def end(self):
        self._end.set()
        await self.task


async def begun(*sizes):
    admission = Admission(LIMIT, timeout=30.0)
    transfers = [Transfer(admission, nbytes) for nbytes in sizes]
    await settled()
    return transfers


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


def test_transfers_go_on_together_while_they_fit_and_later_ones_do_not_overtake_one_that_waits():
    async def scenario():
        *fitting, large, small = await begun(6, 4, 0, 10, 1)
        assert [one.admitted for one in (*fitting, large, small)] == [True, True, True, False, False]
        for one in fitting:
            await one.end()
        await settled()
        assert (large.admitted, small.admitted) == (True, False)
        await large.end()
        await settled()
        assert small.admitted
        await small.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("place", [0, 1, 2], ids=["in progress", "first in line", "second in line"])
def test_a_transfer_that_is_cancelled_leaves_its_place(place):
    async def scenario():
        transfers = await begun(LIMIT, LIMIT, LIMIT)
        gone = transfers.pop(place)
        gone.task.cancel()
        await asyncio.wait([gone.task])
        for other in transfers:
            await settled()
            assert other.admitted
            await other.end()

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
