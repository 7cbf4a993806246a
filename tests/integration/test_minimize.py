"""`session.minimize`: minima against solvers of numpy, over workers and shards; reasons to stop; programs that fail."""

import dataclasses
import itertools
import json
import math
import re
import threading

import numpy as np
import pytest

import psworker as ps
from pswire import messages as ms
from pswire.errors import ConfigurationError, DatasetError, OutOfOrder
from psworker import ops
from psworker.client.retry import Calls
from psworker.minimize.shard_space import AlreadyOver, JobStopped, ShardSpace
from psworker.sessions import claimed_portions, session_numbers
from tests.support import event_files
from tests.support.servers import EMBEDDED, GRPC, SHARED_OF_TWO, TransportCase, parameters

SEED = 20261123
THREE = TransportCase("grpc, 3 shards", shards=3)
#: Ridge regression of two outputs: its minimum is the solution of a linear system.
RNG = np.random.default_rng(SEED)
X, TARGETS, L2 = RNG.standard_normal((203, 12)), RNG.standard_normal((203, 2)), 0.05
DATA = ps.Dataset({"x": X, "y": TARGETS})
SOLUTION = np.linalg.solve(X.T @ X / len(X) + 2 * L2 * np.eye(12), X.T @ TARGETS / len(X))


def loss_at(weights):
    return ((X @ weights - TARGETS) ** 2).sum() / len(X) / 2 + L2 * (weights**2).sum()


SMALLEST = loss_at(SOLUTION)
LONG = {"gradient": 1e-12, "decrease": 0.0, "iterations": 12}
exactly = ps.LBFGS(gradient=1e-10, decrease=0.0)


def ridge(W):
    """The loss of a batch."""

    def loss(batch):
        errors = ops.matmul(batch.x, W) - batch.y
        return ops.sum(ops.square(errors)) / (2 * len(batch)) + L2 * ops.sum(ops.square(W))

    return loss


def minimize(open_session, name="w0", method=exactly, seen=None, data=DATA, loss=ridge, **options):
    """The weights and the result of one worker."""
    with ps.collection():
        W = ps.Variable(np.zeros((12, 2)), name="W")
        with open_session(name) as session:
            if seen is not None:
                options["on_iteration"] = seen.append
            found = session.minimize(loss(W), data, method, portion=16, **options)
            return W.value.copy(), found


def in_threads(*functions):
    """The results of functions, each in a thread of its own."""
    results = [None] * len(functions)

    def run(place, function):
        try:
            results[place] = function()
        except BaseException as error:  # noqa: BLE001 - compared with results
            results[place] = error

    threads = [threading.Thread(target=run, args=one, daemon=True) for one in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return results


ALL = parameters(EMBEDDED, slow=(GRPC, SHARED_OF_TWO, THREE))


@pytest.mark.parametrize("open_session", ALL, indirect=True)
@pytest.mark.parametrize("method", [exactly, ps.ConjugateGradient(gradient=1e-10, decrease=0.0)], ids=["L-BFGS", "CG"])
def test_the_minimum_is_that_of_the_linear_system(open_session, method):
    seen = []
    weights, found = minimize(open_session, method=method, seen=seen)
    np.testing.assert_allclose(weights, SOLUTION, atol=1e-9)
    assert found.loss == pytest.approx(SMALLEST, rel=1e-12)
    assert found.converged
    assert found.reason == "no element of the gradient is above 1e-10"
    assert found.gradient <= 1e-10
    assert [one.iterations for one in seen] == list(range(found.iterations + 1))
    losses = [one.loss for one in seen]
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(losses)), "but for rounding"
    assert seen[0].loss == pytest.approx((TARGETS**2).sum() / len(X) / 2, rel=1e-14)


@pytest.mark.slow
def test_one_worker_has_the_same_bits_whatever_the_number_of_shards(monkeypatch):
    monkeypatch.setattr(claimed_portions, "PUSH_SECONDS", math.inf)  # a push an evaluation, however busy the machine is
    found = []
    for case in (EMBEDDED, GRPC, SHARED_OF_TWO, THREE):
        with case.sessions() as open_session:
            weights, result = minimize(open_session)
            found.append((weights.tobytes(), result))
    assert found == [found[0]] * 4


@pytest.mark.parametrize("open_session", ALL, indirect=True)
@pytest.mark.parametrize("workers", [2, 4])
def test_several_workers_find_the_same_minimum_and_all_of_them_have_it(open_session, workers):
    alone = SOLUTION
    names = [f"w{number}" for number in range(workers)]
    results = in_threads(*[lambda name=name: minimize(open_session, name) for name in names])
    for weights, found in results:
        np.testing.assert_allclose(weights, alone, rtol=0, atol=1e-10)
        assert found == results[0][1]
        assert found.loss == pytest.approx(SMALLEST, rel=1e-12)


def test_every_example_is_in_every_evaluation_once_and_portions_stay_with_their_worker():
    """A function dataset reads a portion when its worker has it for the first time."""
    read = {"w0": [], "w1": []}

    def worker(open_session, name):
        def rows(indices):
            read[name].append(indices.tolist())
            return {"x": X[indices], "y": TARGETS[indices]}

        return minimize(open_session, name, data=ps.FunctionDataset(rows, len(X)))

    with EMBEDDED.sessions() as open_session:
        results = in_threads(*[lambda name=name: worker(open_session, name) for name in read])
    for weights, _ in results:
        np.testing.assert_allclose(weights, SOLUTION, atol=1e-9)
    portions = [tuple(range(start, min(start + 16, 203))) for start in range(0, 203, 16)]
    for lists in read.values():
        had = [tuple(one) for one in lists]
        assert len(set(had)) == len(had), "no portion is read twice"
        assert set(had) <= set(portions)


def test_owlqn_finds_the_soft_threshold_and_exact_zeros():
    """Of |w - a|^2 / 2 + l1 |w|_1 the minimum is a, moved towards 0 by l1."""
    a = np.linspace(-1, 1, 12 * 2).reshape(12, 2)

    def loss(W):
        return lambda batch: ops.sum(ops.square(W - a)) / 2

    with EMBEDDED.sessions() as open_session:
        method = ps.OWLQN(l1=0.3, gradient=1e-10, decrease=0.0)
        weights, found = minimize(open_session, method=method, loss=loss)
    expected = np.sign(a) * np.maximum(abs(a) - 0.3, 0)
    np.testing.assert_allclose(weights, expected, atol=1e-10)
    assert ((weights == 0) == (expected == 0)).all()
    assert found.loss == pytest.approx(((expected - a) ** 2).sum() / 2 + 0.3 * abs(expected).sum(), rel=1e-12)


def test_it_says_why_it_stopped_and_the_variables_have_the_last_accepted_point():
    seen = []
    with EMBEDDED.sessions() as open_session:
        weights, found = minimize(open_session, method=ps.LBFGS(gradient=0.0, decrease=0.0, iterations=2), seen=seen)
    assert (found.converged, found.reason) == (False, "the limit of 2 iterations is reached")
    assert seen[-1].loss == found.loss == pytest.approx(loss_at(weights), rel=1e-12)


ROUNDED = r"the loss (de|in)creased by .*, which is (less than 1\.19e-07 of it|rounding)(; the gradient has up to .*)?"


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (ps.LBFGS(), ROUNDED),
        (ps.ConjugateGradient(), ROUNDED),
        (ps.OWLQN(l1=1e-9), ROUNDED),
        (ps.LBFGS(decrease=0), "no element of the gradient is above 1e-05"),
    ],
    ids=["L-BFGS", "CG", "OWL-QN", "gradient alone"],
)
def test_with_variables_of_float32_it_ends_at_the_minimum_with_a_limit_that_rounding_allows(method, reason):
    """With the limit of float64 no step can satisfy the conditions of a line search at the end."""
    data, seen = ps.Dataset({"x": X.astype(np.float32), "y": TARGETS.astype(np.float32)}), []
    with EMBEDDED.sessions() as open_session, ps.collection():
        W = ps.Variable(np.zeros((12, 2), np.float32), name="W")
        with open_session("w0") as session:
            found = session.minimize(ridge(W), data, method, portion=16, on_iteration=seen.append)
            weights = W.value.astype(float)
    assert found.converged, found
    assert re.fullmatch(reason, found.reason)
    assert loss_at(weights) == pytest.approx(SMALLEST, rel=1e-6)
    np.testing.assert_allclose(weights, SOLUTION, atol=1e-3 if reason is ROUNDED else 2e-5)
    assert found.evaluations < 60


def test_a_search_that_fails_ends_at_the_last_point_and_says_so():
    """The gradient is wrong by its sign: no step decreases the loss."""

    def wrong(W):
        def loss(batch):
            value = ops.sum(ops.square(W - 1.0))
            return 2 * value.item() - value

        return loss

    with ps.collection(), EMBEDDED.sessions() as open_session:
        W = ps.Variable(np.zeros((12, 2)), name="W")
        with open_session("w0") as session:
            found = session.minimize(wrong(W), DATA, exactly, portion=16)
            (shown,) = session._client.shard_status().minimizations
            weights = W.value.copy()
    assert not found.converged
    assert found.reason.startswith("the line search has failed: ")
    assert found.evaluations > 2
    assert shown.point.evaluations == found.evaluations, "also those of the search that failed"
    np.testing.assert_array_equal(weights, np.zeros((12, 2)))


def test_a_loss_that_is_nan_at_the_start_ends_it_at_once():
    with EMBEDDED.sessions() as open_session:
        _, found = minimize(open_session, loss=lambda W: lambda batch: ops.sum(W) * math.nan)
    assert (found.iterations, found.evaluations) == (0, 1)
    assert found.reason.startswith("the loss at the start is nan")


def test_the_status_and_the_summaries_have_the_points_that_the_program_gets(tmp_path):
    seen, shown = [], []
    with ps.collection():
        W = ps.Variable(np.zeros((12, 2)), name="W")
        with ps.session(summary_dir=tmp_path) as session:

            def loss(batch):
                (one,) = session._client.shard_status().minimizations
                shown.append(one.point)
                return ridge(W)(batch)

            found = session.minimize(loss, DATA, exactly, on_iteration=seen.append, name="fit")
            (last,) = session._client.shard_status().minimizations
    asdict = dataclasses.asdict
    points = [asdict(one) for one in seen]
    assert asdict(last.point) == points[-1]
    assert json.loads(last.end) == asdict(found)
    assert shown[0] is None
    assert {asdict(one)["iterations"]: asdict(one) for one in shown if one} == dict(enumerate(points[:-1]))
    scalars = event_files.shown_scalars(tmp_path / "tensorboard" / "cluster")
    for name in ("loss", "gradient", "step"):
        expected = [(point["iterations"], pytest.approx(point[name], rel=1e-6)) for point in points]
        assert scalars[f"fit/{name}"] == expected


@pytest.mark.parametrize(
    ("method", "vectors"),
    [
        (ps.LBFGS(memory=2, **LONG), 12),
        (ps.OWLQN(memory=2, l1=0.01, **{**LONG, "iterations": 40}), 15),  # one more when values differ by rounding
        (ps.ConjugateGradient(**LONG), 7),
    ],
    ids=["L-BFGS", "OWL-QN", "CG"],
)
def test_the_shards_hold_as_many_vectors_as_the_pages_say(method, vectors):
    most = [0]

    def quartic(W):
        def loss(batch):
            most.append(session._client.shard_status().nbytes)
            return ridge(W)(batch) + ops.sum(ops.square(ops.square(W)))

        return loss

    with ps.collection():
        W = ps.Variable(np.zeros((12, 2)), name="W")
        with ps.session() as session:
            session.minimize(quartic(W), DATA, method)
    assert max(most) == (1 + vectors) * W.value.nbytes


def test_a_second_minimization_goes_on_from_the_first_and_training_after_it_is_as_ever():
    with ps.collection(), EMBEDDED.sessions() as open_session:
        W = ps.Variable(np.zeros((12, 2)), name="W")
        with open_session("w0") as session:
            first = session.minimize(ridge(W), DATA, ps.LBFGS(gradient=0, decrease=0, iterations=2))
            second = session.minimize(ridge(W), DATA, exactly)
            assert second.evaluations > 1
            assert second.loss < first.loss
            np.testing.assert_allclose(W.value, SOLUTION, atol=1e-9)
            gradient = np.ones((12, 2))
            before = W.value.copy()
            assert ps.GradientDescent(0.5).apply_gradients([(gradient, W)]).outcome == "applied"
            np.testing.assert_array_equal(W.value, before - 0.5)
            assert session._client.shard_status().nbytes == W.value.nbytes, "the vectors are gone"


@pytest.mark.slow
def test_an_error_of_the_loss_function_is_the_programs_and_the_session_can_be_used_after_it():
    def broken(W):
        def loss(batch):
            raise ZeroDivisionError("of the program")

        return loss

    with ps.collection(), EMBEDDED.sessions() as open_session:
        W = ps.Variable(np.zeros((12, 2)), name="W")
        with open_session("w0") as session:
            with pytest.raises(ZeroDivisionError, match="of the program"):
                session.minimize(broken(W), DATA, exactly)
            session.minimize(ridge(W), DATA, exactly)
            np.testing.assert_allclose(W.value, SOLUTION, atol=1e-9)
    assert [one.name for one in threading.enumerate() if one.name.startswith("psworker-coord")] == []


def test_a_program_that_stops_the_job_at_an_accepted_point_gets_that_point():
    with ps.collection(), EMBEDDED.sessions() as open_session:
        W = ps.Variable(np.zeros((12, 2)), name="W")
        with open_session("w0") as session:

            def stop(point):
                if point.iterations == 3:
                    session.stop_all("enough")

            found = session.minimize(ridge(W), DATA, exactly, portion=16, on_iteration=stop)
    assert (found.converged, found.iterations, found.reason) == (False, 3, "the job was stopped: w0: enough")
    assert found.loss == pytest.approx(loss_at(W.value), rel=1e-12)


def test_stopping_the_job_ends_it_in_all_workers_at_the_last_point():
    """Whichever worker computes a portion close to the minimum: no evaluation there is complete before the stop."""

    def worker(open_session, name):
        with ps.collection():
            W = ps.Variable(np.zeros((12, 2)), name="W")
            with open_session(name) as session:

                def loss(batch):
                    if loss_at(W.value) < 1.001 * SMALLEST:
                        session.stop_all("enough")
                    return ridge(W)(batch)

                return W, session.minimize(loss, DATA, exactly, portion=16)

    with EMBEDDED.sessions() as open_session:
        results = in_threads(*[lambda name=name: worker(open_session, name) for name in ("w0", "w1")])
    for W, found in results:
        assert not found.converged
        assert found.iterations > 0
        assert found.reason == "the job was stopped: w0: enough" or found.reason == "the job was stopped: w1: enough"
        assert found.loss > 1.001 * SMALLEST
        assert found.loss == pytest.approx(loss_at(W.value), rel=1e-12)


def test_a_batch_of_a_queue_stays_the_same_for_a_whole_line_search():
    """Each batch is looked at several times, and is made once; its loss is lower after its steps than before."""
    made = []

    def batches():
        for start in range(0, 200, 50):
            made.append(start)
            yield ps.Batch({"x": X[start : start + 50], "y": TARGETS[start : start + 50]})

    with ps.collection(), EMBEDDED.sessions() as open_session:
        W = ps.Variable(np.zeros((12, 2)), name="W")
        with open_session("w0") as session, ps.data.Queue(batches(), capacity=2) as queue:
            for batch in queue:
                before = ridge(W)(batch).item()
                found = session.minimize(ridge(W), batch, ps.LBFGS(iterations=2, decrease=0.0))
                assert found.evaluations >= 3
                assert found.loss == pytest.approx(ridge(W)(batch).item(), rel=1e-12)
                assert found.loss < before
    assert made == [0, 50, 100, 150]


class Killed(Exception):
    """Of a program in the middle of a minimization."""


@pytest.mark.slow
def test_a_program_that_is_started_again_goes_on_from_its_last_accepted_point(tmp_path):
    def program(until):
        session_numbers.forget()  # as in a process of its own
        seen = []

        def note(point):
            seen.append(point)
            if point.iterations == until:
                raise Killed

        with ps.collection(), ps.session(checkpoint_dir=tmp_path) as session:
            W = ps.Variable(np.zeros((12, 2)), name="W")
            return session.minimize(ridge(W), DATA, exactly, on_iteration=note), seen, W.value

    with pytest.raises(Killed):
        program(4)
    found, seen, weights = program(None)
    assert seen[0].iterations >= 4
    np.testing.assert_allclose(weights, SOLUTION, atol=1e-9)
    with EMBEDDED.sessions() as open_session:
        _, whole = minimize(open_session, method=exactly)
    assert (found.iterations, found.loss) == (whole.iterations, pytest.approx(whole.loss, rel=1e-14))


def test_what_cannot_be_minimized_is_refused():
    with ps.collection(), EMBEDDED.sessions() as open_session:
        W = ps.Variable(np.zeros((12, 2)), name="W")
        count = ps.Variable(np.zeros(3, np.int64), name="count", trainable=False)
        with open_session("w0") as session:
            with pytest.raises(DatasetError, match="again and again: give a dataset or a sequence"):
                session.minimize(ridge(W), (one for one in [1]), exactly)
            with pytest.raises(ValueError, match="a portion has 1 example or more, got 0"):
                session.minimize(ridge(W), DATA, exactly, portion=0)
            with pytest.raises(ValueError, match="variables of floating point"):
                session.minimize(ridge(W), DATA, exactly, [count])
            with pytest.raises(ValueError, match="variables of floating point"):
                session.minimize(ridge(W), DATA, exactly, [])
        with pytest.raises(ConfigurationError, match="not open"):
            session.minimize(ridge(W), DATA, exactly)
    for options in ({"memory": 0}, {"memory": 51}, {"gradient": -1.0}, {"evaluations": 0}):
        with pytest.raises(ValueError, match=r"got memory=|limits are"):
            ps.LBFGS(**options)
    with pytest.raises(ValueError, match="l1 is a positive number"):
        ps.OWLQN(l1=0.0)


def test_a_coordinator_of_an_earlier_term_is_refused():
    with ps.collection(), EMBEDDED.sessions() as open_session:
        ps.Variable(np.ones((12, 2)), name="W")
        with open_session("w0") as session:
            first = ShardSpace(session._client, ["W"], "task", 10, 2)
            second = ShardSpace(session._client, ["W"], "task", 10, 2)
            with pytest.raises(OutOfOrder, match=r"in term 1, but .* in term 2"):
                first.run([])
            assert second.run([]) == []
            assert second.saved is None
            second.run([])
            second.accept([])
            second.save({"x": 1})
            for call in (
                first.evaluate,
                lambda: first.end({"by": "first"}, ms.AcceptedPoint(iterations=1, evaluations=1, loss=0.5)),
            ):
                with pytest.raises(OutOfOrder, match=r"in term 1, but .* in term 2"):
                    call()
            third = ShardSpace(session._client, ["W"], "task", 10, 2)
            assert third.saved == {"x": 1, "buffer": 1}


def test_an_evaluation_begins_on_shard_0_when_it_has_begun_on_all_others(monkeypatch):
    names = ["U", "V", "W"]
    with ps.collection(), THREE.sessions() as open_session:
        for name in names:
            ps.Variable(np.ones(4), name=name)
        with open_session("w0") as session:
            client, seen, send = session._client, [], Calls.send
            assert client.evaluations.shards_of(names) == [0, 1, 2]

            def sends(calls, messages, *arguments):
                message = messages.get(0)
                if isinstance(message, ms.Evaluate) and message.evaluation and not message.wait:
                    seen.append([one.number for one in client.evaluations.progress(names, "fit")])
                return send(calls, messages, *arguments)

            space = ShardSpace(client, names, "fit", 10, 2, stopping=lambda: True)
            monkeypatch.setattr(Calls, "send", sends)
            for _ in range(2):
                with pytest.raises(JobStopped):
                    space.evaluate()
    assert seen == [[0, 1, 1], [1, 2, 2]], "a worker that has a portion can push its sum to every shard"


def test_the_next_coordinator_tells_all_shards_that_a_minimization_is_over_if_the_one_before_told_some():
    names = ["U", "V", "W"]
    with ps.collection(), THREE.sessions() as open_session:
        for name in names:
            ps.Variable(np.ones(4), name=name)
        with open_session("w0") as session:
            client = session._client
            ShardSpace(client, names, "fit", 10, 2)
            over = ms.Evaluate(sender=client.membership.sender, name="fit", end='{"by": "w0"}', term=1)
            client.evaluations._evaluate([1], over)
            assert [one.end for one in client.evaluations.progress(names, "fit")] == ["", '{"by": "w0"}', ""]
            with pytest.raises(AlreadyOver):
                ShardSpace(client, names, "fit", 10, 2)
            assert [one.end for one in client.evaluations.progress(names, "fit")] == ['{"by": "w0"}'] * 3
