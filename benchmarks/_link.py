"""Two network namespaces joined by a link with a rate and a delay, for processes of this machine. Linux, root.

tc limits the rate (tbf). netem, which delays packets, is not in every kernel; a TUN interface is: each namespace has
one, and a process passes what it sends to the other one after the delay. These are segments of up to 64 KB, as a
kernel passes them to network interfaces with offloads, so the process has few to handle. It needs processor time of
this machine: some 1 ms for 13.1 MB at 1 Gbit/s does not matter, at 10 Gbit/s it does.
"""

import ctypes
import fcntl
import multiprocessing
import os
import select
import struct
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

ADDRESSES = ("10.77.0.1", "10.77.0.2")

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000  # sched.h

# linux/if_tun.h: packets with a virtio_net_hdr, and segments that the kernel has neither cut nor given a checksum.
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUMS_AND_SEGMENTS = 0x01 | 0x02 | 0x04
_MOST_BYTES = (64 << 10) + 64


class Rate(NamedTuple):
    """What a link carries in each direction."""

    gbit: float  # 1e9 bits of IP packets per second
    delay: float  # seconds, one way

    def least(self, nbytes: int) -> float:
        """Seconds in which it carries so many bytes one way and then so many back, without what TCP and IP add."""
        return 2 * (nbytes * 8 / (self.gbit * 1e9) + self.delay)


def reason_for_none() -> str:
    """The reason why this process cannot make links; empty if it can."""
    if os.geteuid():
        return "links between network namespaces need root"
    try:
        os.close(_namespace())
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"links between network namespaces need the right to make them, and /dev/net/tun: {error}"
    return ""


@contextmanager
def link(rate: Rate) -> Iterator[tuple[int, int]]:
    """Two namespaces, for `inside`, of which the first has the first of `ADDRESSES`; gone after the block."""
    with ExitStack() as stack:
        namespaces, tuns = [], []
        for address in ADDRESSES:
            namespaces.append(_namespace())
            stack.callback(os.close, namespaces[-1])
            with inside(namespaces[-1]):
                tuns.append(_tun(address, rate.gbit))
            stack.callback(os.close, tuns[-1])
        process = multiprocessing.get_context("fork").Process(target=_forward, args=(tuns, rate.delay), daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(process.terminate)
        yield namespaces[0], namespaces[1]


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """This thread in a namespace, and the processes that it starts meanwhile."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _check(_libc.setns(namespace, _CLONE_NEWNET))
        yield
    finally:
        _check(_libc.setns(before, _CLONE_NEWNET))
        os.close(before)


def _namespace() -> int:
    """A new one, which exists as long as this descriptor is open, or something uses it."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _check(_libc.unshare(_CLONE_NEWNET))
        made = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _check(_libc.setns(before, _CLONE_NEWNET))
        return made
    finally:
        os.close(before)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _tun(address: str, gbit: float) -> int:
    """The interface of this thread's namespace."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", b"tun0", _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(tun, _TUNSETOFFLOAD, _CHECKSUMS_AND_SEGMENTS)
    shaped = f"tbf rate {gbit}gbit burst 256kb limit 16mb"
    for command in (
        "ip link set lo up",
        f"ip address add {address}/24 dev tun0",
        "ip link set tun0 up",
        f"tc qdisc add dev tun0 root {shaped}",
    ):
        subprocess.run(command.split(), check=True)
    return tun


def _forward(tuns: list[int], delay: float) -> None:
    """Passes the packets of each interface to the other one."""
    others = dict(zip(tuns, reversed(tuns), strict=True))
    waiting: deque[tuple[float, int, bytes]] = deque()  # in the order of their times: the delay is the same for all
    while True:
        wait = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for tun in select.select(tuns, (), (), wait)[0]:
            waiting.append((time.monotonic() + delay, others[tun], os.read(tun, _MOST_BYTES)))
        while waiting and waiting[0][0] <= time.monotonic():
            _, tun, packet = waiting.popleft()
            with suppress(OSError):  # an interface that is full, or not up yet, loses packets
                os.write(tun, packet)
