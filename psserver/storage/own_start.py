"""The choice of what a shard starts from: among its own checkpoints and its journal, or a cut that shards agree on."""

from pathlib import Path

from psserver.storage import checkpoints, journal_segments
from psserver.storage.folders import available, journal_folder
from psserver.storage.retention import given_up
from psserver.storage.shard_run import read_run, run_path
from psserver.storage.start import FIRST_TIMELINE, Origin, Start
from pswire.errors import DamagedFile


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
        if not notes and last is None and not journal_segments.have_records(journal):
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
        is_final &= len(available(folder, *at)) == 1 and not journal_segments.have_records(journal)
        start.origin = Origin.FINAL_CHECKPOINT if is_final else Origin.OLD_CHECKPOINT
        return start
    start.timeline, start.timeline_cut = last.timeline, last.timeline_cut
    is_first = start.number == last.began_from
    if is_final and (start.number > last.began_from or (is_first and last.provisional)):
        start.origin = Origin.FINAL_CHECKPOINT
    elif last.journal and journal.is_dir() and start.number in journal_segments.list_segments(journal):
        start.origin = Origin.JOURNAL_OF_CUT if is_first and last.gave_up else Origin.JOURNAL
    else:
        start.origin = Origin.OLD_CHECKPOINT
    return start
