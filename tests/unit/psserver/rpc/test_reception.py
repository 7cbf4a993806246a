"""The reception of unary messages: a call that ends in whatever moment leaves its room, its place and its turn."""

import asyncio

from psserver.rpc.reception import Reception


class Call:
    """A call of its own caller, or another one, whose message arrives with `arrive`."""

    def __init__(self, reception, caller=None):
        self.message = asyncio.get_running_loop().create_future()
        self.reads, self.served = False, asyncio.Event()
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
            await self.served.wait()


def reception(unfinished=1, calls=10, of_one=10, rate=None):
    return Reception("strangers", calls, unfinished, 30.0, of_one, rate=rate)


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_call_that_ends_in_the_moment_in_which_it_gets_room_gives_the_room_to_the_next():
    async def scenario():
        place = reception()
        first, second = Call(place), Call(place)
        await settle()
        assert (first.reads, second.reads) == (True, False)
        first.arrive()
        asyncio.get_running_loop().call_soon(second.task.cancel)  # right after the room is given to it
        await settle()
        assert (second.task.cancelled(), second.reads) == (True, False)
        third, fourth = Call(place), Call(place)
        await settle()
        assert (third.reads, fourth.reads) == (True, False)
        third.task.cancel()
        await settle()
        assert fourth.reads
        fourth.task.cancel()

    asyncio.run(scenario())
