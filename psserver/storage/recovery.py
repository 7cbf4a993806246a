"""The start of a shard from the files of a job of this or another number of shards; and whole jobs from their files."""

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from psserver.core.shard import Shard
from psserver.storage.checkpoint_folders import found, lock_shards_before, sweep
from psserver.storage.files import remove_leftovers
from psserver.storage.reshard import reshard
from psserver.storage.retention import cuts, given_up
from psserver.storage.shard_run import read_run
from psserver.storage.start import Start, journal_folder, own_start, start_at
from pswire.errors import DamagedFile, StorageError
from pswire.plurals import pluralize


@dataclass(frozen=True, slots=True, eq=False)
class StoredJob:
    """A job as its files have it.

    Attributes:
        shards: all of them, with their states.
        cut: what came after this cut is not there; None: nothing that was acknowledged is missing.
        timeline: that of its last run.
        number: of the newest checkpoint that was looked at.
        torn, notes: as in `Start`.
    """

    shards: list[Shard]
    cut: int | None
    timeline: int
    number: int
    notes: list[str]
    torn: bool = False


def find_start(folder: Path, shard: int, shards: int) -> Start:
    """What a shard starts from. Removes only what a killed process of it has left.

    If the newest checkpoints are of another number of shards, and those of all of them are here, the start is the state
    of the job on this number of shards (`psserver.storage.reshard`), which every new shard computes alike. The shards
    of before cannot run until this one has begun for good (`Start.confirm`), or is closed.

    Raises:
        DamagedFile: the run file is damaged, or checkpoints are there and none is intact.
        StorageError: files may not be read, or are of a later version; or checkpoints that should be there are not; or
            a shard of before runs.
    """
    sweep(folder, shard, shards)
    remove_leftovers(journal_folder(folder, shard, shards))
    mine = max([number for number, there in begun(folder).items() if (shard, shards) in there], default=-1)
    newest, before = newest_job(folder, without=shards)
    if newest > mine:
        return _on_other_shards(folder, shard, shards, before)
    return own_start(folder, shard, shards)


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
    """The job of so many shards, as it was in checkpoint `number`; without it, as late as possible. Changes nothing.

    Raises `DamagedFile`, or `StorageError` if checkpoints are missing, may not be read, or are of a later version.
    """
    numbers = begun(folder) if number is None else found(folder)
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
    shards_before = [_restored(start) for start in starts]
    return StoredJob(shards_before, cut, timeline, newest, notes, any(start.torn for start in starts))


def _on_other_shards(folder: Path, shard: int, shards: int, before: int) -> Start:
    """The start from the files of a job of `before` shards, which are not changed."""
    with ExitStack() as stack:
        lock = stack.enter_context(closing(lock_shards_before(folder, before)))
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
        stack.pop_all()
    start = Start(folder, shard, shards, timeline, number, state, arrays, notes=notes, before=lock)
    start.torn, start.went_back = job.torn, job.cut is not None
    return start


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
