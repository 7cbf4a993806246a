"""The start of one shard: which case it is, how its state is restored, and how a run begins from there.

The order in which a run begins is in `psserver.storage.find_start`.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from psserver.core.shard import Shard
from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.array_tasks import run
from psserver.storage import checkpoints, journal_segments, records
from psserver.storage.arrays import damaged
from psserver.storage.files import remove_folder
from psserver.storage.folders import (
    available,
    journal_folder,
    remove,
    remove_if_empty,
    shard_folder,
    step_folder,
)
from psserver.storage.retention import copy_aside, given_up, move_aside
from psserver.storage.shard_run import Run, read_run, run_path, write_run
from pswire.errors import AlreadyRegistered, DamagedFile, Malformed, ParamServerError, StorageError
from pswire.messages import Cut, Job, Message, ShardState

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

    @property
    def source(self) -> str:
        """What the job continues from, for messages."""
        assert self.state is not None
        # of several shards it is in no checkpoint of this one
        which = (
            f"checkpoint {step_folder(self.folder, self.number)}"
            if self.stored
            else f"the checkpoints in {self.folder}"
        )
        return f"{which}, global step {self.state.global_step}"

    def explained(self, error: ParamServerError, job: Job) -> ParamServerError:
        """An error of the present `job`, with the checkpoint that it continues from, where that may be the reason."""
        if self.state is None or job != self.state.job or not isinstance(error, AlreadyRegistered):
            return error
        return type(error)(
            f"{error} (the job continues from {self.source}: epochs may be raised, not lowered, and "
            "session.set_hyperparameters changes a learning rate; if the program was changed, give it another "
            "checkpoint_dir, which is --run-dir of psworker local, or remove that folder)"
        )

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
            if self.origin is Origin.CUT and journal_segments.have_records(path):
                aside.add(move_aside(folder, self.timeline, path))
            else:
                remove_folder(path)
        begin_journal = None if not journal or self.replayed else (path, number, shard.identity)
        if begin_journal and self.origin is not Origin.CUT:
            journal_segments.begin_at(*begin_journal)
        gave_up = self.gave_up and number == self.number
        self._run = Run(self.timeline, self.timeline_cut, number, journal, gave_up, self.provisional)
        given = given_up(folder, self.timeline, self.timeline_cut, *at)
        for there in aside:
            copy_aside(run_path(folder, *at), there)
        write_run(folder, *at, self._run)
        if begin_journal and self.origin is Origin.CUT:
            journal_segments.begin_at(*begin_journal)
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
            shard.cuts.number_state()
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


def _replay(shard: Shard, journal: Path, first: int, tickets: Iterator[int], now: float, *, truncate: bool) -> bool:
    """Step the records of a journal from a segment on; their cuts were taken before. Returns if its tail was torn."""
    torn: list[Path] = []
    for record in journal_segments.read_segments(journal, shard.identity, first, truncate=truncate, torn=torn):
        with record_errors(record.path, record.offset):
            run(shard.replay(next(tickets), records.decode(record.payload), now).tasks)
    # a segment is begun by each cut, also by one whose checkpoint was not written: its number is not used again
    shard.replay(next(tickets), Cut(number=max(journal_segments.list_segments(journal))), now)
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
