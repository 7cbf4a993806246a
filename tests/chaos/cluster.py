"""The processes of one chaos run: `psserver serve` for each shard, and workers, each behind its own proxies.

Starts, signals and ends them, and reads the variables at the end. Logs and records are in one folder.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import socket
import struct
import subprocess
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from pswire.messages import Choice, Join, Leave, Pull, Sender
from pswire.status_client import StatusClient
from psworker.transport.grpc_transport import GrpcTransport
from tests.chaos import scheme
from tests.chaos.check import Final, History, Loss
from tests.commands import BOUND, Command, environment


class Proxy:
    """A TCP proxy between one worker process and one server that can cut, reset, stall and refuse connections."""

    def __init__(self, target: str) -> None:
        self._target = target.rpartition(":")[::2]
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._left: float = math.inf  # bytes to forward before all connections are cut

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    def close(self) -> None:
        self._server.close()
        self._passing.set()
        self.refuse()

    def cut(self, after: int = 0) -> None:
        """Closes all connections in order, after this many more bytes in either direction."""
        self._left = after or math.inf
        for writer in () if after else self._writers:
            writer.close()

    def reset(self) -> None:
        for writer in self._writers:
            with suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    def stall(self) -> None:
        self._passing.clear()

    def refuse(self) -> None:
        """Resets all connections, and new ones at once, until `resume`."""
        self._refusing = True
        self.reset()

    def resume(self) -> None:
        self._refusing = False
        self._passing.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        pair = {writer}
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            pair.add(far_writer)
            self._writers |= pair
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        self._writers -= pair
        for one in pair:
            one.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, RuntimeError):
            while data := await reader.read(1 << 16):
                await self._passing.wait()
                allowed = min(len(data), self._left)
                self._left -= allowed
                writer.write(data[:allowed])
                await writer.drain()
                if not self._left:
                    self.cut()
        writer.close()


def launch(path: Path, *command: str) -> Command:
    return Command(path, "-P", "-m", *command, env=environment(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"))


@dataclass(kw_only=True)
class Worker(History):
    """A process of a worker with its proxies, its file of records, and its history."""

    command: Command
    proxies: list[Proxy]
    records: Path

    def runs(self) -> bool:
        self.code = self.command.popen.poll()
        return self.code is None

    def read(self) -> None:
        """Reads its records and the last line of its output. A worker killed early has no records."""
        self.error = (self.command.err or [""])[-1]
        for line in self.records.read_text().splitlines() if self.records.exists() else ():
            self.add(**json.loads(line))


class Cluster:
    """All processes of one run; always call `close` at the end.

    `flags` are those of the servers, `timeout` that of calls of a worker in seconds, `settings` of the worker program.
    """

    def __init__(self, folder: Path, shards: int, flags: list[str], timeout: float, settings: dict[str, Any]) -> None:
        self.workers: list[Worker] = []
        self._folder, self._timeout, self._settings = folder, str(timeout), {"shards": shards, **settings}
        serve = "psserver", "serve", "--bind", "127.0.0.1:0", "--log-level", "info", *flags, "--shard"
        self.servers = [launch(folder / f"server-{shard}", *serve, f"{shard}/{shards}") for shard in range(shards)]

    async def start(self, name: str, *, shared_memory: bool) -> Worker:
        proxies = [Proxy(server.address) for server in self.servers]
        for proxy in proxies:
            await proxy.open()
        column = len(self.workers) + 1
        if column >= scheme.COLUMNS:
            raise RuntimeError(f"a run has at most {scheme.COLUMNS - 1} worker processes")
        path = self._folder / f"worker-{column:03}"
        records = path.with_suffix(".jsonl")
        options = ["--servers", ",".join(proxy.address for proxy in proxies), "--threads", "1", "--name", name]
        options += ["--timeout", self._timeout, "--shared-memory" if shared_memory else "--no-shared-memory"]
        settings = json.dumps(self._settings | {"records": str(records), "column": column})
        command = launch(path, "psworker", "run", *options, str(Path(__file__).with_name("worker.py")), settings)
        worker = Worker(column, name, command=command, proxies=proxies, records=records)
        self.workers.append(worker)
        return worker

    def losses(self) -> list[Loss]:
        """The workers that servers have declared lost."""
        since = time.time() - time.monotonic()
        line = re.compile(r"^(\S+ \S+) .*'(\S+)' was silent for \S+ s: its")
        return [
            Loss(found[2], shard, datetime.fromisoformat(found[1]).timestamp() - since)
            for shard, server in enumerate(self.servers)
            for found in map(line.match, server.err)
            if found
        ]

    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.runs()]

    def finals(self) -> tuple[list[Final], int]:
        """Kills the workers that have not ended; the final values, and the half-applied pushes that servers report."""
        if running := self.running():
            for worker in running:
                worker.ended_by = "killed at the end"
                worker.command.end(signal.SIGKILL)
                worker.runs()
            time.sleep(1.0)  # servers receive their last data
        addresses = [server.address for server in self.servers]
        with closing(GrpcTransport(addresses, shared_memory=False)) as transport:
            finals = self._read(transport)
        end = time.monotonic() + BOUND
        with StatusClient(addresses) as client:
            while True:
                job = client.ask(BOUND)
                workers = [worker for answer in job.answers if answer.report for worker in answer.report.workers]
                if all(worker.state != "live" for worker in workers):
                    return finals, job.half_pushes
                assert time.monotonic() < end, f"a server still reports an ended worker as live: {workers}"
                time.sleep(0.05)

    def _read(self, transport: GrpcTransport) -> list[Final]:
        finals = []
        incarnation = 0
        choices = (Choice("dense", np.array([0])), Choice("table", np.arange(scheme.COLUMNS)))  # rows of a shard's part
        for shard, names in enumerate(scheme.small(len(self.servers))):
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
            worker.command.end(signal.SIGKILL)
        for worker in self.workers:
            for proxy in worker.proxies:
                proxy.close()
        for number in (signal.SIGCONT, signal.SIGTERM):
            for server in self.servers:
                server.signal(number)
        for server in self.servers:
            try:
                server.wait()
            except subprocess.TimeoutExpired:
                server.end(signal.SIGKILL)
