"""PyTorch programs as jobs of real processes: the port of a plain program, its failures, and its second job."""

import difflib
import re
import signal

import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from tests.cluster.test_examples import EXAMPLES, alone, search
from tests.support.commands import free_address, free_port, wait_until
from tests.support.cutting_proxy import CuttingProxy

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="PyTorch is not installed")
PORT, PLAIN = EXAMPLES / "pytorch" / "mnist.py", EXAMPLES / "pytorch" / "plain_mnist.py"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def accuracies(lines):
    return [float(found[1]) for line in lines if (found := re.search(r"test accuracy ([0-9.]+)", line))]


def test_the_port_of_a_plain_program_changes_three_lines_beside_its_import():
    before, after = (path.read_text().splitlines()[1:] for path in (PLAIN, PORT))
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:].strip()]
    added = [line[2:].strip() for line in changes if line[0] == "+"]
    assert len(added) == 5  # the import, three lines, and main() behind `with`
    assert [line.partition("(")[0] for line in added if "pst" in line] == [
        "import psworker.torch as pst",
        "optimizer = pst.distribute",
        "for x, y in pst.loader",
        "with pst.session",
    ]
    assert len([line for line in before if line.strip()]) <= 60


def test_the_port_runs_alone_and_on_two_shards_with_two_workers(commands):
    alone = commands.python(str(PORT), "--epochs", "1", **ONE_THREAD)
    assert alone.wait() == 0, alone.err
    flags = "--workers", "2", "--shards", "2", "--progress", "off", "--threads", "1"
    code, out, err = commands.run("psworker", "local", *flags, str(PORT), "--epochs", "1")
    assert code == 0, err
    assert len(accuracies(alone.out)) == 1
    assert len(accuracies(out)) == 2
    assert min(accuracies(alone.out) + accuracies(out)) > 0.955


#: Trains a small network for 200 steps, stops at the 100th until a file is there, and compares with torch.optim.
THROUGH_A_RESTART = """
import pathlib, sys, time
import torch
from torch.nn import functional as F
import psworker.torch as pst

address, optimizer, gate = sys.argv[1:]
torch.manual_seed(0)
x, y = torch.randn(40, 20), torch.randint(0, 5, (40,))

def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))

def train(model, optimizer, wait):
    for step in range(200):
        if step == 100 and wait:
            print("half", flush=True)
            while not pathlib.Path(gate).exists():
                time.sleep(0.05)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

make = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), 1e-2),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), 1e-3),
}[optimizer]
expected, model = network(), network()
train(expected, make(expected), False)
with pst.session(address):
    train(model, pst.distribute(make(model), model), True)
for found, wanted in zip(model.parameters(), expected.parameters()):
    assert (found - wanted).abs().max() <= 1e-6 * wanted.abs().max()
print("equal")
"""


@pytest.mark.parametrize("optimizer", ["adam", "momentum", "rmsprop"])
def test_values_are_those_of_torch_although_the_server_is_killed_and_restored_from_its_journal(
    optimizer, commands, tmp_path
):
    address, gate = free_address(), tmp_path / "gate"
    options = "--bind", address, "--checkpoint-dir", str(tmp_path / "state"), "--journal"
    server = commands.serve(*options)
    worker = commands.python("-c", THROUGH_A_RESTART, address, optimizer, str(gate), **ONE_THREAD)
    worker.wait_for("half")
    server.end(signal.SIGKILL)
    server = commands.serve(*options)
    gate.touch()
    assert worker.wait() == 0, worker.err
    assert worker.out[-1] == "equal"
    assert server.end()[0] == 0


#: Trains an epoch of numbers in one job, and then in a second one with a new optimizer; prints those of its steps.
EXAMPLES_ONCE = """
import torch
import psworker.torch as pst

data = torch.utils.data.TensorDataset(torch.arange(400.0))
model = torch.nn.Linear(1, 1)
for job in range(2):
    with pst.session():
        optimizer = pst.distribute(torch.optim.SGD(model.parameters(), 1e-9), model)
        for (x,) in pst.loader(data, 4):
            model(x[:, None]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for number in x.tolist():
                print("trained", job, int(number), flush=True)
"""


def test_the_examples_of_each_job_are_trained_once_by_two_workers(commands):
    script = commands.script(EXAMPLES_ONCE)
    flags = "--workers", "2", "--progress", "off", "--threads", "1"
    code, out, err = commands.run("psworker", "local", *flags, script)
    assert code == 0, err
    for job in (0, 1):
        found = [int(line.rsplit(" ", 1)[1]) for line in out if f"trained {job} " in line]
        assert sorted(found) == list(range(400))


def test_only_rows_of_the_batch_travel_of_a_table_of_a_million(commands):
    program = str(EXAMPLES / "pytorch" / "recommender.py")
    port = free_port("127.0.0.1")
    config = ServerConfig(direct_port=port)
    with ServerThread(config) as server, CuttingProxy(server.address, direct_port=port) as proxy:
        run = "psworker", "run", "--servers", proxy.address, "--no-shared-memory", "--threads", "1"
        code, out, err = commands.run(*run, program, "--epochs", "1")
    assert code == 0, err
    [(wrong,)] = search(r"held-out votes that are wrong ([0-9.]+)%", out)
    assert float(wrong) < 12  # 30 by the means of roll calls
    [(steps, rows)] = search(r"^(\d+) steps of this worker, with (\d+) of 1,000,000 rows each$", out)
    needed = int(steps) * int(rows) * 5 * 4  # bytes of the rows; their numbers travel too, to look them up and to push
    for passed in (proxy.to_server, proxy.to_worker):
        assert needed < passed < 3 * needed
    assert int(rows) < 500


def test_the_transformer_learns_more_than_the_frequencies_of_characters(commands):
    size = "--length", "20", "--width", "32", "--blocks", "1"
    form = *size, "--steps", "60", "--report", "30", "--learning-rate", "0.01"
    *reports, text = alone(commands, "pytorch/char_transformer.py", *form, "--start", "Bananas ", "--write", "40")
    bits = [float(one) for (one,) in search(r"([0-9.]+) bits", reports)]
    assert len(bits) == 3
    assert bits[-1] == min(bits) < 4.4  # 4.71 by frequency
    assert text.startswith("Bananas ")
    assert len(text) == 40


#: Waits in the backward pass of its sixth step, with one gradient sent and the other one not, for the servers.
WAITS_IN_BACKWARD = """
    import os, time
    import torch
    import psworker.torch as pst

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = (torch.nn.Parameter(torch.zeros(1000, 700)) for _ in range(2))

    def wait(gradient):
        if session.global_step == 5:
            assert optimizer._early._begun._there == {"last"}
            open("reached", "x").close()
            while not os.path.exists("restarted"):
                time.sleep(0.01)

    with pst.session() as session:
        model = Model()
        optimizer = pst.distribute(torch.optim.SGD(model.parameters(), 0.25), model, early=True)
        model.first.register_hook(wait)  # autograd has the gradient of `last` then
        for _ in range(8):
            begin = model.first.sum()
            (-begin - model.last.sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        print(session.global_step, *{one for part in model.parameters() for one in part.unique().tolist()}, flush=True)
"""


@pytest.mark.parametrize("killed", [[0], [0, 1]], ids=str)
def test_a_server_that_is_killed_in_a_backward_pass_applies_the_step_once(killed, commands):
    script, addresses = commands.script(WAITS_IN_BACKWARD), [free_address() for _ in range(2)]

    def serve(shard):
        options = "--shard", f"{shard}/2", "--checkpoint-dir", "kept", "--journal", "--no-shared-memory"
        return commands.serve("--bind", addresses[shard], *options)

    servers = [serve(shard) for shard in range(2)]
    worker = commands.start("psworker", "run", "--servers", ",".join(addresses), script)
    wait_until((commands.folder / "reached").exists, lambda: worker.err)
    for shard in killed:
        assert servers[shard].end(signal.SIGKILL)[0] == -signal.SIGKILL
        servers[shard] = serve(shard)
    (commands.folder / "restarted").touch()
    assert worker.wait() == 0, worker.err
    assert worker.out == ["8 2.0"], worker.err
    for shard, server in enumerate(servers):
        assert server.end()[0] == 0
        assert "refused" not in "".join(server.err), server.err
        code, out, err = commands.run("psserver", "replay", "kept", "--shard", f"{shard}/2", "--verify")
        assert code == 0, (out, err)
