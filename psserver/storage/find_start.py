"""Recovery: what a shard starts from, and how a run begins from there, so that a kill at any moment is recovered from.

    start = find_start(folder, shard, shards)  # looks; if it is lost: start_at, or give_up
    start.restore(new_shard, now)              # the shard has the state
    start.begin(new_shard, journal=...)        # durable; from now on something may be acknowledged

`Origin` has the cases. A run begins in this order:

1. a state that no checkpoint has is written as a final one; one from another number of shards after the run file of a
   provisional run;
2. a journal that does not continue from this state is removed, or moved aside if it was given up, and an empty segment
   begins;
3. the run file (`psserver.storage.shard_run`) says which run this is; after something was given up, the empty segment
   follows it, or the loss would not be known after a kill between the two;
4. checkpoints that its timeline gave up, which are ignored from now on, are moved aside (`psserver.storage.retention`).

A run from the state of another number of shards is provisional, and those shards stay locked, until it accepts its
first change (`Start.confirm`): it may have been started by mistake.
"""

from dataclasses import replace
from pathlib import Path

from psserver.storage.files import remove_leftovers
from psserver.storage.folders import (
    journal_folder,
    lock_shards_before,
    sweep,
)
from psserver.storage.own_start import own_start
from psserver.storage.reshard import reshard
from psserver.storage.start import Origin, Start
from psserver.storage.stored_job import begun, newest_job, stored_job
from pswire.errors import StorageError
from pswire.plurals import pluralize


def find_start(folder: Path, shard: int, shards: int) -> Start:
    """What a shard starts from. Removes only what a killed process of it has left.

    If the newest checkpoints are of another number of shards, and all of these are here, the start is the state of the
    job on this number of shards (`psserver.storage.reshard`), which every new shard computes alike. The other
    number of shards cannot run until this one has begun for good (`Start.confirm`), or is closed.

    Raises:
        DamagedFile: the run file is damaged, or checkpoints are there and none is intact.
        StorageError: files may not be read, or are of a later version; or checkpoints that should be there are not; or
            one of the other number of shards runs.
    """
    sweep(folder, shard, shards)
    remove_leftovers(journal_folder(folder, shard, shards))
    mine = max([number for number, there in begun(folder).items() if (shard, shards) in there], default=-1)
    newest, before = newest_job(folder, without=shards)
    if newest > mine:
        return _on_other_shards(folder, shard, shards, before)
    return own_start(folder, shard, shards)


def _on_other_shards(folder: Path, shard: int, shards: int, before: int) -> Start:
    """The start from the files of a job of `before` shards, which are not changed."""
    with lock_shards_before(folder, before) as locks:
        try:
            job = stored_job(folder, before)
        except StorageError as error:
            raise type(error)(
                f"the newest checkpoints in {folder} are of {before} shards, and this is shard {shard} of {shards}; "
                f"they cannot be used here, start {before} servers instead: {error}"
            ) from error
        number = max([job.number, *[one.cuts.number for one in job.shards]]) + 1
        timeline = job.timeline + (job.cut is not None)
        state, arrays = reshard(job.shards, shards, number)[shard]
        notes = [*job.notes, f"the job goes on with {pluralize(shards, 'shard')} instead of {before}"]
        state = replace(state, timeline=timeline)
        start = Start(folder, shard, shards, Origin.OTHER_SHARDS, timeline, number, state, arrays, notes=notes)
        start.before = locks.pop_all()
    start.torn, start.went_back = job.torn, job.cut is not None
    return start
