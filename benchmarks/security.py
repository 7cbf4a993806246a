"""The cost of tokens and TLS: push and pull of 31 KB and of 13.1 MB, in all ways that tensors have, in turns.

    python benchmarks/security.py

One server process for each of: nothing, a token, TLS, both. This process is a worker of all of them, and takes turns,
so that the load of the machine is the same for each. With tokens, a stream is checked when it opens and not for each
push.
"""

import statistics
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import _report
import numpy as np

from psserver.certificates import make_certificates
from pswire import optimizers
from pswire.messages import Declaration
from pswire.security.credentials import Credentials
from pswire.security.private_files import write_private_file
from pswire.security.token_files import Role, add_token
from pswire.tensors.values import TensorSpec
from psworker.client.client import Client
from psworker.transport.network_transport import NetworkTransport
from psworker.versions import VersionedArray

#: By name: the shape of the variable, pushes in a turn, and turns.
WORKS = _report.size({"31KB": ((784, 10), 200, 21), "13MB": ((3_274_634,), 4, 9)}, {"31KB": ((784, 10), 2, 1)})


def variants(folder: Path) -> dict[str, tuple[tuple[str, ...], Credentials]]:
    """Options of a server and credentials of its worker, by the name of the system."""
    make_certificates(folder, (), 1)
    token = add_token(folder / "tokens", "worker", Role.WORKER)
    write_private_file(folder / "token", token.encode())
    ca, cert, key, tokens, file = (
        str(folder / name) for name in ("ca.crt", "server.crt", "server.key", "tokens", "token")
    )
    tls, wants = ("--tls-cert", cert, "--tls-key", key), ("--token-file", tokens)
    return {
        "plain": ((), Credentials()),
        "token": (wants, Credentials(token_file=file)),
        "tls": (tls, Credentials(ca)),
        "tls-and-token": ((*tls, *wants), Credentials(ca, token_file=file)),
    }


class Worker:
    """A worker of one server, whose variable has this shape."""

    def __init__(self, client: Client, shape: tuple[int, ...]) -> None:
        client.join()
        zeros = np.zeros(shape, np.float32)
        declaration = Declaration(TensorSpec.of("W", zeros), zeros, optimizers.GradientDescent(1e-3))
        self._client, self._wholes = client, client.register([declaration])
        self._gradient = np.full(shape, 1e-3, np.float32)

    def push(self, count: int) -> float:
        """Microseconds of a push and pull, over `count` of them."""
        began = time.perf_counter()
        for _ in range(count):
            gradients = [VersionedArray(one.name, one.read, self._gradient) for one in self._wholes]
            self._wholes = list(self._client.push(gradients, pull=["W"]).result().values)
        return (time.perf_counter() - began) / count * 1e6


def measure(work: str, name: str, systems: dict[str, tuple[tuple[str, ...], Credentials]]) -> None:
    """Prints the medians of all systems, and the ratio to the first of the fastest turns, which load disturbs least."""
    shape, count, turns = WORKS[work]
    with ExitStack() as stack:
        workers = {}
        for system, (options, credentials) in systems.items():
            address = stack.enter_context(_report.server(*options))
            transport = NetworkTransport([address], credentials, **_report.WAYS[name]._asdict())
            workers[system] = Worker(stack.enter_context(closing(Client(transport, "w0", 60.0))), shape)
        for worker in workers.values():
            worker.push(count)
        seen = {system: [] for system in workers}
        for turn in range(turns):
            order = list(workers.items())
            for system, worker in order[turn % len(order) :] + order[: turn % len(order)]:
                seen[system].append(worker.push(count))
    least = min(seen["plain"])
    for system, found in seen.items():
        ratio = f"(fastest turn {min(found):.0f} us, {min(found) / least:.3f} of plain; {turns} turns of {count})"
        print(f"RESULT {work}-{name} paramserver-{system} {statistics.median(found):.0f} us {ratio}", flush=True)


def main() -> None:
    """All works, in all ways."""
    _report.arguments(__doc__.splitlines()[0]).parse_args()
    _report.describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        systems = variants(Path(folder))
        for work in WORKS:
            for name in _report.size([*_report.WAYS], ["direct"]):
                measure(work, name, systems)


if __name__ == "__main__":
    main()
