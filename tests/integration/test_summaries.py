"""`session.summary`, and what workers write by themselves: read back with TensorBoard's own reader."""

import json
import sys

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from psworker import nn, ops, schedules
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.summaries import recorder
from tests.support import event_files
from tests.support.commands import wait_until
from tests.support.shards import ShardsInProcess

START = np.float32([1, -2, 3])


@pytest.fixture(autouse=True)
def own_variables():
    with ps.collection():
        yield


@pytest.fixture
def point_each_step(monkeypatch):
    for name in ("SHORTEST_INTERVAL", "SHARE_OF_AGE", "MULTIPLE_OF_COST"):
        monkeypatch.setattr(recorder, name, 0.0)


def lines(folder, worker="worker-0"):
    return [json.loads(line) for line in (folder / "scalars" / f"{worker}.jsonl").read_text().splitlines()]


def train(session, W, steps, optimizer):
    """Minimizes |W|^2 / 2; the losses and the gradients' norms, of the weights of a float64 reference."""
    losses, norms = [], []
    for _ in range(steps):
        losses.append(float(np.sum(W.value.astype(np.float64) ** 2) / 2))
        norms.append(float(np.sqrt(np.sum(W.value.astype(np.float64) ** 2))))
        optimizer.minimize(ops.sum(ops.square(W)) / 2)
    return losses, norms


def test_a_worker_writes_its_points_by_itself_as_lines_and_for_tensorboard(tmp_path, point_each_step):
    W = ps.Variable(START, name="W")
    rate = schedules.ExponentialDecay(0.5, 2, 0.5)  # 0.5 / 2^(step / 2)
    with ps.session(summary_dir=tmp_path) as session:
        losses, norms = train(session, W, 4, ps.GradientDescent(rate))
    life, *points = lines(tmp_path)
    assert (life["worker"], life["incarnation"], life["number"]) == ("worker-0", 1, 0)
    assert life.keys() == {"worker", "incarnation", "number", "time", "process"}
    assert [(one["step"], one["steps"], one["examples"], one["dropped"]) for one in points] == [
        (step, step, 0, 0) for step in (1, 2, 3, 4)
    ]
    rates = [0.5 / 2 ** (step / 2) for step in (1, 2, 3, 4)]
    for name, expected in (("cost", losses), ("gradient_norm", norms), ("learning_rate", rates)):
        assert [one[name] for one in points] == pytest.approx(expected, rel=1e-6), name
    assert [one["staleness"] for one in points] == [0, 0, 0, 0]
    assert points[0]["steps_per_second"] is None
    assert all(one["steps_per_second"] > 0 for one in points[1:])
    assert points[0]["time"] >= life["time"]
    shown = event_files.shown_scalars(tmp_path / "tensorboard" / "worker-0")
    assert shown.keys() == {
        f"training/{name}"
        for name in ("loss", "staleness", "dropped", "steps_per_second", "learning_rate", "gradient_norm")
    }
    for name, expected in (("loss", losses), ("gradient_norm", norms), ("learning_rate", rates)):
        assert [step for step, _ in shown[f"training/{name}"]] == [1, 2, 3, 4]
        assert [value for _, value in shown[f"training/{name}"]] == pytest.approx(expected, rel=1e-6), name


def test_a_point_of_several_steps_has_their_means_and_the_examples_of_all(tmp_path):
    W = ps.Variable(np.zeros(()), name="W")
    data = ps.Dataset({"x": np.arange(40.0)})
    with ps.session(summary_dir=tmp_path) as session:
        session._pushing.summaries.recorder.postpone(1.0)  # the only point is that of the end
        for batch in session.batches(data, 4, shuffle=False):
            ps.GradientDescent(0.0).minimize(ops.mean(W * 0.0 + batch.x))
    [point] = lines(tmp_path)[1:]
    assert (point["steps"], point["examples"], point["cost"]) == (10, 40, pytest.approx(19.5))


@pytest.mark.parametrize(("options", "answered"), [({"push_every": 2}, [1, 3, 5]), ({"local_steps": 3}, [2, 5])])
def test_with_other_strategies_a_step_is_one_of_the_program_and_the_rate_that_of_its_optimizer(
    tmp_path, point_each_step, options, answered
):
    W = ps.Variable(START, name="W")
    with ps.session(summary_dir=tmp_path, **options) as session:
        train(session, W, 6, ps.GradientDescent(0.125))
    points = lines(tmp_path)[1:]
    assert [one["steps"] for one in points] == [1, 2, 3, 4, 5, 6]
    assert [number for number, one in enumerate(points) if one["staleness"] is not None] == answered
    assert {one["learning_rate"] for one in points} == {0.125}


def test_what_a_program_writes_is_read_back_by_tensorboard(tmp_path):
    random = np.random.default_rng(3)
    weights = random.normal(size=(40, 5)).astype("f")
    grey, shades = random.integers(0, 256, (4, 6), np.uint8), random.random((3, 2, 3))
    W = ps.Variable(weights, name="W")
    with ps.session(summary_dir=tmp_path) as session:
        summary = session.summary
        summary.scalar("accuracy", 0.25, 5)
        summary.scalar("accuracy", np.float32(0.75), np.int64(9))
        ps.GradientDescent(0.0).minimize(ops.sum(W))
        summary.scalar("at the global step", ops.sum(np.ones(3)))
        summary.histogram("weights", W, 7)
        summary.histogram("not all finite", [np.nan, 1, 2, np.inf], 7)
        summary.histogram("none", [])
        summary.image("grey", grey, 2)
        summary.image("shades", np.where(shades > 0.9, 7.0, shades), 2)
        summary.image("mask", np.eye(3)[..., None] > 0, 2)
        summary.text("sample", "*ä*\n\n| a |", 4)
    run = tmp_path / "tensorboard" / "worker-0"
    shown = event_files.shown_scalars(run)
    assert shown["accuracy"] == [(5, 0.25), (9, 0.75)]
    assert shown["at the global step"] == [(1, 3.0)]
    cluster = event_files.shown_scalars(tmp_path / "tensorboard" / "cluster")
    assert cluster["accuracy"] == shown["accuracy"], "the chief's are those of the job, too"

    step, plugin, buckets = event_files.tensor(run, "weights")
    low, high = float(weights.min()), float(weights.max())
    edges = [low + (high - low) * number / 30 for number in range(31)]
    flat = weights.ravel().tolist()
    counts = [sum(edges[k] <= w < edges[k + 1] for w in flat) for k in range(30)]
    counts[-1] += flat.count(high)  # the last bucket has both ends
    assert (step, plugin, buckets.shape, sum(counts)) == (7, "histograms", (30, 3), 200)
    np.testing.assert_allclose(buckets[:, 0], edges[:-1], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(buckets[:, 1], edges[1:], rtol=1e-12, atol=1e-12)
    assert buckets[:, 2].tolist() == counts
    _, _, finite = event_files.tensor(run, "not all finite")
    assert (finite[0, 0], finite[-1, 1], finite[:, 2].sum()) == (1, 2, 2)
    assert event_files.tensor(run, "none")[2].shape == (0, 3)

    rounded = np.where(shades > 0.9, 255, np.rint(shades * 255))
    for tag, expected in (("grey", grey), ("shades", rounded), ("mask", np.eye(3) * 255)):
        step, plugin, (width, height, png) = event_files.tensor(run, tag)
        assert (step, plugin) == (2, "images")
        assert (int(height), int(width)) == expected.shape[:2]
        assert event_files.pixels(png).tolist() == expected.tolist()
    step, plugin, text = event_files.tensor(run, "sample")
    assert (step, plugin, text.tolist()) == (4, "text", ["*ä*\n\n| a |".encode()])


def test_scalars_of_a_program_are_in_the_next_line_of_the_worker(tmp_path, point_each_step):
    W = ps.Variable(START, name="W")
    with ps.session(summary_dir=tmp_path) as session:
        train(session, W, 1, ps.GradientDescent(0.1))
        session.summary.scalar("accuracy", 0.5)
        session._pushing.summaries.recorder.postpone(0.0)
        session._pushing.summaries.recorder._due += 1000.0
        session.summary.scalar("accuracy", 0.6)
        session.summary.scalar("error", np.nan)
    assert [(one["step"], one["cost"] is None, one["scalars"]) for one in lines(tmp_path)[1:]] == [
        (1, False, {}),
        (1, True, {"accuracy": 0.5}),
        (1, True, {"accuracy": 0.6, "error": None}),
    ]


def session_of(transport, folder, name, **strategy):
    config = WorkerConfig(name=name, timeout=20, **strategy, summary_dir=str(folder))
    return Session(config, transport)


def test_the_chief_writes_the_graph_of_the_first_gradient_with_the_shards_of_the_variables(tmp_path):
    fc1, fc2 = nn.Dense(784, 100, activation=ops.relu, name="fc1"), nn.Dense(100, 10, name="fc2")
    optimizer = ps.GradientDescent(0.1)
    with session_of(ShardsInProcess(2), tmp_path, "w0") as session:
        placement = session._client.registration.placement
        placed = {one.name: placement[one.name].partitions[0].shard for one in ps.global_variables()}
        for _ in range(3):
            optimizer.minimize(ops.softmax_cross_entropy(fc2(fc1(np.ones((5, 784), "f"))), np.arange(5)))
        session.summary.graph(ops.sum(fc1.kernel))
    found = event_files.nodes(tmp_path / "tensorboard" / "cluster")
    assert set(placed.values()) == {0, 1}
    for variable in ps.global_variables():
        shape, device = variable.shape, f"/shard:{placed[variable.name]}"
        assert found.pop(variable.name) == ("variable", (), shape, event_files.FLOAT, device)
    of_ops = ["fc1/matmul", "fc1/add", "fc1/relu", "fc2/matmul", "fc2/add", "loss/softmax_cross_entropy"]
    assert [*found] == of_ops, "tests/unit/psworker/summaries/test_graph.py has their inputs and shapes"
    assert found["fc1/add"] == ("add", ("fc1/matmul", "fc1/bias"), (5, 100), event_files.FLOAT, "")
    assert [*event_files.nodes(tmp_path / "tensorboard" / "w0")] == ["fc1/kernel", "fc1/sum"]


def test_only_the_chief_writes_the_run_of_the_job(tmp_path):
    transport = ShardsInProcess(2)
    W = ps.Variable(START, name="W")
    with session_of(transport, tmp_path, "w0") as chief:
        with ps.collection():
            copy = ps.Variable(START, name="W")
            with session_of(transport, tmp_path, "w1") as other:
                assert (chief.is_chief, other.is_chief) == (True, False)
                train(other, copy, 2, ps.GradientDescent(0.5))
                other.summary.scalar("accuracy", 0.5)
        assert sorted(one.name for one in (tmp_path / "tensorboard").iterdir()) == ["w1"]
        train(chief, W, 1, ps.GradientDescent(0.5))  # with weights from before both updates
    shown = event_files.shown_scalars(tmp_path / "tensorboard" / "cluster")
    assert {tag: values[-1] for tag, values in shown.items() if tag != "training/steps_per_second"} == {
        "training/loss": (3, 7.0),  # of the live worker
        "training/staleness": (3, pytest.approx(2 / 3)),
        "training/dropped": (3, 0.0),
        "training/learning_rate": (3, 0.5),
        "training/live_workers": (3, 1.0),
    }
    assert event_files.shown_scalars(tmp_path / "tensorboard" / "w0")["training/staleness"] == [(3, 2.0)]


@pytest.mark.parametrize("fails", [False, True])
def test_the_hyperparameters_of_the_job_and_of_the_program_are_those_of_the_page_hparams(tmp_path, monkeypatch, fails):
    monkeypatch.setattr("psworker.summaries.worker_summaries.CLUSTER_INTERVAL", 0.01)
    W = ps.Variable(START, name="W")
    try:
        with ps.session(summary_dir=tmp_path, push_every=2, encoding="bfloat16") as session:
            session.summary.hyperparameters({"layers": np.int64(3), "wide": True, "name": None, "momentum": 0.25})
            train(session, W, 2, ps.Momentum(0.5, 0.9))
            with pytest.raises(ConfigurationError, match="give them before the first step"):
                session.summary.hyperparameters({"late": 1})
            wait_until(lambda: session._pushing.summaries._described)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    run = tmp_path / "tensorboard" / "cluster"
    assert event_files.hyperparameters(run) == {
        **{"layers": 3.0, "wide": True, "name": "None", "momentum": 0.25},
        **{"optimizer": "Momentum", "learning_rate": 0.5, "nesterov": False},
        **{"workers": 1.0, "shards": 1.0, "consistency": "async", "staleness": "none"},
        **{"push_every": 2.0, "pull_every": 1.0, "overlap": False, "local_steps": 0.0},
        **{"encoding": "bfloat16", "compress": "none"},
    }
    assert event_files.end(run) == ("FAILURE" if fails else "SUCCESS")


def test_of_a_life_that_goes_on_from_an_earlier_step_tensorboard_shows_what_the_job_has_kept(tmp_path, point_each_step):
    for steps in (6, 3):
        with ps.collection():
            W = ps.Variable(START, name="W")
            with ps.session(summary_dir=tmp_path) as session:  # without a checkpoint: the second begins at 0 again
                losses, _ = train(session, W, steps, ps.GradientDescent(steps / 10))
    shown = event_files.shown_scalars(tmp_path / "tensorboard" / "worker-0")["training/loss"]
    assert shown == [(step, pytest.approx(loss)) for step, loss in enumerate(losses, 1)]
    seen = [one.get("step", one.get("worker")) for one in lines(tmp_path)]
    assert seen == ["worker-0", 1, 2, 3, 4, 5, 6, "worker-0", 1, 2, 3]


def test_without_a_folder_nothing_is_written_and_every_call_does_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PSWORKER_SUMMARY_DIR", raising=False)
    W = ps.Variable(START, name="W")
    with ps.session() as session:
        summary = session.summary
        summary.hyperparameters({"a": 1})
        train(session, W, 2, ps.GradientDescent(0.1))
        summary.scalar("", "no number")
        summary.histogram("h", "no numbers")
        summary.image("i", 3)
        summary.text("t", 5)
        summary.graph(None)
    summary.scalar("after the session", 1.0)
    assert [*tmp_path.iterdir()] == []


def test_without_the_extra_there_are_lines_and_explicit_calls_but_scalars_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "psworker.summaries.tensorboard_records", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    W = ps.Variable(START, name="W")
    with ps.session(summary_dir=tmp_path) as session:
        for call in (
            lambda: session.summary.histogram("h", W),
            lambda: session.summary.image("i", np.zeros((2, 2))),
            lambda: session.summary.text("t", "a"),
            lambda: session.summary.graph(ops.sum(W)),
            lambda: session.summary.hyperparameters({"a": 1}),
        ):
            with pytest.raises(ConfigurationError, match=r"-m pip install 'pillow>=11' 'tensorboard>="):
                call()
        losses, _ = train(session, W, 1, ps.GradientDescent(0.1))
        session.summary.scalar("accuracy", 0.5)
    points = lines(tmp_path)[1:]
    assert (points[0]["cost"], points[-1]["scalars"]) == (pytest.approx(losses[0]), {"accuracy": 0.5})
    assert [one.name for one in tmp_path.iterdir()] == ["scalars"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.scalar(3, 1.0), TypeError, "a tag is a text"),
        (lambda s: s.scalar("", 1.0), ValueError, "is empty"),
        (lambda s: s.scalar("a", 1.0, 0.5), TypeError, "integer"),
        (lambda s: s.scalar("a", 1.0, 1 << 70), ValueError, "out of range"),
        (lambda s: s.scalar("a", np.ones(2)), TypeError, r"summary.scalar\('a'\) takes a number, or one element"),
        (lambda s: s.scalar("a", "much"), TypeError, "takes a number"),
        (lambda s: s.histogram("a", ["x"]), TypeError, "takes real numbers, got <U1"),
        (lambda s: s.histogram("a", [1j]), TypeError, "takes real numbers, got complex128"),
        (lambda s: s.image("a", np.ones(4)), ValueError, r"takes \(height, width\)"),
        (lambda s: s.image("a", np.ones((2, 2, 2))), ValueError, r"got \(2, 2, 2\)"),
        (lambda s: s.image("a", np.ones((0, 2))), ValueError, r"got \(0, 2\)"),
        (lambda s: s.image("a", np.ones((2, 2), np.int32)), TypeError, "uint8 from 0 to 255, bool, or floating"),
        (lambda s: s.text("a", 5), TypeError, "takes a text, got int"),
        (lambda s: s.graph(1.0), TypeError, "takes a Tensor made by ops, got float"),
        (lambda s: s.graph(ops.sum(np.ones(3))), ValueError, "requires no gradient"),
        (lambda s: s.hyperparameters({1: 2}), TypeError, "values by name"),
    ],
)
def test_a_bad_argument_is_refused_where_it_is_given(tmp_path, call, error, message):
    with ps.session(summary_dir=tmp_path) as session, pytest.raises(error, match=message):
        call(session.summary)


@pytest.mark.parametrize(
    ("name", "file"), [("../w", "..%2Fw"), ("..", "worker .."), ("cluster", "worker cluster"), ("a b:7", "a b%3A7")]
)
def test_the_files_of_a_worker_stay_in_the_folder_whatever_its_name_is(tmp_path, name, file):
    with ps.session(name=name, summary_dir=tmp_path / "run") as session:
        train(session, ps.Variable(START, name="W"), 1, ps.GradientDescent(0.1))
    assert [one.name for one in tmp_path.iterdir()] == ["run"]
    assert [one.name for one in (tmp_path / "run" / "scalars").iterdir()] == [f"{file}.jsonl"]
    assert {one.name for one in (tmp_path / "run" / "tensorboard").iterdir()} == {file, "cluster"}
    assert lines(tmp_path / "run", file)[0]["worker"] == name


def test_a_fork_of_the_process_that_leaves_the_session_writes_nothing_and_asks_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("psworker.summaries.writing.INTERVAL", 1000.0)
    with ps.session(summary_dir=tmp_path) as session:
        train(session, ps.Variable(START, name="W"), 1, ps.GradientDescent(0.1))
        with monkeypatch.context() as forked:
            forked.setattr("os.getpid", lambda: -1)
            forked.setattr(session._client, "status", None)
            session._pushing.summaries.close(failed=False)
        assert [*(tmp_path / "scalars").iterdir()] == []
    assert len(lines(tmp_path)) == 2


def test_a_folder_that_cannot_be_used_is_refused_when_the_session_is_opened(tmp_path):
    (tmp_path / "file").touch()
    session = ps.session(summary_dir=tmp_path / "file")
    with pytest.raises(ConfigurationError, match=f"cannot use the folder {tmp_path / 'file'} for summaries"):
        session.open()
    with ps.session() as another:  # none is open
        assert another.number == 0


def test_a_session_whose_program_fails_has_written_what_it_had(tmp_path):
    W = ps.Variable(START, name="W")

    def program():
        with ps.session(summary_dir=tmp_path) as session:
            train(session, W, 3, ps.GradientDescent(0.1))
            session.summary.scalar("accuracy", 0.5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert (lines(tmp_path)[-1]["steps"], lines(tmp_path)[-1]["scalars"]) == (3, {"accuracy": 0.5})
    assert event_files.shown_scalars(tmp_path / "tensorboard" / "worker-0")["accuracy"] == [(3, 0.5)]
