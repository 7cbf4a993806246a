"""`--guard` of servers and monitors, and where its findings go."""

import logging

import pytest
from click.testing import CliRunner

from psjob.guard.actions import guarding
from psserver.cli.main import main
from psserver.monitor.collector import Collector
from pswire.security.credentials import NO_CREDENTIALS
from tests.unit.psjob.guard.jobs import job, workers


def spoilt(seconds):
    """A job in which pushes of w1 have jumped from its second status on."""
    rows = workers(3, int(100 * seconds))
    if seconds > 1:
        rows[1] = workers(2, int(100 * seconds), jumps=5, jump=500.0, jumped_at=40)[1]
    return job(int(300 * seconds), rows)


def test_a_server_that_should_act_needs_the_page_which_looks_for_failures():
    result = CliRunner().invoke(main, ["serve", "--guard", "stop"])
    assert result.exit_code == 2
    assert "--guard stop needs --http" in result.output


def test_no_guard_is_made_if_it_is_off():
    with guarding("off", ["127.0.0.1:1"], NO_CREDENTIALS) as guard:
        assert guard is None


def test_a_monitor_logs_each_finding_once_with_its_remedy(caplog):
    with caplog.at_level(logging.WARNING), guarding("warn", ["127.0.0.1:1"], NO_CREDENTIALS) as guard:
        for second in range(4):
            guard.observe(spoilt(second), float(second))
    (record,) = caplog.records
    assert record.getMessage().startswith("gradients of worker 'w1' were 500 times as large")
    assert "Remedy: put it into quarantine" in record.getMessage()


def test_the_page_has_the_findings_that_are_open_and_those_that_are_over_no_more():
    class Closing:
        findings = ()

        def observe(self, status, seconds):
            return self.findings

    with guarding("warn", [], NO_CREDENTIALS) as real:
        for second in range(3):
            real.observe(spoilt(second), float(second))
    guard = Closing()
    collector = Collector(lambda timeout: spoilt(0), guard=guard)
    for open_ones, kinds in ((real.findings, ["worker"]), ((), [])):
        guard.findings = open_ones
        collector._poller.poll()
        assert collector.kinds() == kinds


@pytest.mark.parametrize("mode", ["stop", "rollback"])
def test_a_monitor_that_acts_reports_that_servers_cannot_be_reached(caplog, mode):
    with caplog.at_level(logging.WARNING), guarding(mode, ["127.0.0.1:1"], NO_CREDENTIALS) as guard:
        for second in range(3):
            guard.observe(spoilt(second), float(second))
    assert "guard: the job could not be stopped: " in caplog.text
