"""Standing servers that have one job after another; workers that wait for each other, and stop the job for all."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

import psworker as ps
from psjob.status.status_client import StatusClient
from psserver.storage import checkpoints
from psserver.storage.folders import available
from psserver.testing import serve
from pswire.errors import InvalidMessage, TimedOut, Unavailable, Zombie
from pswire.messages import Declaration, Leave, Push
from pswire.tensors.values import TensorSpec
from psworker import ops
from psworker.client.membership import JobChoice
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from tests.support.shards import ShardsInProcess

SGD, ZEROS = ps.GradientDescent(0.25), np.zeros(2)
DATA = ps.Dataset({"x": np.arange(24, dtype=np.float64)})


@contextmanager
def program(addresses, **options):
    """A session in a process of its own, as far as variables go."""
    with ps.collection(), ps.session(addresses, timeout=20, **options) as session:
        yield session


def train(session, epochs=1, size=2, on_epoch=None):
    """The value of `w` after training, and the epochs that were reported: each batch adds 1/4 of its examples."""
    w, reports = ps.Variable(np.zeros(size), name="w"), []
    for batch in session.batches(DATA, 4, epochs=epochs, on_epoch=on_epoch or reports.append):
        SGD.minimize(-ops.sum(w * len(batch)))
    session.pull()
    return w.value.tolist(), [report.epoch for report in reports]


def jobs_of(addresses):
    with StatusClient(addresses) as client:
        return [(one.job.number, one.job.name, one.state, one.global_step) for one in client.ask(10).jobs]


@pytest.mark.parametrize("shards", [1, 3])
def test_the_same_program_trains_again_and_another_one_does_not_meet_its_variables_or_queues(shards):
    with serve(shards=shards) as servers:
        for _ in range(2):
            with program(servers.addresses, name="w0") as session:
                assert train(session) == ([6.0, 6.0], [1])
                assert session.global_step == 6
        with program(servers.addresses) as session:  # a variable of another shape, a queue of other epochs
            assert train(session, epochs=2, size=5) == ([12.0] * 5, [1, 2])
            assert session.job.endswith("-3")
        assert [one[2:] for one in jobs_of(servers.addresses)] == [("done", 6), ("done", 6), ("done", 12)]


@pytest.mark.parametrize("shards", [1, 2])
def test_to_go_on_with_the_earlier_job_is_said_by_resume_or_by_its_name(shards):
    with serve(shards=shards) as servers:
        with program(servers.addresses, job="mine") as session:
            train(session)
        with program(servers.addresses, resume=True) as session:
            assert session.job == "mine"
            assert train(session, epochs=2) == ([12.0, 12.0], [1, 2])
        with program(servers.addresses, job="mine") as session:
            assert train(session, epochs=3) == ([18.0, 18.0], [1, 2, 3])
        with pytest.raises(InvalidMessage, match=r"go on with job 'theirs', but the servers have job 1 \(mine\)"):
            program(servers.addresses, job="theirs", resume=True).__enter__()
        with program(servers.addresses, job="theirs") as session:
            assert train(session) == ([6.0, 6.0], [1])


def test_workers_that_start_while_a_job_runs_take_part_in_it_and_a_named_one_waits_for_its_end():
    with serve(shards=2) as servers, program(servers.addresses, name="a") as first:
        w = ps.Variable(np.zeros(2), name="w")
        with program(servers.addresses, name="b") as second:
            assert (second.job, second.number) == (first.job, 1)
            assert [one.name for one in first.workers] == ["a", "b"]
        assert [one.name for one in first.workers] == ["a"]
        named = Session(WorkerConfig(servers.addresses, "c", 0.4, job="other"))
        waits = pytest.raises(Unavailable, match=r"job 'other' cannot begin while the servers run job 1 .* with a: it")
        with waits, ps.collection():
            named.__enter__()
        SGD.minimize(-ops.sum(w))
        assert w.value.tolist() == [0.25, 0.25], "the running job has lost nothing"


def test_a_worker_of_a_job_that_is_over_ends_with_an_error_and_changes_nothing():
    transport, declared = ShardsInProcess(2, lease=10.0), Declaration(TensorSpec.of("w", ZEROS), ZEROS, SGD)
    late, before = transport.client("late", declared)
    transport.sleep(11)  # its lease ends
    new, known = transport.client("new", declared, job=JobChoice("next"))
    up = replace(known["w"], array=np.full_like(ZEROS, -1.0))
    known = {"w": new.push([up], pull=["w"]).result().values[0]}
    with pytest.raises(
        Zombie, match=r"job 1 \(.*\), in which worker 'late' took part, is over: the servers have job 2"
    ):
        late.push([replace(before["w"], array=np.ones_like(ZEROS))], pull=["w"]).result()
    up = replace(known["w"], array=np.full_like(ZEROS, -1.0))
    assert new.push([up], pull=["w"]).result().values[0].array.tolist() == [0.5, 0.5]
    late.leave()
    assert [one.name for one in new.shard_status().workers if one.state == "live"] == ["new"]


def session_on(transport, name, **options):
    return Session(WorkerConfig(("shards:1",), name, 20, **options), transport)


def test_before_the_next_job_begins_the_last_state_of_the_one_before_is_a_checkpoint(tmp_path):
    with serve(shards=2, checkpoint_dir=tmp_path, journal=True) as servers:
        with program(servers.addresses) as session:
            train(session)
        with program(servers.addresses) as session:
            train(session, size=7)
        for shard in (0, 1):
            servers.stop(shard)
        kept = [checkpoints.read(tmp_path, available(tmp_path, shard, 2)[1], shard, 2) for shard in (0, 1)]
        assert {one.state.cut for one in kept} == {kept[0].state.cut}, "one cut of both shards"
        assert [one.state.job.number for one in kept] == [1, 1]
        [value] = [arrays.value for one in kept for arrays in one.arrays.values()]
        assert value.tolist() == [6.0, 6.0]
        for shard in (0, 1):
            servers.start(shard)
        with program(servers.addresses, resume=True) as session:  # the second job, with all that it was
            assert ps.Variable(np.zeros(7), name="w").value.tolist() == [6.0] * 7
            assert session.global_step == 6
        assert [one[2] for one in jobs_of(servers.addresses)] == ["done", "done"]


def test_a_job_that_was_interrupted_goes_on_and_says_so(caplog):
    transport = ShardsInProcess(2, lease=10.0)
    with ps.collection(), session_on(transport, "killed") as session:
        w = ps.Variable(np.zeros(2), name="w")
        SGD.minimize(-ops.sum(w))
        session._client.leave = lambda failed: None  # it is killed
        session._replica.finish = lambda: None
    transport.sleep(11)
    with ps.collection(), session_on(transport, "next"):
        assert ps.Variable(np.zeros(2), name="w").value.tolist() == [0.25, 0.25]
    assert "goes on at step 1, where it was interrupted; for a new job: `psserver reset`" in caplog.text


def test_workers_pass_a_barrier_together_however_fast_they_are():
    reached, passed = [], []
    with serve(shards=2) as servers:

        def work(name):
            with program(servers.addresses, name=name) as session:
                everybody.wait()
                for round_ in range(3):
                    reached.append(round_)
                    session.barrier()
                    passed.append((round_, reached.count(round_)))
                    session.barrier()

        everybody = threading.Barrier(3, timeout=20)
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(work, f"w{n}") for n in range(3)]:
                done.result(60)
    assert sorted(passed) == [(round_, 3) for round_ in range(3) for _ in range(3)]


@pytest.mark.parametrize("strategy", [{}, {"push_every": 3, "overlap": True}, {"local_steps": 2}], ids=str)
@pytest.mark.parametrize("shards", [1, 2])
def test_after_a_barrier_the_global_step_has_the_pushes_of_all_workers_and_after_a_pull_those_made_by_then(
    shards, strategy
):
    transport, together = ShardsInProcess(shards), threading.Barrier(3, timeout=20)

    def work(name):
        config = WorkerConfig(name=name, **strategy)
        with ps.collection(), Session(config, transport) as session:
            w = ps.Variable(np.zeros(2), name="w")
            for _ in range({"w0": 1, "w1": 4, "w2": 8}[name]):
                SGD.minimize(-ops.sum(w))
            together.wait()
            session.barrier()
            step = session.global_step
            together.wait()
            if name == "w0":
                SGD.minimize(-ops.sum(w))
                session.pull()
            together.wait()
            session.pull()
            return step, session.global_step

    with ThreadPoolExecutor(3) as pool:
        steps = [done.result(60) for done in [pool.submit(work, f"w{n}") for n in range(3)]]
    at_barrier = {0: 13, 3: 1 + 2 + 3, 2: 1 + 2 + 4}[strategy.get("push_every", strategy.get("local_steps", 0))]
    assert steps == [(at_barrier, at_barrier + 1)] * 3


def test_a_barrier_says_whom_it_waits_for_and_others_pass_when_one_leaves():
    with serve(lease=0.6) as servers, program(servers.addresses, name="here") as session:
        with program(servers.addresses, name="elsewhere") as other:
            with pytest.raises(TimedOut, match=r"shard 0 waits: the barrier waits for elsewhere"):
                session.barrier(timeout=1.0)
            assert [one.name for one in other.workers] == ["here", "elsewhere"]
        session.barrier()


def test_early_stopping_ends_the_loops_of_all_workers_and_leaves_no_gradient_behind():
    with serve(shards=2) as servers:
        ended = {}

        def work(name):
            with program(servers.addresses, name=name) as session:
                w = ps.Variable(np.zeros(2), name="w")

                def stop_early(epoch):
                    if epoch.epoch == 2:
                        session.stop_all(f"epoch {epoch.epoch} is enough")

                session.barrier()
                steps = 0
                for _ in session.batches(DATA, 4, epochs=100_000, on_epoch=stop_early):
                    SGD.minimize(-ops.sum(w))
                    steps += 1
                session.barrier()
                session.pull()
                ended[name] = steps, session.stopped, w.value[0] * 4

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(work, name) for name in ("a", "b")]:
                done.result(60)
        total = ended["a"][0] + ended["b"][0]
        assert 12 <= total < 1000
        for _, reason, applied in ended.values():
            assert reason[1:] == ": epoch 2 is enough"
            assert applied == total, "every step is on the servers"
        assert jobs_of(servers.addresses)[0][2] == "done"


@pytest.mark.parametrize("options", [{}, {"push_every": 3}, {"local_steps": 2}], ids=str)
def test_a_worker_that_stops_the_job_has_pushed_what_it_computed_and_gives_its_block_back(options):
    transport = ShardsInProcess(1)
    config = WorkerConfig(("shards:1",), "w0", 20, **options)
    with ps.collection(), Session(config, transport) as session:
        w = ps.Variable(np.zeros(1), name="w")
        for number, _ in enumerate(session.batches(DATA, 1), 1):
            SGD.minimize(-ops.sum(w))
            if number == 7:
                session.stop_all("seven")
        session.pull()
        assert number == 7
        assert options.get("local_steps") or w.value.item() == 7 / 4
        (queue,) = session.queues()
        assert (queue.done, queue.blocks_out) == (7, 0)
    assert not [push for _, push in transport.messages(Push) if push.progress and push.progress[0].position > 7]
    assert [leave.failed for _, leave in transport.messages(Leave)] == [False]


def test_a_job_that_was_stopped_can_be_resumed():
    with serve() as servers:
        with program(servers.addresses) as session:
            session.stop_all("for now")
            assert train(session)[1] == []
        with program(servers.addresses) as session:
            assert train(session)[1] == [1], "a new job is not stopped"
            session.stop_all("done")
        with program(servers.addresses, resume=True) as session:
            assert session.stopped == ""
            assert train(session, epochs=2)[1] == [1, 2]


def test_in_one_process_a_barrier_is_passed_at_once_and_stopping_works_as_with_servers():
    with ps.collection(), ps.session() as session:
        session.barrier()
        assert [one.name for one in session.workers] == [session.worker]

        def stop(epoch):
            session.stop_all(f"cost {epoch.cost}")

        w, epochs = ps.Variable(np.zeros(1), name="w"), []
        for batch in session.batches(DATA, 4, epochs=9, on_epoch=stop):
            SGD.minimize(ops.sum(w * 0 + 0.5))
            epochs.append(batch.epoch)
        assert epochs == [1] * 6
        assert session.stopped == f"{session.worker}: cost 0.5"
