"""The guard on recorded histories of real jobs: silent about those that train, right about those that do not.

`tests.tools.record_history` has recorded them, from examples and from `benchmarks/_guard_job.py` with its faults.
"""

import pytest

from psjob.guard import Guard
from tests.unit.psjob.guard.jobs import FOLDER, found, recorded

FAULTY = {"eight_workers", "momentum", "scale", "float16", "hang", "adam", "one_worker", "labels"}
HEALTHY = sorted({path.stem for path in FOLDER.glob("*.json")} - FAULTY)


#: Seconds of patience of the guard, for recordings that are shorter than its usual patience.
SHORT = 10.0


@pytest.mark.parametrize("name", HEALTHY)
def test_the_guard_is_silent_about_jobs_that_train(name):
    history = list(recorded(name))
    assert len(history) >= 3
    assert max(status.global_step for _, status in history) > 50
    assert found(history, Guard(patience=SHORT)) == []


def test_healthy_jobs_are_the_examples_with_adversarial_and_reinforcement_learning():
    assert {"softmax_mnist", "deep_mnist", "char_gru", "gan_mnist", "dqn_cartpole", "four_workers"} <= set(HEALTHY)


@pytest.mark.parametrize(
    ("name", "kind", "worker", "text", "remedy"),
    [
        ("eight_workers", "staleness", "", "0.2 x 8 = 1.6", "a learning rate of 0.2 / 8 = 0.025"),
        ("momentum", "momentum", "", "with a momentum of 0.9", "try a momentum of "),
        ("scale", "worker", "worker-1", "times as large as usual", "psserver quarantine --worker worker-1"),
        ("adam", "staleness", "", "0.1 x 6 = 0.6", "a learning rate of 0.1 / 6 = 0.01667"),
        ("one_worker", "rate", "", "a learning rate of 0.3 is too large", "a learning rate of 0.3 / 4 = 0.075"),
        ("labels", "data", "worker-1", "has not fallen", "compare its examples and labels"),
        ("float16", "rounding", "", "(float16)", "keep such variables in float32"),
        ("hang", "data", "worker-1", "it has pushed nothing", "look at its input"),
    ],
)
def test_the_guard_names_the_failure_of_jobs_that_do_not(name, kind, worker, text, remedy):
    (_, one), *others = found(recorded(name), Guard(patience=SHORT))
    assert (one.kind, one.worker) == (kind, worker)
    assert text in one.text
    assert remedy in one.remedy
    assert [other.kind for _, other in others if other.kind != kind] == []
