"""The worker in JavaScript of examples/node: alone over connections that are cut, and beside a worker in Python."""

import json
import os
import re
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.security.token_files import Role
from pswire.specs.consistency import Bounded
from psworker.data.epoch_order import epoch_order
from tests.support.commands import BOUND, wait_until
from tests.support.cutting_proxy import CuttingProxy
from tests.support.servers import Certificates, Client, token_credentials

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "examples" / "node"
MISSING = [program for program in ("node", "npm") if shutil.which(program) is None]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not found")]

#: Of examples/softmax_mnist.py, in its first epoch.
KNOWN_COST = 1.1843


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The folder of the packages that the worker needs, of the versions and with the checksums of its lock file."""
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NODE / name, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "node_modules"


@contextmanager
def node(packages, commands, *arguments):
    """A process of the worker, which is killed at the end if it still runs."""
    command = ["node", str(NODE / "worker.js"), *arguments, "--epochs", "1"]
    environment = commands.environment(NODE_PATH=str(packages))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process):
    """The lines of a worker, which must end well."""
    out, err = process.communicate(timeout=BOUND)
    assert process.returncode == 0, err
    return out.splitlines(), err.splitlines()


def costs(lines):
    found = [re.fullmatch(r"epoch +1: mean cost ([0-9.]+) over 55,?000 examples", line) for line in lines]
    return [float(one[1]) for one in found if one]


def test_it_retries_with_the_same_sequence_number_after_cuts_over_tls_with_a_token_and_reaches_the_known_cost(
    packages, commands
):
    folder, cuts = commands.folder, [400_000, 3_000_000, 6_000_000, 12_000_000]
    certificates = Certificates(folder / "certificates")
    tokens, credentials = token_credentials(folder)
    config = ServerConfig(token_file=tokens, **certificates.server)
    with ServerThread(config) as server, CuttingProxy(server.address, cuts) as proxy:
        ca, token = certificates.folder / "ca.crt", credentials[Role.WORKER].token_file
        secure = "--tls-ca", str(ca), "--token-file", str(token)
        with node(packages, commands, "--servers", proxy.address, *secure) as worker:
            out, err = ended(worker)
        observer = certificates.client(token_file=credentials[Role.OBSERVER].token_file)
        status = Client(server.address, observer).status()
    assert costs(out) == [pytest.approx(KNOWN_COST, abs=0.0005)]
    assert sum(" again: " in line for line in err) >= len(cuts), err
    repeated = int(re.fullmatch(r".*: (\d+) pushes applied, (\d+) answered again, 0 dropped", out[-1])[2])
    assert (status.global_step, status.queues[0].done) == (550, 55_000), "each push was applied once"
    assert status.repeated >= repeated >= 1
    assert [one.state for one in status.workers] == ["left"]


@pytest.mark.parametrize("consistency", [None, Bounded(4)], ids=["async", "bounded"])
def test_it_trains_beside_a_worker_in_python_on_two_shards_each_example_once(packages, commands, consistency):
    given = {} if consistency is None else {"consistency": consistency}
    configs = [ServerConfig(shard=shard, shards=2, **given) for shard in (0, 1)]
    with ServerThread(configs[0]) as first, ServerThread(configs[1]) as second:
        servers = f"{first.address},{second.address}"
        program = str(ROOT / "examples" / "softmax_mnist.py")
        with node(packages, commands, "--servers", servers, "--name", "js") as worker:
            python = commands.start("psworker", "run", "--servers", servers, "--name", "py", program, "--epochs", "1")
            out, _ = ended(worker)
            assert python.wait() == 0, python.err
        reports = [Client(address).status() for address in (first.address, second.address)]
    assert [report.global_step for report in reports] == [550, 550]
    assert reports[0].queues[0].done == 55_000
    steps = {one.name: one.steps for one in reports[0].workers}
    assert (sum(steps.values()), min(steps.values()) > 0, len(steps)) == (550, True, 2), steps
    assert costs(out + python.out) == [pytest.approx(KNOWN_COST, abs=0.05)]


def test_a_worker_whose_lease_has_ended_joins_again_and_leaves_its_block_to_others(packages, commands):
    with ServerThread(ServerConfig(lease=2.0)) as server:
        observer = Client(server.address)
        with node(packages, commands, "--servers", server.address) as worker:
            wait_until(lambda: observer.status().global_step > 20)
            worker.send_signal(signal.SIGSTOP)
            wait_until(lambda: observer.status().workers[0].state == "lost")
            worker.send_signal(signal.SIGCONT)
            out, err = ended(worker)
        status = observer.status()
    assert any("again: NotJoined" in line for line in err), err
    assert (status.queues[0].done, status.workers[0].state) == (55_000, "left")
    assert 550 <= status.global_step <= 550 + 16, "at most its block was trained twice"
    assert costs(out) == [pytest.approx(KNOWN_COST, abs=0.05)]


def test_it_visits_rows_in_the_order_of_workers_in_python():
    cases = [(20, 0, 1), (20, 123_456_789_012, 7), (7, 5, 2**32 + 3), (1000, 2**70, 2)]
    script = "const { epochOrder } = require(process.argv[1]); const cases = JSON.parse(process.argv[2]);"
    script += "console.log(JSON.stringify(cases.map(([n, s, e]) => [...epochOrder(n, BigInt(s), e)])))"
    command = ["node", "-e", script, str(NODE / "epoch_order.js"), json.dumps([[n, str(s), e] for n, s, e in cases])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=True, env=dict(os.environ))
    assert json.loads(done.stdout) == [epoch_order(*case).tolist() for case in cases]


def test_a_refusal_ends_it_with_the_servers_message_and_others_need_not_wait_for_its_lease(packages, commands):
    with ServerThread(ServerConfig()) as server:
        with node(packages, commands, "--servers", f"{server.address},{server.address}") as worker:
            out, err = worker.communicate(timeout=BOUND)
        status = Client(server.address).status()
    assert (worker.returncode, out) == (1, "")
    assert re.search(r"^\S+: Join to shard 0: WrongShard: .*", err, re.MULTILINE), err
    assert [one for one in status.workers if one.state == "live"] == []
