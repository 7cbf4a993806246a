"""Segments: memory of one server and one worker of the same user on one host, which neither can take from the other.

The server makes an anonymous file of a fixed size and hands its descriptor to the worker over a Unix socket
(`psserver.rpc.shared_segment_socket`, `psworker.transport.shared_memory`); this module has the steps of both sides.
After the last of them the file can neither be made smaller, which would end a process that uses the mapped memory
(SIGBUS), nor lose a page, which the server would have to allocate again. Linux 5.1 or newer.
"""

import ctypes
import os
import re
import weakref
from functools import cache
from typing import Any

import numpy as np

from pswire.system.host import WINDOWS
from pswire.tensors.values import Array

if not WINDOWS:  # no server and no worker of one runs there
    import fcntl
    from mmap import MAP_SHARED, PAGESIZE, PROT_READ, PROT_WRITE

#: The folder of the sockets: visible to all processes of a host, and to containers that share it.
FOLDER = "/dev/shm"

#: Segments of a stream at most, numbered from 0: gradients, current and next weights, rows that are looked up, and some
#: old weights that a program keeps.
MAX_SEGMENTS = 16

#: Bytes of the token that a worker sends over the socket.
TOKEN_BYTES = 16

#: Sent over the socket: by the server with the descriptor, by the worker when it has mapped it, and then by the server.
DONE = b"\x01"

#: Seconds for all that is sent over one connection to the socket; memory of 1 GB takes 0.5 s.
HANDOVER_TIMEOUT = 10.0

_SOCKET = re.compile(r"paramserver-[0-9a-f]{32}")
_F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h; not in the standard library before Python 3.13
_MAP_FAILED = ctypes.c_void_p(-1).value


class NotShared(Exception):
    """Memory cannot be shared, for the reason in the message; another tensor transport is used instead."""


def socket_path(name: str) -> str:
    """The path of a socket of this file name; `NotShared` if a server would not call one so."""
    if not _SOCKET.fullmatch(name):
        raise NotShared(f"{name!r} is not the name of a socket for segments")
    return os.path.join(FOLDER, name)


def check_supported() -> None:
    """Raise `NotShared` where this system has no anonymous files that can be sealed."""
    if not hasattr(os, "memfd_create"):
        raise NotShared("this system has no memfd_create: only Linux has")


def create_file(nbytes: int) -> int:
    """A descriptor of an anonymous file of `nbytes`, which can neither grow nor shrink. It has no memory yet."""
    check_supported()
    try:
        descriptor = os.memfd_create("paramserver", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(descriptor, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except BaseException:
            os.close(descriptor)
            raise
    except (OSError, OverflowError) as error:
        raise NotShared(f"cannot make a file of {nbytes:,} bytes in memory: {_reason(error)}") from error
    return descriptor


def allocate_and_map(descriptor: int, nbytes: int) -> Array:
    """The worker's step: all memory of the file, mapped. So it counts as the worker's, also in its control group.

    Takes 1 ms for about 2 MB: the kernel clears it. Raises `NotShared`, also if the file is not as announced.
    """
    try:
        cannot_shrink = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        if os.fstat(descriptor).st_size != nbytes or not cannot_shrink:
            raise NotShared("the server has sent another file than announced")
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        raise NotShared(f"no memory for {nbytes:,} bytes to share: {_reason(error)}") from error
    return _touched(map_file(descriptor, nbytes))


def seal_mapped(descriptor: int, memory: Array) -> None:
    """The server's step when both sides have mapped the file: from now on its pages stay. Maps all pages of `memory`.

    `NotShared` if not all of it is allocated: reading or writing there would take memory of this process. Takes 1 ms
    for about 7 MB, without the GIL.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)
    except OSError as error:
        raise NotShared(f"cannot seal the memory (Linux before 5.1?): {_reason(error)}") from error
    allocated = os.fstat(descriptor).st_blocks * 512
    if allocated < len(memory):
        raise NotShared(f"the worker has allocated {allocated:,} of {len(memory):,} bytes")
    _touched(memory)


def map_file(descriptor: int, nbytes: int) -> Array:
    """The file as uint8 of shape (nbytes,), mapped for reading and writing while any view of the array is left.

    Not `mmap.mmap`, which keeps a descriptor of its own for each mapping, and holds the GIL.
    """
    libc = _libc()
    address = libc.mmap(None, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
    if address is None or address == _MAP_FAILED:
        raise NotShared(f"cannot map {nbytes:,} bytes: {os.strerror(ctypes.get_errno())}")
    return np.asarray(_Mapping(address, nbytes))


class _Mapping:
    """The `base` of an array, by numpy's array interface: unmaps the memory when no view of it is left."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}
        weakref.finalize(self, _libc().munmap, address, nbytes).atexit = False  # other threads may still use it then


def _touched(memory: Array) -> Array:
    """The same memory, with all of its pages mapped: or each would cost a page fault when it is first used.

    Reading is enough, since the pages exist. MAP_POPULATE and MADV_POPULATE_WRITE take nine times as long.
    """
    memory[::PAGESIZE].max()
    return memory


def _reason(error: OSError | OverflowError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@cache
def _libc() -> Any:  # noqa: ANN401 - ctypes makes its functions when they are asked for
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc
