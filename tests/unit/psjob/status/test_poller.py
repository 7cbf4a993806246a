"""The poller of a job's status: what it shows while shards and listeners fail, in a thread and in the calling one."""

import itertools
import queue
import threading

import pytest

from psjob.status.job_status import ShardAnswer, merge_reports
from psjob.status.poller import Poller
from pswire.messages import StatusReport
from tests.support.commands import BOUND


def job(step):
    return merge_reports([ShardAnswer("h:1", StatusReport(shards=1, global_step=step))])


SILENT = merge_reports([ShardAnswer("h:1", problem="no server at h:1")])


def test_each_status_is_shown_with_the_last_whole_one_while_a_shard_is_silent_and_one_more_is_asked_for_at_the_end():
    answers = itertools.chain([job(7), SILENT, job(8)], itertools.repeat(job(9)))
    views = queue.SimpleQueue()
    with Poller(lambda timeout: next(answers), views.put, interval=0.0, names=["worker-0"]) as poller:
        seen = [views.get(timeout=BOUND) for _ in range(3)]
    assert [(view.step, view.problem, view.latest.problems) for view in seen] == [
        (7, "", ()),
        (7, "no server at h:1", ("no server at h:1",)),
        (8, "", ()),
    ]
    assert (poller.view.step, poller.view.workers[0].state) == (9, "starting")


def test_the_thread_goes_on_after_an_error_of_a_listener_which_is_logged(caplog):
    went_on = threading.Event()

    def show(view):
        if view.step == 1:
            raise RuntimeError("a bad status")
        went_on.set()

    steps = itertools.count(1)
    with Poller(lambda timeout: job(next(steps)), show, interval=0.0):
        assert went_on.wait(BOUND)
    assert "a bad status" in caplog.text


def test_in_the_calling_thread_an_error_ends_it():
    steps = itertools.count(1)

    def show(view):
        if view.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Poller(lambda timeout: job(next(steps)), show, interval=0.0).run()
    assert next(steps) == 4


def test_while_there_is_no_status_nothing_is_shown_and_the_view_begins_anew():
    answers, shown = iter([job(5), None, job(6)]), []
    poller = Poller(lambda timeout: next(answers), shown.append, interval=0.0)
    for _ in range(3):
        poller.poll()
    assert [(view.step, view.first) for view in shown] == [(5, 5), (6, 6)]


@pytest.mark.parametrize("failed", [True, False])
def test_a_request_under_way_is_cancelled_at_the_end_and_a_job_that_has_failed_is_not_asked_again(failed):
    asked, cancelled = threading.Semaphore(0), threading.Event()
    requests = []

    def ask(timeout):
        requests.append(timeout)
        asked.release()
        assert cancelled.wait(BOUND)
        return job(len(requests))

    poller = Poller(ask, lambda view: None, interval=60.0, timeout=3.0, cancel=cancelled.set)
    poller.start()
    assert asked.acquire(timeout=BOUND)
    poller.close(failed=failed)
    assert requests == [3.0] * (1 if failed else 2)
