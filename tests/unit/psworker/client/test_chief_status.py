"""Chief status: which answers report it, and which of two reports is newer."""

from dataclasses import replace

import pytest

from pswire.messages import Joined, Left, Outcome, Pushed, Renewed, Taken
from psworker.client.chief import ChiefStatus


@pytest.mark.parametrize("answer", [Joined(1, 0, 15.0, 0, chief=True), Renewed(0, chief=True), Taken(None, chief=True)])
def test_chief_status_is_the_last_report_of_shard_0(answer):
    role = ChiefStatus("w0")
    assert not role.chief
    role.update(1, answer)
    assert not role.chief
    role.update(0, answer)
    assert role.chief
    for shard, other in ((0, Left()), (0, Pushed(Outcome.APPLIED, 0, 1)), (1, replace(answer, chief=False))):
        role.update(shard, other)
        assert role.chief
    role.update(0, Renewed(0))
    assert not role.chief


def test_a_heartbeat_answer_older_than_another_report_is_ignored():
    role = ChiefStatus("w0")
    role.update(0, Joined(1, 1, 15.0, 0))
    asked = role.updates
    role.update(0, Taken(None, done=True, chief=True))
    role.update(0, Renewed(0), asked)
    assert role.chief
    role.update(0, Renewed(0), role.updates)
    assert not role.chief


def test_taking_over_as_chief_is_logged_once(caplog):
    first, second = ChiefStatus("w0"), ChiefStatus("w1")
    first.update(0, Joined(1, 0, 15.0, 0, chief=True))
    for chief in (False, True, True):
        second.update(0, Renewed(0, chief=chief))
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [("WARNING", "w1 is now the chief: the previous one is gone")]
