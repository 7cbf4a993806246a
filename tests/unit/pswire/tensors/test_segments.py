"""Segments: two processes see the same bytes, invalid files are refused, and nothing is left of dead processes."""

import errno
import fcntl
import os
import re
import subprocess
import sys
from mmap import PAGESIZE
from pathlib import Path
from unittest.mock import Mock

import pytest

from pswire.tensors import segments
from pswire.tensors.segments import DATA_OFFSET, NotShared, Segment, open_segment, sweep
from tests.shared_folder import shared_folder

NAME = "paramserver-" + "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


def process(program):
    """A process with a program that finds this test's folder."""
    beginning = "import os, sys\nfrom pswire.tensors import segments\nsegments.FOLDER = sys.argv[1]\n"
    command = [sys.executable, "-c", beginning + program, segments.FOLDER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_use_the_same_memory_and_it_is_swept_when_its_owner_was_killed_and_not_before(folder):
    program = """
segment = segments.Segment.create(1000)
segment.memory[-5:] = b"hello"
print(segment.name, segment.nbytes, segment.token.hex(), flush=True)
sys.stdin.readline()
print(segment.memory[segments.DATA_OFFSET : segments.DATA_OFFSET + 5].decode(), flush=True)
sys.stdin.readline()
"""
    with process(program) as owner:
        name, nbytes, token = owner.stdout.readline().split()
        memory = open_segment(name, int(nbytes), bytes.fromhex(token))
        assert memory[-5:] == b"hello"
        memory[DATA_OFFSET : DATA_OFFSET + 5] = b"there"
        print(file=owner.stdin, flush=True)
        assert owner.stdout.readline() == "there\n"
        assert (sweep(), os.listdir(folder)) == (0, [name])
        owner.kill()
        owner.wait(60)
        assert os.listdir(folder) == [name]
        assert (sweep(), os.listdir(folder), sweep()) == (1, [], 0)


def test_a_fork_neither_removes_a_segment_nor_ends_its_lock_and_a_process_removes_its_own_at_its_end(folder):
    program = """
segment = segments.Segment.create(1)
child = os.fork()
if not child:
    segment.unlink()
    sys.exit()
os.waitpid(child, 0)
print(os.listdir(sys.argv[1]) == [segment.name], segments.sweep())
"""
    with process(program) as child:
        assert child.communicate(timeout=60)[0] == "True 0\n"
    assert os.listdir(folder) == []


def test_a_segment_has_whole_pages_for_its_user_only_and_its_name_goes_with_it_but_not_mapped_memory(folder):
    for nbytes in (0, PAGESIZE - DATA_OFFSET, PAGESIZE - DATA_OFFSET + 1, 1_000_000):
        segment, other = Segment.create(nbytes), Segment.create(nbytes)
        found = os.stat(os.path.join(folder, segment.name))
        assert DATA_OFFSET + nbytes <= segment.nbytes < DATA_OFFSET + nbytes + PAGESIZE
        assert segment.nbytes == len(segment.memory) == found.st_size <= found.st_blocks * 512
        assert (found.st_mode & 0o777, found.st_uid) == (0o600, os.geteuid())
        assert segment.memory[:16] == segment.token != other.token
        assert not any(segment.memory[DATA_OFFSET:])
        assert sorted([segment.name, other.name]) == sorted(os.listdir(folder))
        assert re.fullmatch("paramserver-[0-9a-f]{32}", segment.name)
        mapped = open_segment(segment.name, segment.nbytes, segment.token)
        segment.unlink()
        segment.unlink()
        del other
        assert os.listdir(folder) == []
        segment.memory[-1] = 7
        assert mapped[-1] == 7


def refuse(code):
    return Mock(side_effect=OSError(code, os.strerror(code)))


def test_a_folder_that_cannot_be_used_is_a_reason_not_to_share_and_nothing_is_left(monkeypatch, folder):
    for target, name, replacement, reason in (
        (os, "posix_fallocate", refuse(errno.ENOSPC), r"no room in \S+ for [0-9,]+ bytes: No space left on device"),
        (segments, "_map", refuse(errno.ENOMEM), "Cannot allocate memory"),
        (os, "open", refuse(errno.EROFS), r"cannot make a file in .*: Read-only file system"),
        (fcntl, "flock", refuse(errno.ENOLCK), "cannot be locked"),
        (os.path, "isdir", lambda path: False, "no .* on this machine"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, replacement)
            with pytest.raises(NotShared, match=reason):
                Segment.create(1)
        assert os.listdir(folder) == []


def test_a_sweep_between_a_file_and_its_lock_does_no_harm(monkeypatch, folder):
    lock, swept = fcntl.flock, []

    def locked_late(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", lock)
        swept.append(sweep())
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", locked_late)
    segment = Segment.create(1)
    assert (swept, sweep(), os.listdir(folder)) == ([1], 0, [segment.name])
    segment.unlink()


def test_a_file_that_is_not_as_announced_is_not_mapped_and_not_left_open():
    segment = Segment.create(1)
    known = {"name": segment.name, "nbytes": segment.nbytes, "token": segment.token}
    before = os.listdir("/proc/self/fd")
    for other, reason in (
        ({"token": bytes(16)}, "does not begin with the token"),
        ({"token": segment.token[:15]}, "does not begin with the token"),
        ({"nbytes": 2 * PAGESIZE}, f"{PAGESIZE:,} bytes, and {2 * PAGESIZE:,} were announced"),
        ({"nbytes": -1}, "-1 were announced"),
        ({"name": NAME}, "another host or in another container"),
        ({"name": "../../etc/passwd"}, "'../../etc/passwd' is not the name of a segment"),
        ({"name": f"{NAME}/../{NAME}"}, "not the name of a segment"),
        ({"name": f"{NAME}\n"}, "not the name of a segment"),
    ):
        with pytest.raises(NotShared, match=re.escape(reason)):
            open_segment(**known | other)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    segment.unlink()


def sparse(path):
    Path(path).write_bytes(bytes(PAGESIZE))
    os.truncate(path, 2 * PAGESIZE)


def test_a_file_that_is_no_segment_of_this_user_is_not_opened(monkeypatch, folder):
    path, me = os.path.join(folder, NAME), os.geteuid()
    for make, mode, user, reason in (
        (os.mkdir, 0o600, me, r"is not a regular file in|Is a directory"),
        (os.mkfifo, 0o600, me, "is not a regular file in"),
        (lambda path: os.symlink("/etc/passwd", path), None, me, "Too many levels of symbolic links"),
        (sparse, 0o640, me, "mode 0640, not 0600"),
        (sparse, 0o600, me, f"only {PAGESIZE:,} of the file's {2 * PAGESIZE:,} bytes have memory"),
        (sparse, 0o600, me + 1, f"belongs to user {me}, and this process to user {me + 1}"),
    ):
        make(path)
        if mode is not None:
            os.chmod(path, mode)
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(NotShared, match=reason):
            open_segment(NAME, 2 * PAGESIZE, bytes(16))
        swept = make is sparse and user == me  # a regular file is that of a dead process
        assert sweep() == swept
        if not swept:
            (os.rmdir if make is os.mkdir else os.unlink)(path)


def test_a_sweep_removes_dead_segments_only(monkeypatch, folder):
    segment, others = Segment.create(1), ["paramserver-notes", "sem.paramserver", f"{NAME}0"]
    for name in (NAME, NAME[:-1] + "0", *others):
        Path(folder, name).touch()
    listed = os.listdir(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda path: [*listed, NAME[:-1] + "e"])  # one that vanishes meanwhile
        assert sweep() == 2
        patch.setattr(os, "listdir", refuse(errno.ENOENT))
        assert sweep() == 0
    assert sorted(os.listdir(folder)) == sorted([segment.name, *others])
    segment.unlink()
    for name in others:
        Path(folder, name).unlink()
