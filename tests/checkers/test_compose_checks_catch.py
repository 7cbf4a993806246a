"""The checks of `make compose-test` must fail when the job was not as it must be, and each only for what it checks."""

from dataclasses import replace

import pytest

from tests.compose.checks import KILLED, TERMINATED, Facts, check, exit_codes, exit_codes_at_once
from tests.compose.docker import Container
from tests.compose.logs import Ended, EpochDone, GivenBack, HandedOut

CHECKS = ["ended", "epochs", "cost", "accuracy", "handed out again", "took part again", "exit codes"]


def container(name, exit_code=0, **other):
    return Container(id=name, name=name, exit_code=exit_code, **({"running": False} | other))


CONTAINERS = {
    name: container(name, KILLED if name == "worker-1" else 0)
    for name in ("server-0", "server-1", "worker-1", "worker-2", "worker-3")
}
LOST, TAKEN = GivenBack(51, "worker-1"), HandedOut(51, "worker-3", "worker-1")
EPOCHS = [EpochDone(epoch, 0.3924 + (10 - epoch) / 20, 55_000) for epoch in range(1, 11)]
END = Ended("worker-2", 1350)
GOOD = Facts(
    seconds=41.0,
    notes=[*EPOCHS, LOST, TAKEN, END],
    accuracies=[0.8737],
    killed="worker-1",
    cut="worker-2",
    steps=300,
    containers=CONTAINERS,
)


def failed(facts):
    return [name for name, verdict in zip(CHECKS, check(facts), strict=True) if not verdict.passed]


def with_notes(*notes):
    return replace(GOOD, notes=notes)


def with_container(changed):
    return replace(GOOD, containers=CONTAINERS | {changed.name: changed})


def test_they_pass_when_all_is_well():
    assert failed(GOOD) == []


def test_a_verdict_says_whether_and_with_which_figures():
    assert str(check(GOOD)[2]) == "OK      cost of the last epoch: 0.3924 (once, within 0.01 of 0.3924)"
    assert str(check(replace(GOOD, accuracies=[]))[3]).startswith(
        "FAILED  accuracy on the first 3,000 test images: not "
    )


@pytest.mark.parametrize(
    ("facts", "caught"),
    [
        (replace(GOOD, seconds=None), ["ended"]),
        (with_notes(*EPOCHS[1:], LOST, TAKEN, END), ["epochs"]),
        (with_notes(*EPOCHS[:-1], LOST, TAKEN, END), ["epochs", "cost"]),
        (with_notes(*EPOCHS, EPOCHS[-1], LOST, TAKEN, END), ["epochs", "cost"]),
        (with_notes(EpochDone(1, 0.9, 54_900), *EPOCHS[1:], LOST, TAKEN, END), ["epochs"]),
        (with_notes(*EPOCHS[:-1], EpochDone(10, 0.4025, 55_000), LOST, TAKEN, END), ["cost"]),
        (with_notes(*EPOCHS[:-1], EpochDone(10, 0.3823, 55_000), LOST, TAKEN, END), ["cost"]),
        (with_notes(*EPOCHS[:-1], EpochDone(10, float("nan"), 55_000), LOST, TAKEN, END), ["cost"]),
        (replace(GOOD, accuracies=[0.8679]), ["accuracy"]),
        (replace(GOOD, accuracies=[0.8781]), ["accuracy"]),
        (replace(GOOD, accuracies=[]), ["accuracy"]),
        (replace(GOOD, accuracies=[0.873, 0.873]), ["accuracy"]),
        (with_notes(*EPOCHS, END), ["handed out again"]),
        (with_notes(*EPOCHS, LOST, END), ["handed out again"]),
        (with_notes(*EPOCHS, LOST, GivenBack(7, "worker-1"), TAKEN, END), ["handed out again"]),
        (with_notes(*EPOCHS, LOST, HandedOut(51, "worker-1", "worker-1"), END), ["handed out again"]),
        (with_notes(*EPOCHS, replace(LOST, worker="worker-2"), replace(TAKEN, before="worker-2"), END), CHECKS[4:5]),
        (with_notes(*EPOCHS, LOST, TAKEN), ["took part again"]),
        (with_notes(*EPOCHS, LOST, TAKEN, Ended("worker-3", 1350)), ["took part again"]),
        (with_notes(*EPOCHS, LOST, TAKEN, Ended("worker-2", 300)), ["took part again"]),
        (with_container(container("worker-1", 0)), ["exit codes"]),
        (with_container(container("worker-3", 1)), ["exit codes"]),
        (with_container(container("server-1", 137)), ["exit codes"]),
        (with_container(container("worker-2", 0, restarts=1)), ["exit codes"]),
        (with_container(container("server-0", 0, running=True)), ["exit codes"]),
        (replace(GOOD, containers={}), ["exit codes"]),
    ],
)
def test_a_wrong_answer_is_caught(facts, caught):
    assert failed(facts) == caught


def test_after_a_stop_every_code_must_be_0():
    stopped = {name: container(name) for name in CONTAINERS}
    assert exit_codes(stopped).passed
    assert not exit_codes(stopped | {"worker-2": container("worker-2", 137)}).passed
    assert not exit_codes(stopped | {"server-1": container("server-1", 143)}).passed


def test_right_after_the_start_a_worker_may_end_of_sigterm_and_nobody_else():
    stopped = {name: container(name) for name in CONTAINERS}
    verdict = exit_codes_at_once(stopped | {"worker-2": container("worker-2", TERMINATED)})
    assert verdict.passed
    assert verdict.says.endswith(" (143: Python was still starting)")
    assert exit_codes_at_once(stopped) == exit_codes(stopped)
    assert not exit_codes_at_once(stopped | {"worker-2": container("worker-2", KILLED)}).passed
    assert not exit_codes_at_once(stopped | {"server-1": container("server-1", TERMINATED)}).passed
    assert not exit_codes_at_once(stopped | {"worker-2": container("worker-2", TERMINATED, running=True)}).passed
