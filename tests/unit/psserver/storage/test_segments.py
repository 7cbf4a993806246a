"""Reading a journal's segments: torn tails, damage, missing and foreign files. The files are written by a journal."""

import asyncio
import logging
import shutil
import struct
import tempfile
from pathlib import Path

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psserver.storage import segments
from psserver.storage.journal import Journal
from psserver.storage.segments import (
    RECORD_HEADER,
    SEGMENT_HEADER,
    SegmentFile,
    SegmentHeader,
    read_segments,
    segment_path,
)
from pswire.errors import DamagedFile, StorageError
from pswire.specs.checkpoints import JournalSync
from tests.support.files import all_written

IDENTITY = 77


def write(folder, segments, sync=JournalSync.EVERY, identity=IDENTITY):
    """Write a journal: the records of each segment, by its number. Each record is a group commit of its own."""

    async def program():
        journal = Journal(folder, identity, sync)
        for number, records in segments.items():
            journal.begin_segment(number)
            for record in records:
                journal.append([record])
                await all_written(journal)
        await journal.close()

    asyncio.run(program())


def read(folder, **options):
    return [record.payload for record in read_segments(folder, IDENTITY, **options)]


@pytest.fixture
def three_segments(tmp_path):
    """A journal of three segments with three records each, of which one is empty."""
    segments = {number: [b"%d-0" % number, b"", b"%d-2" % number * 400] for number in (1, 20, 300)}
    write(tmp_path, segments)
    return tmp_path, segments


def test_records_are_read_in_the_order_in_which_they_were_written_from_any_segment_on(three_segments):
    folder, segments = three_segments
    assert read(folder) == [*segments[1], *segments[20], *segments[300]]
    assert read(folder, first=20) == [*segments[20], *segments[300]]
    assert read(folder, first=301) == []
    assert [(record.path.name, record.offset) for record in read_segments(folder, IDENTITY, 300)] == [
        ("segment-000000300.log", offset)
        for offset in (SEGMENT_HEADER, SEGMENT_HEADER + RECORD_HEADER + 5, SEGMENT_HEADER + 2 * RECORD_HEADER + 5)
    ]


def test_the_format_is_the_documented_one(tmp_path):
    """Built here by hand, with the checksums of the standard's own definition."""
    write(tmp_path, {5: [b"abc"]}, identity=2**64 - 1)
    header = struct.pack("<8sIQQQQ", b"\xf1psjourn", 1, 5, 2**64 - 1, 0, 0)
    header += struct.pack("<I", slow_crc32c(header))
    fields = struct.pack("<8sQQI", b"\xf2psrecrd", 3, len(header), slow_crc32c(b"abc"))
    record = fields + struct.pack("<I", slow_crc32c(header[:-4] + struct.pack("<Q", len(header)) + fields)) + b"abc"
    assert (tmp_path / "segment-000000005.log").read_bytes() == header + record


def slow_crc32c(data):
    """CRC-32C bit by bit (RFC 3720, polynomial 0x1EDC6F41, reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_checksum_is_crc_32c():
    assert slow_crc32c(b"123456789") == crc32c.crc32c(b"123456789") == 0xE3069283


def test_a_torn_tail_is_left_out_reported_and_cut_off_on_request(tmp_path, caplog, monkeypatch):
    write(tmp_path, {1: [b"first", b"second"]})
    path = segment_path(tmp_path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    torn = SEGMENT_HEADER + RECORD_HEADER + 5
    caplog.set_level(logging.WARNING)
    assert read(tmp_path) == [b"first"]
    assert path.read_bytes() == whole[:-1]
    assert f"the last {len(whole) - 1 - torn} bytes, from offset {torn}, are a torn tail" in caplog.messages[-1]
    synced = []
    monkeypatch.setattr(segments, "sync_path", lambda file: synced.append((file, file.stat().st_size)))
    assert read(tmp_path, truncate=True) == [b"first"]
    assert synced == [(path, torn)], "else the tail could come back behind records that are written there"
    assert path.read_bytes() == whole[:torn]
    write(tmp_path, {1: [b"third"]})
    assert read(tmp_path) == [b"first", b"third"]


def test_zeros_that_a_loss_of_power_left_behind_the_records_are_a_torn_tail(tmp_path):
    write(tmp_path, {1: [b"first"]})
    with segment_path(tmp_path, 1).open("ab") as file:
        file.write(bytes(10_000))
    assert read(tmp_path, truncate=True) == [b"first"]
    assert segment_path(tmp_path, 1).stat().st_size == SEGMENT_HEADER + RECORD_HEADER + 5


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def test_a_bad_record_that_was_safe_when_a_later_one_was_written_is_damage_and_nothing_is_cut(tmp_path):
    write(tmp_path, {1: [b"first", b"second", b"third"]})
    path = segment_path(tmp_path, 1)
    bad = SEGMENT_HEADER + RECORD_HEADER + 5
    flip(path, bad + RECORD_HEADER)
    size = path.stat().st_size
    with pytest.raises(
        DamagedFile, match=rf"segment-000000001.log, offset {bad}: the payload .* checksum, and .* later"
    ):
        read(tmp_path, truncate=True)
    assert path.stat().st_size == size


def write_groups(folder, groups):
    """Write a segment in group commits, and return its size after each."""
    segment, sizes = SegmentFile.create(folder, SegmentHeader(1, IDENTITY)), []
    for group in groups:
        segment.append([[memoryview(record)] for record in group])
        segment.sync()
        sizes.append(segment.size)
    segment.close()
    return sizes


def test_records_of_one_group_that_reached_the_disk_in_another_order_are_a_torn_tail(tmp_path):
    """A loss of power during a sync: the last record is there, the one before it is not. Neither was acknowledged."""

    write_groups(tmp_path, [[b"acknowledged"], [b"lost", b"present"]])
    assert read(tmp_path) == [b"acknowledged", b"lost", b"present"]
    flip(segment_path(tmp_path, 1), SEGMENT_HEADER + 2 * RECORD_HEADER + len(b"acknowledged"))
    assert read(tmp_path) == [b"acknowledged"]


@pytest.mark.parametrize("sync", JournalSync)
def test_a_bad_record_among_acknowledged_ones_is_damage_also_where_the_kernel_syncs(tmp_path, sync):
    write(tmp_path, {1: [b"first"], 2: [b"second", b"third"]}, sync)
    write(tmp_path, {2: [b"fourth"]}, sync)
    flip(segment_path(tmp_path, 2), SEGMENT_HEADER)
    with pytest.raises(DamagedFile, match=f"segment-000000002.log, offset {SEGMENT_HEADER}"):
        read(tmp_path)


def test_a_search_for_later_records_finds_one_at_the_border_of_two_pieces(tmp_path, monkeypatch):
    write(tmp_path, {1: [b"first", b"second", b"third"]})
    flip(segment_path(tmp_path, 1), SEGMENT_HEADER)
    for piece in range(1, 3 * RECORD_HEADER):
        monkeypatch.setattr("psserver.storage.segments.SEARCH_PIECE", piece)
        with pytest.raises(DamagedFile, match=f"offset {SEGMENT_HEADER}: .* the record at"):
            read(tmp_path)


def test_a_record_is_not_valid_at_another_place_or_in_another_segment(tmp_path):
    """Payloads that are copies of valid records are not found when later records are searched."""
    write(tmp_path, {1: [b"first", b"second"]})
    copied = segment_path(tmp_path, 1).read_bytes()[SEGMENT_HEADER:]
    write(tmp_path / "other", {1: [b"first", copied]})
    path = segment_path(tmp_path / "other", 1)
    path.write_bytes(path.read_bytes()[:-1])
    assert read(tmp_path / "other") == [b"first"]
    path.write_bytes(path.read_bytes()[:SEGMENT_HEADER] + copied)
    assert read(tmp_path / "other") == [b"first", b"second"], "the same place of a segment with the same header"
    write(tmp_path / "foreign", {1: []}, identity=78)
    path = segment_path(tmp_path / "foreign", 1)
    path.write_bytes(path.read_bytes() + copied)
    assert list(read_segments(tmp_path / "foreign", 78)) == []


def test_a_segment_that_is_missing_cut_or_extended_is_found_before_the_first_record_is_returned(
    three_segments, tmp_path
):
    folder, segments = three_segments
    whole = segment_path(folder, 20).read_bytes()
    for data in (whole[: SEGMENT_HEADER + RECORD_HEADER + 4], whole + b"more"):
        segment_path(folder, 20).write_bytes(data)
        with pytest.raises(DamagedFile, match=r"segment-000000020.log.*a segment was removed, cut or extended"):
            next(read_segments(folder, IDENTITY))
    segment_path(folder, 20).unlink()
    with pytest.raises(DamagedFile, match=r"goes on in segment-000000300.log after segment 20 of"):
        next(read_segments(folder, IDENTITY))
    with pytest.raises(DamagedFile, match=r"segment-000000020.log, .* is missing, but segment-000000300.log is there"):
        next(read_segments(folder, IDENTITY, first=20))
    assert read(folder, first=300) == segments[300]


def test_a_segment_of_another_shard_under_another_name_or_of_another_format_is_refused(three_segments):
    folder, _ = three_segments
    with pytest.raises(
        StorageError, match=r"segment-000000001.log: belongs to another shard or job \(identity 77, not 8\)"
    ):
        next(read_segments(folder, 8))
    segment_path(folder, 300).rename(segment_path(folder, 301))
    with pytest.raises(DamagedFile, match="is segment 300 under another name"):
        next(read_segments(folder, IDENTITY))
    header = struct.pack("<8sIQQQQ", b"\xf1psjourn", 2, 301, IDENTITY, 0, 0)
    segment_path(folder, 301).write_bytes(header + struct.pack("<I", crc32c.crc32c(header)))
    with pytest.raises(StorageError, match="format 2 is not format 1"):
        next(read_segments(folder, IDENTITY))
    with pytest.raises(StorageError, match="nowhere: cannot be read: No such file"):
        next(read_segments(folder / "nowhere", IDENTITY))


#: Journals whose files are damaged below: number of segments, and their records. Long ones exceed a page.
RECORDS = st.lists(st.binary(max_size=40) | st.integers(0, 255).map(lambda byte: bytes([byte]) * 5000), max_size=4)


def outcome(folder, **options):
    """The records that can be read, and the error that ends them, or an empty string."""
    found = []
    try:
        for record in read_segments(folder, IDENTITY, **options):
            found.append(record.payload)
    except DamagedFile as error:
        return found, str(error)
    return found, ""


@pytest.mark.parametrize("change", ["flip", "cut"])
def test_no_flipped_byte_and_no_cut_goes_unnoticed_wherever_it_is(tmp_path, change):
    write(tmp_path, {1: [b"first", b""], 2: [b"second", b"third"]})
    written = read(tmp_path)
    for number in (1, 2):
        path = segment_path(tmp_path, number)
        whole = path.read_bytes()
        for at in range(len(whole)):
            if change == "flip":
                flip(path, at)
            else:
                path.write_bytes(whole[:at])
            found, error = outcome(tmp_path)
            assert found == written[: len(found)]
            assert path.name in error or (number == 2 and not error and len(found) < len(written))
            path.write_bytes(whole)


altered_journals = given(
    records=st.lists(RECORDS, min_size=1, max_size=3),
    where=st.floats(0, 1, exclude_max=True),
    length=st.integers(1, 5000),
    change=st.sampled_from(["flip", "cut", "zero", "remove"]),
    sync=st.sampled_from(JournalSync),
)


def check_altered_journal(records, where, length, change, sync):
    """Write a journal, alter a region of its files, and read it."""
    folder = Path(tempfile.mkdtemp())
    try:
        write(folder, dict(enumerate(records)), sync)
        written = [record for segment in records for record in segment]
        assert read(folder) == written
        paths = sorted(folder.glob("segment-*"))
        at = int(where * sum(path.stat().st_size for path in paths))
        while at >= (size := paths[0].stat().st_size):
            at -= size
            paths.pop(0)
        data = bytearray(paths[0].read_bytes())
        end = min(at + length, size)
        if change == "cut":
            del data[at:]
        elif change == "remove":
            del data[at:end]
        else:
            data[at:end] = bytes(end - at) if change == "zero" else bytes(byte ^ 0xA5 for byte in data[at:end])
        paths[0].write_bytes(data)
        found, error = outcome(folder, truncate=True)
        assert found == written[: len(found)]
        if error:
            assert str(paths[0]) in error
        else:
            assert paths[0] == segment_path(folder, len(records) - 1) or found == written, (
                "an earlier segment is damaged"
            )
            assert read(folder) == found, "the tail was cut off"
    finally:
        shutil.rmtree(folder)


@settings(derandomize=True, database=None, deadline=None, max_examples=25)
@altered_journals
def test_whatever_region_is_altered_or_cut_a_prefix_is_read_or_there_is_a_clear_error(
    records, where, length, change, sync
):
    check_altered_journal(records, where, length, change, sync)


@pytest.mark.exhaustive
@settings(derandomize=True, database=None, deadline=None, max_examples=500)
@altered_journals
def test_whatever_region_of_many_journals_is_altered_or_cut(records, where, length, change, sync):
    check_altered_journal(records, where, length, change, sync)


@pytest.mark.slow
@settings(derandomize=True, database=None, deadline=None, max_examples=40)
@given(groups=st.lists(RECORDS, min_size=1, max_size=4), data=st.data())
def test_after_a_loss_of_power_all_synced_records_are_read_and_the_rest_is_a_torn_tail(groups, data):
    """The last group is being synced: of its part of the file, any pages may be on the disk, and any length."""
    folder = Path(tempfile.mkdtemp())
    try:
        *_, safe, size = [SEGMENT_HEADER, *write_groups(folder, groups)]
        path = segment_path(folder, 1)
        content = bytearray(path.read_bytes())
        for page in range(safe // 512, size // 512 + 1):
            if data.draw(st.booleans()):
                begin = max(page * 512, safe)
                content[begin : (page + 1) * 512] = bytes(len(content[begin : (page + 1) * 512]))
        path.write_bytes(content[: data.draw(st.integers(safe, size))])
        records = [record for group in groups for record in group]
        found = read(folder, truncate=True)
        assert found == records[: len(found)]
        assert len(found) >= len(records) - len(groups[-1])
        write(folder, {1: [b"more"]})
        assert read(folder) == [*found, b"more"]
    finally:
        shutil.rmtree(folder)
