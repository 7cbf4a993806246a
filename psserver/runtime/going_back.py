"""Going back: the shard of an executor is replaced by one that begins a new timeline from an older checkpoint."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from psserver.core import events
from psserver.core.shard import Shard
from psserver.runtime.persistence import Persistence
from psserver.runtime.task_order import TaskOrder
from psserver.storage import retention
from psserver.storage.own_start import start_at
from pswire.errors import InvalidMessage, StorageError, Unavailable, WrongShard
from pswire.messages import Restore, Restored

log = logging.getLogger(__name__)


class GoingBack:
    """Goes back to checkpoints of `persistence`, while `exclusive` lets no step be taken.

    `new_shard` makes a shard without state, and `replace` puts it in place of the present one, with a sentence why.
    """

    def __init__(
        self,
        persistence: Persistence,
        new_shard: Callable[[], Shard],
        tasks: TaskOrder,
        exclusive: asyncio.Lock,
        clock: Callable[[], float],
        replace: Callable[[Shard, str], None],
    ) -> None:
        self._persistence, self._new_shard, self._tasks = persistence, new_shard, tasks
        self._exclusive, self._clock, self._replace = exclusive, clock, replace
        self._unusable: set[int] = set()  # cuts that are damaged

    async def restore(self, message: Restore) -> Restored:
        """Go back to a checkpoint, unless the shard follows this timeline already; waiting calls are to be repeated."""
        self._persistence.shard.check_timeline(message)
        if message.timeline > self._persistence.shard.timeline:
            async with self._exclusive:
                if message.timeline > self._persistence.shard.timeline:
                    shard = await self._shard_of(message, self._clock())
                    await self._tasks.wait()
                    self._replace(shard, f"this shard went back to checkpoint {message.cut}")
        return await self._restored()

    async def _shard_of(self, message: Restore, now: float) -> Shard:
        """A shard that begins the timeline of this message from its cut; durable. The present one takes no more steps.

        Raises `WrongShard` if the server was told to fail instead, `InvalidMessage` if the cut is not there or damaged,
        after which it is not offered again, and `Unavailable` if the beginning cannot be written: try again.
        """
        persistence = self._persistence
        config, present = persistence.config, persistence.shard
        if config.on_lost_state != "rollback":
            raise WrongShard(
                f"shard {present.shard} does not go back to checkpoint {message.cut}, because it was started with "
                f"--on-lost-state {config.on_lost_state}: what came after that checkpoint would be lost"
            )
        await persistence.writer.end_writing()
        at, shard = (present.shard, present.shards), self._new_shard()
        try:
            start = await persistence.writer.in_thread(start_at, config.folder, message.timeline, message.cut, *at)
            start.restore(shard, now)
        except StorageError as error:
            self._unusable.add(message.cut)
            log.error("shard %d cannot go back to checkpoint %d: %s", present.shard, message.cut, error)
            raise InvalidMessage(f"shard {present.shard} cannot go back to checkpoint {message.cut}: {error}") from None
        if persistence.journal is not None:
            await persistence.journal.close()
        try:
            start.notes += await persistence.writer.in_thread(partial(start.begin, shard, journal=config.journal))
        except (OSError, StorageError) as error:
            problem = f"shard {present.shard} is going back to checkpoint {message.cut}, but cannot: {error}"
            persistence.interrupted = problem
            log.error("%s", problem)
            raise Unavailable(problem) from None
        persistence.continue_from(start)
        for note in start.notes:
            log.warning("%s", note)
        persistence.events.add(events.restored(shard.shard, message.cut, message.timeline), shard.global_step)
        return shard

    async def _restored(self) -> Restored:
        """The timeline in force, and the cuts that the shard could go back to."""
        persistence = self._persistence
        cuts = partial(retention.cuts, persistence.config.folder, persistence.shard.shard, persistence.shard.shards)
        found = await asyncio.get_running_loop().run_in_executor(None, cuts)
        shard = persistence.shard  # which may have gone back meanwhile
        return Restored(
            timeline=shard.timeline,
            cut=persistence.start.timeline_cut,
            lost=shard.lost,
            cuts=tuple([number for number in found if number not in self._unusable]),
        )
