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

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from psserver.core.options import ShardOptions
from psserver.core.shard import Shard
from psserver.core.state import VariableArrays
from psserver.core.variables.array_tasks import run
from psserver.storage import checkpoints, records, segments
from psserver.storage.arrays import damaged
from psserver.storage.files import remove_folder, remove_leftovers
from psserver.storage.folders import (
    available,
    found,
    journal_folder,
    lock_shards_before,
    remove,
    remove_if_empty,
    shard_folder,
    step_folder,
    sweep,
)
from psserver.storage.reshard import reshard
from psserver.storage.retention import copy_aside, cuts, given_up, move_aside
from psserver.storage.shard_run import Run, read_run, run_path, write_run
from pswire.errors import DamagedFile, Malformed, ParamServerError, StorageError
from pswire.messages import Cut, Message, ShardState
from pswire.plurals import pluralize

#: The timeline of a job that has given up nothing; 0 means none in messages.
FIRST_TIMELINE = 1

#: What a shard raises for a state whose fields are valid one by one, but contradict each other: no shard writes one,
#: but a file may have any, with a right checksum.
_INCONSISTENT = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError)


class Origin(Enum):
    """What a shard starts from, by what the last run has left."""

    #: Nothing is there: the job begins.
    NEW_JOB = auto()
    #: A final checkpoint: the last run stopped after it, and no run has begun from it.
    FINAL_CHECKPOINT = auto()
    #: A checkpoint, and a journal of all that came after it.
    JOURNAL = auto()
    #: The same; the last run has begun with this checkpoint as a `CUT`.
    JOURNAL_OF_CUT = auto()
    #: A checkpoint of a run that was killed without a journal, or that is damaged since: newer changes may be lost. The
    #: shard begins no run from here: a single one gives them up, and several agree on a `CUT`.
    OLD_CHECKPOINT = auto()
    #: A checkpoint as a cut, with its late changes: what came after it is given up, and a new timeline begins.
    CUT = auto()
    #: The state of the job on another number of shards.
    OTHER_SHARDS = auto()


@dataclass(slots=True, eq=False)
class Start:
    """What a shard starts from, and the beginning of its run.

    Attributes:
        folder, shard, shards: whose start it is.
        origin: which case it is.
        timeline, timeline_cut: which timeline the shard follows, and the cut that it began with.
        state: None: the job is new.
        arrays: of the state's variables; the restored shard will own them.
        late: changes that belong to the cut and came after the state.
        worker: see `psserver.storage.checkpoints.Manifest`.
        torn: the journal ended with an incomplete record; of another number of shards, any of their journals.
        went_back: the other number of shards went back to a cut: what came after it is given up.
        notes: sentences for the log: what was damaged, left out or given up.
        before: the locks of the other number of shards, until the run is confirmed.
    """

    folder: Path
    shard: int
    shards: int
    origin: Origin = Origin.NEW_JOB
    timeline: int = FIRST_TIMELINE
    timeline_cut: int = 0
    state: ShardState | None = None
    arrays: dict[str, VariableArrays] = field(default_factory=dict)
    late: tuple[Message, ...] = ()
    worker: dict[str, Any] | None = None
    torn: bool = False
    went_back: bool = False
    notes: list[str] = field(default_factory=list)
    before: ExitStack | None = None
    _run: Run | None = None

    @property
    def number(self) -> int:
        """The number of the checkpoint; 0 if the job is new."""
        return 0 if self.state is None else self.state.cut

    @property
    def lost(self) -> bool:
        """Whether something newer may have been acknowledged, so that the shard cannot begin a run from here."""
        return self.origin is Origin.OLD_CHECKPOINT

    @property
    def gave_up(self) -> bool:
        """Whether what may have been acknowledged after the cut is given up: all workers have to join again."""
        return self.origin in (Origin.CUT, Origin.JOURNAL_OF_CUT)

    @property
    def replayed(self) -> bool:
        """Whether the journal has what came after the checkpoint."""
        return self.origin in (Origin.JOURNAL, Origin.JOURNAL_OF_CUT)

    @property
    def stored(self) -> bool:
        """Whether a checkpoint of this shard has the state."""
        return self.origin not in (Origin.NEW_JOB, Origin.OTHER_SHARDS)

    @property
    def provisional(self) -> bool:
        """Whether the run is not confirmed: the files of the other number of shards have all that was acknowledged."""
        return self.before is not None

    def give_up(self, note: str = "") -> None:
        """Begin a new timeline from here, without what may have been acknowledged since: for a single shard."""
        self.origin = Origin.CUT
        self.timeline, self.timeline_cut = self.timeline + 1, self.number
        self.notes.append(note or f"what may have been acknowledged after checkpoint {self.number} is given up")

    def restore(self, shard: Shard, now: float, *, truncate: bool = True) -> None:
        """Give a new shard the state; call it once. May add notes.

        Args:
            shard: with the options of the state.
            now: as in `Shard.step`.
            truncate: whether to cut a torn tail of the journal off.

        Raises:
            WrongShard: the state is of a shard with other options.
            StorageError: the journal cannot be read, or does not continue from the state; `DamagedFile`: it is damaged,
                or the state contradicts itself.
        """
        if self.state is not None:
            try:
                shard.restore(self.state, self.arrays, now)
            except _INCONSISTENT as error:
                manifest = shard_folder(self.folder, self.number, self.shard, self.shards) / checkpoints.MANIFEST
                reason = f"parts of the state contradict each other ({type(error).__name__}: {error})"
                raise damaged(manifest, reason) from error
            self.state, self.arrays = replace(self.state, served=()), {}
        late, self.late = self.late if self.lost or self.gave_up else None, ()
        self.notes += shard.begin_from(self.timeline, now, late=late, lost=self.lost, went_back=self.gave_up)
        tickets = itertools.count(-1, -1)  # other ones than of the executor's calls: what is held stays held
        if self.replayed:
            journal = journal_folder(self.folder, self.shard, self.shards)
            self.torn |= _replay(shard, journal, self.number, tickets, now, truncate=truncate)
        shard.resume(now)

    def begin(self, shard: Shard, *, journal: bool, keep_journal: bool = False) -> list[str]:
        """Begin the run of the restored shard, durably; call `confirm` before its first change if it is provisional.

        With a `journal`, its newest segment continues from the shard's state. With `keep_journal`, the segments before
        it stay if they lead to this state. Returns sentences for the log: what was moved aside. Raises `OSError`, or
        `StorageError`.
        """
        folder, at, number = self.folder, (self.shard, self.shards), self.number
        if self.provisional:
            self._begin_provisional(journal=journal)
        if not self.stored or (self.replayed and not journal):
            number = self._write_final(shard)
        path, aside = journal_folder(folder, *at), set[Path]()
        leads_here = self.replayed or (keep_journal and self.origin is Origin.FINAL_CHECKPOINT)
        if not (leads_here and journal):
            if self.origin is Origin.CUT and segments.have_records(path):
                aside.add(move_aside(folder, self.timeline, path))
            else:
                remove_folder(path)
        begin_journal = None if not journal or self.replayed else (path, number, shard.identity)
        if begin_journal and self.origin is not Origin.CUT:
            segments.begin_at(*begin_journal)
        gave_up = self.gave_up and number == self.number
        self._run = Run(self.timeline, self.timeline_cut, number, journal, gave_up, self.provisional)
        given = given_up(folder, self.timeline, self.timeline_cut, *at)
        for there in aside:
            copy_aside(run_path(folder, *at), there)
        write_run(folder, *at, self._run)
        if begin_journal and self.origin is Origin.CUT:
            segments.begin_at(*begin_journal)
        for old in given:
            aside.add(move_aside(folder, self.timeline, shard_folder(folder, old, *at)))
            remove_if_empty(step_folder(folder, old))
        return [f"what was given up was moved to {there}" for there in sorted(aside)]

    def _begin_provisional(self, *, journal: bool) -> None:
        """Remove the checkpoints of an earlier provisional run, and write the run file of this one."""
        folder, at = self.folder, (self.shard, self.shards)
        last = read_run(folder, *at)
        for old in available(folder, *at):
            if last is not None and last.provisional and old >= last.began_from:
                remove(folder, old, *at)
        write_run(folder, *at, Run(self.timeline, self.timeline_cut, self.number, journal, provisional=True))

    def _write_final(self, shard: Shard) -> int:
        """Write the state of the shard, which no checkpoint has, as a final one; returns its number."""
        if self.replayed:
            shard.number_state()
        arrays, is_cut = iter(shard.arrays().items()), not self.replayed or self.shards == 1
        state = shard.state()
        checkpoints.write(self.folder, state, arrays, tuple, final=True, is_cut=is_cut)
        return state.cut

    def confirm(self) -> None:
        """Let a provisional run be the job's, durably, before its first change is acknowledged. Raises `OSError`."""
        if self.provisional:
            assert self._run is not None, "begun"
            write_run(self.folder, self.shard, self.shards, replace(self._run, provisional=False))
        self.close()

    def close(self) -> None:
        """Give up the locks of the other number of shards; may be called again."""
        if self.before is not None:
            self.before.close()
        self.before = None


# --- the start of a shard ---------------------------------------------------------------------------------------------


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


def start_at(folder: Path, timeline: int, cut: int, shard: int, shards: int) -> Start:
    """The start of a new timeline from a cut. Raises `DamagedFile` or `StorageError`."""
    read = checkpoints.read(folder, cut, shard, shards)
    return Start(folder, shard, shards, Origin.CUT, timeline, cut, read.state, read.arrays, read.late)


def own_start(folder: Path, shard: int, shards: int) -> Start:
    """What a shard starts from by its own checkpoints and journal. Changes nothing. Raises as `find_start`."""
    at, journal = (shard, shards), journal_folder(folder, shard, shards)
    last = read_run(folder, *at)
    without = [] if last is None else given_up(folder, last.timeline, last.timeline_cut, *at)
    latest = checkpoints.latest(folder, *at, without)
    notes = [str(error) for error in latest.skipped]
    if latest.checkpoint is None:
        if not notes and last is None and not segments.have_records(journal):
            return Start(folder, *at)
        raise DamagedFile(
            f"{folder} has no intact checkpoint of shard {shard} of {shards}, which has begun before: restore the "
            f"checkpoints, or remove {run_path(folder, *at)}, {journal} and what is left of the "
            f"checkpoints to begin a new job{''.join([f'; {note}' for note in notes])}"
        )
    read = latest.checkpoint
    start = Start(folder, *at, state=read.state, arrays=read.arrays, late=read.late, notes=notes)
    start.worker = read.manifest.worker
    is_final = read.manifest.final and not notes
    if last is None:  # no run has begun, or its file was removed
        start.timeline = max(read.state.timeline, FIRST_TIMELINE)
        is_final &= len(available(folder, *at)) == 1 and not segments.have_records(journal)
        start.origin = Origin.FINAL_CHECKPOINT if is_final else Origin.OLD_CHECKPOINT
        return start
    start.timeline, start.timeline_cut = last.timeline, last.timeline_cut
    is_first = start.number == last.began_from
    if is_final and (start.number > last.began_from or (is_first and last.provisional)):
        start.origin = Origin.FINAL_CHECKPOINT
    elif last.journal and journal.is_dir() and start.number in segments.list_segments(journal):
        start.origin = Origin.JOURNAL_OF_CUT if is_first and last.gave_up else Origin.JOURNAL
    else:
        start.origin = Origin.OLD_CHECKPOINT
    return start


def _replay(shard: Shard, journal: Path, first: int, tickets: Iterator[int], now: float, *, truncate: bool) -> bool:
    """Step the records of a journal from a segment on; their cuts were taken before. Returns if its tail was torn."""
    torn: list[Path] = []
    for record in segments.read_segments(journal, shard.identity, first, truncate=truncate, torn=torn):
        with record_errors(record.path, record.offset):
            run(shard.replay(next(tickets), records.decode(record.payload), now).tasks)
    # a segment is begun by each cut, also by one whose checkpoint was not written: its number is not used again
    shard.replay(next(tickets), Cut(number=max(segments.list_segments(journal))), now)
    return bool(torn)


@contextmanager
def record_errors(path: Path, offset: int) -> Iterator[None]:
    """Name the record whose message the block decodes or steps: `DamagedFile` if it is none, else `StorageError`."""
    place = f"journal segment {path}, offset {offset}"
    try:
        yield
    except Malformed as error:
        raise DamagedFile(f"{place}: not a message: {error}") from error
    except (ParamServerError, *_INCONSISTENT) as error:
        raise StorageError(f"{place}: the message does not fit the checkpoint: {error}") from error


# --- whole jobs -------------------------------------------------------------------------------------------------------


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
