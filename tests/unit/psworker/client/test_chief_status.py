"""Chief status: which answers report it, and which of two reports is newer."""

from dataclasses import replace

import pytest

from pswire.messages import Joined, Left, Outcome, Pushed, Renewed, Taken
from psworker.client.chief import ChiefStatus


@pytest.mark.parametrize("answer", [Joined(1, 0, 15.0, 0, chief=True), Renewed(0, chief=True), Taken(None, chief=True)])
def test_chief_status_is_the_last_report_of_shard_0(answer):
    status = ChiefStatus("w0")
    for shard, report, chief in [
        (1, answer, False),
        (0, answer, True),
        (0, Left(), True),
        (0, Pushed(Outcome.APPLIED, 0, 1), True),
        (1, replace(answer, chief=False), True),
        (0, Renewed(0), False),
    ]:
        status.update(shard, report)
        assert status.chief == chief


def test_a_heartbeat_answer_older_than_another_report_is_ignored():
    status = ChiefStatus("w0")
    status.update(0, Joined(1, 1, 15.0, 0))
    asked = status.updates
    status.update(0, Taken(None, done=True, chief=True))
    status.update(0, Renewed(0), asked)
    assert status.chief
    status.update(0, Renewed(0), status.updates)
    assert not status.chief


def test_taking_over_as_chief_is_logged_once(caplog):
    first, second = ChiefStatus("w0"), ChiefStatus("w1")
    first.update(0, Joined(1, 0, 15.0, 0, chief=True))
    for chief in (False, True, True):
        second.update(0, Renewed(0, chief=chief))
    assert caplog.messages == ["w1 is now the chief: the previous one is gone"]
