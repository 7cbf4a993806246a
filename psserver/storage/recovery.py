"""The start of a shard from the files of a job of this or another number of shards; and whole jobs from their files."""

from dataclasses import dataclass, replace
from pathlib import Path

from psserver.core.shard import Shard
from psserver.storage.checkpoint_folders import available, found, sweep
from psserver.storage.files import remove_leftovers
from psserver.storage.reshard import reshard
from psserver.storage.retention import cuts, given_up
from psserver.storage.start import Start, journal_folder, own_start, start_at
from pswire.errors import DamagedFile, StorageError
from pswire.terminal.plurals import pluralize


@dataclass(frozen=True, slots=True, eq=False)
class StoredJob:
    """A job as its files have it.

    Attributes:
        shards: all of them, with their states.
        cut: what came after this cut is not there; None: nothing that was acknowledged is missing.
        timeline: that of its last run.
        number: of the newest checkpoint that was looked at.
        notes: as in `Start`.
    """

    shards: list[Shard]
    cut: int | None
    timeline: int
    number: int
    notes: list[str]


def find_start(folder: Path, shard: int, shards: int) -> Start:
    """What a shard starts from. Removes only what a killed process of it has left.

    If the newest checkpoints are of another number of shards, and those of all of them are here, the start is the state
    of the job on this number of shards (`psserver.storage.reshard`), which every new shard computes alike.

    Raises:
        DamagedFile: the run file is damaged, or checkpoints are there and none is intact.
        StorageError: files may not be read, or are of a later version; or checkpoints that should be there are not.
    """
    sweep(folder, shard, shards)
    remove_leftovers(journal_folder(folder, shard, shards))
    mine = max(available(folder, shard, shards), default=-1)
    newest, before = newest_job(folder, without=shards)
    if newest > mine:
        return _on_other_shards(folder, shard, shards, before)
    return own_start(folder, shard, shards)


def newest_job(folder: Path, without: int = 0) -> tuple[int, int]:
    """The number of the newest checkpoint in a folder, and of how many shards it is; (-1, 0): there is none.

    Those of `without` shards are left out.
    """
    numbers = [(number, of) for number, there in found(folder).items() for _, of in there if of != without]
    return max(numbers, default=(-1, 0))


def stored_job(folder: Path, shards: int, number: int | None = None) -> StoredJob:
    """The job of so many shards, as it was in checkpoint `number`; without it, as late as possible. Changes nothing.

    Raises `DamagedFile`, or `StorageError` if checkpoints are missing, may not be read, or are of a later version.
    """
    numbers = found(folder)
    chosen = numbers.values() if number is None else [numbers.get(number, set())]
    present = sorted({shard for there in chosen for shard, of in there if of == shards})
    if present != list(range(shards)):
        which = "checkpoints" if number is None else f"checkpoint {number}"
        raise StorageError(
            f"{folder} has {which} of shard {', '.join(map(str, present)) or 'none'} of {shards} only: bring those of "
            "all shards into one folder"
        )
    if number is not None:
        starts = [start_at(folder, 1, number, shard, shards) for shard in range(shards)]
        return StoredJob([_restored(start) for start in starts], number, 1, number, [])
    starts = [own_start(folder, shard, shards) for shard in range(shards)]
    notes = [note for start in starts for note in start.notes]
    timeline, newest = max([start.timeline for start in starts]), max([start.number for start in starts])
    cut = None
    if any(start.lost for start in starts):
        starts = _common_cut(starts)
        cut = starts[0].number
        notes.append(f"what may have been acknowledged after checkpoint {cut} is given up")
    return StoredJob([_restored(start) for start in starts], cut, timeline, newest, notes)


def _on_other_shards(folder: Path, shard: int, shards: int, before: int) -> Start:
    """The start from the files of a job of `before` shards, which are not changed."""
    try:
        job = stored_job(folder, before)
    except StorageError as error:
        raise type(error)(
            f"the newest checkpoints in {folder} are of {before} shards, and this is shard {shard} of {shards}; they "
            f"cannot be used here, start {before} servers instead: {error}"
        ) from error
    number = max([job.number, *[one.cuts.number for one in job.shards]]) + 1
    timeline = job.timeline + (job.cut is not None)
    state, arrays = reshard(job.shards, shards, number)[shard]
    notes = [*job.notes, f"the job goes on with {pluralize(shards, 'shard')} instead of {before}"]
    state = replace(state, timeline=timeline)
    return Start(folder, shard, shards, timeline, number, state, arrays, notes=notes)


def _common_cut(starts: list[Start]) -> list[Start]:
    """The newest cut that all shards have, intact, and that was not given up."""
    folder, shards, numbers = starts[0].folder, len(starts), []
    for start in starts:
        without = given_up(folder, start.timeline, start.timeline_cut, start.shard, shards)
        numbers.append(set(cuts(folder, start.shard, shards)) - set(without))
    reasons = []
    for number in sorted(set.intersection(*numbers), reverse=True):
        try:
            return [start_at(folder, start.timeline, number, start.shard, shards) for start in starts]
        except DamagedFile as error:
            reasons.append(f"; {error}")
    raise StorageError(f"{folder} has no intact cut of all {shards} shards{''.join(reasons)}")


def _restored(start: Start) -> Shard:
    """A shard of before, with its state."""
    state = start.state
    if state is None:
        return Shard(start.shard, start.shards)
    shard = Shard.for_state(state)
    start.restore(shard, 0.0, truncate=False)
    return shard
