"""The bytes under way: who fits goes on, who does not waits, first come first served, and not for ever."""

import asyncio

import pytest

from psserver.rpc.admission import Admission
from pswire.errors import TooLarge, Unavailable


def run(scenario, limit=10, timeout=30.0):
    async def main():
        await asyncio.wait_for(scenario(Admission(limit, timeout)), 30)

    asyncio.run(main())


class Transfer:
    """A transfer that goes on until it is told to end."""

    def __init__(self, admission, nbytes):
        self.under_way, self._end = False, asyncio.Event()
        self.task = asyncio.create_task(self._run(admission, nbytes))

    async def _run(self, admission, nbytes):
        async with admission.reserve(nbytes):
            self.under_way = True
            await self._end.wait()
        self.under_way = False

    async def end(self):
        self._end.set()
        await self.task


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_transfers_go_on_together_while_there_is_room():
    async def scenario(admission):
        transfers = [Transfer(admission, nbytes) for nbytes in (6, 4, 0)]
        await settle()
        assert [one.under_way for one in transfers] == [True, True, True]
        for one in transfers:
            await one.end()

    run(scenario)


def test_who_finds_no_room_waits_and_who_comes_later_does_not_overtake():
    async def scenario(admission):
        first, large, small = (Transfer(admission, nbytes) for nbytes in (6, 10, 1))
        await settle()
        assert (first.under_way, large.under_way, small.under_way) == (True, False, False)
        await first.end()
        await settle()
        assert (large.under_way, small.under_way) == (True, False)
        await large.end()
        await settle()
        assert small.under_way
        await small.end()

    run(scenario)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["under way", "first in line", "second in line"])
def test_one_that_is_cancelled_leaves_its_place(place):
    async def scenario(admission):
        transfers = [Transfer(admission, 10) for _ in range(3)]
        await settle()
        transfers[place].task.cancel()
        await asyncio.wait([transfers[place].task])
        for other in transfers[:place] + transfers[place + 1 :]:
            await settle()
            assert other.under_way
            await other.end()

    run(scenario)


def test_what_can_never_fit_is_refused_at_once():
    async def scenario(admission):
        with pytest.raises(TooLarge, match=r"11 bytes.*room for 10 at a time"):
            async with admission.reserve(11):
                pass

    run(scenario)


def test_who_waits_too_long_is_told_what_it_waits_for():
    async def scenario(admission):
        async with admission.reserve(6):
            with pytest.raises(Unavailable, match=r"5 bytes within 0.01 s: 6 of 10 are in use"):
                async with admission.reserve(5):
                    pass

    run(scenario, timeout=0.01)
