"""The hint on BLAS threads: once, for short steps that keep several cores busy; and the display writes it."""

import itertools
import re
import threading
import time

import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from pswire.messages import StatusReport, WorkerStatus
from psworker import environment
from psworker.progress import terminal
from psworker.progress.threads_hint import ThreadsHint


@pytest.mark.parametrize(
    ("threads", "rate", "found"), [(5.8, 500, True), (1.1, 500, False), (5.8, 50, False), (1.6, 101, True)]
)
def test_short_steps_whose_other_threads_take_processor_time_get_the_hint_once(threads, rate, found):
    hint = ThreadsHint()
    said = [hint.observe(rate * second, 70.0 + second, 9.0 + threads * second) for second in range(30)]
    assert [bool(one) for one in said] == [found and second == 3 for second in range(30)]
    start = f"psworker: this process takes {threads} times the processor time of its training thread, in steps of "
    assert not found or said[3].startswith(f"{start}{1000 / rate:.1f} ms: ")


@pytest.mark.parametrize("chosen", ["", "2"])
@pytest.mark.parametrize(("mode", "embedded"), [("plain", False), ("auto", True), ("auto", False), ("off", True)])
def test_the_display_of_a_process_alone_shows_it_unless_the_user_has_chosen(
    monkeypatch, capsys, mode, embedded, chosen
):
    """Also where stderr is no terminal, without any other line."""
    for variable in environment.BLAS_VARIABLES:
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    monkeypatch.setattr(time, "process_time", lambda: 6.0 * time.clock_gettime(0))
    monkeypatch.setattr(time, "pthread_getcpuclockid", lambda thread: 0, raising=False)
    monkeypatch.setattr(terminal, "PLAIN_INTERVAL", 0.001)
    seconds = itertools.count()
    monkeypatch.setattr(time, "clock_gettime", lambda clock: float(done))
    done, judged = 0, threading.Event()

    def ask(timeout):
        nonlocal done
        done = next(seconds)
        if done == 9:
            judged.set()
        worker = WorkerStatus(name="w", state="live", steps=1000 * done)
        report = StatusReport(shard=0, shards=1, global_step=1000 * done, workers=(worker,))
        return merge_reports([ShardAnswer("h:1", report)])

    display = terminal.ProgressDisplay(mode, ask, embedded=embedded)
    shown = mode == "plain" or (mode == "auto" and embedded and not chosen)
    assert judged.wait(5 if shown else 0.01) == shown
    display.close(failed=False)
    err = capsys.readouterr().err
    assert len(re.findall(r"takes 6\.0 times .*OPENBLAS_NUM_THREADS=1", err)) == (shown and not chosen)
    assert ("steps/s" in err) == (mode == "plain")
