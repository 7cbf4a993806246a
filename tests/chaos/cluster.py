"""The processes of one job under faults, and the faults that `make chaos` injects into them.

They are `psserver serve` for each shard, and workers, which may be behind proxies of their own. Logs, records,
checkpoints and journals are in one folder.
"""

import asyncio
import json
import math
import random
import signal
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from psjob.status.job_status import JobStatus
from psjob.status.status_client import StatusClient
from psserver.core.shard import Shard
from psserver.storage import retention
from psserver.storage.own_start import start_at
from psserver.storage.start import FIRST_TIMELINE
from pswire.messages import Choice, Job, Join, Leave, Pull, Sender
from psworker.transport import DIRECT, GRPC
from psworker.transport.network_transport import NetworkTransport
from tests.chaos import scheme
from tests.chaos.check import Final, History, losses
from tests.support.commands import BOUND, Command, environment, free_address, free_port, loopback_host

LEASE, TIMEOUT = 4.0, 25.0  # of workers, and of their calls, seconds
STORAGE = "--journal", "--checkpoint-every", "1s", "--keep", "1000"
SHARED = 0.25  # of workers have shared memory, whose messages pass no proxy
LONGEST = 1.5 * LEASE  # of faults that do not end a process
GAP, BETWEEN_ENDS = 0.4, 2.5  # mean seconds between faults, and least between those of ENDING: something is trained

#: Relative frequencies of faults; after those of ENDING a worker is restarted.
ENDING = {"kill": 2, "twin": 1, "fail": 1, "terminate": 1}
WEIGHTS = {"cut": 4, "reset": 4, "stall": 4, "refuse": 2, "stop worker": 3, "stop server": 1, "kill server": 1}
WEIGHTS |= ENDING
NETWORK = "cut", "reset", "stall", "refuse"  # methods of `Proxy`
WITHIN = "cut within data"
SIGNALS = {"kill": signal.SIGKILL, "fail": signal.SIGUSR1, "terminate": signal.SIGTERM}


class Proxy:
    """A TCP proxy between one worker process and one server that can cut, reset, stall and refuse connections.

    It has an address of its own, with the ports of the server: that of gRPC and the direct one, which is announced.

    Attributes:
        passed: bytes, by what carries them.
        met: faults by kind that met a direct connection; `WITHIN`: cuts in the middle of what it carried.
    """

    def __init__(self, target: str, direct_port: int) -> None:
        self._target, port = target.split(":")
        self._ports = {int(port): GRPC, direct_port: DIRECT}
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self._writers: dict[asyncio.StreamWriter, str] = {}
        self._left: float = math.inf  # bytes to forward before all connections are cut
        self.passed, self.met = Counter[str](), Counter[str]()

    async def open(self) -> None:
        host = loopback_host()
        self.address = f"{host}:{next(iter(self._ports))}"
        self._servers = [await asyncio.start_server(partial(self._connected, port), host, port) for port in self._ports]

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self._passing.set()
        self._refusing = True
        self._reset()

    def cut(self, after: int = 0) -> None:
        """Closes all connections in order, after this many more bytes in either direction."""
        self._left = after or math.inf
        if not after:
            self._meet("cut")
            for writer in self._writers:
                writer.close()

    def reset(self) -> None:
        self._meet("reset")
        self._reset()

    def stall(self) -> None:
        self._meet("stall")
        self._passing.clear()

    def refuse(self) -> None:
        """Resets all connections, and new ones at once, until `resume`."""
        self._meet("refuse")
        self._refusing = True
        self._reset()

    def resume(self) -> None:
        self._refusing = False
        self._passing.set()

    def _meet(self, kind: str) -> None:
        self.met[kind] += DIRECT in self._writers.values()

    def _reset(self) -> None:
        for writer in self._writers:
            with suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    async def _connected(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(self._target, port)
            ends = dict.fromkeys((writer, far_writer), self._ports[port])
            self._writers |= ends
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
            for end in ends:
                del self._writers[end]
        writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = self._writers[writer]
        with suppress(OSError, RuntimeError):
            while data := await reader.read(1 << 16):
                await self._passing.wait()
                allowed = min(len(data), self._left)
                self._left -= allowed
                self.passed[name] += allowed
                writer.write(data[:allowed])
                await writer.drain()
                if not self._left:
                    self.met[WITHIN] += name == DIRECT and allowed < len(data)
                    self.cut()
        writer.close()


@dataclass(kw_only=True)
class Worker(History):
    """A process of a worker with its proxies, its file of records, and its history."""

    command: Command
    proxies: list[Proxy]
    records: Path

    def runs(self) -> bool:
        self.code = self.command.popen.poll()
        return self.code is None


class Cluster:
    """All processes of one run: servers with `flags`, workers with `settings`; always call `close` at the end.

    If it is `moving`, each start of a server is at another address, and workers without proxies find them in a file.
    Workers use this `transport`; "": that of their environment.
    """

    def __init__(
        self,
        folder: Path,
        shards: int,
        flags: list[str],
        settings: dict[str, Any],
        storage: Sequence[str] = STORAGE,
        *,
        moving: bool = False,
        transport: str = "",
        environment: Callable[..., dict[str, str]] = environment,
    ) -> None:
        self.workers: list[Worker] = []
        self.folder, self._settings = folder, {"shards": shards, **settings}
        self.checkpoints = folder / "checkpoints"
        self._environment, self._transport = environment, transport
        self._file = folder / "servers" if moving else None
        self._serve = ["psserver", "serve", "--log-level", "info", "--lease", str(LEASE), *flags]
        self._serve += ["--checkpoint-dir", str(self.checkpoints), *storage]
        self.addresses = [free_address() for _ in range(shards)]
        self._direct_ports = [free_port(address.split(":")[0]) for address in self.addresses]
        self.servers: list[Command] = []
        self._killed: list[tuple[int, Command]] = []  # servers, with their shards
        for shard in range(shards):
            self.servers.append(self._start_server(shard))
        self._write_addresses()

    def _start_server(self, shard: int) -> Command:
        name = f"server-{shard}-{len(self._killed)}"
        place = ["--bind", self.addresses[shard], "--shard", f"{shard}/{len(self.addresses)}"]
        place += ["--direct-port", str(self._direct_ports[shard])]
        return self._launch(name, *self._serve, *place)

    def kill_server(self, shard: int) -> None:
        """Kills a server, and starts it again at once."""
        self.kill_servers(shard)

    def kill_servers(self, *shards: int) -> None:
        """Kills servers, and starts them when all of them have ended."""
        for shard in shards:
            self.servers[shard].end(signal.SIGKILL)
            self._killed.append((shard, self.servers[shard]))
        for shard in shards:
            if self._file is not None:
                self.addresses[shard] = free_address()
            self.servers[shard] = self._start_server(shard)
        self._write_addresses()

    def _write_addresses(self) -> None:
        if self._file is not None:
            replaced = self._file.with_suffix(".new")
            replaced.write_text("".join(f"{address}\n" for address in self.addresses))
            replaced.replace(self._file)

    def server_log(self, shard: int) -> list[str]:
        """The log of a server's processes, in order."""
        processes = [*(process for killed, process in self._killed if killed == shard), self.servers[shard]]
        return [line for process in processes for line in process.err]

    def _launch(self, name: str, *command: str) -> Command:
        env = self._environment(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", PSWORKER_NAME_KEY="a twin has it too")
        return Command(self.folder / name, "-P", "-m", *command, env=env)

    async def start(self, name: str, *, shared_memory: bool) -> Worker:
        """A worker behind proxies."""
        proxies = [Proxy(*place) for place in zip(self.addresses, self._direct_ports, strict=True)]
        for proxy in proxies:
            await proxy.open()
        return self.launch(name, proxies, shared_memory=shared_memory)

    def launch(
        self, name: str, proxies: Sequence[Proxy] = (), *, shared_memory: bool = True, timeout: float = TIMEOUT
    ) -> Worker:
        """A worker, behind these proxies if there are any."""
        column = len(self.workers) + 1
        if column >= scheme.COLUMNS:
            raise RuntimeError(f"a run has at most {scheme.COLUMNS - 1} worker processes")
        records = self.folder / f"worker-{column:03}.jsonl"
        servers = ",".join([proxy.address for proxy in proxies] or self.addresses)
        if self._file is not None and not proxies:
            servers = f"file:{self._file}"
        options = ["--servers", servers, "--threads", "1", "--name", name, "--job", "chaos"]
        options += ["--timeout", str(timeout), "--shared-memory" if shared_memory else "--no-shared-memory"]
        settings = json.dumps(self._settings | {"records": str(records), "column": column})
        options += ["--transport", self._transport] if self._transport else []
        program = str(Path(__file__).with_name("worker.py"))
        command = self._launch(records.stem, "psworker", "run", *options, program, settings)
        self.workers.append(Worker(column, name, command=command, proxies=list(proxies), records=records))
        return self.workers[-1]

    def alone(self, records: Path) -> Command:
        """The program in one process without servers."""
        settings = json.dumps(self._settings | {"records": str(records), "column": 1})
        env = self._environment(OPENBLAS_NUM_THREADS="1", PSWORKER_NAME="w0")
        return Command(self.folder / "alone", str(Path(__file__).with_name("worker.py")), settings, env=env)

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """`passed` and `met` of all proxies."""
        proxies = [proxy for worker in self.workers for proxy in worker.proxies]
        return sum((one.passed for one in proxies), Counter()), sum((one.met for one in proxies), Counter())

    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.runs()]

    def finals(self) -> tuple[list[Final], JobStatus]:
        """Kills the workers that have not ended; the final values, and the status of the job."""
        if running := self.running():
            for worker in running:
                worker.ended_by = "killed at the end"
                worker.command.end(signal.SIGKILL)
                worker.runs()
            time.sleep(1.0)  # servers receive their last data
        with closing(NetworkTransport(self.addresses, shared_memory=False)) as transport:
            finals = self._read_values(transport)
        end = time.monotonic() + BOUND
        with StatusClient(self.addresses) as client:
            while True:
                job = client.ask(BOUND)
                workers = [worker for answer in job.answers if answer.report for worker in answer.report.workers]
                if all(worker.state != "live" for worker in workers):
                    return finals, job
                assert time.monotonic() < end, f"a server still reports an ended worker as live: {workers}"
                time.sleep(0.05)

    def _read_values(self, transport: NetworkTransport) -> list[Final]:
        finals, joined = [], None
        marked = self._settings["examples"] if self._settings["marks"] else 0
        rows = np.arange(scheme.COLUMNS + marked)  # of a shard's part
        choices = Choice("dense", np.array([0])), Choice("table", rows)
        for shard, names in enumerate(scheme.small(len(self.servers))):
            incarnation, job = (joined.incarnation, joined.job) if joined else (0, Job())
            join = Join(
                worker="auditor", incarnation=incarnation, shard=shard, shards=len(self.servers), job=job, resume=True
            )
            joined = transport.call(shard, join, BOUND).result()
            sender = Sender("auditor", joined.incarnation)
            values = transport.call(shard, Pull(sender=sender, names=names, choices=choices), BOUND).result().values
            transport.call(shard, Leave(sender, True), BOUND).result()
            first, second, dense, table = (np.asarray(value.array).tolist() for value in values)
            marks = [scheme.count_updates(row[0])[0] for row in table[scheme.COLUMNS :]]
            dense = dense[0][: scheme.COLUMNS]
            finals.append(Final(first, second, dense, table[: scheme.COLUMNS], values[0].version, marks))
        return finals

    def cuts(self) -> dict[int, list[Final]]:
        """By number, the values in each checkpoint on disk that all shards have, with its late changes."""
        shards = len(self.addresses)
        numbers = [set(retention.cuts(self.checkpoints, shard, shards)) for shard in range(shards)]
        return {
            number: [self._stored_values(number, shard) for shard in range(shards)]
            for number in sorted(set.intersection(*numbers))
        }

    def _stored_values(self, number: int, shard: int) -> Final:
        shards = len(self.addresses)
        start = start_at(self.checkpoints, FIRST_TIMELINE, number, shard, shards)
        if start.state is None or not start.state.variables:
            return Final([0.0] * scheme.COLUMNS, [0.0] * scheme.COLUMNS, [], [], 0)
        restored = Shard.for_state(start.state)
        start.restore(restored, 0.0)
        arrays = restored.arrays()
        first, second = (np.asarray(arrays[name].value).tolist() for name in scheme.small(shards)[shard])
        return Final(first, second, [], np.asarray(arrays["table"].value)[: scheme.COLUMNS].tolist(), 0)

    def read_records(self) -> None:
        """Completes the histories: records of workers, the last line of their output, and losses in servers' logs."""
        since = time.time() - time.monotonic()
        for worker in self.workers:
            worker.error = (worker.command.err or [""])[-1]
            for line in worker.records.read_text().splitlines() if worker.records.exists() else ():  # if killed early
                worker.add(**json.loads(line))
            for shard, server in [*self._killed, *enumerate(self.servers)]:
                worker.losses += [(at - since, shard) for at in losses(server.err, worker.name, LEASE)]

    def close(self) -> None:
        for worker in self.workers:
            worker.command.signal(signal.SIGKILL)
            for proxy in worker.proxies:
                proxy.close()
        self.stop_servers()
        for worker in self.workers:
            worker.command.wait()

    def stop_servers(self) -> list[int]:
        """Ends the servers in good order, if they do not hang; their exit codes."""
        for server in self.servers:
            server.signal(signal.SIGCONT)
            server.signal(signal.SIGTERM)
        for server in self.servers:
            try:
                server.wait()
            except subprocess.TimeoutExpired:
                server.end(signal.SIGKILL)
        return [server.wait() for server in self.servers]


class Faults:
    """Injects faults into a cluster, and restarts workers that have ended.

    Kind, place, time and duration are from `draws`; the seed does not determine how processes interleave. `kinds` are
    those of `WEIGHTS` to inject; `count` is the number of faults by kind.
    """

    def __init__(self, cluster: Cluster, draws: random.Random, kinds: Sequence[str]) -> None:
        self.count: Counter[str] = Counter()
        self._cluster, self._draws, self._kinds = cluster, draws, kinds
        # Separate, because the times at which workers end are not reproducible.
        self._restarts = random.Random(draws.random())
        self._current: dict[str, Worker] = {}  # by name, the newest
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped: set[int] = set()  # shards

    async def start(self, name: str) -> None:
        self._current[name] = await self._cluster.start(name, shared_memory=self._restarts.random() < SHARED)

    @property
    def over(self) -> bool:
        ended = not self._cluster.running()
        return ended and not any(worker.code or worker.ended_by for worker in self._current.values())

    async def inject(self, seconds: float) -> None:
        end, last_end = time.monotonic() + seconds, 0.0
        while time.monotonic() < end and not self.over:
            await self._wait(min(self._draws.expovariate(1 / GAP), 4 * GAP), same_name=0.7)
            place = self._draws.random()
            may_end = time.monotonic() > last_end + BETWEEN_ENDS
            kinds = [kind for kind in self._kinds if may_end or kind not in ENDING]
            live = [worker for worker in self._current.values() if worker.runs() and not worker.ended_by]
            targets = [worker for worker in live if worker.records.exists()]
            if kinds and targets:
                (kind,) = self._draws.choices(kinds, [WEIGHTS[kind] for kind in kinds])
                last_end = time.monotonic() if kind in ENDING else last_end
                self._tasks.append(asyncio.create_task(self._inject(kind, targets[int(place * len(targets))])))

    async def finish(self, bound: float) -> bool:
        """Ends all faults; returns whether the job completes within `bound` seconds."""
        await asyncio.gather(*self._tasks)
        end = time.monotonic() + bound
        while not self.over and time.monotonic() <= end:
            await self._wait(0.2, same_name=1.0)
        return self.over

    async def _wait(self, seconds: float, same_name: float) -> None:
        """Waits; then restarts workers that have ended, with this probability under the same name."""
        await asyncio.sleep(seconds)
        for name, worker in list(self._current.items()):
            if not worker.runs() and (worker.code or worker.ended_by):
                again = name.rstrip("x") if self._restarts.random() < same_name else name + "x"
                del self._current[name]
                await self.start(name if again in self._current else again)

    async def _inject(self, kind: str, worker: Worker) -> None:
        shard = self._draws.randrange(len(self._cluster.servers))
        if "server" not in kind:  # by which no worker may be lost
            worker.faults.append((time.monotonic(), kind))
        elif shard in self._stopped:
            return
        self.count[kind] += 1
        if kind in ENDING:
            worker.ended_by = kind
        if kind in SIGNALS:
            worker.command.signal(SIGNALS[kind])
        elif kind == "twin":
            await self.start(worker.name)
        elif kind == "stop worker":
            await self._stop(worker.command)
        elif kind == "stop server":
            self._stopped.add(shard)
            await self._stop(self._cluster.servers[shard])
            self._stopped.discard(shard)
        elif kind == "kill server":
            self._stopped.add(shard)
            await asyncio.to_thread(self._cluster.kill_server, shard)
            await asyncio.to_thread(self._cluster.servers[shard].wait_for, "listening on")
            self._stopped.discard(shard)
        else:
            await self._disturb(worker, kind)

    async def _stop(self, process: Command) -> None:
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(self._seconds(0.3))
        process.signal(signal.SIGCONT)

    async def _disturb(self, worker: Worker, kind: str) -> None:
        """Cuts, resets, stalls or refuses the connections to one server or to all."""
        proxies = [self._draws.choice(worker.proxies)] if self._draws.random() < 0.6 else worker.proxies
        for proxy in proxies:
            getattr(proxy, kind)(*[self._draws.choice([0, 0, 10, 100, 1000, 20_000])] * (kind == "cut"))
        if kind in ("stall", "refuse"):
            await asyncio.sleep(self._seconds(0.1))
            for proxy in proxies:
                proxy.resume()

    def _seconds(self, longer: float) -> float:
        """Usually short compared with a lease; with this probability longer than one."""
        least, most = (1.1 * LEASE, LONGEST) if self._draws.random() < longer else (0.1, 1.2)
        return self._draws.uniform(least, most)
