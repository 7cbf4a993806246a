"""Mutants of the journal, checkpoints, recovery, and what a server writes down."""

import asyncio
import itertools
from dataclasses import replace
from unittest.mock import patch

from psserver.storage.files import sync_data
from psserver.storage.journal_segments import RECORD_HEADER, InvalidRecord
from pswire import messages as ms
from pswire.system.files import replacement
from tests.tools.mutant_plugin import mutant, without

WRITER = "psserver.storage.journal:JournalWriter"
SEGMENT = "psserver.storage.journal_segments:SegmentFile"
SEGMENTS = "psserver.storage.journal_segments"
PERSISTENCE = "psserver.runtime.persistence:Persistence"
CHECKPOINTS = "psserver.runtime.checkpoint_writer:CheckpointWriter"
UNIT = "tests/unit/psserver/storage"
JOURNAL = f"{UNIT}/test_journal.py"
TESTS = "tests/unit/psserver/runtime/test_persistence.py"


@mutant(
    "Records are acknowledged before they are synced",
    f"{WRITER}._write",
    f"{JOURNAL}::test_with_every_a_record_counts_as_written_once_it_is_synced_and_those_that_wait_share_a_sync",
)
def _(original, self):
    with patch.object(self, "_sync_segment"):
        return original(self)


@mutant(
    "After a failed sync another sync is taken for success",
    f"{SEGMENT}.sync",
    f"{JOURNAL}::test_after_a_failed_sync_the_records_are_written_again_from_their_buffers",
)
def _(original, self):
    try:
        original(self)
    except OSError:
        sync_data(self._descriptor)
        self.safe = self.size


without(
    "Records of a failed sync are not written again",
    f"{SEGMENT}._write_again",
    f"{JOURNAL}::test_after_a_failed_sync_of_an_interval_the_records_are_written_again_from_the_kernels_memory",
)


@mutant(
    "A half-written record stays on a full disk",
    f"{SEGMENT}.cut",
    f"{UNIT}/test_full_disk.py::test_closing_ends_the_pause_and_those_who_wait_get_the_problem",
)
def _(original, self, size):
    self.size = size


@mutant(
    "A bad record is a torn tail although later ones relied on it",
    f"{SEGMENTS}:_record_that_relies_on",
    f"{UNIT}/test_journal_segments.py::test_a_bad_record_that_was_safe_when_a_later_one_was_written_is_damage_and_nothing_is_cut",
)
def _(original, file, bad, size, seed):
    return None


@mutant(
    "A record is valid at any offset",
    f"{SEGMENTS}:record_header",
    f"{UNIT}/test_journal_segments.py::test_the_format_is_the_documented_one",
)
def _(original, length, safe, payload_crc, offset, seed):
    return original(length, safe, payload_crc, 0, seed)


@mutant(
    "A record is valid in any segment",
    f"{SEGMENTS}:record_header",
    f"{UNIT}/test_journal_segments.py::test_the_format_is_the_documented_one",
)
def _(original, length, safe, payload_crc, offset, seed):
    return original(length, safe, payload_crc, offset, 0)


@mutant(
    "A payload is taken whatever its checksum",
    f"{SEGMENTS}:read_record",
    f"{UNIT}/test_journal_segments.py::test_a_bad_record_that_was_safe_when_a_later_one_was_written_is_damage_and_nothing_is_cut",
)
def _(original, file, offset, size, seed):
    try:
        return original(file, offset, size, seed)
    except InvalidRecord as invalid:
        if "payload" not in str(invalid):
            raise
        file.seek(offset)
        data = file.read(size)
        return data[:RECORD_HEADER], data[RECORD_HEADER:]


@mutant(
    "A segment that was removed or cut is not noticed",
    f"{SEGMENTS}:pairwise",
    f"{UNIT}/test_journal_segments.py::test_a_segment_that_is_missing_cut_or_extended_is_found_before_the_first_record_is_returned",
)
def _(original):
    return lambda segments: ()


@mutant(
    "A file gets its name before its bytes are on the disk",
    "pswire.system.files:write_file",
    "tests/unit/pswire/system/test_files.py::test_a_file_is_synced_before_it_gets_its_name_and_its_folder_after",
)
def _(original, path, data, *, mode=None, exclusive=False):
    with replacement(path) as temporary:
        temporary.write_bytes(data)


@mutant(
    "Several servers lock the files of one shard",
    "psserver.storage.files:lock_file",
    f"{UNIT}/test_folders.py::test_each_shard_of_a_folder_is_reserved_until_its_lock_is_closed_and_a_lock_is_no_checkpoint",
)
def _(original, path, what, in_use, *, shared=False):
    return original(path, what, in_use, shared=True)


@mutant(
    "Late pushes of one update replace each other after a restart",
    "psserver.core.shard:Shard._late_steps",
    f"{UNIT}/test_starts.py::test_late_pushes_of_one_synchronous_update_are_applied_together_without_that_of_a_killed_worker",
)
def _(original, self, changes, now):
    with patch.object(itertools, "count", lambda *_: itertools.repeat(0)):
        return original(self, changes, now)


@mutant(
    "A shard with a disk of its own removes the only cut that all have",
    "psserver.storage.retention:prune",
    f"{TESTS}::test_with_a_disk_of_its_own_a_shard_keeps_the_newest_cut_that_all_shards_have_written",
)
def _(original, folder, keep, shard, shards, **options):
    return original(folder, keep, shard, shards, **options | {"protect": None})


@mutant(
    "Stalled workers are not in the journal",
    f"{PERSISTENCE}._is_change",
    f"{TESTS}::test_a_restarted_server_goes_on_without_a_stalled_worker_like_the_one_before",
)
def _(original, self, message):
    return original(self, replace(message, stalled=()) if isinstance(message, ms.Tick) else message)


@mutant(
    "Calls that a policy holds are not in the segment after a checkpoint",
    f"{PERSISTENCE}.write_down",
    f"{TESTS}::test_pushes_that_a_policy_holds_at_a_checkpoint_are_in_the_journal_after_it",
)
def _(original, self, message, result, record):
    cut = self.shard.cuts.current
    if cut is not None:
        cut.waiting = []
    original(self, message, result, record)


without(
    "Changes are accepted that the journal cannot write",
    f"{PERSISTENCE}.admit_change",
    f"{TESTS}::test_going_back_that_cannot_be_written_is_tried_again_and_nothing_is_accepted_meanwhile",
)


@mutant(
    "A checkpoint is complete before its late changes have arrived",
    f"{CHECKPOINTS}._completed",
    f"{TESTS}::test_a_checkpoint_is_complete_only_when_the_journal_has_begun_the_segment_that_follows_it",
)
async def _(original, self):
    await asyncio.sleep(0)


@mutant(
    "The cuts of one shard are taken for those of all",
    "psworker.client.membership:WorkerMembership._written_by_all",
    "tests/unit/psworker/client/test_retry.py::test_heartbeats_report_the_newest_cut_that_all_shards_have_written",
)
def _(original, self):
    return max([cut for _, cuts in self.written.values() for cut in cuts], default=0)
