"""Workers of numpy, PyTorch and JAX that train one model, beside a cut connection and a killed worker."""

import re
import signal

import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from tests.cluster.test_examples import EXAMPLES
from tests.support.commands import BOUND, free_port, wait_until
from tests.support.cutting_proxy import CuttingProxy
from tests.support.servers import Client
from tests.support.transports import streams

pytestmark = pytest.mark.slow

for library in ("torch", "jax"):
    pytest.importorskip(library, reason=f"{library} is not installed")

#: By their numbers the program chooses their libraries.
NUMPY, PYTORCH, JAX, KILLED = "worker-0", "worker-1", "worker-2", "worker-5"
BATCH, PUSH_BYTES = 50, 13_000_000


@pytest.mark.parametrize(
    ("steps", "accuracy", "seconds"),
    [
        pytest.param(160, 0.85, BOUND, id="short"),
        pytest.param(2000, 0.98, 2400, id="whole", marks=[pytest.mark.exhaustive, pytest.mark.timeout(3000)]),
    ],
)
def test_three_libraries_train_one_model_each_example_once_through_a_cut_and_a_kill(steps, accuracy, seconds, commands):
    def start(name, address):
        run = "psworker", "run", "--servers", address, "--threads", "1", "--no-shared-memory", "--name", name
        reports = "--report", str(steps), "--test-images", "1000" if steps < 2000 else "10000"
        form = "--steps", str(steps), "--learning-rate", "0.0005", *reports
        return commands.start(*run, str(EXAMPLES / "mixed" / "deep_mnist.py"), *form)

    cuts = [7 * PUSH_BYTES, 11 * PUSH_BYTES]
    port = free_port("127.0.0.1")
    config = ServerConfig(lease=5.0, direct_port=port)
    with ServerThread(config) as server, CuttingProxy(server.address, cuts, direct_port=port) as proxy:
        observer = Client(server.address)

        known = lambda: {one.name: one for one in observer.status().workers}
        killed = start(KILLED, server.address)
        wait_until(lambda: KILLED in known() and known()[KILLED].steps >= 5, known)
        killed.end(signal.SIGKILL)
        wait_until(
            lambda: known()[KILLED].state == "lost", known
        )  # or it would be the chief, which reports, to the end
        workers = [start(PYTORCH, proxy.address), start(JAX, server.address)]
        wait_until(lambda: {PYTORCH, JAX} <= known().keys(), known)  # numpy is there much earlier
        workers.append(start(NUMPY, server.address))
        assert [worker.wait(seconds) for worker in workers] == [0, 0, 0], [worker.err for worker in workers]
        status = observer.status()
    of = {one.name: one.steps for one in status.workers}
    assert min(of[name] for name in (NUMPY, PYTORCH, JAX)) >= 1, of
    assert [one.out[0] for one in workers] == [
        f"trains with examples/{path}" for path in ("pytorch/deep_mnist.py", "jax/deep_mnist.py", "deep_mnist.py")
    ]
    assert steps <= status.global_step == sum(of.values()) <= steps + 3
    assert status.queues[0].done == BATCH * status.global_step, "no example was trained twice or left out"
    assert proxy.cut == [streams()] * len(cuts)
    assert status.repeated >= len(cuts), "the answers that were cut were asked for again"
    found = [re.search(r"step +([\d,]+): .* test accuracy ([0-9.]+)", line) for one in workers for line in one.out]
    assert [float(one[2]) > accuracy for one in found if one] == [True], [worker.out for worker in workers]
