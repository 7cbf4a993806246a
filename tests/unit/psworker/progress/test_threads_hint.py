"""The hint on BLAS threads: once, for short steps that keep several cores busy; and the display writes it."""

import re
import time

import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from psjob.status.job_view import JobView
from pswire.messages import StatusReport, WorkerStatus
from psworker import config
from psworker.progress.terminal import ProgressDisplay
from psworker.progress.threads_hint import ThreadsHint


@pytest.mark.parametrize(
    ("cores", "rate", "found"), [(5.8, 500, True), (1.1, 500, False), (5.8, 50, False), (1.6, 101, True)]
)
def test_short_steps_on_several_cores_get_the_hint_once(cores, rate, found):
    hint = ThreadsHint()
    said = [hint.observe(rate * second, 70.0 + second, 9.0 + cores * second) for second in range(30)]
    assert [bool(one) for one in said] == [found and second == 6 for second in range(30)]
    assert not found or said[6].startswith(f"psworker: {cores} cores are busy for steps of {1000 / rate:.1f} ms: ")


@pytest.mark.parametrize("chosen", ["", "2"])
def test_the_display_of_a_process_alone_shows_it_unless_the_user_has_chosen(monkeypatch, capsys, chosen):
    for variable in config.BLAS_VARIABLES:
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    monkeypatch.setattr(time, "process_time", lambda: 6.0 * time.monotonic())
    display = ProgressDisplay("off", lambda timeout: None)
    display._shows = True
    view, now = JobView(), time.monotonic()
    for second in range(8):
        worker = WorkerStatus(name="w", state="live", steps=1000 * second)
        report = StatusReport(shard=0, shards=1, global_step=1000 * second, workers=(worker,))
        view = view.follow(merge_reports([ShardAnswer("h:1", report)]), float(second))
        monkeypatch.setattr(time, "monotonic", lambda second=second: now + second)
        display._show(view)
    assert len(re.findall(r"6\.0 cores .*OPENBLAS_NUM_THREADS=1", capsys.readouterr().err)) == (not chosen)
