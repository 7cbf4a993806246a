"""A status that anyone asks for, of jobs that are made large on purpose, over real sockets."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.core import registration
from psserver.rpc import status_answers
from psserver.rpc.server import ServerThread
from psserver.rpc.status_answers import StatusAnswers
from pswire.errors import Unavailable
from pswire.messages import Declaration, Register, Status, Tune
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from tests.support.servers import Client

EMPTY = np.zeros(0, np.float32)


@pytest.fixture
def client():
    with ServerThread(ServerConfig(lease=60.0)) as server:
        client = Client(server.address)
        yield client
        client.channel.close()


def register(client, names):
    worker = client.join("worker")
    declared = [Declaration(TensorSpec.of(name, EMPTY), EMPTY, GradientDescent(1.0)) for name in names]
    client.unary(Register(sender=worker, declarations=tuple(declared)))
    return worker


@pytest.mark.slow
def test_of_very_many_variables_a_status_lists_the_first_and_counts_all_and_the_others_follow_in_pages(client):
    names = [f"v{number:05}" for number in range(1500)]
    register(client, names)
    first = client.status()
    assert (len(first.variables), first.totals.variables, first.totals.live) == (1000, 1500, 1)
    second, beyond = client.unary(Status(1000)), client.unary(Status(5000))
    assert [one.spec.name for one in (*first.variables, *second.variables)] == names
    assert beyond.variables == ()


def test_an_answer_that_would_be_too_large_for_one_message_has_fewer_entries(client, monkeypatch):
    monkeypatch.setattr(status_answers, "MAX_ANSWER", 20_000)
    register(client, ["x" * 200 + str(number) for number in range(200)])
    found, report = [], client.status()
    while report.variables:
        assert 0 < len(report.variables) < 100
        found += [one.spec.name[200:] for one in report.variables]
        report = client.unary(Status(len(found)))
    assert found == [str(number) for number in range(200)]


def test_changes_of_hyperparameters_name_some_variables_and_count_the_others(client):
    names = tuple([f"v{number}" for number in range(300)])
    worker = register(client, names)
    for sequence in (1, 2, 3):
        client.unary(
            Tune(
                sender=worker, sequence=sequence, names=names, optimizer=GradientDescent(0.5), fields=("learning_rate",)
            )
        )
    changes = client.status().changes
    assert [(one.names, one.others) for one in changes] == [(names[: registration.MAX_NAMED], 200)] * 3


def test_many_callers_of_status_get_one_answer(client, monkeypatch):
    monkeypatch.setattr(status_answers, "LEAST_PAUSE", 1.0)
    made, encoded = [], status_answers.encoded
    monkeypatch.setattr(status_answers, "encoded", lambda report: made.append(report) or encoded(report))
    client.status()
    with ThreadPoolExecutor(20) as threads:
        reports = list(threads.map(lambda number: client.status(), range(20)))
    assert reports == [reports[0]] * 20
    assert len(made) == 2, "all that wait while there is a pause share the next answer"


def test_who_asks_after_a_change_sees_it(client):
    for number in range(5):
        client.join(f"w{number}")
        assert client.status().totals.live == number + 1


def test_an_answer_that_waited_long_for_others_does_not_keep_the_next_one_waiting(monkeypatch):
    async def ask():
        loop, pauses, sleep = asyncio.get_running_loop(), [], asyncio.sleep
        now = [100.0]

        async def slow(message):
            now[0] += 60.0
            return "report"

        async def aside(function, report):
            return report

        async def note(seconds):
            pauses.append(seconds)
            await sleep(0)

        monkeypatch.setattr(loop, "time", lambda: now[0])
        monkeypatch.setattr(status_answers.asyncio, "sleep", note)
        answers = StatusAnswers(slow, aside)
        for _ in range(2):
            await answers.answer(Status())
        return pauses

    assert asyncio.run(ask())[1:] == [status_answers.MOST_PAUSE]


def test_different_requests_that_wait_are_bounded(monkeypatch):
    monkeypatch.setattr(status_answers, "MAX_WAITING", 3)

    async def never(message):
        await asyncio.Event().wait()

    async def ask():
        answers = StatusAnswers(never, asyncio.to_thread)
        calls = [asyncio.ensure_future(answers.answer(Status(number))) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="different parts of the status"):
            await answers.answer(Status(3))
        for call in (*calls, *answers._waiting.values()):
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(ask())
