"""`make compose-test` reads the logs of containers; the words are those of psserver itself."""

import logging

import pytest

from psserver.core import events as told
from psserver.core.members.member import Member
from psserver.rpc import server
from psserver.runtime import clock, executor
from pswire.messages import Block, EpochReport
from pswire.system.host import process_number
from tests.compose.images import made
from tests.compose.logs import (
    Ended,
    EpochDone,
    Event,
    GivenBack,
    HandedOut,
    accuracies,
    lines,
    notes,
    rename,
    table,
    worth_telling,
)

HOSTS = {"0123456789ab": "worker-1", "ba9876543210": "worker-2"}
PROCESS = process_number(7, 0xF0000123)  # in a container
FIRST, SECOND = (Member(f"{host}-{PROCESS}", number, 1, steps=1350) for number, host in enumerate(HOSTS))
BLOCK = Block(1_051, 2, 1_600, 3_200)
LOST = told.lost(FIRST, 15.0)
GIVEN_BACK = told.block_returned("train", BLOCK, FIRST.name)
HANDED_OUT = told.handed_out_again("train", BLOCK, SECOND.name, FIRST.name)
EPOCH_DONE = told.epoch_done(EpochReport("train", 10, 0.39236, 55_000))
LEFT = told.left(SECOND, failed=False)


def logged(note, logger=executor.log):
    """As `psserver serve` writes it."""
    level = logging.WARNING if note.warning else logging.INFO
    record = logger.makeRecord(logger.name, level, "", 0, note.text, (), None)
    return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s").format(record)


def renamed(text, who="server-0"):
    return rename([Event(1.0, who, text)], HOSTS)


@pytest.mark.parametrize(
    ("note", "meaning"),
    [
        (EPOCH_DONE, [EpochDone(10, 0.3924, 55_000)]),
        (GIVEN_BACK, [GivenBack(1_051, "worker-1")]),
        (HANDED_OUT, [HandedOut(1_051, "worker-2", "worker-1")]),
        (told.handed_out_again("train", BLOCK, FIRST.name, FIRST.name), []),
        (LEFT, [Ended("worker-2", 1_350)]),
        (told.left(Member(FIRST.name, 0, 1, steps=1), failed=False), [Ended("worker-1", 1)]),
        (told.left(FIRST, failed=True), []),
        (LOST, []),
        (told.joined(FIRST), []),
    ],
)
def test_the_notes_of_a_shard_are_understood(note, meaning):
    assert notes(renamed(logged(note))) == meaning


def test_lines_are_put_in_the_order_of_their_times():
    log = "2026-11-21T19:19:46.5810Z second\n2026-11-21T19:19:12.088660920Z first, with nanoseconds\n"
    first, second = lines("server-0", log)
    assert (first.what, second.what) == ("first, with nanoseconds", "second")
    assert second.at - first.at == pytest.approx(34.49234, abs=1e-5)


def test_only_hosts_of_containers_are_renamed():
    (event,) = renamed("0123456789ab-12.3: 0123456789ab, 00123456789ab-7, ba9876543210-1.", who="worker-1")
    assert event.what == "worker-1: 0123456789ab, 00123456789ab-7, worker-2."
    assert rename([event], {}) == [event]


def test_the_accuracy_is_that_on_the_first_images():
    said = [
        "epoch 10: mean cost 0.3924 over 55,000 examples",
        "test accuracy: 0.8737 on the first 3,000, 0.9038 on all",
    ]
    assert accuracies(Event(1.0, "worker-1", text) for text in said) == [0.8737]


FAILED = "no worker has finished the job, and none has joined for 60 s"


def test_a_table_tells_in_the_order_of_time_what_people_want_to_know():
    said = [
        (41.04, "server-0", logged(told.Event("the job is done, and no worker has joined for 10 s"), clock.log)),
        (41.04, "server-0", logged(told.Event(FAILED), clock.log)),
        (41.05, "server-0", logged(told.Event("stopping: calls in progress get 5 s"), server.log)),
        (30.0, "worker-2", "test accuracy: 0.8737 on the first 3,000, 0.9038 on all"),
        (16.0, "server-0", logged(LOST)),
        (16.0, "server-0", logged(GIVEN_BACK)),
        (16.0, "server-0", logged(HANDED_OUT)),
        (16.1, "server-1", logged(LOST)),
        (15.0, "worker-2", "ba9876543210-7 waits for shard 0, for 5 s: nothing answers; is it running? start one"),
        (28.0, "server-0", logged(EPOCH_DONE)),
        (28.1, "worker-2", "epoch 10: mean cost 0.3924 over 55,000 examples"),
        (1.0, "server-0", "psserver: shard 0/2 listening on 0.0.0.0:7070"),
    ]
    act = Event(10.0, "worker-1", "is killed")
    events = worth_telling(rename([Event(at + 100, who, text) for at, who, text in said], HOSTS))
    assert table([*events, Event(act.at + 100, act.who, act.what)], start=100.0).splitlines() == [
        "| seconds | process | event |",
        "| ---: | --- | --- |",
        "| 10.0 | worker-1 | is killed |",
        "| 15.0 | worker-2 | waits for shard 0, for 5 s: nothing answers |",
        "| 16.0 | server-0 | worker-1 was silent for 15 s: its lease has expired |",
        "| 16.0 | server-0 | block 1,051 of epoch 2 (1,600 examples) will be handed out again: worker-1 had it |",
        "| 16.0 | server-0 | block 1,051 of epoch 2 goes to worker-2 (worker-1 had it) |",
        "| 28.0 | server-0 | epoch 10 is done: mean cost 0.3924 over 55,000 examples |",
        "| 30.0 | worker-2 | test accuracy: 0.8737 on the first 3,000, 0.9038 on all |",
        "| 41.0 | server-0 | the job is done, and no worker has joined for 10 s |",
        "| 41.0 | server-0 | no worker has finished the job, and none has joined for 60 s |",
    ]


BUILD = """Step 1/3 : FROM paramserver-base:offline AS build
 ---> 166c7b1f9911
Step 2/3 : RUN python3 -m venv --without-pip /opt/paramserver
 ---> Using cache
 ---> cd2e29871df4
Step 3/3 : COPY pswire pswire
 ---> Running in 00ecf39278ae
Removing intermediate container 00ecf39278ae
 ---> 6a15f38796d1
Successfully built 6a15f38796d1
"""


def test_what_the_classic_builder_has_made_is_known_by_what_it_prints():
    assert made(BUILD) == ({"166c7b1f9911", "cd2e29871df4", "6a15f38796d1"}, {"00ecf39278ae"})
