"""The shard of a journal, from a checkpoint on, record by record: the same bits as in the server that wrote it.

Only reads: it takes no lock and writes nothing, so it also works beside the running server, up to the last complete
record. One record is in memory at a time, besides the pushes that a policy holds.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from psserver.core.shard import Shard
from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.array_tasks import StepResult
from psserver.storage import checkpoints, records
from psserver.storage.folders import available, journal_folder
from psserver.storage.journal_segments import list_segments, read_segments
from psserver.storage.shard_run import read_run
from psserver.storage.start import Origin, Start, record_errors
from pswire import messages as ms
from pswire.errors import StorageError
from pswire.messages import ShardState

_JOURNAL = re.compile(r"journal-(\d+)-of-(\d+)")

#: The time of all steps: no decision of a replayed shard depends on it (`pswire.messages.Tick`).
NOW = 0.0


class Entry(NamedTuple):
    """A record: a message that the shard has taken, and where it is. `ticket` is new for each."""

    path: Path
    offset: int
    ticket: int
    message: ms.Message


class SegmentBegin(NamedTuple):
    """The beginning of a later segment: the shard is at the checkpoint of this number, if that was written."""

    number: int


def number_of_shards(folder: Path, shard: int) -> int:
    """The number of shards of the job whose journal of this shard is in a folder. Raises `StorageError`."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise StorageError(f"checkpoint folder {folder} cannot be read: {error.strerror}") from error
    matches = [match for name in names if (match := _JOURNAL.fullmatch(name))]
    found = sorted({int(match[2]) for match in matches if int(match[1]) == shard})
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join([f"{shard}/{shards}" for shards in found])
        raise StorageError(f"{folder} has journals of shard {shard} of several jobs: choose one with --shard {choices}")
    there = ", ".join(sorted([match[0] for match in matches])) or "none"
    raise StorageError(
        f"{folder} has no journal of shard {shard} (there: {there}): give the --checkpoint-dir of a server that was "
        "started with --journal"
    )


class JournalReplay:
    """Steps the shard of a journal.

        replay = JournalReplay(folder, 0, 1)
        for entry in replay.entries():
            if isinstance(entry, Entry):
                run(replay.step(entry).tasks)

    Attributes:
        number: of the checkpoint that it begins with.
        last_segment: the number of the newest segment that has begun so far.
        shard: after the entries so far; another object after each `SegmentBegin`.
        entries_read, nbytes: records so far, and their bytes.
    """

    def __init__(self, folder: Path, shard: int, shards: int, number: int | None = None) -> None:
        """Reads the checkpoint `number`; without it, the oldest from which the journal continues.

        Raises `DamagedFile`, or `StorageError` if there is no such checkpoint.
        """
        at = shard, shards
        self._journal = journal_folder(folder, *at)
        self._segments = list(list_segments(self._journal))
        usable = [one for one in available(folder, *at) if one in self._segments]
        if not usable or (number is not None and number not in usable):
            asked = "any" if number is None else str(number)
            there = ", ".join(map(str, usable)) or "none"
            raise StorageError(
                f"{self._journal}: has no records from checkpoint {asked} of {folder} on (from these it has: {there}); "
                "with --keep-journal a server keeps all of them"
            )
        self.number = self.last_segment = usable[0] if number is None else number
        self.shard = _at_checkpoint(folder, self.number, *at)
        self.entries_read = self.nbytes = 0

    def entries(self) -> Iterator[Entry | SegmentBegin]:
        """All records in order, each to be stepped before the next is asked for; and beginnings of later segments.

        Raises `DamagedFile`, which names file and offset, or `StorageError`.
        """
        later = [number for number in self._segments if number > self.number]
        path, light = None, not self.shard.keeps_served_weights
        for record in read_segments(self._journal, self.shard.identity, self.number):
            if record.path is not path:
                path, number = record.path, int(record.path.stem.rpartition("-")[2])
                while later and later[0] <= number:
                    yield from self._begin_segment(later.pop(0))
            self.entries_read += 1
            self.nbytes += len(record.payload)
            with record_errors(record.path, record.offset):
                message = records.decode(record.payload)
            if light and isinstance(message, ms.Push) and message.pull:  # the values are not sent
                message = dataclasses.replace(message, pull=(), known_versions=())
            yield Entry(record.path, record.offset, self.entries_read, message)
        for number in later:
            yield from self._begin_segment(number)

    def step(self, entry: Entry, *, settled: bool = True) -> StepResult:
        """Step the shard; the caller runs the tasks. Raises `StorageError` for a record that the shard refuses.

        Raises `TasksPending` as `Shard.step`.
        """
        with record_errors(entry.path, entry.offset):
            return self.shard.step(entry.ticket, entry.message, NOW, settled=settled)

    def _begin_segment(self, number: int) -> Iterator[SegmentBegin]:
        """Let the shard be as a server that starts from the checkpoint of a segment.

        A segment begins with the calls that were pending at its checkpoint, so these are in no state.
        """
        self.last_segment = number
        yield SegmentBegin(number)
        state = dataclasses.replace(self.shard.state(), cut=number)
        self.shard = _restored(state, self.shard.arrays())


def _at_checkpoint(folder: Path, number: int, shard: int, shards: int) -> Shard:
    """The shard as it was when the segment of a checkpoint began."""
    found = checkpoints.read(folder, number, shard, shards)
    start = Start(folder, shard, shards, Origin.FINAL_CHECKPOINT)
    start.state, start.arrays, start.late = found.state, found.arrays, found.late
    last = read_run(folder, shard, shards)
    start.timeline = max(found.state.timeline, start.timeline)
    if last is not None and last.gave_up and last.began_from == number:
        start.origin, start.timeline, start.timeline_cut = Origin.CUT, last.timeline, last.timeline_cut
    new = _new_shard(found.state)
    start.restore(new, NOW)
    return new


def _restored(state: ShardState, arrays: dict[str, VariableArrays]) -> Shard:
    shard = _new_shard(state)
    shard.restore(state, arrays, NOW)
    return shard


def _new_shard(state: ShardState) -> Shard:
    """A shard without a limit of memory: what was accepted is accepted again."""
    return Shard.for_state(state, replays=True)
