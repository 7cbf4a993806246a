"""The main job as a user runs it: softmax regression on all of MNIST, in its three ways, with real processes."""

import re
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

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


def test_a_hundredth_of_the_gradients_in_16_bits_is_late_by_an_epoch_and_then_reaches_the_known_costs(commands):
    options = "--workers", "2", "--encoding", "bfloat16", "--compress", "topk:0.01", "--progress", "off"
    code, out, err = commands.run("psworker", "local", *options, EXAMPLE, "--epochs", "2")
    assert code == 0, err
    first, second = costs_of(out)
    assert 0.03 < first - KNOWN[0] < 0.06, "what is small is kept back at first"
    assert abs(second - KNOWN[1]) <= 0.01


def test_two_servers_and_two_workers_started_by_hand_share_the_job(commands):
    servers = [commands.start("psserver", "serve", "--shard", f"{shard}/2") for shard in (0, 1)]
    for server in servers:
        server.wait_for("listening on")
    addresses = ",".join(server.out[0].rpartition(" ")[2] for server in servers)
    run = "psworker", "run", "--servers", addresses, "--threads", "1", EXAMPLE, "--epochs", "1"
    workers = [commands.start(*run) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    other, chief = sorted([costs_of(worker.out) for worker in workers], key=len)
    assert other in ([], chief), "one that comes when nobody is left is a chief of its own"
    assert abs(chief[0] - KNOWN[0]) <= 0.02
    for server in servers:
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "global step 550" in server.err[-1]


def test_the_same_script_runs_in_one_process(commands):
    alone = commands.python(EXAMPLE, "--epochs", "1")
    assert alone.wait() == 0, alone.err
    assert abs(costs_of(alone.out)[0] - KNOWN[0]) <= 0.004
    assert accuracies_of(alone.out)[1] > 0.8
