"""What a shard starts from: nothing, a checkpoint with what its journal has after it, or an older state of the job.

    start = find_start(folder, shard, shards)  # looks; if it is lost: start_at, or give_up
    start.restore(new_shard, now)              # the shard has the state
    start.begin(new_shard, journal=...)        # durable; from now on something may be acknowledged

A start has lost nothing if the last run has stopped and written a final checkpoint, from which no run has begun yet, or
if it has written a journal: then the newest checkpoint and the records after it give the state. Otherwise something may
have been acknowledged after the newest checkpoint (`lost`): a single shard gives it up, and several have to agree on a
cut to which they go back. Both begin a new timeline.

A run begins in an order that makes this true at every moment at which the process may be killed:

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
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from psserver.core.cuts import Late
from psserver.core.shard import Shard
from psserver.core.state import VariableArrays
from psserver.core.variables.array_tasks import run
from psserver.storage import checkpoints, records
from psserver.storage.arrays import damaged
from psserver.storage.checkpoints import MANIFEST
from psserver.storage.files import remove_leftovers, rename_to_remove
from psserver.storage.folders import (
    FolderLock,
    available,
    remove,
    remove_if_empty,
    shard_folder,
    step_folder,
)
from psserver.storage.retention import copy_aside, given_up, move_aside
from psserver.storage.segments import SEGMENT_HEADER, SegmentFile, SegmentHeader, list_segments, read_segments
from psserver.storage.shard_run import Run, read_run, run_path, write_run
from pswire.errors import DamagedFile, Malformed, NotJoined, ParamServerError, StorageError
from pswire.messages import Join, Message, ShardState
from pswire.security.private_files import make_private_folder
from pswire.system.files import sync_path

#: The timeline of a job that has given up nothing; 0 means none in messages.
FIRST_TIMELINE = 1

#: What a shard raises for a state whose fields are valid one by one, and whose parts name what is not there: no shard
#: writes one, but a file may have any, with a right checksum.
_INCONSISTENT = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError)


@dataclass(slots=True, eq=False)
class Start:
    """What a shard starts from.

    Attributes:
        folder, shard, shards: whose start it is.
        timeline, timeline_cut: which timeline the shard follows, and the cut that it began with.
        state: None: the job is new.
        arrays: of the state's variables; the restored shard will own them.
        late: changes that belong to the cut and came after the state.
        worker: see `psserver.storage.checkpoints.Manifest`.
        stored: a checkpoint has the state.
        replayed: the journal has what came after it.
        lost: something newer may have been acknowledged: the shard cannot begin a run from here.
        gave_up: what may have been acknowledged after the cut is given up: all workers have to join again.
        torn: the journal ended with an incomplete record, which was cut off; that of any shard of before too.
        went_back: the shards of before went back to a cut, without what may have been acknowledged after it.
        notes: sentences for the log: what was damaged, left out or given up.
        before: the locks of the shards from whose state on another number this one begins, until it has.
    """

    folder: Path
    shard: int
    shards: int
    timeline: int = FIRST_TIMELINE
    timeline_cut: int = 0
    state: ShardState | None = None
    arrays: dict[str, VariableArrays] = field(default_factory=dict)
    late: tuple[Message, ...] = ()
    worker: dict[str, Any] | None = None
    stored: bool = False
    replayed: bool = False
    lost: bool = False
    gave_up: bool = False
    torn: bool = False
    went_back: bool = False
    notes: list[str] = field(default_factory=list)
    before: FolderLock | None = None
    _run: Run | None = None

    @property
    def number(self) -> int:
        """The number of the checkpoint; 0 if the job is new."""
        return 0 if self.state is None else self.state.cut

    def give_up(self) -> None:
        """Begin a new timeline from here, without what may have been acknowledged since: for a single shard."""
        self.lost, self.gave_up = False, True
        self.timeline, self.timeline_cut = self.timeline + 1, self.number
        self.notes.append(f"what may have been acknowledged after checkpoint {self.number} is given up")

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
                manifest = shard_folder(self.folder, self.number, self.shard, self.shards) / MANIFEST
                reason = f"parts of the state contradict each other ({type(error).__name__}: {error})"
                raise damaged(manifest, reason) from error
            self.state, self.arrays = replace(self.state, served=()), {}
        tickets = itertools.count(-1, -1)  # other ones than of the executor's calls: what is held stays held
        if self.lost or self.gave_up:
            self.notes += step_late(shard, self.late, tickets, now)
        self.late = ()
        shard.timeline, shard.lost = self.timeline, self.lost
        if self.gave_up:
            shard.go_back(self.timeline)
        if self.replayed:
            journal = journal_folder(self.folder, self.shard, self.shards)
            self.torn |= _replay(shard, journal, self.number, tickets, now, truncate=truncate)
        shard.resume(now)

    @property
    def provisional(self) -> bool:
        """Whether a run of it is provisional: nothing that this shard has was acknowledged by it."""
        return self.before is not None

    def begin(self, shard: Shard, *, journal: bool, keep_journal: bool = False) -> list[str]:
        """Begin the run of the restored shard, durably; call `confirm` before its first change if it is provisional.

        With a `journal`, its newest segment continues from the shard's state. With `keep_journal`, the segments before
        it stay if they lead to this state. Returns sentences for the log: what was moved aside. Raises `OSError`, or
        `StorageError`.
        """
        folder, at, number = self.folder, (self.shard, self.shards), self.number
        if self.provisional:
            last = read_run(folder, *at)
            for old in available(folder, *at):
                if last is not None and last.provisional and old >= last.began_from:
                    remove(folder, old, *at)
            write_run(folder, *at, Run(self.timeline, self.timeline_cut, number, journal, provisional=True))
        continues = self.replayed and journal
        if not self.stored or (self.replayed and not journal):
            if self.replayed:
                number = shard.cuts.number = shard.cuts.completed = max(shard.cuts.number + 1, shard.global_step)
            arrays, is_cut = iter(shard.arrays().items()), not self.replayed or self.shards == 1
            checkpoints.write(folder, shard.state(), arrays, tuple, final=True, is_cut=is_cut)
        path, aside = journal_folder(folder, *at), set[Path]()
        continued = keep_journal and not continues and self.stored and not self.gave_up and bool(_segments(folder, *at))
        if continued:
            _continue_journal(path, number, shard.identity)
        elif not continues:
            if self.gave_up and not self.replayed and has_records(folder, *at):
                aside.add(move_aside(folder, self.timeline, path))
            else:
                remove_journal(folder, *at)
        gives_up, begins = self.gave_up and not self.replayed, journal and not continues and not continued
        if begins and not gives_up:
            _begin_journal(path, number, shard.identity)
        gave_up = self.gave_up and number == self.number
        self._run = Run(self.timeline, self.timeline_cut, number, journal, gave_up, self.provisional)
        given = given_up(folder, self.timeline, self.timeline_cut, *at)
        for there in aside:
            copy_aside(run_path(folder, *at), there)
        write_run(folder, *at, self._run)
        if begins and gives_up:
            _begin_journal(path, number, shard.identity)
        for old in given:
            aside.add(move_aside(folder, self.timeline, shard_folder(folder, old, *at)))
            remove_if_empty(step_folder(folder, old))
        return [f"what was given up was moved to {there}" for there in sorted(aside)]

    def confirm(self) -> None:
        """Let a provisional run be the job's, durably, before its first change is acknowledged. Raises `OSError`."""
        if self.provisional:
            assert self._run is not None, "begun"
            write_run(self.folder, self.shard, self.shards, replace(self._run, provisional=False))
        self.close()

    def close(self) -> None:
        """Give up the locks of the shards from whose state it begins; may be called again."""
        if self.before is not None:
            self.before.close()
        self.before = None


def start_at(folder: Path, timeline: int, cut: int, shard: int, shards: int) -> Start:
    """The start of a new timeline from a cut. Raises `DamagedFile` or `StorageError`."""
    found = checkpoints.read(folder, cut, shard, shards)
    return Start(folder, shard, shards, timeline, cut, found.state, found.arrays, found.late, stored=True, gave_up=True)


def journal_folder(folder: Path, shard: int, shards: int) -> Path:
    """The folder of a shard's journal."""
    return folder / f"journal-{shard}-of-{shards}"


def has_records(folder: Path, shard: int, shards: int) -> bool:
    """Whether there is a journal of a shard with more than the beginning of a segment."""
    path = journal_folder(folder, shard, shards)
    return path.is_dir() and any(one.stat().st_size > SEGMENT_HEADER for one in list_segments(path).values())


def remove_journal(folder: Path, shard: int, shards: int) -> None:
    """Remove the journal of a shard, if there is one. Raises `OSError`."""
    path = journal_folder(folder, shard, shards)
    remove_leftovers(path)
    if path.exists():
        shutil.rmtree(rename_to_remove(path), ignore_errors=True)


def own_start(folder: Path, shard: int, shards: int) -> Start:
    """What a shard starts from by its own checkpoints and journal. Changes nothing. Raises as `find_start`."""
    at = shard, shards
    last = read_run(folder, *at)
    without = [] if last is None else given_up(folder, last.timeline, last.timeline_cut, *at)
    latest = checkpoints.latest(folder, *at, without)
    notes = [str(error) for error in latest.skipped]
    if latest.checkpoint is None:
        if not notes and last is None and not has_records(folder, *at):
            return Start(folder, *at)
        raise DamagedFile(
            f"{folder} has no intact checkpoint of shard {shard} of {shards}, which has begun before: restore the "
            f"checkpoints, or remove {run_path(folder, *at)}, {journal_folder(folder, *at)} and what is left of the "
            f"checkpoints to begin a new job{''.join([f'; {note}' for note in notes])}"
        )
    checkpoint = latest.checkpoint
    start = Start(folder, *at, state=checkpoint.state, arrays=checkpoint.arrays, late=checkpoint.late, stored=True)
    start.notes, start.worker = notes, checkpoint.manifest.worker
    is_final = checkpoint.manifest.final and not notes
    if last is None:  # no run has begun, or its file was removed
        start.timeline = max(checkpoint.state.timeline, FIRST_TIMELINE)
        start.lost = not (is_final and len(available(folder, *at)) == 1) or has_records(folder, *at)
        return start
    start.timeline, start.timeline_cut = last.timeline, last.timeline_cut
    unchanged = last.provisional and start.number == last.began_from
    if not (is_final and (start.number > last.began_from or unchanged)):
        start.replayed = last.journal and start.number in _segments(folder, *at)
        start.gave_up = start.replayed and last.gave_up and start.number == last.began_from
        start.lost = not start.replayed
    return start


def _segments(folder: Path, shard: int, shards: int) -> Iterable[int]:
    """The numbers of the segments of the journal: that of a checkpoint begins there."""
    path = journal_folder(folder, shard, shards)
    return list_segments(path) if os.path.isdir(path) else ()


def _begin_journal(path: Path, number: int, identity: int) -> None:
    """Begin a journal with an empty segment, durably."""
    make_private_folder(path)
    SegmentFile.create(path, SegmentHeader(number, identity)).close()
    sync_path(path.parent)


def _continue_journal(path: Path, number: int, identity: int) -> None:
    """Begin the segment of a final checkpoint after the segments that led to it, unless a killed process has."""
    segments = list_segments(path)
    newest = max(segments)
    if newest < number:
        for _ in read_segments(path, identity, newest, truncate=True):
            pass  # a torn tail, which the checkpoint has, is cut off
        previous = newest, segments[newest].stat().st_size
        SegmentFile.create(path, SegmentHeader(number, identity, *previous)).close()


def step_late(shard: Shard, changes: Iterable[Message], tickets: Iterator[int], now: float) -> list[str]:
    """Step the late changes of a cut, by workers that may have joined after the snapshot; returns what was refused."""
    refused = []
    shard.begin_late()
    for change in changes:
        assert isinstance(change, get_args(Late)), "other messages are not kept with a cut"
        try:
            try:
                shard.check(change)
            except NotJoined:
                join = Join(
                    worker=change.sender.worker,
                    incarnation=change.sender.incarnation,
                    shard=shard.shard,
                    shards=shard.shards,
                )
                run(shard.step(next(tickets), join, now).tasks)
            run(shard.step(next(tickets), change, now).tasks)
        except ParamServerError as error:
            refused.append(f"a late {type(change).__name__} of checkpoint {shard.cuts.number} was left out: {error}")
    run(shard.end_late(now).tasks)
    return refused


def _replay(shard: Shard, journal: Path, first: int, tickets: Iterator[int], now: float, *, truncate: bool) -> bool:
    """Step the records of a journal from a segment on; their cuts were taken before. Returns if its tail was torn."""
    torn: list[Path] = []
    shard.cuts.enabled = False
    for record in read_segments(journal, shard.identity, first, truncate=truncate, torn=torn):
        with record_errors(record.path, record.offset):
            run(shard.step(next(tickets), records.decode(record.payload), now).tasks)
    shard.cuts.enabled = True
    # a segment is begun by each cut, also by one whose checkpoint was not written: its number is not used again
    shard.cuts.number = max(shard.cuts.number, *list_segments(journal))
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
