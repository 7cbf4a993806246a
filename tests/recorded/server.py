"""A server without a network, for recorded folders: started as `psserver serve` does it; and what it logged."""

import asyncio
import contextlib
import itertools
import logging
import re
from functools import partial

from psserver.config import StorageConfig
from psserver.runtime.executor import Executor
from psserver.runtime.start_shard import start_shard
from pswire import messages as ms
from pswire.errors import ParamServerError
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.gradient_norm import parse_gradient_norm
from tests.support.commands import BOUND
from tests.support.shards import new_shard

#: What a line of the log names: numbers of checkpoints and steps, files; and whether something is lost.
_FACTS = re.compile(
    r"(?:checkpoint|global step|shard|shards) \d[\d,]*\b|\d+ shards?|step-\d+|given-up-\d+(?:-\d+)?|segment-\d+\.log"
    r"|(?:journal|shard)-\d+-of-\d+(?:\.json)?|[a-z]+\.(?:json|safetensors|log)|nothing is lost|torn|given up"
)


def facts(text):
    """What a text names, in its order: words around it may change."""
    return _FACTS.findall(text)


class Server:
    """A shard with its folder; `log` has the level and the facts of each line that its start has logged.

    Raises as `start_shard`. `identity` is that of a new shard.
    """

    def __init__(
        self,
        folder,
        shard=0,
        shards=1,
        *,
        consistency="async",
        staleness="none",
        identity=77,
        lease=1e9,
        max_gradient_norm=None,
        progress_timeout=None,
        **options,
    ):
        identities = itertools.count(identity)
        norm = None if max_gradient_norm is None else parse_gradient_norm(max_gradient_norm)
        new = partial(
            new_shard,
            shard,
            shards,
            lease,
            None,
            parse_consistency(consistency),
            parse_staleness(staleness),
            progress_timeout=progress_timeout,
            max_gradient_norm=norm,
            stores_cuts=True,
        )
        self.folder, self.at, self.now, self.log = folder, (shard, shards), 0.0, []
        self._config = StorageConfig(folder, **options)
        self._new = lambda: new(identity=next(identities))
        with _logged(self.log):
            self._shard, self.start = start_shard(self._config, self._new, self.now)
        self.executor = None

    @property
    def shard(self):
        return self._shard if self.executor is None else self.executor.shard

    @property
    def lost(self):
        """Whether it waits for all shards to go back to a common cut."""
        return self.shard.lost

    def close(self):
        """For a server whose executor has not begun."""
        self.start.close()

    async def __aenter__(self):
        self.executor = Executor(self._shard, lambda: self.now)
        self.executor.persist(self._config, self._new, self.start)
        return self

    async def __aexit__(self, *_):
        self.executor.close()
        await self.executor.shutdown()

    async def ask(self, message):
        return await asyncio.wait_for(self.executor.step(message), BOUND)

    async def pending(self, message):
        """A task of a call that the shard does not answer yet."""
        task = asyncio.create_task(self.ask(message))
        while not task.done() and self.executor._waiting == {}:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return task

    def tick(self, seconds=0.0):
        """Let time pass on the shard's clock."""
        self.now += seconds
        self.executor.tick()

    async def checkpoint(self):
        """The number of a new checkpoint, which is written."""
        while not (number := (await self.ask(ms.Cut())).number):  # another one is not over
            await asyncio.sleep(0.001)
        await self.written(number)
        return number

    async def written(self, number):
        """Return when a cut is written."""
        while not (report := await self.ask(ms.Cut(number))).written:
            assert not report.problem, report.problem
            await asyncio.sleep(0.001)

    async def settled(self):
        """Return when its folder has all that it has done."""
        persistence = self.executor.persistence
        while persistence.writer.writing is not None:
            await asyncio.sleep(0.001)
        if (written := persistence.written()) is not None:
            await written


@contextlib.contextmanager
def _logged(lines):
    """Collects what the server logs."""
    handler = logging.Handler()
    handler.emit = lambda record: lines.append([record.levelname, facts(record.getMessage())])
    logger = logging.getLogger("psserver")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def go_back(servers):
    """Let all shards go back to their newest common cut, as workers do; the answers of all, before and after."""

    async def agree():
        async with contextlib.AsyncExitStack() as stack:
            for one in servers:
                await stack.enter_async_context(one)
            before = [await one.ask(ms.Restore()) for one in servers]
            cut = max(set.intersection(*[set(answer.cuts) for answer in before]))
            back = ms.Restore(max(answer.timeline for answer in before) + 1, cut)
            after = [await one.ask(back) for one in servers]
            return before, after

    return asyncio.run(agree())


def in_words(error: ParamServerError):
    """What an error says: its kind, and what it names."""
    return {"error": type(error).__name__, "facts": facts(str(error))}
