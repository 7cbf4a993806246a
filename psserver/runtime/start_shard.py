"""The start of a shard whose state is in files: what it begins from, and how the log says so."""

import logging
from collections.abc import Callable
from contextlib import ExitStack

from psserver.config import StorageConfig
from psserver.core.shard import Shard
from psserver.storage.find_start import find_start
from psserver.storage.start import Origin, Start

#: How a start is described whose journal ended with an incomplete record.
_TORN = "its journal ended with a torn record, which was cut off: with --journal-sync every it was not acknowledged"

log = logging.getLogger(__name__)


def start_shard(config: StorageConfig, new_shard: Callable[[], Shard], now: float) -> tuple[Shard, Start]:
    """The shard of a server that starts, with the state that its folder has, and what it started from.

    Raises `StorageError` for a folder whose files are damaged or of another job.
    """
    shard = new_shard()
    start = find_start(config.folder, shard.shard, shard.shards)
    with ExitStack() as stack:
        stack.callback(start.close)
        _begin(config, start, shard, now)
        stack.pop_all()
    return shard, start


def _begin(config: StorageConfig, start: Start, shard: Shard, now: float) -> None:
    """Give a new shard the state, and begin its run, unless it is lost; log what it starts from."""
    if start.lost and shard.shards == 1 and config.on_lost_state == "rollback":
        start.give_up()
    start.restore(shard, now)
    for note in start.notes:
        log.warning("%s", note)
    what = (
        f"checkpoint {start.number} of {config.folder}" if start.state is not None else f"a new job in {config.folder}"
    )
    lost = "the last run ended without writing down its last changes"
    if start.lost:
        log.warning("shard %d has %s: %s; all shards have to go back to a common one", shard.shard, what, lost)
        return
    for note in start.begin(shard, journal=config.journal, keep_journal=config.keep_journal):
        log.warning("%s", note)
    begins = f"shard {shard.shard} starts from {what}, at global step {shard.global_step}"
    if start.origin is Origin.CUT or start.went_back:
        log.warning("%s: %s", begins, lost)
    elif start.torn:
        log.warning("%s: %s", begins, _TORN)
    else:
        log.info("%s: nothing is lost", begins)
