"""A minimization by real processes, and what its printed points must be."""

import json
from functools import cached_property
from pathlib import Path

import numpy as np

from tests.cluster.minimize_data import loss_and_gradient
from tests.support.commands import BOUND, Command, free_address, wait_until

PROGRAM = Path(__file__).with_name("minimize_program.py")
LEASE = 2.0
SHARDS = 2


class MinimizeJob:
    """Two servers, and workers that `start` starts one after the other: the first one is the chief.

    Args:
        holds: by worker, the count of its portions at which it waits until `go`.
        raises: by worker, the count of its portions at which its loss raises an error.
        stop_at: the iteration at which the chief stops the job.
        serve: options of the servers.
    """

    def __init__(self, commands, *, holds=(), raises=(), stop_at=None, serve=(), portion=150):
        self.commands, self.folder = commands, commands.folder / "records"
        (self.folder / "weights").mkdir(parents=True)
        self.settings = {"folder": str(self.folder), "holds": dict(holds), "raises": dict(raises)}
        self.settings |= {"stop_at": stop_at, "portion": portion}
        self.addresses = [free_address() for _ in range(SHARDS)]
        self._serve = ["--lease", str(LEASE), "--log-level", "info", *serve]
        self.servers: list[Command] = []
        self.workers: dict[str, Command] = {}

    def begin(self, *workers):
        """Start the servers and these workers, which begin to compute when all have joined."""
        for shard in range(SHARDS):
            self.servers.append(self.serve(shard))
        for server in self.servers:
            server.wait_for("listening on")
        for worker in workers:
            self.start(worker)
        (self.folder / "begun").touch()

    def serve(self, shard):
        """A server."""
        bind = ["--bind", self.addresses[shard], "--shard", f"{shard}/{SHARDS}"]
        return self.commands.start("psserver", "serve", *bind, *self._serve)

    def launch(self, worker):
        """Start a worker."""
        run = ["psworker", "run", "--servers", ",".join(self.addresses), "--name", worker, "--timeout", str(BOUND)]
        run += ["--job", "minimize", "--threads", "1", "--log-level", "info", str(PROGRAM), json.dumps(self.settings)]
        self.workers[worker] = self.commands.start(*run)

    def start(self, worker):
        """Start a worker, and wait until it has joined."""
        self.launch(worker)
        self.workers[worker].wait_for("joined")

    def held(self, *workers):
        """Wait until these workers are where they are held."""
        wait_until(
            lambda: all((self.folder / f"{one}.held").exists() for one in workers),
            lambda: f"{workers} were not held: {self.lines()}",
        )

    def go(self, *workers):
        """Let them go on."""
        for worker in workers:
            (self.folder / f"{worker}.go").touch()

    def restart(self, shard, signal):
        """End a server and start it again."""
        self.servers[shard].end(signal)
        self.servers[shard] = self.serve(shard)
        self.servers[shard].wait_for("listening on")

    def lines(self):
        """The last lines of each process."""
        processes = {**self.workers, **{f"shard {n}": one for n, one in enumerate(self.servers)}}
        return {name: [*process.out[-4:], *process.err[-8:]] for name, process in processes.items()}

    def finish(self, *workers):
        """Wait until these workers have ended well; stop the servers. The minimum, which all of them have printed."""
        for worker in workers:
            self.wait_for_end(worker)
            assert self.workers[worker].wait() == 0, self.lines()
        found = [line for worker in workers for line in self.workers[worker].out if line.startswith("minimum ")]
        for server in self.servers:
            assert server.end()[0] == 0, self.lines()
        assert len(found) == len(workers), self.lines()
        assert len(set(found)) == 1, found
        return self.minimum(found[0])

    @staticmethod
    def minimum(line):
        """The minimum of a line."""
        return json.loads(line.removeprefix("minimum "))

    def wait_for_end(self, worker):
        """Wait until a worker has ended; on the way it may wait for leases to end, and for servers."""
        wait_until(lambda: self.workers[worker].popen.poll() is not None, self.lines)

    def points(self, worker):
        """The accepted points that a worker has printed."""
        lines = [line.removeprefix("point ") for line in self.workers[worker].out if line.startswith("point ")]
        return [json.loads(line) for line in lines]

    @cached_property
    def _evaluations(self):
        """The losses and largest gradients of numpy at all weights with which workers have computed."""
        found = []
        for path in (self.folder / "weights").iterdir():
            with np.load(path) as weights:
                found.append(loss_and_gradient(**weights))
        return np.array(found)

    def check_point(self, point):
        """Its loss and gradient are those of all examples, each once, at weights with which workers have computed."""
        losses, gradients = self._evaluations.T
        same = np.isclose(losses, point["loss"], rtol=1e-12, atol=0)
        assert same.any(), point
        assert np.isclose(gradients[same], point["gradient"], rtol=1e-9, atol=1e-13).any(), point

    def check(self, found, *workers):
        """All points of these workers, and the minimum, which is that of a run in one process without faults."""
        for point in [point for worker in workers for point in self.points(worker)]:
            self.check_point(point)
        self.check_point(found)
        assert found["converged"], found
        assert found["gradient"] <= 1e-9
