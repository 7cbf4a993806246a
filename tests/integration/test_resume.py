"""Embedded jobs that stop and continue from their checkpoints, to the bits of one that ran through."""

import json
import logging
import os
import random
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.storage import folders
from psserver.testing import serve
from pswire.errors import AlreadyRegistered, ConfigurationError, ModelFileError, ParamServerError, StorageError
from psworker import ops
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.transport.embedded import EmbeddedTransport
from tests.integration.resumable_job import BATCH, DATA, STEPS_AN_EPOCH, Outcome, Stopped, train
from tests.support.combinations import few_fast
from tests.support.commands import Command, environment
from tests.support.files import file_size_limit

SEED = 20261122
SGD = ps.GradientDescent(0.5)


def run(folder, *arguments, **options) -> Outcome:
    """One life of the program, in this process."""
    with ps.collection():
        return train(folder, *arguments, **options)


def stopped(folder, stop_at, how="fail", **options) -> None:
    with pytest.raises(KeyboardInterrupt if how == "interrupt" else Stopped):
        run(folder, 3, stop_at, how, **options)


@cache
def ran_through(epochs=3) -> Outcome:
    """A job that was never stopped, without checkpoints."""
    return run(None, epochs)


def in_a_process(path, folder, *arguments) -> tuple[int, list[str]]:
    """One life of the program in a process of its own: its exit code and what it printed."""
    kernels = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}  # or bits differ
    command = Command(
        path, "-m", "tests.integration.resumable_job", str(folder), *map(str, arguments), env=environment(**kernels)
    )
    code = command.popen.wait(60)
    return code, " ".join(command.out).split()


def numbers(folder) -> list[int]:
    return folders.available(folder, 0, 1)


def messages(caplog, level=logging.WARNING) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= level)


# --- the same bits ----------------------------------------------------------------------------------------------------


def test_checkpoints_change_nothing(tmp_path):
    through = run(tmp_path)
    assert (through.digest, through.ended, through.epochs) == (ran_through().digest, 60, [1, 2, 3])
    assert numbers(tmp_path) == [35, 42, 49, 56, 60]


@pytest.mark.slow
def test_a_killed_job_repeats_the_steps_since_its_last_checkpoint_and_ends_with_the_same_bits(tmp_path):
    code, _ = in_a_process(tmp_path / "killed", tmp_path / "job", 3, 25, "kill")
    assert (code, numbers(tmp_path / "job")) == (-signal.SIGKILL, [0, 7, 14, 21])
    again = run(tmp_path / "job")
    assert (again.began, again.ended, again.epochs) == (21, 60, [2, 3])
    assert again.digest == ran_through().digest


@pytest.mark.parametrize(
    ("how", "stop_at"), few_fast([(how, step) for step in (33, STEPS_AN_EPOCH, 1) for how in ("fail", "interrupt")])
)
def test_a_job_that_fails_or_is_interrupted_continues_right_there_with_the_same_bits(tmp_path, stop_at, how):
    stopped(tmp_path, stop_at, how)
    again = run(tmp_path)
    assert (again.began, again.ended, again.digest) == (stop_at, 60, ran_through().digest)


@pytest.mark.slow
def test_a_job_may_be_stopped_many_times(tmp_path):
    generator = random.Random(SEED)
    step = generator.randrange(1, 20)
    while step < 60:
        stopped(tmp_path, step, generator.choice(["fail", "interrupt"]))
        step += generator.randrange(1, 20)
    last = run(tmp_path)
    assert (last.ended, last.number, last.digest) == (60, 0, ran_through().digest)


@pytest.mark.slow
def test_an_error_before_the_push_of_a_batch_repeats_that_batch_with_the_same_dropout_masks(tmp_path):
    draws = threading.local()

    def failing_after(count):
        before = ops.dropout

        def dropout(*arguments):
            result = before(*arguments)
            draws.count = getattr(draws, "count", 0) + 1
            if draws.count == count:
                raise Stopped
            return result

        return dropout

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "dropout", failing_after(10))
        with pytest.raises(Stopped):
            run(tmp_path)
    again = run(tmp_path)
    assert (again.began, again.digest) == (9, ran_through().digest)


@pytest.mark.parametrize("stop_at", few_fast([15, 3]))
def test_gradients_that_were_not_pushed_yet_are_computed_again_with_the_same_masks(tmp_path, stop_at):
    through = run(None, push_every=2)
    stopped(tmp_path, stop_at, push_every=2)
    again = run(tmp_path, push_every=2)
    assert (again.began, again.ended, again.digest) == (stop_at, 30, through.digest)


@pytest.mark.slow
def test_a_job_with_overlap_goes_on_too(tmp_path):
    options = {"push_every": 2, "pull_every": 4, "overlap": True}
    stopped(tmp_path, 15, **options)
    assert (run(tmp_path, **options).ended, run(tmp_path, **options).epochs) == (30, [])


@pytest.mark.exhaustive
def test_a_job_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    generator = random.Random(SEED)
    step, through = 0, ran_through()
    for life in range(12):
        step += generator.randrange(4, 12)
        code, printed = in_a_process(tmp_path / f"life-{life}", tmp_path / "job", 3, step, "kill")
        if code == 0:
            break
        assert code == -signal.SIGKILL
        step -= step % 7  # where it continues
    else:
        code, printed = in_a_process(tmp_path / "last", tmp_path / "job", 3)
    assert (code, printed[0], printed[2]) == (0, through.digest, "60")


# --- what the program sees --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_reports_of_epochs_come_once_and_again_only_for_repeated_steps(tmp_path):
    stopped(tmp_path, 45)
    again = run(tmp_path)
    assert again.epochs == [3]
    through = ran_through()
    assert again.reports[0].cost == pytest.approx(through.reports[2].cost, rel=1e-12)
    assert run(tmp_path).epochs == [], "the job is done"


def test_a_checkpoint_in_a_report_brings_that_report_again_and_the_last_one_does_not(tmp_path):
    def life(fails):
        def report(epoch):
            seen.append(epoch.epoch)
            session.checkpoint()
            if fails:
                raise Stopped

        with ps.collection(), suppress(Stopped), ps.session(checkpoint_dir=tmp_path, resume=True) as session:
            variable, seen = ps.Variable(np.float32(0), name="W"), []
            for _ in session.batches(DATA, BATCH, 2, on_epoch=report):
                SGD.minimize(variable * 1)
        return seen

    assert [life(fails=True), life(fails=True), life(fails=False), life(fails=False)] == [[1], [1], [1, 2], []]


def test_a_job_that_is_done_stays_as_it_is_and_can_be_given_more_epochs(tmp_path, caplog):
    assert run(tmp_path, 2).ended == 40
    before = numbers(tmp_path)
    again = run(tmp_path, 2)
    assert (again.began, again.ended, again.digest) == (40, 40, ran_through(2).digest)
    assert numbers(tmp_path) == before
    longer = run(tmp_path, 3)
    assert (longer.began, longer.epochs, longer.digest) == (40, [3], ran_through().digest)


def test_the_resumed_worker_is_the_same_member_and_number(tmp_path):
    stopped(tmp_path, 10)
    again = run(tmp_path, stop_at=0)
    assert again.number == 0
    manifest = json.loads((tmp_path / "step-000000060/shard-0-of-1/manifest.json").read_text())["manifest"]
    (member,) = manifest["state"]["members"]["members"]
    assert (member["name"], member["incarnation"]) == ("worker-0", "2")


def test_blocks_of_workers_with_other_names_are_handed_out_again(tmp_path):
    stopped(tmp_path, 10, name="first")
    shutil.rmtree(tmp_path / "step-000000010")  # as if it was killed: in the one before it is a member, with a block
    again = run(tmp_path, name="second")
    assert (again.began, again.digest) == (7, ran_through().digest)


def test_the_start_says_from_what_it_continues(tmp_path, caplog):
    stopped(tmp_path, 10)
    assert "continues" not in messages(caplog)
    run(tmp_path)
    assert f"continues from checkpoint {tmp_path}/step-000000010, global step 10" in messages(caplog)


@pytest.mark.slow
def test_old_checkpoints_are_removed_and_the_interval_may_be_time(tmp_path):
    run(tmp_path / "steps", every="5steps", keep=2)
    assert numbers(tmp_path / "steps") == [60, 61], "the last one has the end of the last epoch"
    run(tmp_path / "time", every="1h")
    assert numbers(tmp_path / "time") == [0, 60]


def test_a_checkpoint_on_demand_is_one_to_continue_from(tmp_path):
    with ps.collection(), ps.session(checkpoint_dir=tmp_path, checkpoint_every="1h") as session:
        variable = ps.Variable(np.zeros(5000, np.float32), name="W")
        assert session.checkpoint() == 1, "there may be no update yet"
        SGD.minimize(ops.sum(variable))
        assert [session.checkpoint(), session.checkpoint()] == [2, 3]
        with file_size_limit(4096), pytest.raises(ParamServerError, match="File too large"):
            session.checkpoint()
        SGD.minimize(ops.sum(variable))
        with session.generation():
            assert variable.value[0] == -1
        assert session.checkpoint() == numbers(tmp_path)[-1]
        SGD.minimize(ops.sum(variable))
    with ps.collection(), ps.session() as session, pytest.raises(ConfigurationError, match="checkpoint_dir"):
        session.checkpoint()
    with ps.collection(), ps.session(checkpoint_dir=tmp_path, resume=True) as session:
        assert ps.Variable(np.zeros(5000, np.float32), name="W").value[0] == -1.5


# --- programs and folders that do not fit -----------------------------------------------------------------------------


def test_a_changed_program_is_refused_with_the_folder_and_the_difference(tmp_path):
    stopped(tmp_path, 10)
    before = numbers(tmp_path)
    with pytest.raises(AlreadyRegistered, match=r"hidden/kernel.*12, 16.*12, 8(.|\n)*step-000000010"):
        run(tmp_path, width=8)
    with ps.collection():
        ps.Variable(ops.zeros((2,)), name="other")
        with pytest.raises(ConfigurationError, match=r"are not in .*: other;.*others: hidden/bias"):
            ps.session(checkpoint_dir=tmp_path).__enter__()
    with pytest.raises(AlreadyRegistered, match=r"epochs=3.*epochs=2(.|\n)*step-000000010.*another checkpoint_dir"):
        run(tmp_path, 2)
    assert numbers(tmp_path)[: len(before)] == before
    assert run(tmp_path).digest == ran_through().digest, "nothing of this was harmful"


def test_servers_refuse_a_changed_program_with_the_checkpoint_too(tmp_path):
    def train(addresses, epochs, rate):
        with ps.collection(), ps.session(addresses, resume=True, progress="off") as session:
            x = ps.Variable(np.zeros(2, np.float32), name="x")
            for _ in session.batches({"n": np.arange(4)}, 2, epochs):
                ps.GradientDescent(rate).minimize(ops.sum(x))

    with serve(checkpoint_dir=tmp_path) as servers:
        train(servers.addresses, 2, 0.5)
    with serve(checkpoint_dir=tmp_path) as servers:
        continues = (
            rf"the job continues from checkpoint {tmp_path}/step-\d+, global step 4: epochs may be raised, not low"
        )
        with pytest.raises(AlreadyRegistered, match=rf"epochs=2, but .* epochs=1.*{continues}"):
            train(servers.addresses, 1, 0.5)
        with pytest.raises(AlreadyRegistered, match=rf"rate=0.5.*rate=0.25.*{continues}"):
            train(servers.addresses, 3, 0.25)
        train(servers.addresses, 3, 0.5)


def test_variables_may_be_made_in_the_session_as_before(tmp_path):
    for began in (0, 3):
        with ps.collection(), ps.session(checkpoint_dir=tmp_path, resume=True) as session:
            assert session.global_step == began
            late = ps.Variable(np.float32(5), name="late")
            assert late.value == 5 - began
            for _ in range(3):
                SGD.minimize(late * 2)


def test_a_program_that_failed_before_its_first_update_may_be_changed(tmp_path):
    for name in ("W", "V"):
        with ps.collection(), suppress(Stopped), ps.session(checkpoint_dir=tmp_path):
            ps.Variable(np.float32(0), name=name)
            raise Stopped
    with ps.collection(), ps.session(checkpoint_dir=tmp_path):
        SGD.minimize(ps.Variable(np.float32(0), name="U") * 1)


def test_a_damaged_checkpoint_is_skipped_and_named_and_the_one_before_is_used(tmp_path, caplog):
    stopped(tmp_path, 20)
    newest, before = numbers(tmp_path)[:-3:-1]
    values = tmp_path / f"step-{newest:09d}/shard-0-of-1/variables.safetensors"
    data = bytearray(values.read_bytes())
    data[-1] ^= 1
    values.write_bytes(data)
    again = run(tmp_path)
    assert (again.began, again.digest) == (before, ran_through().digest)
    assert f"{values}: it fails its checksum" in messages(caplog)
    assert f"continues from checkpoint {tmp_path}/step-{before:09d}" in messages(caplog)


def test_a_folder_without_any_intact_checkpoint_is_refused_and_stays_as_it_is(tmp_path):
    stopped(tmp_path, 5)
    files = list(tmp_path.glob("step-*/*/variables.safetensors"))
    for file in files:
        file.write_bytes(b"")
    with pytest.raises(StorageError, match="has no intact checkpoint"):
        run(tmp_path)
    assert (numbers(tmp_path), [file.read_bytes() for file in files]) == ([0, 5], [b"", b""])


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"file cannot be used: "):
        run(tmp_path / "file")
    (tmp_path / "servers/step-000000003/shard-1-of-2").mkdir(parents=True)
    with pytest.raises(StorageError, match="are of 2 shards"):
        run(tmp_path / "servers")


def test_two_jobs_cannot_use_one_folder_at_the_same_time(tmp_path):
    with ps.collection(), ps.session(checkpoint_dir=tmp_path):

        def second():
            with pytest.raises(StorageError, match="in use by another process"):
                run(tmp_path)
            with pytest.raises(StorageError, match="in use"), ServerThread(ServerConfig(checkpoint_dir=tmp_path)):
                pass
            done.append(True)

        done = []
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(30)
        assert done
    run(tmp_path)


# --- disk -------------------------------------------------------------------------------------------------------------


def test_training_goes_on_when_the_disk_is_full_and_says_so_once(tmp_path, caplog):
    with ps.collection(), ps.session(checkpoint_dir=tmp_path, checkpoint_every="1steps") as session:
        variable = ps.Variable(np.zeros(5000, np.float32), name="W")
        SGD.minimize(ops.sum(variable))
        with file_size_limit(4096):
            for _ in range(3):
                SGD.minimize(ops.sum(variable))
        assert messages(caplog).count("training goes on") == 1
        assert "File too large" in messages(caplog)
        assert numbers(tmp_path) == [0, 1]
        there = sorted(path.name for path in tmp_path.iterdir())
        locks = ["shard-0-of-1.lock", "shard-0.lock"]
        expected = sorted(["shard-0-of-1.json", *locks, "step-000000000", "step-000000001"])
        assert there == expected, "nothing half-written stays"
        SGD.minimize(ops.sum(variable))
        assert "written to" in messages(caplog).splitlines()[-1]
        assert (numbers(tmp_path), session.global_step) == ([0, 1, 5], 5)


# --- the best model ---------------------------------------------------------------------------------------------------


def best(folder) -> tuple[float, int, float]:
    """Value and step in the description of the best model, and the variable in its file."""
    description = json.loads((folder / "best.json").read_text())
    with ps.collection():
        variable = ps.Variable(np.float32(0), name="W")
        metadata = ps.load(folder / "best.safetensors").metadata
        value, step = description["value"], description["global_step"]
        assert (float(metadata["value"]), int(metadata["global_step"])) == (value, step)
        return value, step, float(variable.value)


def test_the_best_model_is_kept_also_over_a_resume(tmp_path):
    def life(*values, maximize=False):
        with ps.collection(), ps.session(checkpoint_dir=tmp_path, resume=True) as session:
            variable = ps.Variable(np.float32(0), name="W")
            saved = []
            for value in values:
                ps.GradientDescent(1.0).minimize(variable * -1)  # counts the steps
                saved.append(session.save_best(np.float32(value), maximize=maximize))
            return saved

    assert life(float("nan"), float("-inf"), 3, 2, 2, 2.5) == [False, False, True, True, False, False]
    assert best(tmp_path) == (2.0, 4, 4.0)
    assert life(2.5, 1.5, 1.75) == [False, True, False]
    assert best(tmp_path) == (1.5, 8, 8.0)
    with pytest.raises(ConfigurationError, match="lowest"):
        life(9, maximize=True)
    (tmp_path / "best.safetensors").unlink()
    assert life(1, 2, float("nan"), 1.5, maximize=True) == [True, True, False, False]


def test_the_chief_alone_saves_the_best_model(tmp_path):
    transport = EmbeddedTransport()

    def session(name):
        return Session(WorkerConfig(name=name, checkpoint_dir=str(tmp_path)), transport)

    with session("chief") as chief:
        W = ps.Variable(np.float32(0), name="W")
        with ps.collection(), session("other") as other:
            ps.Variable(np.float32(0), name="W")
            assert (other.save_best(1.0), chief.save_best(2.0)) == (False, True)
            ps.GradientDescent(1.0).minimize(ops.sum(ps.global_variables()[0] * -1))
            with chief.generation():
                assert (W.value, chief.save_best(1.5)) == (1, True)
    assert best(tmp_path) == (1.5, 1, 1.0)


def test_all_workers_have_the_best_model_which_the_chief_loads_when_the_others_have_come(tmp_path):
    transport, joined = EmbeddedTransport(), threading.Event()

    def other():
        with (
            ps.collection(),
            Session(WorkerConfig(name="other", checkpoint_dir=str(tmp_path / "b")), transport) as here,
        ):
            W = ps.Variable(np.float32(0), name="W")
            joined.set()
            for _ in range(20):
                ps.GradientDescent(1.0).minimize(W * -1)
            here.load_best()
            return float(W.value)

    with Session(WorkerConfig(name="chief", checkpoint_dir=str(tmp_path)), transport) as chief:
        W = ps.Variable(np.float32(5), name="W")
        assert chief.save_best(1.0)
        with ThreadPoolExecutor(1) as threads:
            value = threads.submit(other)
            assert joined.wait(60)
            chief.load_best()
            assert (float(W.value), value.result()) == (5, 5)


def test_without_a_folder_or_a_best_model_none_is_loaded(tmp_path):
    ps.Variable(np.float32(0), name="W")
    with ps.session() as session, pytest.raises(ConfigurationError, match="load_best needs a folder"):
        session.load_best()
    with ps.session(checkpoint_dir=tmp_path) as session, pytest.raises(ModelFileError, match=r"best\.safetensors"):
        session.load_best()


def test_with_servers_the_folder_is_for_the_best_model_alone_and_that_is_said(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    config = WorkerConfig(("h:1",), "w", checkpoint_dir=str(tmp_path / "a"))
    Session(config, EmbeddedTransport())
    assert f"{tmp_path}/a is used for the best model alone" in messages(caplog, logging.INFO)
    assert not (tmp_path / "a").exists()


def test_a_fork_of_the_program_leaves_the_folder_alone(tmp_path):
    with ps.collection(), ps.session(checkpoint_dir=tmp_path, checkpoint_every="1h") as session:
        SGD.minimize(ps.Variable(np.float32(0), name="W") * 1)
        child = os.fork()
        if not child:
            session._client.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert numbers(tmp_path) == [0]
    assert numbers(tmp_path) == [0, 1]


def test_a_best_model_needs_a_folder_and_leaves_a_foreign_file_alone(tmp_path, monkeypatch):
    assert ps.session().checkpoint_dir is None
    monkeypatch.chdir(tmp_path)
    assert ps.session(checkpoint_dir="run").checkpoint_dir == tmp_path / "run"
    with ps.collection(), ps.session() as session, pytest.raises(ConfigurationError, match="checkpoint_dir"):
        session.save_best(1.0)
    with ps.collection(), ps.session(checkpoint_dir=tmp_path) as session:
        ps.Variable(np.float32(0), name="W")
        session.save(tmp_path / "best.safetensors")
        with pytest.raises(ModelFileError, match="for which value"):
            session.save_best(1.0)


def test_training_goes_on_on_a_disk_that_is_full_from_the_beginning(tmp_path, caplog):
    with ps.collection(), ps.session(checkpoint_dir=tmp_path, checkpoint_every="2steps") as session:
        variable = ps.Variable(np.zeros(5000, np.float32), name="W")
        with file_size_limit(4096):
            for _ in range(3):
                SGD.minimize(ops.sum(variable))
        assert (numbers(tmp_path), messages(caplog).count("training goes on")) == ([], 1)
        SGD.minimize(ops.sum(variable))
        assert (numbers(tmp_path), session.global_step) == ([4], 4)
    with ps.collection(), ps.session(checkpoint_dir=tmp_path, resume=True) as session:
        variable = ps.Variable(np.zeros(5000, np.float32), name="W")
        assert (session.global_step, variable.value[0]) == (4, -2)


def test_the_interrupted_save_of_a_best_model_leaves_the_earlier_one(tmp_path):
    with ps.collection(), ps.session(checkpoint_dir=tmp_path) as session:
        variable = ps.Variable(np.zeros(5000, np.float32), name="W")
        assert session.save_best(3.0)
        SGD.minimize(ops.sum(variable))
        with file_size_limit(4096), pytest.raises(ModelFileError):
            session.save_best(2.0)
        assert json.loads((tmp_path / "best.json").read_text())["value"] == 3.0
        assert session.save_best(2.5)
