"""Injects faults into a cluster while it trains: kind, place, time and duration from a seeded random generator.

The seed does not determine how processes interleave.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence

from tests.chaos.cluster import Cluster, Worker
from tests.commands import Command

#: Longest duration of a fault that does not end a process, in leases; mean time between faults, seconds.
LONGEST, GAP = 1.5, 0.4

#: Relative frequencies of faults; after those of ENDING a worker is restarted.
ENDING = {"kill": 2, "twin": 1, "fail": 1, "terminate": 1}
WEIGHTS = {"cut": 4, "reset": 4, "stall": 4, "refuse": 2, "stop worker": 3, "stop server": 1} | ENDING
SIGNALS = {"kill": signal.SIGKILL, "fail": signal.SIGUSR1, "terminate": signal.SIGTERM}

#: The least seconds between faults of ENDING, so that something is trained.
BETWEEN_ENDS = 2.5


class Faults:
    """Injects faults into a cluster, and restarts workers that have ended.

    `kinds` are those of `WEIGHTS` to inject; `count` is the number of faults by kind.
    """

    def __init__(self, cluster: Cluster, lease: float, draws: random.Random, kinds: Sequence[str]) -> None:
        self.count: Counter[str] = Counter()
        self._cluster, self._lease, self._draws, self._kinds = cluster, lease, draws, kinds
        # Separate, because the times at which workers end are not reproducible.
        self._restarts = random.Random(draws.random())
        self._current: dict[str, Worker] = {}  # by name, the newest
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped: set[Command] = set()

    async def start(self, name: str) -> None:
        self._current[name] = await self._cluster.start(name, shared_memory=self._restarts.random() < 0.5)

    @property
    def over(self) -> bool:
        ended = not self._cluster.running()
        return ended and not any(worker.code or worker.ended_by for worker in self._current.values())

    async def inject(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end, last_end = loop.time() + seconds, 0.0
        while loop.time() < end and not self.over:
            await self._wait(min(self._draws.expovariate(1 / GAP), 4 * GAP), same_name=0.7)
            place = self._draws.random()
            may_end = loop.time() > last_end + BETWEEN_ENDS
            kinds = [kind for kind in self._kinds if may_end or kind not in ENDING]
            live = [worker for worker in self._current.values() if worker.runs() and not worker.ended_by]
            targets = [worker for worker in live if worker.records.exists()]
            if not kinds or not targets:
                continue
            (kind,) = self._draws.choices(kinds, [WEIGHTS[kind] for kind in kinds])
            last_end = loop.time() if kind in ENDING else last_end
            task = asyncio.create_task(self._inject(kind, targets[int(place * len(targets))]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def finish(self, bound: float) -> bool:
        """Ends all faults; returns whether the job completes within `bound` seconds."""
        await asyncio.gather(*self._tasks)
        loop = asyncio.get_running_loop()
        end = loop.time() + bound
        while not self.over and loop.time() <= end:
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
        if kind == "stop server":  # workers must not be lost by it
            if self._cluster.servers[shard] in self._stopped:
                return
        else:
            worker.faults.append((asyncio.get_running_loop().time(), kind))
        self.count[kind] += 1
        if kind in ENDING:
            worker.ended_by = kind
        if kind in SIGNALS:
            worker.command.signal(SIGNALS[kind])
        elif kind == "twin":
            await self.start(worker.name)
        elif kind in ("stop worker", "stop server"):
            process = worker.command if kind == "stop worker" else self._cluster.servers[shard]
            self._stopped.add(process)
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(self._seconds(0.3))
            process.signal(signal.SIGCONT)
            self._stopped.discard(process)
        else:
            await self._disturb(worker, kind)

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
        if self._draws.random() < longer:
            return self._lease * self._draws.uniform(1.1, LONGEST)
        return self._draws.uniform(0.1, 1.2)
