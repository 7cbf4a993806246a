"""Operators and guards change a running job: quarantine, learning rates, an end for all, a way back to a checkpoint."""

from contextlib import contextmanager

import numpy as np
import pytest
from click.testing import CliRunner

import psworker as ps
from psjob.status.interventions import InterventionCalls
from psjob.status.status_client import StatusClient
from psserver.cli.main import main
from psserver.testing import serve
from pswire.errors import InvalidMessage, StorageError
from tests.support.combinations import combinations, few_fast
from tests.support.files import copy_of_one_moment

LEASE = 3.0  # seconds: of a worker that does not push, heartbeats take part in a cut
SGD = ps.GradientDescent(1.0)


@contextmanager
def worker(addresses, name):
    """A session of a process of its own, as far as variables go, and its two variables, of two shards each has one."""
    with ps.collection(), ps.session(addresses, name=name, timeout=20) as session:
        yield session, (ps.Variable(np.zeros(3), name="a"), ps.Variable(np.zeros(3), name="b"))


@contextmanager
def job(by="me", **options):
    """Servers, interventions by this name, and the session and variables of worker `w0`."""
    with (
        serve(**options) as servers,
        InterventionCalls(servers.addresses, by) as interventions,
        worker(servers.addresses, "w0") as (session, variables),
    ):
        yield servers.addresses, interventions, session, variables


def step(variables):
    """The outcome of a push that adds 1 to all elements."""
    return SGD.apply_gradients([(np.full(3, -1.0), variable) for variable in variables]).outcome


def values(variables):
    return [float(one) for variable in variables for one in variable.value]


@pytest.mark.parametrize(
    ("shards", "consistency"), combinations([(1,), (2,)], [("async",), ("bounded:3",), ("sync:2",)])
)
def test_pushes_of_a_worker_in_quarantine_are_dropped_on_all_shards_until_it_is_released(shards, consistency):
    with job(shards=shards, consistency=consistency) as (addresses, operator, *_), worker(addresses, "bad") as (_, its):
        assert operator.quarantine("bad", "its disk\nis broken") == ["bad"]
        assert [step(its) for _ in range(2)] == ["dropped", "dropped"]
        assert values(its) == [0.0] * 6
        assert operator.release("bad", "it has another one") == []
        if consistency != "sync:2":
            assert step(its) == "applied"
            assert values(its) == [1.0] * 6
        with StatusClient(addresses) as client:
            (row,) = [one for one in client.ask(10).workers if one.name == "bad"]
        assert row.drop_reason == "quarantine: me: its disk is broken"


def test_a_worker_that_no_shard_knows_is_an_error_that_names_those_that_there_are():
    with job() as (_, operator, *_), pytest.raises(InvalidMessage, match=r"no worker 'w7' .* there are: w0"):
        operator.quarantine("w7", "")


def test_learning_rates_of_all_shards_are_scaled_and_workers_go_on_with_their_optimizer():
    with job(shards=2) as (addresses, operator, _, variables):
        step(variables)
        operator.scale_learning_rates(0.25, "too large")
        step(variables)
        assert values(variables) == [1.25] * 6
        with StatusClient(addresses) as client:
            changes = client.ask(10).changes
        assert {(one.worker, one.optimizer.learning_rate) for one in changes} == {("me", 0.25)}


def test_the_job_is_stopped_for_all_workers_with_the_reason():
    data, batches = ps.Dataset({"x": np.arange(1000.0)}), 0
    with job("guard", shards=2) as (_, guard, session, variables):
        for _ in session.batches(data, 1):
            step(variables)
            batches += 1
            if batches == 3:
                guard.stop("the cost rises")
        assert session.stopped == "guard: the cost rises"
    assert 3 <= batches < 1000


@pytest.mark.parametrize("shards", few_fast([2, 1]))
def test_all_shards_go_back_to_the_newest_checkpoint_from_before_a_step_and_workers_go_on(tmp_path, shards):
    with job(shards=shards, checkpoint_dir=tmp_path) as (_, operator, session, variables):
        steps = []
        for _ in range(2):
            for _ in range(3):
                step(variables)
            steps.append(session.checkpoint())
        step(variables)
        assert values(variables) == [7.0] * 6
        with pytest.raises(StorageError, match=r"no checkpoint from before update 1 .* in common: 3, 6"):
            operator.roll_back(1)
        assert operator.roll_back(steps[1] - 1) == steps[0] == 3
        assert step(variables) == "dropped", "it was computed with values that are given up"
        step(variables)
        assert values(variables) == [4.0] * 6


def checkpoint_of_another(addresses):
    """The number of a checkpoint that follows a push of another worker."""
    with worker(addresses, "good") as (session, its):
        step(its)
        return session.checkpoint()


@pytest.mark.parametrize("shards", few_fast([2, 1]))
def test_going_back_leaves_quarantine_as_it_is_now(servers_stop_at_once, frequent_heartbeats, tmp_path, shards):
    with job(shards=shards, checkpoint_dir=tmp_path, lease=LEASE) as (addresses, operator, session, bad):
        step(bad)
        before = session.checkpoint()
        operator.quarantine("w0", "its disk: broken")
        apart = checkpoint_of_another(addresses)
        assert operator.roll_back(before) == before < apart
        assert [step(bad) for _ in range(3)] == ["dropped"] * 3
        assert values(bad) == [1.0] * 6
        with StatusClient(addresses) as client:
            (row,) = [one for one in client.ask(10).workers if one.name == "w0"]
        assert row.drop_reason == "quarantine: me: its disk: broken"


@pytest.mark.parametrize("shards", few_fast([2, 1]))
def test_going_back_to_a_time_of_quarantine_does_not_bring_it_back(
    servers_stop_at_once, frequent_heartbeats, tmp_path, shards
):
    with job(shards=shards, checkpoint_dir=tmp_path, lease=LEASE) as (addresses, operator, _, bad):
        operator.quarantine("w0", "its disk: broken")
        apart = checkpoint_of_another(addresses)
        operator.release("w0", "repaired")
        assert operator.roll_back(apart) == apart
        assert [step(bad) for _ in range(2)] == ["dropped", "applied"], "the first has values that are given up"


def test_the_command_puts_a_worker_into_quarantine_and_releases_it():
    with job() as (addresses, _, _, variables):
        arguments = ["quarantine", ",".join(addresses), "--worker", "w0"]
        result = CliRunner().invoke(main, [*arguments, "--reason", "broken"])
        assert (result.exit_code, result.output) == (0, "in quarantine: w0\n")
        assert step(variables) == "dropped"
        result = CliRunner().invoke(main, [*arguments, "--release"])
        assert (result.exit_code, result.output) == (0, "in quarantine: no worker\n")
        assert step(variables) == "applied"


@pytest.mark.parametrize("how", ["a checkpoint", "the journal"])
def test_a_server_that_starts_again_knows_of_quarantine_and_of_the_learning_rate(tmp_path, how):
    """From a last checkpoint, or from the journal of a server that was killed: as its folder is while it runs."""
    folder, copy = tmp_path / "kept", tmp_path / "copy"
    options = {"journal": how == "the journal"}
    with job(checkpoint_dir=folder, **options) as (_, operator, _, variables):
        step(variables)
        operator.quarantine("w0", "its disk is broken")
        operator.scale_learning_rates(0.25, "too large")
        if how == "the journal":
            copy_of_one_moment(folder, copy)
    with serve(checkpoint_dir=copy if how == "the journal" else folder, **options) as servers:
        with StatusClient(servers.addresses) as client:
            status = client.ask(10)
        assert {one.optimizer.learning_rate for one in status.variables} == {0.25}
        assert [one.waiting_for for one in status.workers] == ["nobody: its pushes are dropped, me: its disk is broken"]
