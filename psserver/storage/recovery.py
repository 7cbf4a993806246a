"""What a server starts from: nothing, a checkpoint with what its journal has after it, or an older state of the job.

    start = find_start(folder, shard, shards)    # looks, and removes what was given up before
    start.restore(shard, now)                    # the shard has the state
    start.begin(shard, journal=...)              # durable; from now on something may be acknowledged

A start has lost nothing if the last run has stopped and written a final checkpoint, from which no run has begun yet, or
if it has written a journal: then the newest checkpoint and the records after it give the state. Otherwise something may
have been acknowledged after the newest checkpoint, and the start is `lost`.

The order in which a run begins makes that true at every moment at which the process may be killed:

1. a state that is on no disk yet is written as a final checkpoint;
2. a journal that does not continue from this state is removed, and an empty segment begins;
3. the run file (`psserver.storage.run_file`) says which run this is;
4. checkpoints that its timeline has given up are removed, and are ignored until they are.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from psserver.core.shard import Shard
from psserver.core.state import ShardState, VariableArrays
from psserver.core.variables.array_tasks import run
from psserver.storage import checkpoints, records
from psserver.storage.checkpoint_folders import found, sweep
from psserver.storage.checkpoints import Checkpoint
from psserver.storage.files import sync_path
from psserver.storage.reshard import reshard
from psserver.storage.retention import cuts, give_up
from psserver.storage.run_file import Run, read_run, run_path, write_run
from psserver.storage.segment_file import SegmentFile
from psserver.storage.segments import Record, SegmentHeader, list_segments, read_segments
from pswire.errors import DamagedFile, Malformed, NotJoined, ParamServerError, StorageError
from pswire.messages import Join, Message
from pswire.specs.consistency import parse_consistency, parse_staleness

#: The timeline of a job that has lost nothing; 0 means none in messages.
FIRST_TIMELINE = 1


def journal_folder(folder: Path, shard: int, shards: int) -> Path:
    """The folder of a shard's journal."""
    return folder / f"journal-{shard}-of-{shards}"


@dataclass(slots=True, eq=False)
class Start:
    """What a shard starts from.

    Attributes:
        folder, shard, shards: whose start it is.
        state: None: the job is new.
        arrays: of the state's variables; the restored shard owns them.
        late: changes that are stepped after the state, which is that of a cut.
        replayed: the records of the journal are stepped after the state.
        stored: a checkpoint has the state, and the journal what follows if it is `replayed`.
        timeline, timeline_cut: which the shard follows, and the cut that it began with.
        lost: something newer may have been acknowledged: the shards have to agree on a cut, unless there is one only.
        notes: for the log: what was damaged, left out or given up, sentence by sentence.
    """

    folder: Path
    shard: int
    shards: int
    timeline: int = FIRST_TIMELINE
    timeline_cut: int = 0
    state: ShardState | None = None
    arrays: dict[str, VariableArrays] | None = None
    late: tuple[Message, ...] = ()
    replayed: bool = False
    stored: bool = False
    lost: bool = False
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """The number of the checkpoint; 0 if the job is new."""
        return 0 if self.state is None else self.state.cut

    def restore(self, shard: Shard, now: float) -> None:
        """Give a new shard the state; call it once.

        Raises `WrongShard` for a shard with other options, and `StorageError` or `DamagedFile` for a bad journal.
        """
        if self.state is not None:
            shard.restore(self.state, self.arrays or {}, now)
            self.arrays = None
        shard.timeline = self.timeline
        if self.late:
            self.notes += step_late(shard, self.late, now)
        if self.replayed:
            _replay(shard, self._records(shard.identity, truncate=True), now)
        shard.resume(now)

    def begin(self, shard: Shard, *, journal: bool) -> None:
        """Make the beginning of the run of a restored shard durable; before anything is acknowledged.

        With a `journal`, its folder has a segment that continues from here. Raises `OSError` or `StorageError`.
        """
        folder, at = self.folder, (self.shard, self.shards)
        number = shard.cuts.number
        if not self.stored or (self.replayed and not journal):
            if self.replayed:
                number = shard.cuts.number = shard.cuts.completed = max(number + 1, shard.global_step)
            state = replace(shard.state(), cut=number)
            checkpoints.write(folder, state, iter(shard.arrays().items()), tuple, final=True)
        elif self.replayed:
            number = self.number
        if not (self.replayed and journal):
            remove_journal(folder, *at)
            if journal:
                path = journal_folder(folder, *at)
                path.mkdir()
                SegmentFile.create(path, SegmentHeader(number, shard.identity)).close()
                sync_path(folder)
        write_run(folder, *at, Run(self.timeline, self.timeline_cut, number, journal))
        give_up(folder, self.timeline, self.timeline_cut, *at)

    def _records(self, identity: int, *, truncate: bool) -> Iterator[Record]:
        path = journal_folder(self.folder, self.shard, self.shards)
        return read_segments(path, identity, self.number, truncate=truncate)


def find_start(folder: Path, shard: int, shards: int) -> Start:
    """What a shard starts from. Removes what a killed process of it has left.

    If the newest checkpoints are of another number of shards, and those of all of them are here, the start is the state
    of the job on this number of shards (`psserver.storage.reshard`). It waits for no other shard: all compute the same.

    Raises:
        DamagedFile: the run file is damaged, or checkpoints are there and none is intact.
        StorageError: files may not be read, or are of a later version; or checkpoints that should be there are not.
    """
    sweep(folder, shard, shards)
    _remove_renamed_journal(folder, shard, shards)
    run_before = read_run(folder, shard, shards)
    if run_before is not None:
        give_up(folder, run_before.timeline, run_before.timeline_cut, shard, shards)
    there = found(folder)
    mine = max([number for number, one in there.items() if (shard, shards) in one], default=-1)
    others = {of: number for number, one in there.items() for _, of in sorted(one) if of != shards and number > mine}
    if others:
        return _on_other_shards(folder, shard, shards, max(others, key=others.__getitem__))
    if mine < 0 and run_before is not None:
        raise StorageError(
            f"{folder} has no checkpoint of shard {shard} of {shards}, but a run began from {run_before.began_from}: "
            f"restore the checkpoints, or remove {run_path(folder, shard, shards)} to begin a new job"
        )
    return _own_start(folder, shard, shards, run_before)


def start_at(folder: Path, timeline: int, cut: int, shard: int, shards: int) -> Start:
    """The start of a new timeline from a cut, with its late changes. Raises `DamagedFile` or `StorageError`."""
    start = _from(folder, shard, shards, checkpoints.read(folder, cut, shard, shards))
    start.timeline, start.timeline_cut = timeline, cut
    return start


def remove_journal(folder: Path, shard: int, shards: int) -> None:
    """Remove the journal of a shard: all at once, since a part of it would look complete. Raises `OSError`."""
    path = journal_folder(folder, shard, shards)
    _remove_renamed_journal(folder, shard, shards)
    if path.exists():
        path.rename(_renamed_journal(folder, shard, shards))
        sync_path(folder)
        _remove_renamed_journal(folder, shard, shards)


def _renamed_journal(folder: Path, shard: int, shards: int) -> Path:
    path = journal_folder(folder, shard, shards)
    return path.with_name(f".{path.name}.old")


def _remove_renamed_journal(folder: Path, shard: int, shards: int) -> None:
    shutil.rmtree(_renamed_journal(folder, shard, shards), ignore_errors=True)


# --- from the files of this shard -------------------------------------------------------------------------------------


def _own_start(folder: Path, shard: int, shards: int, run_before: Run | None) -> Start:
    """The start from the checkpoints and the journal of the shard itself."""
    latest = checkpoints.latest(folder, shard, shards)
    notes = tuple(map(str, latest.skipped))
    if latest.checkpoint is None:
        if latest.skipped:
            raise DamagedFile(f"no checkpoint of shard {shard} of {shards} in {folder} is intact: {'; '.join(notes)}")
        return Start(folder, shard, shards)
    start = _from(folder, shard, shards, latest.checkpoint)
    start.notes = notes
    if run_before is not None:
        start.timeline, start.timeline_cut = run_before.timeline, run_before.timeline_cut
    final = latest.checkpoint.manifest.final
    if run_before is None:
        numbers = [number for number, one in found(folder).items() if (shard, shards) in one]
        start.lost = not final or len(numbers) > 1
    elif final and not latest.skipped and start.number > run_before.began_from:
        start.lost = False
    else:
        start.replayed = run_before.journal and _has_segment(folder, start)
        start.lost = not start.replayed
    if not start.lost:
        start.late = ()
    return start


def _from(folder: Path, shard: int, shards: int, checkpoint: Checkpoint) -> Start:
    """A start from a cut that was read."""
    state = checkpoint.state
    timeline = state.timeline or FIRST_TIMELINE
    return Start(folder, shard, shards, timeline, 0, state, checkpoint.arrays, checkpoint.late, stored=True)


def _has_segment(folder: Path, start: Start) -> bool:
    """Whether the journal has all records since the checkpoint: its segment begins there."""
    path = journal_folder(folder, start.shard, start.shards)
    return path.is_dir() and start.number in list_segments(path)


def step_late(shard: Shard, changes: Iterator[Message] | tuple[Message, ...], now: float) -> tuple[str, ...]:
    """Step the late changes of a cut, by workers that may have joined after the snapshot; returns what was refused."""
    refused = []
    for change in changes:
        try:
            try:
                shard.check(change)
            except NotJoined:
                sender = change.sender  # type: ignore[union-attr]  # a push, an assign, a tune or a registration
                join = Join(sender.worker, sender.incarnation, shard.shard, shard.shards)
                run(shard.step(0, join, now).tasks)
            run(shard.step(0, change, now).tasks)
        except ParamServerError as error:
            refused.append(f"a late {type(change).__name__} of checkpoint {shard.cuts.number} was left out: {error}")
    return tuple(refused)


def _replay(shard: Shard, journal: Iterator[Record], now: float) -> None:
    """Step the records of a journal; their cuts were taken before."""
    shard.cuts.enabled = False
    for ticket, record in enumerate(journal):
        try:
            run(shard.step(ticket, records.decode(record.payload), now).tasks)
        except Malformed as error:
            raise DamagedFile(f"journal segment {record.path}, offset {record.offset}: no message: {error}") from error
        except ParamServerError as error:
            raise StorageError(
                f"journal segment {record.path}, offset {record.offset}: it does not fit the checkpoint: {error}"
            ) from error
    shard.cuts.enabled = True


# --- from the files of another number of shards -----------------------------------------------------------------------


def _on_other_shards(folder: Path, shard: int, shards: int, before: int) -> Start:
    """The start from the checkpoints of a job of `before` shards."""
    present = {one for shards_there in found(folder).values() for one, of in shards_there if of == before}
    if present != set(range(before)):
        names = ", ".join(map(str, sorted(present)))
        raise StorageError(
            f"the newest checkpoints in {folder} are of {before} shards, and this is shard {shard} of {shards}: start "
            f"{before} servers, or bring the checkpoints of all of them into one folder (here: shard {names})"
        )
    runs = [read_run(folder, one, before) for one in range(before)]
    starts = [_own_start(folder, one, before, run_before) for one, run_before in enumerate(runs)]
    notes = [note for start in starts for note in start.notes]
    timeline = max([start.timeline for start in starts])
    newest = max([start.number for start in starts])
    if any(start.lost for start in starts):
        starts = _common_cut(folder, before)
        timeline += 1
        notes.append(f"what came after checkpoint {starts[0].number} of {before} shards was given up")
    old = [_restored(start) for start in starts]
    number = max([newest, *[one.cuts.number for one in old]]) + 1
    state, arrays = reshard(old, shards, number)[shard]
    state = replace(state, timeline=timeline)
    notes.append(f"the job goes on with {shards} shards instead of {before}")
    return Start(folder, shard, shards, timeline, number, state, arrays, notes=tuple(notes))


def _common_cut(folder: Path, shards: int) -> list[Start]:
    """The newest cut that all shards have, intact."""
    common = set.intersection(*[set(cuts(folder, shard, shards)) for shard in range(shards)])
    reasons = []
    for number in sorted(common, reverse=True):
        try:
            return [start_at(folder, 1, number, shard, shards) for shard in range(shards)]
        except DamagedFile as error:
            reasons.append(str(error))
    raise StorageError(f"{folder} has no cut of all {shards} shards that is intact {'; '.join(reasons)}")


def _restored(start: Start) -> Shard:
    """A shard of before."""
    state = start.state
    if state is None:
        return Shard(start.shard, start.shards)
    consistency, staleness = parse_consistency(state.consistency), parse_staleness(state.handling)
    shard = Shard(start.shard, start.shards, consistency=consistency, staleness=staleness, identity=state.identity)
    start.restore(shard, 0.0)
    return shard
