"""Cuts that are due: the executor of a shard begins them itself, one at a time."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from psserver.core.cuts.cuts import Cuts
from psserver.runtime.persistence import Persistence
from pswire.messages import Answer, Cut, Request

log = logging.getLogger(__name__)


def may_begin_cut(message: Request | Cut, cuts: Cuts, now: float) -> bool:
    """Whether a message may begin a cut, or start its copies, which goes through all variables."""
    if isinstance(message, Cut):
        number = message.number or cuts.number + 1
        if cuts.current is not None and cuts.current.late:
            return True
    else:
        number = getattr(message, "cut", 0)
    return number > cuts.number and cuts.busy is None and now >= cuts.not_before


class DueCuts:
    """Begins a cut when one is due: `send` takes it at once, `step` in a thread, if the shard has many variables."""

    def __init__(
        self,
        persistence: Persistence,
        is_large: Callable[[Cut], bool],
        send: Callable[[Cut], None],
        step: Callable[[Cut], Coroutine[Any, Any, Answer]],
    ) -> None:
        self._persistence, self._is_large, self._send, self._step = persistence, is_large, send, step
        self._beginning: asyncio.Task[Answer] | None = None

    def begin(self) -> None:
        """Begin a cut if one is due."""
        if not self._persistence.cut_is_due():
            return
        cut = Cut()
        if not self._is_large(cut):
            self._send(cut)
        elif self._beginning is None or self._beginning.done():
            self._beginning = asyncio.create_task(self._step(cut))
            self._beginning.add_done_callback(_log_refusal)

    async def finish(self) -> None:
        """Wait for the cut that is beginning in a thread."""
        if self._beginning is not None:
            await asyncio.wait([self._beginning])


def _log_refusal(beginning: asyncio.Task[Answer]) -> None:
    if not beginning.cancelled() and (error := beginning.exception()) is not None:
        log.warning("a checkpoint could not begin: %s", error)
