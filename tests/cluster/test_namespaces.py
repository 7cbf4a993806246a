"""Workers in other namespaces than their server, as in containers, get shared memory through a common /dev/shm."""

import shutil
import subprocess
import sys
import tempfile

import pytest

pytestmark = pytest.mark.slow

WORKER = """
import sys
from contextlib import closing
from pswire.messages import Join
from psworker.transport.network_transport import NetworkTransport
with closing(NetworkTransport([sys.argv[1]])) as transport:
    transport.call(0, Join(worker="contained"), 30).result()
    print(transport.tensor_transport(0))
"""

PROCESSES_AND_NETWORK = ["unshare", "--net", "--pid", "--fork"]
FILES = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]


def contained(namespaces):
    """The namespaces, if this process may make them."""
    if shutil.which("unshare") is None or subprocess.run([*namespaces, "true"], capture_output=True).returncode:
        pytest.skip("this process may make no namespaces")
    return namespaces


@pytest.mark.parametrize(
    ("namespaces", "tensor_transport"), [(PROCESSES_AND_NETWORK, "shared memory"), (FILES, "gRPC")]
)
def test_a_worker_in_other_namespaces_shares_memory_if_it_sees_the_folder_of_the_socket(
    namespaces, tensor_transport, commands
):
    command = [*contained(namespaces), sys.executable, "-c", WORKER]
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        address = f"unix:{folder}/server"
        server = commands.serve("--bind", address)
        server.wait_for("listening on")
        worker = subprocess.run([*command, address], capture_output=True, text=True, timeout=60, check=True)
        assert worker.stdout.strip() == tensor_transport
        assert server.end()[0] == 0
