"""Files that a thread writes: full disks, unfinished lines, and a bound on what waits."""

import logging
import os
import sys

import pytest

from psworker.summaries import writing
from psworker.summaries.writing import BackgroundWriter, OutputFile
from tests.support.commands import wait_until


def output(path, header=b"", **options):
    return OutputFile(lambda: (path, header), **options)


@pytest.fixture
def writer():
    writer = BackgroundWriter()
    yield writer
    writer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_a_full_disk_ends_its_file_with_one_warning_and_no_other(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(writing, "INTERVAL", 0.001)
    writer = BackgroundWriter()
    full, other = tmp_path / "full", tmp_path / "deep" / "other"
    full.symlink_to("/dev/full")
    files = output(full), output(other, b"begin ")
    for piece in (b"a", b"b"):
        for file in files:
            writer.put(file, piece)
        wait_until(lambda: not writer._waiting)
    writer.close()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"summaries: {full} ends here, and training goes on: No space left on device"
    ]
    assert other.read_bytes() == b"begin ab"


def test_a_folder_that_cannot_be_made_ends_its_file_alone(writer, tmp_path, caplog):
    (tmp_path / "file").touch()
    writer.put(output(tmp_path / "file" / "inside"), b"a")
    writer.close()
    assert f"{tmp_path / 'file' / 'inside'} ends here, and training goes on: File exists" in caplog.text


def test_an_unfinished_line_of_an_earlier_process_is_ended_and_nothing_of_it_is_lost(writer, tmp_path):
    for name, before in (("new", None), ("whole", b"1\n"), ("unfinished", b"1\n2")):
        if before is not None:
            (tmp_path / name).write_bytes(before)
        writer.put(output(tmp_path / name, b"life\n", lines=True), b"3\n")
    writer.close()
    assert (tmp_path / "new").read_bytes() == b"life\n3\n"
    assert (tmp_path / "whole").read_bytes() == b"1\nlife\n3\n"
    assert (tmp_path / "unfinished").read_bytes() == b"1\n2\nlife\n3\n"


def test_what_waits_for_a_disk_is_bounded_and_what_is_left_out_is_said_once(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(writing, "MAX_WAITING", 10)
    monkeypatch.setattr(writing, "INTERVAL", 1000.0)  # until it is closed
    writer = BackgroundWriter()
    file = output(tmp_path / "file")
    for piece in (b"1234", b"5678", b"abc", b"90", b"x", b"y"):
        writer.put(file, piece)
    writer.close()
    assert (tmp_path / "file").read_bytes() == b"1234567890"
    assert len(caplog.records) == 1
    assert "some are left out, since 10 bytes wait" in caplog.text


def test_a_forked_process_writes_nothing_and_does_not_wait(monkeypatch, tmp_path):
    monkeypatch.setattr(writing, "INTERVAL", 1000.0)
    writer = BackgroundWriter()
    writer.put(output(tmp_path / "file"), b"once")
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        writer.close()
    assert not (tmp_path / "file").exists()
    writer.close()
    assert (tmp_path / "file").read_bytes() == b"once"
