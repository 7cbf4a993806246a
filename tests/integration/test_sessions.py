"""Programs with several sessions: the n-th session of each worker is the n-th job, and what is over is passed."""

import logging
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from psjob.status.status_client import StatusClient
from psserver.testing import serve
from pswire.errors import Zombie
from psworker import ops
from psworker.client import retry
from psworker.config import WorkerConfig
from psworker.sessions import session_numbers
from psworker.sessions.session import Session
from psworker.sessions.session_numbers import sessions_of
from tests.support.commands import wait_until

DATA = ps.Dataset({"x": np.arange(24, dtype=np.float64)})


def started_again(addresses, name):
    """The worker of this name is another process from now on."""
    session_numbers._opened.pop((tuple(addresses), name, None), None)


def killed(session):
    """Ends a worker as SIGKILL would: without a Leave."""
    session._client.close()
    session._client._heartbeat.join()


def train(addresses, name, optimizer, epochs=1, **options):
    """A session of its own: the sum of what all workers have pushed."""
    with Session(WorkerConfig(tuple(addresses), name, 30, **options), numbered=True) as session:
        w = ps.global_variables()[0] if ps.global_variables() else ps.Variable(np.zeros(2), name="w")
        for batch in session.batches(DATA, 4, epochs=epochs):
            optimizer.minimize(-ops.sum(w * len(batch)))
        session.pull()
        return float(w.value[0]), session.job


def jobs_of(addresses):
    with StatusClient(addresses) as client:
        return [(one.job.name, one.job.session, one.state, one.workers) for one in client.ask(10).jobs]


@pytest.mark.parametrize("shards", [1, 2])
def test_each_session_of_two_workers_is_a_job_of_its_own_also_with_another_optimizer(shards):
    optimizers = ps.GradientDescent(0.25), ps.Momentum(0.5, 0.0), ps.GradientDescent(1.0)
    with serve(shards=shards) as servers, ThreadPoolExecutor(2) as pool:

        def sweep(name):
            seen = []
            for optimizer in optimizers:
                with ps.collection():
                    seen.append(train(servers.addresses, name, optimizer, resume=True, workers=2))
            return seen

        first, second = [one.result(60) for one in [pool.submit(sweep, name) for name in "ab"]]
        name = first[0][1]
        assert first == second == [(6.0, name), (12.0, name), (24.0, name)]
        assert jobs_of(servers.addresses) == [(name, session, "done", 2) for session in (1, 2, 3)]


def test_the_next_session_begins_when_all_workers_have_been_in_this_one_however_late_one_comes(caplog):
    with serve() as servers:
        waits = threading.Event()

        def early():
            with ps.collection():
                first = train(servers.addresses, "early", ps.GradientDescent(0.25), job="run", workers=2)
                waits.set()
                return [first, train(servers.addresses, "early", ps.GradientDescent(0.5), job="run", workers=2)]

        with ThreadPoolExecutor(1) as pool:
            soon = pool.submit(early)
            assert waits.wait(30)
            with ps.collection():
                late = [train(servers.addresses, "late", ps.GradientDescent(0.25), job="run", workers=2)]
                late += [train(servers.addresses, "late", ps.GradientDescent(0.5), job="run", workers=2)]
            assert soon.result(30) == late == [(6.0, "run"), (18.0, "run")], "the values of the first are trained on"


def test_an_evaluation_beside_a_job_does_not_wait_with_resume_which_its_log_says_without_it(caplog, monkeypatch):
    monkeypatch.setattr(retry, "LOG_EVERY", 0.0)

    def evaluate(**options):
        with ps.collection():
            w = ps.Variable(np.zeros(2), name="w")
            with ps.session(servers.addresses, name="evaluation", **options) as session:
                session.pull()
                return float(w.value[0]), session.number

    with serve() as servers, ps.collection(), ThreadPoolExecutor(1) as pool:
        w = ps.Variable(np.zeros(2), name="w")
        with ps.session(servers.addresses, name="trains"):
            for step in (1.0, 2.0, 3.0):
                ps.GradientDescent(1.0).minimize(-ops.sum(w))
                assert evaluate(resume=True) == (step, 1)
            waits = pool.submit(evaluate)
            wait_until(lambda: "evaluation waits" in caplog.text or waits.done())
            assert not waits.done()
        waits.result(30)
    assert re.search(
        r"evaluation waits, for \d+ s: session 4 of .* begins when session 1 is over, and trains takes part in it\. .* "
        r"with ps\.session\(resume=True\)",
        caplog.text,
    )


def test_a_worker_that_does_not_come_is_awaited_for_a_lease():
    with serve(lease=0.5) as servers:
        for _ in range(2):
            with ps.collection():
                assert train(servers.addresses, "here", ps.GradientDescent(0.25), job="run", workers=2)[0] == 6.0
        assert [one[1:3] for one in jobs_of(servers.addresses)] == [(1, "done"), (2, "done")]


def test_a_worker_that_is_started_again_passes_the_sessions_that_are_over_and_says_so(tmp_path, caplog):
    with serve() as servers, ps.collection():
        config = WorkerConfig(servers.addresses, "stays", 30)
        train(servers.addresses, "stays", ps.GradientDescent(0.25))
        with Session(config, numbered=True) as stays:
            w = ps.global_variables()[0]
            ps.GradientDescent(1.0).minimize(-ops.sum(w))
            with ps.collection():
                again = ps.Variable(np.zeros(2), name="w")
                with Session(WorkerConfig(servers.addresses, "again", 30), numbered=True) as passed:
                    assert passed.over
                    assert "session 1 of" in passed.stopped
                    assert not passed.is_chief
                    assert list(passed.batches(DATA, 4, epochs=2)) == []
                    assert math.isnan(passed.evaluate(lambda batch: batch.x.mean(), DATA))
                    assert passed.checkpoint() == 0
                    passed.save(tmp_path / "model.safetensors")
                    ps.save(tmp_path / "model.safetensors")
                    assert not passed.is_chief
                    passed.barrier()
                    result = passed.minimize(lambda batch: ops.sum(again * again), DATA, ps.LBFGS())
                    assert not result.converged
                assert not (tmp_path / "model.safetensors").exists()
                assert "trains nothing in this session" in caplog.text
                with Session(WorkerConfig(servers.addresses, "again", 30), numbered=True) as second:
                    assert (second.over, second.job, second.number) == (False, stays.job, 1)
                    assert again.value.tolist() == [7.0, 7.0]
                    assert [one.name for one in stays.workers] == ["stays", "again"]


def test_the_whole_program_that_is_started_again_goes_on_in_the_session_in_which_it_was_lost():
    with serve(lease=0.5) as servers:
        for life in range(2):
            with ps.collection():
                for number in (1, 2):
                    session = Session(WorkerConfig(servers.addresses, "alone", 30), numbered=True).open()
                    w = ps.Variable(np.zeros(2), name=f"w{number}")
                    assert session.over == (life == 1 and number == 1)
                    if number == 2:
                        ps.GradientDescent(1.0).minimize(-ops.sum(w))
                        assert w.value.tolist() == [life + 1.0] * 2
                    if (life, number) == (0, 2):
                        killed(session)
                    else:
                        session.close()
            started_again(servers.addresses, "alone")
        assert [one[1] for one in jobs_of(servers.addresses)] == [1, 2]


def test_a_session_that_names_its_job_is_not_numbered_and_one_that_resumes_goes_on_with_the_present_one():
    with serve() as servers, ps.collection():
        options = {"servers": servers.addresses, "name": "w0", "timeout": 30}
        for opened, number in [({}, 1), ({"resume": True}, 1), ({}, 3), ({"job": "mine"}, 0), ({"resume": True}, 0)]:
            with ps.session(**options, **opened):
                w = ps.Variable(np.zeros(2), name="w") if not ps.global_variables() else ps.global_variables()[0]
                ps.GradientDescent(1.0).minimize(-ops.sum(w))
                assert jobs_of(servers.addresses)[-1][1] == number
        assert [one[1] for one in jobs_of(servers.addresses)] == [1, 3, 0]
        assert sessions_of(WorkerConfig(servers.addresses, "w0")).count == 5


def test_sessions_with_one_folder_are_one_job_after_another_and_a_restart_goes_on_in_the_last_one(tmp_path):
    def sweep(stop_at=0):
        seen = []
        for rate in (0.25, 0.5, 1.0):
            with ps.collection(), ps.session(checkpoint_dir=tmp_path, checkpoint_every="2steps") as session:
                w = ps.Variable(np.zeros(2), name="w")
                for batch in session.batches(DATA, 4, epochs=2, on_epoch=lambda epoch: None):
                    ps.GradientDescent(rate).minimize(-ops.sum(w * len(batch)))
                    if stop_at and (rate, session.global_step) == (0.5, stop_at):
                        raise KeyboardInterrupt
                seen.append((session.over, float(w.value[0]), session.global_step))
        return seen

    with pytest.raises(KeyboardInterrupt):
        sweep(stop_at=5)
    session_numbers.forget()
    assert sweep() == [(True, 0.0, 0), (False, 24.0, 12), (False, 48.0, 12)]
    session_numbers.forget()
    assert sweep() == [(True, 0.0, 0), (True, 0.0, 0), (False, 48.0, 12)], "the program is done"


def test_a_worker_of_a_session_that_is_over_while_it_was_suspended_ends(caplog):
    caplog.set_level(logging.INFO)
    with serve(lease=0.5) as servers, ps.collection():
        suspended = Session(WorkerConfig(servers.addresses, "suspended", 30), numbered=True).open()
        w = ps.Variable(np.zeros(2), name="w")
        suspended._client._closing.set()  # no heartbeats
        suspended._client._heartbeat.join()
        suspended._client._closing.clear()
        with ps.collection():
            train(servers.addresses, "other", ps.GradientDescent(0.25))
            train(servers.addresses, "other", ps.GradientDescent(0.25))
        with pytest.raises(Zombie, match=r"job 1 \(.*\), in which worker 'suspended' took part, is over"):
            ps.GradientDescent(1.0).minimize(-ops.sum(w))
        suspended.close(failed=True)
