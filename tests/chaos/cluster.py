"""The processes of one chaos run: `psserver serve` for each shard, and workers, each behind its own proxies.

Starts, signals and ends them, and reads the variables at the end. Logs and records are in one folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from pswire.messages import Choice, Join, Leave, Pull, Sender
from pswire.status_client import StatusClient
from psworker.transport.grpc_transport import GrpcTransport
from tests.chaos import scheme
from tests.chaos.proxy import Proxy
from tests.chaos.records import Final, History, Loss

PROGRAM = Path(__file__).with_name("worker.py")
BOUND = 30.0  # seconds for a server to start, to answer and to end
POLL = 0.05


def launch(log: Path, *command: str) -> subprocess.Popen[bytes]:
    """Starts `python -m COMMAND`, without settings of workers and servers in this process's environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PSWORKER_", "PSSERVER_"))}
    environment |= {"PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Worker(History):
    """A process of a worker with its proxies, and its history."""

    def __init__(self, column: int, name: str, folder: Path, proxies: list[Proxy]) -> None:
        super().__init__(column, name)
        self.proxies = proxies
        self.log, self.records = (folder / f"worker-{column:03}.{end}" for end in ("log", "jsonl"))
        self.popen: subprocess.Popen[bytes]

    def runs(self) -> bool:
        self.code = self.popen.poll()
        return self.code is None

    def kill(self) -> None:
        self.popen.kill()
        self.code = self.popen.wait()

    def read(self) -> None:
        """Reads its records and the last line of its output. A worker killed early has no records."""
        self.error = next(filter(None, reversed(self.log.read_text(errors="replace").split("\n"))), "")
        for line in self.records.read_text().splitlines() if self.records.exists() else ():
            self.add(**json.loads(line))


class Server:
    """One shard."""

    def __init__(self, log: Path, *flags: str) -> None:
        self.log, self.address = log, ""
        self.popen = launch(log, "psserver", "serve", "--bind", "127.0.0.1:0", "--log-level", "info", *flags)

    async def listen(self) -> None:
        end = time.monotonic() + BOUND
        while not (found := re.search(r"listening on (\S+)", self.log.read_text())):
            if self.popen.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"a server does not start: {self.log.read_text()}")
            await asyncio.sleep(POLL)
        self.address = found[1]

    def losses(self, shard: int) -> list[Loss]:
        since = time.time() - time.monotonic()
        found = re.findall(r"^(\S+ \S+) .*'(\S+)' was silent for \S+ s: its", self.log.read_text(), re.MULTILINE)
        return [Loss(name, shard, datetime.fromisoformat(at).timestamp() - since) for at, name in found]


class Cluster:
    """All processes of one run; always call `close` at the end.

    Args:
        flags: of the servers.
        timeout: of calls of a worker, seconds.
        settings: of the worker program.
    """

    def __init__(self, folder: Path, shards: int, flags: list[str], timeout: float, settings: dict[str, Any]) -> None:
        self.workers: list[Worker] = []
        self._folder, self._timeout, self._settings = folder, timeout, {"shards": shards, **settings}
        self.servers = [
            Server(folder / f"server-{shard}.log", "--shard", f"{shard}/{shards}", *flags) for shard in range(shards)
        ]

    async def start(self, name: str, *, shared_memory: bool) -> Worker:
        proxies = [Proxy(server.address) for server in self.servers]
        for proxy in proxies:
            await proxy.open()
        column = len(self.workers) + 1
        if column >= scheme.COLUMNS:
            raise RuntimeError(f"a run has at most {scheme.COLUMNS - 1} worker processes")
        worker = Worker(column, name, self._folder, proxies)
        settings = json.dumps({**self._settings, "records": str(worker.records), "column": column})
        run = ["--servers", ",".join(proxy.address for proxy in proxies), "--name", name, "--threads", "1"]
        run += ["--timeout", str(self._timeout), "--shared-memory" if shared_memory else "--no-shared-memory"]
        worker.popen = launch(worker.log, "psworker", "run", *run, str(PROGRAM), settings)
        self.workers.append(worker)
        return worker

    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.runs()]

    def finals(self) -> tuple[list[Final], int]:
        """Kills the workers that have not ended; the final values, and the half-applied pushes that servers report."""
        if running := self.running():
            for worker in running:
                worker.ended_by = "killed at the end"
                worker.kill()
            time.sleep(1.0)  # servers receive their last data
        addresses = [server.address for server in self.servers]
        with closing(GrpcTransport(addresses, shared_memory=False)) as transport:
            finals = self._read(transport)
        end = time.monotonic() + BOUND
        with StatusClient(addresses) as client:
            while time.monotonic() < end:
                job = client.ask(BOUND)
                workers = [worker for answer in job.answers if answer.report for worker in answer.report.workers]
                if all(worker.state != "live" for worker in workers):
                    return finals, job.half_pushes
                time.sleep(POLL)
        raise RuntimeError("a server still reports an ended worker as live")

    def _read(self, transport: GrpcTransport) -> list[Final]:
        finals = []
        incarnation = 0
        choices = (Choice("dense", np.array([0])), Choice("table", np.arange(scheme.COLUMNS)))  # rows of a shard's part
        for shard, names in enumerate(zip(*scheme.Layout(len(self.servers)).small, strict=True)):
            join = Join("auditor", incarnation, shard, len(self.servers))
            incarnation = transport.call(shard, join, BOUND).result().incarnation
            sender = Sender("auditor", incarnation)
            values = transport.call(shard, Pull(sender, names, choices), BOUND).result().values
            transport.call(shard, Leave(sender, True), BOUND).result()
            first, second, dense, table = (np.asarray(value.array).tolist() for value in values)
            finals.append(Final(first, second, dense[0][: scheme.COLUMNS], table, values[0].version))
        return finals

    def close(self) -> None:
        for worker in self.running():
            worker.kill()
        for worker in self.workers:
            for proxy in worker.proxies:
                proxy.close()
        for number in (signal.SIGCONT, signal.SIGTERM):
            for server in self.servers:
                server.popen.send_signal(number)
        for server in self.servers:
            try:
                server.popen.wait(BOUND)
            except subprocess.TimeoutExpired:
                server.popen.kill()
                server.popen.wait()
