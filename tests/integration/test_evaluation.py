"""Evaluations of several metrics: by one worker, and by all of them together, each example once."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from pswire.errors import InvalidMessage
from psworker import metrics, nn

RANDOM = np.random.default_rng(1)
DATA = {"scores": RANDOM.normal(size=(230, 3)), "label": RANDOM.integers(0, 3, 230)}


def measure(batch):
    return {
        "loss": float(np.mean(batch.scores**2)),
        "accuracy": metrics.accuracy(batch.scores, batch.label),
        "matrix": metrics.confusion_matrix(batch.scores, batch.label),
        "error": metrics.mean_absolute_error(batch.scores[:, 0], batch.scores[:, 1]),
    }


def check(results):
    predicted = DATA["scores"].argmax(1)
    assert results["loss"] == pytest.approx(np.mean(DATA["scores"] ** 2), rel=1e-12)
    assert results["accuracy"] == np.mean(predicted == DATA["label"])
    assert results["matrix"].sum() == 230
    assert results["matrix"][1, 2] == np.sum((DATA["label"] == 1) & (predicted == 2))
    assert results["error"] == pytest.approx(np.mean(np.abs(DATA["scores"][:, 0] - DATA["scores"][:, 1])), rel=1e-12)


def test_one_pass_has_all_metrics_of_a_function_whatever_the_batches(open_session):
    with open_session("w0") as session:
        for size in (7, 230):
            check(session.evaluate(measure, DATA, size))
        assert session.evaluate(lambda batch: metrics.accuracy(batch.scores, batch.label), DATA) == np.mean(
            DATA["scores"].argmax(1) == DATA["label"]
        )
        names = iter("ab")
        with pytest.raises(ValueError, match=r"the metrics of each batch must be the same, got \['b'\] and \['a'\]"):
            session.evaluate(lambda batch: {next(names): 1.0}, DATA, 200)


def test_workers_that_evaluate_together_measure_each_example_once_and_all_have_the_results(open_session):
    seen = []

    def counted(batch):
        seen.extend(batch.number)
        return measure(batch)

    data = DATA | {"number": np.arange(230)}

    def work(name):
        with open_session(name) as session:
            results = [session.evaluate(counted, data, 10, shared=True) for _ in range(3)]
            session.barrier()
            session.stop_all("the last evaluation comes after the end of training")
            return [*results, session.evaluate(counted, data, 10, shared=True)]

    with ThreadPoolExecutor(3) as threads:
        for results in threads.map(work, ("w0", "w1", "w2")):
            for one in results:
                check(one)
    idle = len(seen) - 4 * 230  # a worker that was too slow for a block measures a batch to learn of the metrics
    assert idle % 10 == 0
    numbers, times = np.unique(seen, return_counts=True)
    assert list(numbers) == list(range(230))
    assert set(times[10:]) == {4}, "the first batch is that of workers without a block"


@pytest.mark.parametrize("function", [nn.Sequential(), lambda x, y: 0.0, 1.0])
def test_what_is_no_function_of_a_batch_is_refused_before_it_is_called(function):
    with (
        ps.session() as session,
        pytest.raises(TypeError, match=r"such as lambda batch: .*\(batch\.x\), batch\.y\), got "),
    ):
        session.evaluate(function, {"x": np.ones(3), "y": np.ones(3)})


def test_workers_with_other_metrics_are_refused(open_session):
    with open_session("w0") as session:
        with pytest.raises(ValueError, match="each worker reads an iterable by itself"):
            session.evaluate(measure, iter([]), shared=True)
        with pytest.raises(InvalidMessage, match=r"metrics with 20,000 sums together, 16,384 at most"):
            session.evaluate(lambda batch: metrics.Metric(np.zeros(20_000), sum), DATA, shared=True)
