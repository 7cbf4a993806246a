"""Injects faults into a cluster while it trains: kind, place, time and duration from a seeded random generator.

The seed does not determine how processes interleave.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence

from tests.chaos.cluster import FAILED, KILLED, SUPERSEDED, TERMINATED, Cluster, WorkerProcess
from tests.chaos.proxy import Proxy

#: Longest duration of a fault that does not end a process, in leases.
LONGEST = 1.5

#: Mean time between faults, seconds.
GAP = 0.4

#: Relative frequencies.
WEIGHTS = {
    "cut": 4,
    "reset": 4,
    "stall": 4,
    "refuse": 2,
    "stop worker": 3,
    "stop server": 1,
    "kill": 2,
    "twin": 1,
    "fail": 1,
    "terminate": 1,
}

#: Faults after which a worker is restarted, and the least seconds between them, so that something is trained.
ENDING_SIGNALS = {
    "kill": (KILLED, signal.SIGKILL),
    "fail": (FAILED, signal.SIGUSR1),
    "terminate": (TERMINATED, signal.SIGTERM),
}
ENDING = (*ENDING_SIGNALS, "twin")
BETWEEN_ENDS = 2.5


class Faults:
    """Injects faults into a cluster, and restarts workers that have ended.

    Args:
        cluster: the target.
        names: of the workers.
        lease: seconds.
        draws: random generator.
        kinds: the kinds of `WEIGHTS` to inject.

    Attributes:
        count: number of faults by kind.
    """

    def __init__(
        self, cluster: Cluster, names: Sequence[str], lease: float, draws: random.Random, kinds: Sequence[str]
    ) -> None:
        self.count: Counter[str] = Counter()
        self._cluster, self._names, self._lease, self._draws, self._kinds = cluster, names, lease, draws, kinds
        self._restarts = random.Random(
            draws.random()
        )  # separate, because the times at which workers end are not reproducible
        self._current: dict[str, WorkerProcess] = {}  # by name, the newest
        self._tasks: set[asyncio.Task[None]] = set()
        self._finishing = False
        self._last_end = 0.0
        self._stopped: set[int] = set()  # servers

    async def start(self) -> None:
        for name in self._names:
            await self._start(name)

    @property
    def over(self) -> bool:
        done = all(worker.code == 0 and not worker.ended_by for worker in self._current.values())
        return done and not self._cluster.running()

    async def inject(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and not self.over:
            await self._wait(min(self._draws.expovariate(1 / GAP), 4 * GAP))
            place = self._draws.random()
            may_end = loop.time() > self._last_end + BETWEEN_ENDS
            kinds = [kind for kind in self._kinds if may_end or kind not in ENDING]
            targets = [one for one in self._current.values() if one.code is None and not one.ended_by and one.has_begun]
            if not kinds or not targets:
                continue
            (kind,) = self._draws.choices(kinds, [WEIGHTS[kind] for kind in kinds])
            self._last_end = loop.time() if kind in ENDING else self._last_end
            task = asyncio.create_task(self._inject(kind, targets[int(place * len(targets))]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def finish(self, bound: float) -> bool:
        """Ends all faults; returns whether the job completes within `bound` seconds."""
        self._finishing = True
        await asyncio.gather(*self._tasks)
        loop = asyncio.get_running_loop()
        end = loop.time() + bound
        while not self.over:
            if loop.time() > end:
                return False
            await self._wait(0.2)
        return True

    async def _wait(self, seconds: float) -> None:
        """Waits; then restarts workers that have ended, most of them under the same name."""
        await asyncio.sleep(seconds)
        for name, worker in list(self._current.items()):
            if worker.code is not None and (worker.code != 0 or worker.ended_by):
                same = self._finishing or self._restarts.random() < 0.7
                again = name.rstrip("x") if same else name + "x"
                del self._current[name]
                await self._start(name if again in self._current else again)

    async def _inject(self, kind: str, worker: WorkerProcess) -> None:
        self.count[kind] += 1
        if kind != "stop server":  # workers must not be affected
            worker.note(kind)
        if kind in ENDING_SIGNALS:
            worker.ended_by, number = ENDING_SIGNALS[kind]
            worker.popen.send_signal(number)
        else:
            await getattr(self, "_" + kind.replace(" ", "_"))(worker)

    async def _start(self, name: str) -> None:
        self._current[name] = await self._cluster.start(name, shared_memory=self._restarts.random() < 0.5)

    def _proxies(self, worker: WorkerProcess) -> list[Proxy]:
        return [self._draws.choice(worker.proxies)] if self._draws.random() < 0.6 else worker.proxies

    def _seconds(self, longer: float) -> float:
        """Usually short compared with a lease; with this probability longer than one."""
        if self._draws.random() < longer:
            return self._lease * self._draws.uniform(1.1, LONGEST)
        return self._draws.uniform(0.1, 1.2)

    # --- connections --------------------------------------------------------------------------------------------------

    async def _cut(self, worker: WorkerProcess) -> None:
        for proxy in self._proxies(worker):
            proxy.cut(after=self._draws.choice([0, 0, 10, 100, 1000, 20_000]))

    async def _reset(self, worker: WorkerProcess) -> None:
        for proxy in self._proxies(worker):
            proxy.reset()

    async def _stall(self, worker: WorkerProcess) -> None:
        await self._for_a_while(self._proxies(worker), Proxy.stall, self._seconds(0.1))

    async def _refuse(self, worker: WorkerProcess) -> None:
        await self._for_a_while(self._proxies(worker), Proxy.refuse, self._seconds(0.1))

    async def _for_a_while(self, proxies: list[Proxy], begin: Callable[[Proxy], None], seconds: float) -> None:
        for proxy in proxies:
            begin(proxy)
        await asyncio.sleep(seconds)
        for proxy in proxies:
            proxy.resume()

    # --- processes ----------------------------------------------------------------------------------------------------

    async def _twin(self, worker: WorkerProcess) -> None:
        worker.ended_by = SUPERSEDED
        await self._start(worker.name)

    async def _stop_worker(self, worker: WorkerProcess) -> None:
        worker.popen.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._seconds(0.3))
        worker.popen.send_signal(signal.SIGCONT)

    async def _stop_server(self, worker: WorkerProcess) -> None:
        shard = self._draws.randrange(len(self._cluster.servers))
        if shard in self._stopped:
            self.count["stop server"] -= 1
            return
        self._stopped.add(shard)
        self._cluster.servers[shard].process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._seconds(0.2))
        self._cluster.servers[shard].process.send_signal(signal.SIGCONT)
        self._stopped.discard(shard)
