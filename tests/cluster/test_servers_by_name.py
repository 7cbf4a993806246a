"""Commands that find servers by names: in a network of their own, where a name server answers for all of it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces")]

ROOT = Path(__file__).resolve().parents[2]
NETWORK = ["unshare", "--net", "--mount", "sh", "-c"]
SETTINGS = 'ip link set lo up && mount --bind "$0" /etc/resolv.conf && exec "$@"'

#: Runs the job in the network: name server, two servers, a worker; a server is killed and comes back elsewhere.
JOB = """
import json, signal, sys
from pathlib import Path
from tests.cluster.conftest import Commands
from tests.support.commands import BOUND

folder, name = Path(sys.argv[1]), sys.argv[2]
commands = Commands(folder, folder)
records = folder / "records.json"

def publish(*hosts):
    service = [f"0 0 7070 {host.replace('.', '-')}.hosts.test." for host in hosts]
    each = {f"{host.replace('.', '-')}.hosts.test": {"A": [host]} for host in hosts}
    replaced = records.with_suffix(".new")
    replaced.write_text(json.dumps({"ps.test": {"A": hosts}, "_psserver._tcp.ps.test": {"SRV": service}} | each))
    replaced.replace(records)

def serve(shard, host):
    storage = "--checkpoint-dir", str(folder / "state"), "--journal"
    return commands.serve("--bind", f"{host}:7070", "--shard", f"{shard}/2", *storage)

publish("127.0.1.1", "127.0.1.2")
dns = commands.python("-m", "tests.support.name_server", "127.0.0.1", "53", str(records), PYTHONPATH=sys.argv[3])
dns.wait_for("answers")
servers = [serve(0, "127.0.1.1"), serve(1, "127.0.1.2")]
worker = commands.start("psworker", "run", "--servers", name, "--timeout", str(BOUND), "train.py")
worker.wait_for("step 20")
servers[1].end(signal.SIGKILL)
(folder / "killed").touch()
servers[1] = serve(1, "127.0.1.3")
publish("127.0.1.3", "127.0.1.1")
code = worker.wait()
status = commands.run("psserver", "status", name, "--json")
for process in (*servers, dns):
    process.end()
print(json.dumps({"code": code, "out": worker.out, "err": worker.err, "status": status}))
"""

TRAIN = """
import os, time
import numpy as np
import psworker as ps
from psworker import ops

a, b = [ps.Variable(np.zeros(5_000), name=name) for name in "ab"]
with ps.session() as session:
    for step in range(1, 61):
        ps.GradientDescent(1.0).minimize(ops.sum(a) + ops.sum(b))
        if step % 20 == 0:
            print("step", step, flush=True)
        while step == 20 and not os.path.exists("killed"):
            time.sleep(0.01)
    print("values", {float(value) for variable in (a, b) for value in variable.value})
"""


@pytest.mark.parametrize("name", ["dns:///ps.test", "dns+srv://ps.test"])
def test_a_worker_finds_its_servers_in_the_dns_and_one_that_was_killed_at_another_address(name, tmp_path):
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1\n")
    inside = [*NETWORK, SETTINGS, str(resolver)]
    if shutil.which("ip") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("this process may make no namespaces, or there is no command ip (Debian: iproute2)")
    (tmp_path / "train.py").write_text(TRAIN)
    command = [*inside, sys.executable, "-c", JOB, str(tmp_path), name, str(ROOT)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["code"] == 0, result["err"]
    assert result["out"] == ["step 20", "step 40", "step 60", "values {-60.0}"]
    code, out, err = result["status"]
    assert (code, err) == (0, [])
    hosts = [shard["address"] for shard in json.loads("\n".join(out))["shards"]]
    expected = ["127.0.1.1:7070", "127.0.1.3:7070"]
    assert hosts == (expected if name.startswith("dns:///") else [f"127-0-1-{n}.hosts.test:7070" for n in (1, 3)])
