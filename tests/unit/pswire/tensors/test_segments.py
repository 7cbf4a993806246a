"""Segments: two processes see the same bytes, invalid files are refused, and nothing is left of dead processes."""

import errno
import fcntl
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from mmap import PAGESIZE

import pytest

from pswire.tensors import segments
from pswire.tensors.segments import BEGIN, NotShared, Segment, open_segment, sweep
from tests.shared_folder import needs_shared_memory, shared_folder

pytestmark = needs_shared_memory

NAME = "paramserver-" + "0123456789abcdef" * 2
BOUND = 60  # seconds that any of these processes may take


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    with shared_folder(monkeypatch) as path:
        yield path


def opened(segment, **other):
    known = {"name": segment.name, "nbytes": segment.nbytes, "token": segment.token}
    return open_segment(**known | other)


# --- processes of their own -------------------------------------------------------------------------------------------

BEGINNING = """
import os, sys
from pswire.tensors import segments
segments.FOLDER = sys.argv[1]
"""

OWNER = """
segment = segments.Segment.create(1000)
segment.memory[segments.BEGIN : segments.BEGIN + 5] = b"hello"
print(segment.name, segment.nbytes, segment.token.hex(), flush=True)
sys.stdin.readline()
segment.unlink()
print("unlinked", flush=True)
sys.stdin.readline()
"""


@contextmanager
def process(program, *arguments):
    """A program that runs, and is dead at the end in any case."""
    with subprocess.Popen(
        [sys.executable, "-c", BEGINNING + program, segments.FOLDER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program, segments.FOLDER, *arguments],
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_write_and_read_the_same_memory():
    segment = Segment.create(1000)
    segment.memory[BEGIN : BEGIN + 5] = b"hello"
    other = """
memory = segments.open_segment(sys.argv[2], int(sys.argv[3]), bytes.fromhex(sys.argv[4]))
print(memory[segments.BEGIN : segments.BEGIN + 5].decode())
memory[-5:] = b"there"
"""
    assert run(other, segment.name, str(segment.nbytes), segment.token.hex()) == "hello\n"
    assert segment.memory[-5:] == b"there"
    segment.unlink()


def test_the_segment_of_a_killed_process_is_swept_and_that_of_a_living_one_stays(folder):
    with process(OWNER) as owner:
        name = owner.stdout.readline().split()[0]
        assert sweep() == 0
        assert os.listdir(folder) == [name]
        owner.kill()
        owner.wait(BOUND)
        assert os.listdir(folder) == [name]
        assert sweep() == 1
        assert os.listdir(folder) == []
        assert sweep() == 0


def test_a_fork_neither_removes_a_segment_nor_ends_its_lock():
    program = """
segment = segments.Segment.create(1)
child = os.fork()
if not child:
    segment.unlink()
    sys.exit()
os.waitpid(child, 0)
print(os.listdir(sys.argv[1]) == [segment.name], segments.sweep())
"""
    assert run(program) == "True 0\n"


# --- one that is made -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, PAGESIZE - BEGIN, PAGESIZE - BEGIN + 1, 1_000_000])
def test_a_segment_has_the_room_that_was_asked_for_in_whole_pages_and_only_its_user_may_see_it(folder, nbytes):
    segment = Segment.create(nbytes)
    found = os.stat(os.path.join(folder, segment.name))
    assert BEGIN + nbytes <= segment.nbytes < BEGIN + nbytes + PAGESIZE
    assert segment.nbytes == len(segment.memory) == found.st_size <= found.st_blocks * 512
    assert (found.st_mode & 0o777, found.st_uid) == (0o600, os.geteuid())
    assert not any(segment.memory[BEGIN:])
    segment.unlink()


def test_the_name_goes_with_the_object_and_the_memory_stays_with_who_has_it(folder):
    segment = Segment.create(1)
    mine, other = segment.memory, opened(segment)
    segment.unlink()
    segment.unlink()
    assert os.listdir(folder) == []
    second = Segment.create(1)
    del segment, second
    assert os.listdir(folder) == []
    mine[BEGIN] = 7
    assert other[BEGIN] == 7


def refuse(code):
    def raise_error(*arguments):
        raise OSError(code, os.strerror(code))

    return raise_error


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
    monkeypatch.setattr(target, name, refuse(code))
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


def test_a_sweeper_between_a_file_and_its_lock_does_no_harm(monkeypatch, folder):
    lock, swept = fcntl.flock, []

    def locked_late(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", lock)
        swept.append(sweep())
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", locked_late)
    segment = Segment.create(1)
    assert (swept, sweep()) == ([1], 0)
    assert os.listdir(folder) == [segment.name]
    assert opened(segment)[:16] == segment.token
    segment.unlink()


# --- one that is opened -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"token": bytes(16)}, "does not begin with the token"),
        ({"token": b""}, "does not begin with the token"),
        ({"nbytes": 2 * PAGESIZE}, f"{PAGESIZE:,} bytes, and {2 * PAGESIZE:,} were announced"),
        ({"nbytes": -1}, "-1 were announced"),
        ({"name": NAME}, "another host or container"),
        ({"name": "../../etc/passwd"}, "'../../etc/passwd' is no name of a segment"),
        ({"name": f"{NAME}/../{NAME}"}, "no name of a segment"),
        ({"name": f"{NAME}\n"}, "no name of a segment"),
    ],
)
def test_a_file_that_is_not_as_announced_is_not_mapped(other, reason):
    segment = Segment.create(1)
    with pytest.raises(NotShared, match=re.escape(reason)):
        opened(segment, **other)
    with pytest.raises(NotShared, match="token"):
        opened(segment, token=segment.token[:15])
    assert segment.token != Segment.create(1).token
    segment.unlink()


def test_a_name_that_does_not_fit_never_reaches_the_file_system(monkeypatch):
    monkeypatch.setattr(os, "open", lambda *arguments: pytest.fail(f"opened {arguments}"))
    with pytest.raises(NotShared, match="no name"):
        open_segment(f"../{NAME}", 4096, bytes(16))


def test_a_link_to_a_segment_is_none(folder):
    segment = Segment.create(1)
    link = os.path.join(folder, NAME)
    os.symlink(os.path.join(folder, segment.name), link)
    with pytest.raises(NotShared, match="cannot open the file: Too many levels of symbolic links"):
        opened(segment, name=NAME)
    assert sweep() == 0
    os.unlink(link)
    segment.unlink()


def test_a_file_that_others_may_read_is_none(folder):
    segment = Segment.create(1)
    os.chmod(os.path.join(folder, segment.name), 0o640)
    with pytest.raises(NotShared, match="mode 0640, not 0600"):
        opened(segment)
    segment.unlink()


def test_another_users_file_is_none_and_is_not_swept(monkeypatch, folder):
    path = os.path.join(folder, NAME)
    with open(path, "xb") as file:
        file.truncate(4096)
    os.chmod(path, 0o600)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(NotShared, match=f"belongs to user {mine}, and this process to user {mine + 1}"):
        open_segment(NAME, 4096, bytes(16))
    assert sweep() == 0
    os.unlink(path)


@pytest.mark.parametrize("pages", [0, 1])
def test_a_file_of_which_a_page_has_no_memory_is_none_for_to_write_there_could_end_the_process(folder, pages):
    path, token = os.path.join(folder, NAME), bytes(16)
    with open(path, "xb") as file:
        file.write(bytes(pages * PAGESIZE))
        file.truncate(2 * PAGESIZE)
    os.chmod(path, 0o600)
    with pytest.raises(NotShared, match=f"only {pages * PAGESIZE:,} of the file's {2 * PAGESIZE:,} bytes have memory"):
        open_segment(NAME, 2 * PAGESIZE, token)
    os.unlink(path)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_neither_opened_nor_swept(folder, make):
    path = os.path.join(folder, NAME)
    make(path)
    os.chmod(path, 0o600)
    with pytest.raises(NotShared, match=r"is no file of|Is a directory"):
        open_segment(NAME, 4096, bytes(16))
    assert sweep() == 0
    assert os.path.exists(path)
    (os.rmdir if make is os.mkdir else os.unlink)(path)


def test_opening_a_segment_leaves_no_descriptor_behind():
    segment = Segment.create(1)
    opened(segment)
    before = sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for token in (segment.token, bytes(16)) * 5:
        try:
            opened(segment, token=token)
        except NotShared:
            assert token == bytes(16)
    assert before is None or sorted(os.listdir("/proc/self/fd")) == before
    segment.unlink()


# --- sweeping ---------------------------------------------------------------------------------------------------------


def test_a_sweep_takes_the_dead_segments_alone(monkeypatch, folder):
    alive = Segment.create(1)
    others = ["paramserver-notes", "sem.paramserver", f"{NAME}0"]
    for name in (NAME, NAME[:-1] + "0", *others):
        open(os.path.join(folder, name), "x").close()
    listed = os.listdir(folder)
    monkeypatch.setattr(os, "listdir", lambda path: [*listed, NAME[:-1] + "e"])  # one that vanishes meanwhile
    assert sweep() == 2
    monkeypatch.undo()
    assert sorted(os.listdir(folder)) == sorted([alive.name, *others])
    for name in others:
        os.unlink(os.path.join(folder, name))
    os.unlink(os.path.join(folder, alive.name))
