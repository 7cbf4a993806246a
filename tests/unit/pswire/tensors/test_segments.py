"""Segments: two processes see the same bytes, invalid files are refused, and nothing is left of dead processes."""

import errno
import fcntl
import os
import re
import subprocess
import sys
from mmap import PAGESIZE

import pytest

from pswire.tensors import segments
from pswire.tensors.segments import DATA_OFFSET, NotShared, Segment, open_segment, sweep
from tests.shared_folder import needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

NAME = "paramserver-" + "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


@pytest.fixture
def segment():
    segment = Segment.create(1)
    yield segment
    segment.unlink()


def opened(segment, **other):
    known = {"name": segment.name, "nbytes": segment.nbytes, "token": segment.token}
    return open_segment(**known | other)


def process(program, *arguments):
    """A process with a program that finds this test's folder."""
    beginning = "import os, sys\nfrom pswire.tensors import segments\nsegments.FOLDER = sys.argv[1]\n"
    command = [sys.executable, "-c", beginning + program, segments.FOLDER, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_write_and_read_the_same_memory():
    segment = Segment.create(1000)
    segment.memory[DATA_OFFSET : DATA_OFFSET + 5] = b"hello"
    other = """
memory = segments.open_segment(sys.argv[2], int(sys.argv[3]), bytes.fromhex(sys.argv[4]))
print(memory[segments.DATA_OFFSET : segments.DATA_OFFSET + 5].decode())
memory[-5:] = b"there"
"""
    with process(other, segment.name, str(segment.nbytes), segment.token.hex()) as child:
        assert child.communicate(timeout=60)[0] == "hello\n"
    assert segment.memory[-5:] == b"there"
    segment.unlink()


def test_the_segment_of_a_killed_process_is_swept_and_that_of_a_living_one_stays(folder):
    with process("kept = segments.Segment.create(1000)\nprint(kept.name, flush=True)\nsys.stdin.readline()") as owner:
        name = owner.stdout.readline().strip()
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


# --- creation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, PAGESIZE - DATA_OFFSET, PAGESIZE - DATA_OFFSET + 1, 1_000_000])
def test_a_segment_has_whole_pages_of_memory_for_its_user_only_and_a_random_name_and_token(folder, nbytes):
    segment, other = Segment.create(nbytes), Segment.create(nbytes)
    found = os.stat(os.path.join(folder, segment.name))
    assert DATA_OFFSET + nbytes <= segment.nbytes < DATA_OFFSET + nbytes + PAGESIZE
    assert segment.nbytes == len(segment.memory) == found.st_size <= found.st_blocks * 512
    assert (found.st_mode & 0o777, found.st_uid) == (0o600, os.geteuid())
    assert segment.memory[:16] == segment.token != other.token
    assert not any(segment.memory[DATA_OFFSET:])
    assert sorted([segment.name, other.name]) == sorted(os.listdir(folder))
    assert re.fullmatch("paramserver-[0-9a-f]{32}", segment.name)


def test_the_name_goes_with_the_object_and_mapped_memory_stays(folder, segment):
    mine, other = segment.memory, opened(segment)
    segment.unlink()
    segment.unlink()
    second = Segment.create(1)
    del second
    assert os.listdir(folder) == []
    mine[DATA_OFFSET] = 7
    assert other[DATA_OFFSET] == 7


@pytest.mark.parametrize(
    ("target", "name", "code", "reason"),
    [
        (os, "posix_fallocate", errno.ENOSPC, r"no room in \S+ for [0-9,]+ bytes: No space left on device"),
        (segments, "_map", errno.ENOMEM, "Cannot allocate memory"),
        (os, "open", errno.EROFS, r"cannot make a file in .*: Read-only file system"),
        (fcntl, "flock", errno.ENOLCK, "cannot be locked"),
    ],
)
def test_a_folder_that_cannot_be_used_is_a_reason_not_to_share_and_nothing_is_left(
    monkeypatch, folder, target, name, code, reason
):
    def refuse(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(target, name, refuse)
    with pytest.raises(NotShared, match=reason):
        Segment.create(1)
    assert os.listdir(folder) == []


def test_a_machine_without_the_folder_shares_nothing(monkeypatch, folder):
    monkeypatch.setattr(segments, "FOLDER", os.path.join(folder, "missing"))
    with pytest.raises(NotShared, match=r"no .*missing on this machine"):
        Segment.create(1)
    with pytest.raises(NotShared, match="cannot see the file"):
        open_segment(NAME, 4096, bytes(16))
    assert sweep() == 0


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


# --- opening and sweeping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"token": bytes(16)}, "does not begin with the token"),
        ({"token": b""}, "does not begin with the token"),
        ({"nbytes": 2 * PAGESIZE}, f"{PAGESIZE:,} bytes, and {2 * PAGESIZE:,} were announced"),
        ({"nbytes": -1}, "-1 were announced"),
        ({"name": NAME}, "another host or in another container"),
        ({"name": "../../etc/passwd"}, "'../../etc/passwd' is not the name of a segment"),
        ({"name": f"{NAME}/../{NAME}"}, "not the name of a segment"),
        ({"name": f"{NAME}\n"}, "not the name of a segment"),
    ],
)
def test_a_file_that_is_not_as_announced_is_not_mapped(segment, other, reason):
    with pytest.raises(NotShared, match=re.escape(reason)):
        opened(segment, **other)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(NotShared, match="token"):
        opened(segment, token=segment.token[:15])
    assert len(os.listdir("/proc/self/fd")) == len(before)


def sparse(path):
    with open(path, "xb") as file:
        file.write(bytes(PAGESIZE))
        file.truncate(2 * PAGESIZE)


@pytest.mark.parametrize(
    ("make", "mode", "remove", "reason"),
    [
        (os.mkdir, 0o600, os.rmdir, r"is not a regular file in|Is a directory"),
        (os.mkfifo, 0o600, os.unlink, "is not a regular file in"),
        (lambda path: os.symlink("/etc/passwd", path), None, os.unlink, "Too many levels of symbolic links"),
        (sparse, 0o640, os.unlink, "mode 0640, not 0600"),
        (sparse, 0o600, os.unlink, f"only {PAGESIZE:,} of the file's {2 * PAGESIZE:,} bytes have memory"),
    ],
    ids=["folder", "pipe", "link", "readable by others", "sparse: writing there could end the process"],
)
def test_a_file_that_is_no_segment_is_not_opened(folder, make, mode, remove, reason):
    path = os.path.join(folder, NAME)
    make(path)
    if mode is not None:
        os.chmod(path, mode)
    with pytest.raises(NotShared, match=reason):
        open_segment(NAME, 2 * PAGESIZE, bytes(16))
    assert sweep() == (make is sparse), "a regular file is that of a dead process"
    if make is not sparse:
        remove(path)


def test_another_users_file_is_not_opened_and_not_swept(monkeypatch, folder):
    path, mine = os.path.join(folder, NAME), os.geteuid()
    sparse(path)
    os.chmod(path, 0o600)
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(NotShared, match=f"belongs to user {mine}, and this process to user {mine + 1}"):
        open_segment(NAME, 2 * PAGESIZE, bytes(16))
    assert sweep() == 0
    os.unlink(path)


def test_a_sweep_removes_dead_segments_only(monkeypatch, folder, segment):
    others = ["paramserver-notes", "sem.paramserver", f"{NAME}0"]
    for name in (NAME, NAME[:-1] + "0", *others):
        open(os.path.join(folder, name), "x").close()
    listed = os.listdir(folder)
    monkeypatch.setattr(os, "listdir", lambda path: [*listed, NAME[:-1] + "e"])  # one that vanishes meanwhile
    assert sweep() == 2
    monkeypatch.undo()
    assert sorted(os.listdir(folder)) == sorted([segment.name, *others])
    for name in others:
        os.unlink(os.path.join(folder, name))
