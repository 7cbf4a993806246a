"""A whole job, as the files of its shards have it: which is the newest in a folder, and the states of the shards."""

from dataclasses import dataclass
from pathlib import Path

from psserver.core.options import ShardOptions
from psserver.core.shard import Shard
from psserver.storage.folders import (
    found,
)
from psserver.storage.own_start import own_start, start_at
from psserver.storage.retention import cuts, given_up
from psserver.storage.shard_run import read_run
from psserver.storage.start import Start
from pswire.errors import DamagedFile, StorageError


@dataclass(frozen=True, slots=True, eq=False)
class StoredJob:
    """A job as its files have it.

    Attributes:
        shards: all of them, with their states.
        cut: changes after this cut are given up; None: nothing that was acknowledged is missing.
        timeline: of its last run.
        number: of the newest checkpoint that was looked at.
        torn, notes: as in `Start`.
    """

    shards: list[Shard]
    cut: int | None
    timeline: int
    number: int
    notes: list[str]
    torn: bool = False


def newest_job(folder: Path, without: int = 0) -> tuple[int, int]:
    """The number of the newest checkpoint in a folder, and of how many shards it is; (-1, 0): there is none.

    Those of `without` shards are left out.
    """
    numbers = [(number, of) for number, there in begun(folder).items() for _, of in there if of != without]
    return max(numbers, default=(-1, 0))


def begun(folder: Path) -> dict[int, set[tuple[int, int]]]:
    """As `found`, without checkpoints of provisional runs (`psserver.storage.shard_run`).

    The job is still as it was on the number of shards before. If nothing of that is here, they count.
    """
    numbers = found(folder)
    firsts = {at: _provisional_from(folder, *at) for at in set().union(*numbers.values())}
    kept = {
        number: {at for at in there if (first := firsts[at]) is None or number < first}
        for number, there in numbers.items()
    }
    return {number: there for number, there in kept.items() if there} or numbers


def _provisional_from(folder: Path, shard: int, shards: int) -> int | None:
    """The number of the checkpoint with which a provisional run has begun; None: the run is not provisional."""
    try:
        run = read_run(folder, shard, shards)
    except StorageError:
        return None  # its own start names what is wrong with it
    return run.began_from if run is not None and run.provisional else None


def stored_job(folder: Path, shards: int, number: int | None = None) -> StoredJob:
    """The job of this number of shards, as in checkpoint `number`; without it, as late as possible. Changes nothing.

    Raises `DamagedFile`, or `StorageError` if checkpoints are missing, may not be read, or are of a later version.
    """
    numbers = begun(folder) if number is None else found(folder)
    chosen = numbers.values() if number is None else [numbers.get(number, set())]
    present = sorted({shard for there in chosen for shard, of in there if of == shards})
    if present != list(range(shards)):
        which = "checkpoints" if number is None else f"checkpoint {number}"
        newest = max([one for one, there in numbers.items() if any(of == shards for _, of in there)], default=-1)
        if newest:
            then = "bring those of all shards into one folder"
        else:  # written before the first change, for which all shards must be there
            then = "it was stopped before its first step, so begin again with as many, or in a new folder"
        raise StorageError(
            f"{folder} has {which} of shard {', '.join(map(str, present)) or 'none'} of {shards} only: {then}"
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
    shards_before = [_restored(start) for start in starts]
    return StoredJob(shards_before, cut, timeline, newest, notes, any(start.torn for start in starts))


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
    """A shard with the state of its start."""
    state = start.state
    if state is None:
        return Shard(ShardOptions(start.shard, start.shards))
    shard = Shard.for_state(state)
    start.restore(shard, 0.0, truncate=False)
    return shard
