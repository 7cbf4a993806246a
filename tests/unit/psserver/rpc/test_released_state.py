"""State of calls after they have ended, in whatever way: nothing grows, and nothing stays reserved."""

import asyncio

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc import call_errors, service
from psserver.rpc.admission import Admission
from psserver.rpc.call_errors import FREE_REFUSALS, CallErrors
from psserver.rpc.server import ServerThread
from psserver.rpc.status_answers import StatusAnswers
from psserver.rpc.streams import STREAMS_OF_A_MEMBER, Streams
from pswire import messages as ms
from pswire.errors import InvalidMessage, NotFinite, Unavailable, UnknownVariable
from tests.support.servers import Client, Stream, frame_of

ME = ms.Sender("w0", 1)


def test_no_bytes_are_counted_when_calls_of_every_kind_have_ended(monkeypatch):
    admissions, value = [], np.zeros(3 << 20, np.uint8).view(np.float32)

    def admission(*arguments):
        admissions.append(Admission(*arguments))
        return admissions[0]

    monkeypatch.setattr(service, "Admission", admission)
    with ServerThread(ServerConfig()) as server:
        client = Client(server.address)
        with client.channel:
            sender = client.join()
            client.register(sender, large=value, small=value[:8])
            client.status()
            client.unary(ms.Pull(sender=sender, names=("small",)))
            stream = Stream(client)
            stream.send(frame_of(ms.Pull(sender=sender, names=("small",))))
            assert stream.answer().values[0].array.size == 8
            push = ms.Push(
                sender=sender, sequence=1, gradients=(ms.Gradient("large", 0, value + 1),), pull=("large", "small")
            )
            assert client.transfer(push).outcome is ms.Outcome.APPLIED
            for refused, error in (
                (ms.Push(sender=sender, sequence=2, gradients=(ms.Gradient("large", 1, value + np.nan),)), NotFinite),
                (
                    ms.Push(sender=sender, sequence=2, gradients=(ms.Gradient("small", 0, value[:8] + np.nan),)),
                    NotFinite,
                ),
                (ms.Pull(sender=sender, names=("none",)), UnknownVariable),
            ):
                with pytest.raises(error):
                    client.transfer(refused)
            with pytest.raises(NotFinite):
                client.unary(
                    ms.Push(sender=sender, sequence=2, gradients=(ms.Gradient("small", 0, value[:8] + np.nan),))
                )
    assert [(one._used, one._used_by, one._waiting) for one in admissions] == [(0, {}, {})]


def test_refusals_of_connections_are_forgotten_with_time_and_those_of_the_oldest_for_others(monkeypatch):
    monkeypatch.setattr(call_errors, "MAX_CONNECTIONS", 3)
    refusing = CallErrors()
    first = [refusing._pause("ipv4:1.2.3.4:5", 0.0) for _ in range(FREE_REFUSALS + 3)]
    assert first == [0.0] * FREE_REFUSALS + [0.5, 1.0, 1.5]
    assert refusing._pause("ipv4:1.2.3.4:5", 2.0) == 1.0, "two are forgotten, and this one is new"
    assert [refusing._pause(f"ipv4:1.2.3.4:{port}", 2.0) for port in (6, 7, 8)] == [0.0] * 3
    assert [*refusing._refusals] == [f"ipv4:1.2.3.4:{port}" for port in (6, 7, 8)]


def test_streams_that_have_ended_are_not_kept_and_leave_room_for_others():
    async def scenario():
        streams = Streams()
        for _ in range(STREAMS_OF_A_MEMBER + 1):
            with pytest.raises(InvalidMessage), streams.open(ME):
                raise InvalidMessage("of a call")
        assert streams._members == {}

    asyncio.run(scenario())


def test_a_status_is_answered_although_another_caller_that_waits_for_it_has_gone():
    async def scenario():
        asked, answers = asyncio.Event(), []

        async def ask(message):
            await asked.wait()
            answers.append(message)
            return ms.StatusReport(shard=0, shards=1, global_step=0, repeated=0)

        async def aside(function, *arguments):
            return function(*arguments)

        shared = StatusAnswers(ask, aside)
        first, second = [asyncio.create_task(shared.answer(ms.Status())) for _ in range(2)]
        await asyncio.sleep(0)
        first.cancel()
        asked.set()
        assert await second
        assert first.cancelled()
        assert (len(answers), shared._waiting) == (1, {})

    asyncio.run(scenario())


def test_a_status_that_fails_is_raised_to_all_who_wait_and_the_next_one_is_asked_for_again():
    async def scenario():
        errors = [Unavailable("not now")]

        async def ask(message):
            if errors:
                raise errors.pop()
            return ms.StatusReport(shard=0, shards=1, global_step=0, repeated=0)

        async def aside(function, *arguments):
            return function(*arguments)

        shared = StatusAnswers(ask, aside)
        found = await asyncio.gather(*[shared.answer(ms.Status()) for _ in range(2)], return_exceptions=True)
        assert [type(one) for one in found] == [Unavailable, Unavailable]
        assert await shared.answer(ms.Status())

    asyncio.run(scenario())
