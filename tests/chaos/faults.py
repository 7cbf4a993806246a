"""What is done to a cluster while it trains, drawn from a seed: which fault, to whom, when, for how long.

The seed fixes the draws, not how processes interleave. May import the cluster.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from tests.chaos.cluster import FAILED, KILLED, SUPERSEDED, TERMINATED, Cluster, Life

#: Seconds between two faults, on the average.
GAP = 0.4

#: How often each is drawn beside the others.
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

#: Those after which a worker is started again, and seconds between two of them: or there would be no training.
ENDING = ("kill", "twin", "fail", "terminate")
BETWEEN_ENDS = 2.5


class Faults:
    """Does things to a cluster until it is told to stop; workers that have ended are started again.

    Args:
        cluster: the victims.
        names: of the workers that are to be there.
        lease: seconds.
        draws: what is random here.
        kinds: those of `WEIGHTS` that may happen.

    Attributes:
        count: how many of each kind there were.
        done: names of workers that have come to the job's end.
    """

    def __init__(
        self, cluster: Cluster, names: Sequence[str], lease: float, draws: random.Random, kinds: Sequence[str]
    ) -> None:
        self.cluster, self.lease, self.random = cluster, lease, draws
        self.count: Counter[str] = Counter()
        self._kinds = list(kinds)
        self._lives = random.Random(draws.random())  # what is drawn for new lives, whenever they come
        self._last_end = 0.0
        self._now: dict[str, Life] = {}
        self._names = list(names)
        self._tasks: set[asyncio.Task[None]] = set()
        self._calm = False
        self._stopped_servers: set[int] = set()
        self._do: dict[str, Callable[[Life], Awaitable[None]]] = {
            "cut": self._cut,
            "reset": self._reset,
            "stall": self._stall,
            "refuse": self._refuse,
            "kill": self._kill,
            "twin": self._twin,
            "stop worker": self._stop_worker,
            "stop server": self._stop_server,
            "fail": self._fail,
            "terminate": self._terminate,
        }

    async def start(self) -> None:
        """Starts all workers."""
        for name in self._names:
            await self._start(name)

    @property
    def over(self) -> bool:
        """Whether all workers have come to their end."""
        return all(life.code == 0 and not life.fate for life in self._now.values()) and not self.cluster.running()

    async def rage(self, seconds: float) -> None:
        """Faults, for so long or until the job is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and not self.over:
            await self._wait(min(self.random.expovariate(1 / GAP), 4 * GAP))
            place = self.random.random()
            ends = loop.time() > self._last_end + BETWEEN_ENDS
            kinds = [kind for kind in self._kinds if ends or kind not in ENDING]
            victims = [life for life in self._now.values() if life.code is None and not life.fate and life.has_begun]
            if not kinds or not victims:
                continue
            (kind,) = self.random.choices(kinds, [WEIGHTS[kind] for kind in kinds])
            self._last_end = loop.time() if kind in ENDING else self._last_end
            task = asyncio.create_task(self._one(kind, victims[int(place * len(victims))]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def calm(self, bound: float) -> bool:
        """No more faults: whether the job is over within `bound` seconds."""
        self._calm = True
        await asyncio.gather(*self._tasks)
        end = asyncio.get_running_loop().time() + bound
        while not self.over:
            if asyncio.get_running_loop().time() > end:
                return False
            await self._wait(0.2)
        return True

    async def _wait(self, seconds: float) -> None:
        """Looks after the workers meanwhile."""
        await asyncio.sleep(seconds)
        for name, life in list(self._now.items()):
            if life.code is not None and (life.code != 0 or life.fate):
                same = self._calm or self._lives.random() < 0.7
                del self._now[name]
                again = name.rstrip("x") if same else name + "x"
                await self._start(again if again not in self._now else name)

    async def _one(self, kind: str, life: Life) -> None:
        self.count[kind] += 1
        life.note(kind)
        await self._do[kind](life)

    async def _start(self, name: str) -> Life:
        life = self._now[name] = await self.cluster.start(name, shared_memory=self._lives.random() < 0.5)
        return life

    def _proxies(self, life: Life) -> list:
        return [self.random.choice(life.proxies)] if self.random.random() < 0.6 else life.proxies

    def _seconds(self, longer: float) -> float:
        """Mostly short beside a lease; seldom longer than one."""
        if self.random.random() < longer:
            return self.lease * self.random.uniform(1.1, 1.5)
        return self.random.uniform(0.1, 1.2)

    # --- the network --------------------------------------------------------------------------------------------------

    async def _cut(self, life: Life) -> None:
        for proxy in self._proxies(life):
            proxy.cut(self.random.choice([0, 0, 10, 100, 1000, 20_000]))

    async def _reset(self, life: Life) -> None:
        for proxy in self._proxies(life):
            proxy.reset()

    async def _stall(self, life: Life) -> None:
        await self._for_a_while(self._proxies(life), lambda proxy: proxy.stall(), self._seconds(0.1))

    async def _refuse(self, life: Life) -> None:
        await self._for_a_while(self._proxies(life), lambda proxy: proxy.refuse(), self._seconds(0.1))

    async def _for_a_while(self, proxies: list, begin: Callable, seconds: float) -> None:
        for proxy in proxies:
            begin(proxy)
        await asyncio.sleep(seconds)
        for proxy in proxies:
            proxy.resume()

    # --- processes ----------------------------------------------------------------------------------------------------

    async def _kill(self, life: Life) -> None:
        life.fate = KILLED
        life.signal(signal.SIGKILL)

    async def _terminate(self, life: Life) -> None:
        life.fate = TERMINATED
        life.signal(signal.SIGTERM)

    async def _fail(self, life: Life) -> None:
        life.fate = FAILED
        life.signal(signal.SIGUSR1)

    async def _twin(self, life: Life) -> None:
        life.fate = SUPERSEDED
        await self._start(life.name)

    async def _stop_worker(self, life: Life) -> None:
        life.signal(signal.SIGSTOP)
        await asyncio.sleep(self._seconds(0.3))
        life.signal(signal.SIGCONT)

    async def _stop_server(self, life: Life) -> None:
        shard = self.random.randrange(len(self.cluster.servers))
        if shard in self._stopped_servers:
            return
        self._stopped_servers.add(shard)
        self.cluster.servers[shard].signal(signal.SIGSTOP)
        await asyncio.sleep(self._seconds(0.2))
        self.cluster.servers[shard].signal(signal.SIGCONT)
        self._stopped_servers.discard(shard)
