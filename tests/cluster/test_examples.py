"""Short forms of the examples, as a user runs them, on real data; what larger ones have is in files of their own."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REPORT = re.compile(r"step +([0-9,]+): loss ([0-9.]+), test accuracy ([0-9.]+), ([0-9.]+) min")
NUMBER = r"(-?[0-9.]+)"
ROW = re.compile(rf"^ *(\d+) +{NUMBER} +{NUMBER} +{NUMBER} +{NUMBER}(.*)$")


def reports_of(lines):
    """(step, accuracy) of each look at the test images."""
    found = [match for match in map(REPORT.search, lines) if match]
    return [(int(match[1].replace(",", "")), float(match[3])) for match in found]


def rows_of(lines):
    """(before, gradient, should become, became) of each step, and what is remarked."""
    found = [match for match in map(ROW.match, lines) if match]
    return [([float(match[column]) for column in range(2, 6)], match[6]) for match in found]


# Deep MNIST.


def test_the_convolutional_network_learns_digits_within_40_steps(commands):
    form = "--steps", "40", "--report", "20", "--test-images", "300"
    alone = commands.python(str(EXAMPLES / "deep_mnist.py"), *form, OPENBLAS_NUM_THREADS="1")
    assert alone.wait() == 0, alone.err
    [(half, _), (steps, accuracy)] = reports_of(alone.out)
    assert (half, steps) == (20, 40)
    assert accuracy > 0.5  # 0.1 by chance


def test_two_workers_train_the_convolutional_network_together(commands):
    code, out, err = commands.run(
        *("psworker", "local", "--workers", "2", "--threads", "1", "--progress", "plain"),
        *(str(EXAMPLES / "deep_mnist.py"), "--steps", "40", "--report", "40", "--test-images", "300"),
    )
    assert code == 0, err
    [(steps, accuracy)] = reports_of(out)
    assert 40 <= steps <= 42  # the other worker's push may come in between
    assert accuracy > 0.4
    assert re.search(r"^4[0-2] steps in .* 2 workers$", err[-1])


# The quadratic.


def test_each_step_of_the_quadratic_is_the_one_worked_out_by_hand(commands):
    """x = 10, b = 1, gradients times 0.1: the distance from 1 shrinks by a tenth at each step."""
    alone = commands.python(str(EXAMPLES / "quadratic.py"), "--steps", "20")
    assert alone.wait() == 0, alone.err
    rows = rows_of(alone.out)
    assert len(rows) == 20
    x = 10.0
    for (before, gradient, expected, after), remark in rows:
        assert (expected, remark) == (after, "")
        assert abs(before - x) < 2e-6
        assert abs(gradient - 0.1 * (x - 1)) < 2e-7
        x = 1 + 0.9 * (x - 1)
        assert abs(after - x) < 2e-6


def test_two_workers_move_the_same_x(commands):
    code, out, err = commands.run(
        "psworker", "local", "--workers", "2", str(EXAMPLES / "quadratic.py"), "--steps", "50"
    )
    assert code == 0, err
    rows = rows_of([line.partition(" | ")[2] for line in out])
    assert len(rows) == 100
    assert min(abs(after - 1) for (_, _, _, after), _ in rows) < 0.01  # 9 * 0.9^100 = 0.0002, and less when stale


# By hand.


def test_descent_by_hand_is_that_of_the_optimizer_to_the_bit(commands):
    alone = commands.python(str(EXAMPLES / "manual_descent.py"))
    assert alone.wait() == 0, alone.err
    assert alone.out[0] == "largest difference between the two: 0"
    by_hand, by_optimizer = re.findall(r"0\.\d{4}", alone.out[1])
    assert by_hand == by_optimizer
    assert float(by_hand) > 0.89


def test_descent_by_hand_trains_with_two_workers_too(commands):
    code, out, err = commands.run("psworker", "local", "--workers", "2", str(EXAMPLES / "manual_descent.py"))
    assert code == 0, err
    [accuracies] = [re.findall(r"0\.\d{4}", line) for line in out if "test accuracy" in line]
    assert all(float(accuracy) > 0.89 for accuracy in accuracies)
