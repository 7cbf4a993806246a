"""The processes of one chaos run: `psserver serve` for each shard, and workers, each behind its own proxies.

Starts, signals and ends them, and reads the variables at the end. Logs and records are in one folder.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pswire.messages import Choice, Join, Joined, Leave, Pull, Sender
from pswire.status_client import StatusClient
from psworker.transport.grpc_transport import GrpcTransport
from tests.chaos import scheme
from tests.chaos.check import Final
from tests.chaos.proxy import Proxy
from tests.chaos.records import Loss

PROGRAM = Path(__file__).with_name("worker.py")
BOUND = 30.0  # seconds for a server to start, to answer and to end
POLL = 0.05

#: Endings caused by a fault.
KILLED, TERMINATED, FAILED, SUPERSEDED = "killed", "terminated", "failed", "superseded"


def environment() -> dict[str, str]:
    """The environment of this process, without settings of workers and servers."""
    ours = ("PSWORKER_", "PSSERVER_")
    base = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return base | {"PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass
class WorkerProcess:
    """One process of a worker.

    Attributes:
        column: its number, from 1 (`scheme`).
        name: of the worker; several processes may have the same.
        ended_by: the fault that ended it; "": none.
        faults: injected into it, with times (monotonic).
        code: its exit code; None while it runs.
    """

    column: int
    name: str
    folder: Path
    proxies: list[Proxy]
    popen: subprocess.Popen[bytes]
    ended_by: str = ""
    faults: list[tuple[float, str]] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        return self.popen.poll()

    def note(self, fault: str) -> None:
        self.faults.append((time.monotonic(), fault))

    def facts(self) -> dict[str, Any]:
        fields = ("column", "name", "ended_by", "code", "faults")
        return {name: getattr(self, name) for name in fields}

    @property
    def has_begun(self) -> bool:
        return self.records.exists()

    @property
    def records(self) -> Path:
        return self.folder / f"worker-{self.column:03}.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / f"worker-{self.column:03}.log"


class Server:
    """One shard."""

    def __init__(self, folder: Path, shard: int, shards: int, flags: list[str]) -> None:
        self.log = folder / f"server-{shard}.log"
        command = ["psserver", "serve", "--bind", "127.0.0.1:0", "--shard", f"{shard}/{shards}", "--log-level", "info"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", *command, *flags],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.address = ""

    async def listen(self) -> None:
        end = time.monotonic() + BOUND
        while not (found := re.search(r"listening on (\S+)", self.log.read_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"a server does not start: {self.log.read_text()}")
            await asyncio.sleep(POLL)
        self.address = found[1]

    def losses(self, shard: int) -> list[Loss]:
        losses = []
        since = time.time() - time.monotonic()
        for moment, fraction, name in re.findall(
            r"^(\S+ \S+),(\d+) .*'(\S+)' was silent for \S+ s: its", self.log.read_text(), re.M
        ):
            at = time.mktime(time.strptime(moment, "%Y-%m-%d %H:%M:%S")) + int(fraction) / 1000
            losses.append(Loss(name, shard, at - since))
        return losses


class Cluster:
    """All processes of one run; always call `close` at the end."""

    def __init__(self, folder: Path, shards: int, flags: list[str], program: dict[str, Any], timeout: float) -> None:
        self.folder, self.layout = folder, scheme.Layout(shards)
        self.workers: list[WorkerProcess] = []
        self._flags, self._timeout = flags, timeout
        self._program = [text for name, value in program.items() for text in (f"--{name}", str(value))]
        self.servers: list[Server] = []

    async def open(self) -> None:
        shards = self.layout.shards
        self.servers = [Server(self.folder, shard, shards, self._flags) for shard in range(shards)]
        for server in self.servers:
            await server.listen()

    async def start(self, name: str, *, shared_memory: bool) -> WorkerProcess:
        proxies = [Proxy(server.address) for server in self.servers]
        for proxy in proxies:
            await proxy.open()
        column = len(self.workers) + 1
        if column >= scheme.COLUMNS:
            raise RuntimeError(f"a run has at most {scheme.COLUMNS - 1} worker processes")
        tensor_transport = "--shared-memory" if shared_memory else "--no-shared-memory"
        addresses = ",".join(proxy.address for proxy in proxies)
        run = ["--servers", addresses, "--name", name, "--threads", "1", tensor_transport]
        run += ["--timeout", str(self._timeout)]
        worker = WorkerProcess(column, name, self.folder, proxies, None)  # type: ignore[arg-type]
        mine = ["--records", str(worker.records), "--column", str(column)]
        with worker.log.open("wb") as log:
            worker.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "psworker", "run", *run, str(PROGRAM), *mine, *self._program],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    def running(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.code is None]

    async def kill_workers(self) -> None:
        """Kills the workers that have not ended, and lets servers receive their last data."""
        running = self.running()
        for worker in running:
            worker.ended_by = KILLED
            worker.popen.send_signal(signal.SIGKILL)
            worker.popen.wait()
        if running:
            await asyncio.sleep(1.0)

    def half_pushes(self) -> int:
        """The half-applied pushes counted by the servers once no worker lives any more."""
        end = time.monotonic() + BOUND
        with StatusClient([server.address for server in self.servers]) as client:
            while time.monotonic() < end:
                job = client.ask(BOUND)
                states = [worker.state for answer in job.answers if answer.report for worker in answer.report.workers]
                if "live" not in states:
                    return job.half_pushes
                time.sleep(POLL)
        raise RuntimeError("a server still reports an ended worker as live")

    def read(self) -> list[Final]:
        with closing(GrpcTransport([server.address for server in self.servers], shared_memory=False)) as transport:
            return self._read(transport)

    def _read(self, transport: GrpcTransport) -> list[Final]:
        finals = []
        incarnation = 0
        for shard, _ in enumerate(self.servers):
            joined = transport.call(shard, Join("auditor", incarnation, shard, len(self.servers)), BOUND).result()
            assert isinstance(joined, Joined)
            incarnation = joined.incarnation
            sender = Sender("auditor", incarnation)
            rows = np.arange(scheme.COLUMNS)  # of this shard's part
            names = (self.layout.first[shard], self.layout.second[shard])
            choices = (Choice("dense", np.array([0])), Choice("table", rows))
            answer: Any = transport.call(shard, Pull(sender, names, choices), BOUND).result()
            transport.call(shard, Leave(sender, True), BOUND).result()
            first, second, dense, table = [np.asarray(value.array) for value in answer.values]
            columns = dense[0, : scheme.COLUMNS].tolist()
            version = answer.values[0].version
            finals.append(Final(first.tolist(), second.tolist(), columns, table.tolist(), version))
        return finals

    async def close(self) -> None:
        for worker in self.running():
            worker.popen.send_signal(signal.SIGKILL)
            worker.popen.wait()
        for worker in self.workers:
            for proxy in worker.proxies:
                await proxy.close()
        for server in self.servers:
            server.process.send_signal(signal.SIGCONT)
            server.process.send_signal(signal.SIGTERM)
        for server in self.servers:
            try:
                server.process.wait(BOUND)
            except subprocess.TimeoutExpired:
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()
