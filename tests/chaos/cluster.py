"""The processes of one chaos run: `psserver serve` for each shard, and lives of workers behind proxies of their own.

Starts, signals and ends them, and reads what the variables are at the end. When something is done to them `faults`
decides. Everything is in one folder: logs, ledgers.
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
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pswire.messages import Choice, Join, Joined, Leave, Pull, Sender, Status
from psworker.transport.network import NetworkTransport
from tests.chaos import scheme
from tests.chaos.proxy import Proxy

PROGRAM = Path(__file__).with_name("worker.py")
BOUND = 30.0  # seconds that a server has to start, to answer and to end
POLL = 0.05

#: Endings that are not the worker's own.
KILLED, TERMINATED, FAILED, SUPERSEDED = "killed", "terminated", "told to fail", "superseded"


def environment() -> dict[str, str]:
    """That of this process, without settings of workers and servers."""
    ours = ("PSWORKER_", "PSSERVER_")
    base = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return base | {"PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass
class Life:
    """One process of a worker.

    Attributes:
        column: its number, from 1 (`scheme`).
        name: the worker's; several lives may have it.
        fate: how it was ended from outside; "": it was not.
        hurt: what was done to it, with moments (monotonic).
        code: its exit code; None while it runs.
    """

    column: int
    name: str
    folder: Path
    proxies: list[Proxy]
    process: subprocess.Popen[bytes]
    fate: str = ""
    hurt: list[tuple[float, str]] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, if it lives."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def note(self, fault: str) -> None:
        """Writes down that something is done to it now."""
        self.hurt.append((time.monotonic(), fault))

    @property
    def has_begun(self) -> bool:
        """Whether its program runs."""
        return self.ledger.exists()

    @property
    def ledger(self) -> Path:
        """Where it writes what it does."""
        return self.folder / f"life-{self.column:03}.jsonl"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / f"life-{self.column:03}.log"


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
        """Returns when it listens."""
        end = time.monotonic() + BOUND
        while not (found := re.search(r"listening on (\S+)", self.log.read_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"a server does not start: {self.log.read_text()}")
            await asyncio.sleep(POLL)
        self.address = found[1]

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal, if it lives."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


@dataclass(frozen=True)
class Final:
    """What one shard has at the end: column by column, and what it says of itself."""

    first: list[float]
    second: list[float]
    dense: list[float]
    table: list[list[float]]
    versions: list[int]
    status: dict[str, Any]


class Cluster:
    """All processes of one run; leave it with `close`, whatever has happened."""

    def __init__(self, folder: Path, shards: int, flags: list[str], program: list[str], timeout: float) -> None:
        self.folder, self.layout = folder, scheme.Layout(shards)
        self.lives: list[Life] = []
        self._flags, self._program, self._timeout = flags, program, timeout
        self.servers: list[Server] = []

    async def open(self) -> None:
        """Starts the servers."""
        shards = self.layout.shards
        self.servers = [Server(self.folder, shard, shards, self._flags) for shard in range(shards)]
        for server in self.servers:
            await server.listen()

    async def start(self, name: str, *, shared_memory: bool) -> Life:
        """Starts a life of a worker."""
        proxies = [Proxy(server.address) for server in self.servers]
        for proxy in proxies:
            await proxy.open()
        column = len(self.lives) + 1
        if column >= scheme.COLUMNS:
            raise RuntimeError(f"a run has at most {scheme.COLUMNS - 1} lives")
        lane = "--shared-memory" if shared_memory else "--no-shared-memory"
        run = ["--servers", ",".join(proxy.address for proxy in proxies), "--name", name, "--threads", "1", lane]
        life = Life(column, name, self.folder, proxies, None)  # type: ignore[arg-type]
        mine = ["--ledger", str(life.ledger), "--column", str(column)]
        with life.log.open("wb") as log:
            life.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "psworker", "run", *run, "--timeout", str(self._timeout)]
                + [str(PROGRAM), *mine, *self._program],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.lives.append(life)
        return life

    def running(self) -> list[Life]:
        """The lives that have not ended."""
        return [life for life in self.lives if life.code is None]

    def read(self) -> list[Final]:
        """The variables as the servers have them, not through a proxy."""
        with closing(NetworkTransport([server.address for server in self.servers], shared_memory=False)) as transport:
            return self._read(transport)

    def _read(self, transport: NetworkTransport) -> list[Final]:
        finals = []
        incarnation = 0
        for shard, _ in enumerate(self.servers):
            joined = transport.call(shard, Join("auditor", incarnation, shard, len(self.servers)), BOUND).result()
            assert isinstance(joined, Joined)
            incarnation = joined.incarnation
            sender = Sender("auditor", incarnation)
            rows = np.array([0, *range(1, scheme.COLUMNS)])  # of this shard's part
            names = (self.layout.first[shard], self.layout.second[shard])
            choices = (Choice("dense", np.array([0])), Choice("table", rows))
            answer: Any = transport.call(shard, Pull(sender, names, choices), BOUND).result()
            status: Any = transport.call(shard, Status(), BOUND).result()
            transport.call(shard, Leave(sender, True), BOUND).result()
            first, second, dense, table = [np.asarray(value.array) for value in answer.values]
            finals.append(
                Final(
                    first.tolist(),
                    second.tolist(),
                    dense[0, : scheme.COLUMNS].tolist(),
                    table.tolist(),
                    [value.version for value in answer.values],
                    {"global_step": status.global_step, "repeated": status.repeated, "dropped": status.dropped},
                )
            )
        return finals

    async def close(self) -> None:
        """Ends all that runs, and waits for it."""
        for life in self.running():
            life.signal(signal.SIGKILL)
        for life in self.lives:
            for proxy in life.proxies:
                await proxy.close()
            life.process.wait()
        for server in self.servers:
            server.signal(signal.SIGCONT)
            server.signal(signal.SIGTERM)
        for server in self.servers:
            try:
                server.process.wait(BOUND)
            except subprocess.TimeoutExpired:
                server.signal(signal.SIGKILL)
                server.process.wait()

    def write_down(self, facts: dict[str, Any]) -> None:
        """Keeps what was done to whom beside the ledgers."""
        lives = [
            {"column": life.column, "name": life.name, "fate": life.fate, "code": life.code, "hurt": life.hurt}
            for life in self.lives
        ]
        (self.folder / "run.json").write_text(json.dumps(facts | {"lives": lives}, indent=1))
