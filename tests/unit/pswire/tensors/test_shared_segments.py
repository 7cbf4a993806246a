"""Segments: memory of two processes that neither can take from the other, and that keeps no descriptor."""

import ctypes
import errno
import fcntl
import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from pswire.tensors import shared_segments
from pswire.tensors.shared_segments import NotShared, allocate_and_map, create_file, map_file, seal_mapped, socket_path
from tests.support.files import mapped_segments

PAGE = resource.getpagesize()
PUNCH_HOLE, KEEP_SIZE, MADV_REMOVE = 2, 1, 9


@contextmanager
def file(nbytes):
    descriptor = create_file(nbytes)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_memory_is_the_same_on_both_sides_keeps_no_descriptor_and_is_unmapped_with_its_last_view():
    descriptors, mapped = len(os.listdir("/proc/self/fd")), len(mapped_segments())
    with file(3 * PAGE + 1) as descriptor:
        server = map_file(descriptor, 3 * PAGE + 1)
        worker = allocate_and_map(descriptor, 3 * PAGE + 1)
        seal_mapped(descriptor, server)
    assert (worker.dtype, worker.size, worker.any(), worker.flags.writeable) == (np.uint8, 3 * PAGE + 1, False, True)
    worker[-2:] = 7
    assert server[-3:].tolist() == [0, 7, 7]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    view = np.ndarray((2,), np.uint8, server, 3 * PAGE - 1)[1:]
    del worker, server
    assert view.tolist() == [7]
    assert len(mapped_segments()) == mapped + 1
    del view
    assert len(mapped_segments()) == mapped


def test_mapped_memory_can_neither_shrink_nor_lose_a_page_whatever_is_done_with_its_descriptor():
    libc, nbytes = ctypes.CDLL(None, use_errno=True), 4 * PAGE
    with file(nbytes) as descriptor:
        server = map_file(descriptor, nbytes)
        for size in (0, nbytes - 1, nbytes + 1):
            with pytest.raises(PermissionError):
                os.truncate(descriptor, size)
        worker = allocate_and_map(descriptor, nbytes)
        seal_mapped(descriptor, server)
        worker[:] = 1
        hole = libc.fallocate(descriptor, PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(PAGE))
        assert (hole, ctypes.get_errno()) == (-1, errno.EPERM)
        address = ctypes.c_void_p(worker.__array_interface__["data"][0])
        assert (libc.madvise(address, ctypes.c_size_t(PAGE), MADV_REMOVE), ctypes.get_errno()) == (-1, errno.EPERM)
        with pytest.raises(NotShared, match=r"cannot map .* Operation not permitted"):
            map_file(descriptor, nbytes)
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert os.fstat(descriptor).st_blocks * 512 == nbytes
    assert server.all()


def test_memory_that_its_worker_has_not_allocated_or_has_sealed_itself_is_not_used():
    with file(2 * PAGE) as descriptor:
        server = map_file(descriptor, 2 * PAGE)
        os.posix_fallocate(descriptor, 0, PAGE)
        with pytest.raises(NotShared, match=f"the worker has allocated {PAGE:,} of {2 * PAGE:,} bytes"):
            seal_mapped(descriptor, server)
    with file(PAGE) as descriptor:
        server = map_file(descriptor, PAGE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
        with pytest.raises(NotShared, match=r"cannot seal the memory .* Operation not permitted"):
            seal_mapped(descriptor, server)


def test_a_worker_takes_no_file_that_is_not_as_announced():
    with file(PAGE) as descriptor, pytest.raises(NotShared, match="another file than announced"):
        allocate_and_map(descriptor, 2 * PAGE)
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)  # its owner could make it shrink
    os.truncate(descriptor, PAGE)
    with pytest.raises(NotShared, match="another file than announced"):
        allocate_and_map(descriptor, PAGE)
    os.close(descriptor)
    with open("/dev/null") as null, pytest.raises(NotShared, match="no memory for 0 bytes to share: Invalid argument"):
        allocate_and_map(null.fileno(), 0)


def test_a_system_that_cannot_share_memory_is_a_reason_and_nothing_stays_open(monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotShared, match=r"cannot make a file of .* bytes in memory: .*too large"):
        create_file(1 << 63)
    with file(1 << 62) as descriptor, pytest.raises(NotShared, match=r"cannot map .* bytes: Cannot allocate memory"):
        map_file(descriptor, 1 << 62)
    with file(PAGE) as descriptor, monkeypatch.context() as patch:
        failed = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        patch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(failed))
        with pytest.raises(NotShared, match="no memory for 4,096 bytes to share: No space left on device"):
            allocate_and_map(descriptor, PAGE)
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(NotShared, match="only Linux"):
        shared_segments.check_supported()


def test_only_names_that_a_server_gives_are_paths_of_sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_segments, "FOLDER", str(tmp_path))
    name = "paramserver-" + "0123456789abcdef" * 2
    assert socket_path(name) == f"{tmp_path}/{name}"
    for other in ("../../run/docker.sock", f"{name}/../{name}", f"{name}\n", name[:-1], name.upper(), ""):
        with pytest.raises(NotShared, match="is not the name of a socket"):
            socket_path(other)


def test_memory_that_lives_until_the_end_of_its_process_is_not_unmapped_under_its_threads():
    program = """
import threading
from pswire.tensors.shared_segments import allocate_and_map, create_file
memory = allocate_and_map(create_file(1 << 20), 1 << 20)
def use():
    while True:
        memory[:] = 1
threading.Thread(target=use, daemon=True).start()
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
