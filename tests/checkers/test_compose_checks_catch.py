"""`make compose-test` parses the logs of containers, and each of its checks fails for what it checks only.

The words in the logs are those of psserver itself.
"""

import logging
from inspect import signature

import pytest

from psserver.core import events as shard_events
from psserver.core.members.member import Member
from psserver.rpc import server
from psserver.runtime import clock, event_log
from pswire.messages import Block, EpochReport
from pswire.system.host import process_number
from tests.compose import containers
from tests.compose.containers import Event, Job, events, notes, table
from tests.compose.docker import Container, made
from tests.support.combinations import together

# --- logs -------------------------------------------------------------------------------------------------------------

HOSTS = {"0123456789ab": "worker-1", "ba9876543210": "worker-2"}
PROCESS = process_number(7, 0xF0000123)  # in a container
FIRST, SECOND = (Member(f"{host}-{PROCESS}", number, 1, steps=1350) for number, host in enumerate(HOSTS))
BLOCK = Block(number=1_051, epoch=2, start=1_600, stop=3_200)
LOST = shard_events.lost(FIRST, 15.0)
GIVEN_BACK = shard_events.block_returned("train", BLOCK, FIRST.name)
HANDED_OUT = shard_events.handed_out_again("train", BLOCK, SECOND.name, FIRST.name)
EPOCH_DONE = shard_events.epoch_done(EpochReport(queue="train", epoch=10, cost=0.39236, examples=55_000))
ACCURACY = "test accuracy: 0.8737 on the first 3,000, 0.9038 on all"


def logged(note, logger=event_log.log):
    """As `psserver serve` writes it."""
    level = logging.WARNING if note.warning else logging.INFO
    record = logger.makeRecord(logger.name, level, "", 0, note.text, (), None)
    return logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s").format(record)


def log_lines(*lines, who="server-0"):
    return events(who, "\n".join(f"2026-11-21T19:19:46.5810Z {line}" for line in lines), HOSTS)


@pytest.mark.parametrize(
    ("line", "kind", "note"),
    [
        (logged(EPOCH_DONE), "epochs", (10, 0.3924, 55_000)),
        (logged(GIVEN_BACK), "given back", (1_051, "worker-1")),
        (logged(HANDED_OUT), "handed out", (1_051, "worker-2", "worker-1")),
        (logged(shard_events.left(SECOND, failed=False)), "finished", ("worker-2", 1_350)),
        (logged(shard_events.left(Member(FIRST.name, 0, 1, steps=1), failed=False)), "finished", ("worker-1", 1)),
        (ACCURACY, "accuracy", (0.8737,)),
        (logged(shard_events.handed_out_again("train", BLOCK, FIRST.name, FIRST.name)), None, None),
        (logged(shard_events.left(FIRST, failed=True)), None, None),
        (logged(LOST), None, None),
        (logged(shard_events.joined(FIRST)), None, None),
        ("epoch 10: mean cost 0.3924 over 55,000 examples", None, None),
    ],
)
def test_the_notes_of_a_shard_and_the_accuracy_are_parsed(line, kind, note):
    assert {kind: found for kind, found in notes(log_lines(line)).items() if found} == ({kind: [note]} if kind else {})


def test_lines_are_put_in_the_order_of_their_times_and_only_hosts_of_containers_are_renamed():
    text = "0123456789ab-12.3: 0123456789ab, 00123456789ab-7, ba9876543210-1."
    log = f"2026-11-21T19:19:46.5810Z second\n2026-11-21T19:19:12.088660920Z {text}\n"
    first, second = events("server-0", log, HOSTS)
    assert (first.what, second.what) == ("worker-1: 0123456789ab, 00123456789ab-7, worker-2.", "second")
    assert second.at - first.at == pytest.approx(34.49234, abs=1e-5)


def test_a_table_has_the_events_in_the_order_of_time():
    done = "the job is done, and no worker has joined for 10 s"
    story = [
        (41.04, "server-0", logged(shard_events.Event("job", done), clock.log), done),
        (41.05, "server-0", logged(shard_events.Event("job", "stopping: calls under way get 5 s"), server.log), None),
        (41.1, "server-1", "ends with code 0", "ends with code 0"),
        (16.0, "server-0", logged(LOST), "worker-1 was silent for 15 s: its lease has expired"),
        (16.1, "server-1", logged(LOST), None),
        (15.0, "worker-2", f"{SECOND.name} waits for shard 0; is it running? start one", "waits for shard 0"),
        (28.0, "server-0", logged(EPOCH_DONE), "epoch 10 is done: mean cost 0.3924 over 55,000 examples"),
        (28.1, "worker-2", "epoch 10: mean cost 0.3924 over 55,000 examples", None),
        (1.0, "server-0", "psserver: shard 0/2 listening on 0.0.0.0:7070", None),
        (10.0, "worker-1", "is killed", "is killed"),
    ]
    log = [Event(at + 100, who, log_lines(line, who=who)[0].what) for at, who, line, _ in story]
    rows = [f"| {at:.1f} | {who} | {row} |" for at, who, _, row in sorted(story, key=lambda line: line[0]) if row]
    found = table(log, start=100.0, shard_0="server-0").splitlines()
    assert found == ["| seconds | process | event |", "| ---: | --- | --- |", *rows]


def test_images_and_containers_of_the_classic_builder_are_known_by_its_output():
    log = " ---> 166c7b1f9911\nStep 2/2 : COPY a b\n ---> Running in 00ecf39278ae\n ---> 6a15f38796d1\n"
    assert made(log) == ({"166c7b1f9911", "6a15f38796d1"}, {"00ecf39278ae"})


# --- checks -----------------------------------------------------------------------------------------------------------

TESTS = [value for name, value in vars(containers).items() if name.startswith("test_")]
CHECKS = [test for test in TESTS if list(signature(test).parameters) == ["job"]]


def ended(name, code=0, **state):
    return {name: Container(name, name, exit_code=code, **state)}


STOPPED = {name: Container(name, name) for name in ("server-0", "server-1", "worker-1", "worker-2", "worker-3")}
EPOCHS = [(epoch, 0.3924 + (10 - epoch) / 20, 55_000) for epoch in range(1, 11)]
NOTES = {
    "epochs": EPOCHS,
    "given back": [(51, "worker-1")],
    "handed out": [(51, "worker-3", "worker-1")],
    "finished": [("worker-2", 1350)],
    "accuracy": [(0.8737,)],
    "starts": [(0,), (1,), (1,), (0,), (1,)],
}
GOOD = {"seconds": 41.0, "killed": "worker-1", "cut": "worker-2", "steps": (300, 310), "restarted": "server-1"}
GOOD["containers"] = STOPPED | ended("server-1", 0, restarts=1)


@together(
    ("change", "caught"),
    [
        ({}, []),
        ({"seconds": None}, ["by itself"]),
        ({"epochs": EPOCHS[1:]}, ["all epochs"]),
        ({"epochs": EPOCHS[:-1]}, ["all epochs", "cost"]),
        ({"epochs": [*EPOCHS, EPOCHS[-1]]}, ["all epochs", "cost"]),
        ({"epochs": [(1, 0.9, 54_900), *EPOCHS[1:]]}, ["all epochs"]),
        *[({"epochs": [*EPOCHS[:-1], (10, cost, 55_000)]}, ["cost"]) for cost in (0.4025, 0.3823, float("nan"))],
        *[({"accuracy": values}, ["accuracy"]) for values in ([(0.8679,)], [(0.8781,)], [], [(0.873,)] * 2)],
        ({"given back": [], "handed out": []}, ["handed out again"]),
        ({"handed out": []}, ["handed out again"]),
        ({"given back": [(51, "worker-1"), (7, "worker-1")]}, ["handed out again"]),
        ({"handed out": [(51, "worker-1", "worker-1")]}, ["handed out again"]),
        ({"given back": [(51, "worker-2")], "handed out": [(51, "worker-3", "worker-2")]}, ["handed out again"]),
        *[({"finished": ends}, ["takes part again"]) for ends in ([], [("worker-3", 1350)])],
        ({"steps": (300, 300)}, ["takes part again"]),
        ({"starts": NOTES["starts"][:-1]}, ["without loss"]),
        ({"containers": STOPPED}, ["every container"]),
        ({"containers": GOOD["containers"] | ended("worker-1", 137)}, ["every container"]),
        ({"containers": {}}, ["every container"]),
    ],
)
def test_a_wrong_answer_is_caught(change, caught):
    fields = {name: change.get(name, value) for name, value in GOOD.items()}
    job = Job(notes={kind: change.get(kind, found) for kind, found in NOTES.items()}, **fields)
    failed = []
    for check in CHECKS:
        try:
            check(job)
        except (AssertionError, ValueError):
            failed.append(check.__name__.replace("_", " "))
    assert [word for word, name in zip(caught, failed, strict=True) if word not in name] == []


@pytest.mark.parametrize(
    ("change", "later", "at_once"),
    [
        ({}, {}, {}),
        (ended("worker-2", 137), {"worker-2": "137"}, {"worker-2": "137"}),
        (ended("server-1", 143), {"server-1": "143"}, {"server-1": "143"}),
        (ended("worker-2", 143), {"worker-2": "143"}, {}),
        (ended("worker-2", 0, restarts=1), *[{"worker-2": "0 after 1 restarts"}] * 2),
        (ended("worker-2", 143, running=True), *[{"worker-2": "(still running)"}] * 2),
    ],
)
def test_after_a_stop_every_code_must_be_0_but_right_after_the_start_a_worker_may_end_of_sigterm(
    change, later, at_once
):
    assert containers.ends(STOPPED | change) == later
    assert containers.ends(STOPPED | change, at_once=True) == at_once
