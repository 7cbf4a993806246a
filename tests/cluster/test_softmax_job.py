"""The main job as a user runs it: softmax regression on all of MNIST, in its three ways, with real processes."""

import re
import signal
from pathlib import Path

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "softmax_mnist.py")
KNOWN = [1.1843, 0.6654, 0.5529, 0.4987, 0.4656, 0.4426, 0.4255, 0.4122, 0.4014, 0.3924]
EPOCH = re.compile(r"epoch +(\d+): mean cost ([0-9.]+) over 55,000 examples")
ACCURACY = re.compile(r"test accuracy: ([0-9.]+) on the first 3,000, ([0-9.]+) on all")


def costs_of(lines):
    """The costs of the epochs 1, 2, ..., each of which must have been printed once, in order."""
    found = [match for match in map(EPOCH.search, lines) if match]
    assert [int(match[1]) for match in found] == list(range(1, len(found) + 1))
    return [float(match[2]) for match in found]


def accuracies_of(lines):
    [match] = [match for match in map(ACCURACY.search, lines) if match]
    return float(match[1]), float(match[2])


def test_two_workers_and_a_server_reach_the_known_cost_and_accuracy(commands):
    code, out, err = commands.run("psworker", "local", "--workers", "2", "--shards", "1", EXAMPLE)
    assert code == 0, err
    costs = costs_of(out)
    assert len(costs) == 10
    assert abs(costs[-1] - KNOWN[-1]) <= 0.01
    assert all(abs(cost - known) <= 0.02 for cost, known in zip(costs, KNOWN, strict=True))
    first, every = accuracies_of(out)
    assert abs(first - 0.873) <= 0.005
    assert abs(every - 0.904) <= 0.005
    assert re.search(r"^5500 steps in .* 2 workers$", err[-1])


def test_a_hundredth_of_the_gradients_in_16_bits_reaches_the_known_cost_too(commands):
    options = "--workers", "2", "--wire", "bfloat16", "--compress", "topk:0.01", "--progress", "off"
    code, out, err = commands.run("psworker", "local", *options, EXAMPLE)
    assert code == 0, err
    costs = costs_of(out)
    assert len(costs) == 10
    assert abs(costs[-1] - KNOWN[-1]) <= 0.02


def test_two_shards_train_as_one_does(commands):
    code, out, err = commands.run("psworker", "local", "--shards", "2", "--progress", "off", EXAMPLE, "--epochs", "1")
    assert code == 0, err
    assert abs(costs_of(out)[0] - KNOWN[0]) <= 0.02


def test_a_server_and_two_workers_started_by_hand_share_the_job(commands):
    server = commands.start("psserver", "serve")
    server.wait_for("listening on")
    address = server.out[0].rpartition(" ")[2]
    workers = [
        commands.start("psworker", "run", "--servers", address, "--threads", "1", EXAMPLE, "--epochs", "2")
        for _ in range(2)
    ]
    assert [worker.wait() for worker in workers] == [0, 0]
    chief = max(workers, key=lambda worker: len(worker.out))
    assert [len(costs_of(worker.out)) for worker in workers if worker is not chief] == [0]
    assert all(abs(cost - known) <= 0.02 for cost, known in zip(costs_of(chief.out), KNOWN, strict=False))
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "global step 1,100" in server.err[-1]


def test_the_same_script_runs_in_one_process(commands):
    alone = commands.python(EXAMPLE, "--epochs", "1")
    assert alone.wait() == 0, alone.err
    assert abs(costs_of(alone.out)[0] - KNOWN[0]) <= 0.004
    assert accuracies_of(alone.out)[1] > 0.8
