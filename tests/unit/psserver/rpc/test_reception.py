"""The reception of unary messages: a call that ends at any moment frees its room, its place and its turn for others."""

import asyncio

import pytest

from psserver.rpc.reception import SECONDS_WHILE_OTHERS_WAIT, Reception
from pswire.errors import TimedOut, Unavailable

SECONDS = 30.0


class Call:
    """A call, by default of a caller of its own, whose message arrives with `arrive`; it is served until `end`."""

    def __init__(self, reception, caller=None):
        self.message = asyncio.get_running_loop().create_future()
        self.reads, self.end = False, asyncio.Event()
        self._reception, self._caller = reception, caller or repr(id(self))
        self.task = asyncio.create_task(self._serve())

    async def read(self):
        self.reads = True
        return await self.message

    def arrive(self):
        self.message.set_result(b"message")

    async def _serve(self):
        async with self._reception.message(self, self._caller) as message:
            assert message == b"message"
            await self.end.wait()


def reception(unfinished=1, calls=10, of_one=10, rate=None):
    return Reception("strangers", calls, unfinished, SECONDS, of_one, rate=rate)


async def settled(*calls):
    """Which of these calls read their message, once nothing happens before time passes."""
    for _ in range(8):
        await asyncio.sleep(0)
    return [one.reads for one in calls]


def run(scenario):
    """Run it with a clock that stands still until the scenario calls its argument, which lets seconds pass."""

    async def with_clock():
        loop, now = asyncio.get_running_loop(), [0.0]
        loop.time = lambda: now[0]

        async def passes(seconds):
            now[0] += seconds
            await settled()

        await scenario(passes)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(with_clock())


def test_a_call_that_ends_in_the_round_in_which_it_gets_room_gives_it_to_the_next():
    async def scenario(passes):
        place = reception()
        first, second = Call(place), Call(place)
        assert await settled(first, second) == [True, False]
        first.arrive()
        asyncio.get_running_loop().call_soon(second.task.cancel)  # right after it was given the room
        await settled()
        assert second.task.cancelled()
        third, fourth, fifth = Call(place), Call(place), Call(place)
        assert await settled(second, third, fourth) == [False, True, False]
        third.arrive()
        fourth.task.cancel()  # right before the room is given to it
        assert await settled(fourth, fifth) == [False, True]
        fifth.task.cancel()
        last = Call(place)
        assert await settled(last) == [True]

    run(scenario)


def test_messages_that_do_not_arrive_give_way_one_after_another_while_others_wait_for_their_room():
    async def scenario(passes):
        place = reception()
        served = Call(place)
        await settled()
        served.arrive()
        await settled()
        calls = [Call(place), Call(place)]
        for number in range(3):
            assert await settled(*calls[: number + 2]) == [True] * (number + 1) + [False]
            await passes(SECONDS_WHILE_OTHERS_WAIT)
            with pytest.raises(Unavailable, match="the oldest gives way"):
                await calls[number].task
            calls += [] if number else [Call(place), Call(place)]
        await passes(SECONDS - 1)
        assert not calls[3].task.done(), "nobody waits for its room"
        await passes(1)
        with pytest.raises(TimedOut, match=f"within {SECONDS:g} s"):
            await calls[3].task

    run(scenario)


def test_each_call_that_waits_hurries_another_message():
    async def scenario(passes):
        place = reception(unfinished=2)
        slow, others = [Call(place), Call(place)], [Call(place), Call(place)]
        assert await settled(*slow, *others) == [True, True, False, False]
        await passes(SECONDS_WHILE_OTHERS_WAIT)
        assert [type(one.task.exception()) for one in slow] == [Unavailable, Unavailable]
        assert await settled(*others) == [True, True]

    run(scenario)


def test_at_the_limit_of_calls_each_new_one_ends_another_unfinished_message_of_the_busiest_caller():
    async def scenario(passes):
        place = reception(unfinished=10, calls=4)
        served, *busy = [Call(place, "busy") for _ in range(4)]
        await settled()
        served.arrive()
        others = [Call(place), Call(place)]
        assert await settled(*others) == [True, True]
        assert [one.task.done() for one in (served, *busy)] == [False, True, True, False]
        assert [type(one.task.exception()) for one in busy[:2]] == [Unavailable, Unavailable]
        refused = Call(place, "busy")
        with pytest.raises(Unavailable, match="at its limit of 4 concurrent calls"):
            await refused.task
        for one in (served, busy[2], *others):
            one.end.set()
        for one in (busy[2], *others):
            one.arrive()
        await settled()
        assert (place._count, place._calls, place._free) == (0, {}, 10)

    run(scenario)


def test_calls_take_turns_at_their_rate_also_if_one_that_waits_has_gone():
    async def scenario(passes):
        place = reception(unfinished=10, rate=2.0)
        calls = [Call(place) for _ in range(6)]
        assert await settled(*calls) == [True, True, False, False, False, False]
        calls[2].task.cancel()
        for turns in (1, 2):
            await passes(0.5)
            assert [one.reads for one in calls] == [number != 2 and number < 3 + turns for number in range(6)]
        await passes(10.0)
        late = [Call(place) for _ in range(3)]
        assert await settled(calls[5], *late) == [True, True, False, False], "as many at once as in a second"

    run(scenario)
