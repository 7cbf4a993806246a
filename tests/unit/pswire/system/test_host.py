"""Cores, memory and name of a process, also in a container: control groups as folders of files; the C allocator."""

import ctypes
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pswire.system import host

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks what only Linux says")
V1_NONE = "9223372036854771712"  # what version 1 says where nobody has set a limit: 2^63 in pages


def in_groups(root, membership, files):
    """A folder with the files that Linux has, for a process whose /proc/self/cgroup is `membership`."""
    limits = {f"sys/fs/cgroup/{path}": text for path, text in files.items()}
    for path, text in {"proc/self/cgroup": membership, **limits}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n" if text else "")
    return root


V1, SLICE, DEEP = "memory/memory.limit_in_bytes", "a.slice/b.scope/memory.max", "a/b/c/d/memory.max"
GROUPS = {
    "a container with its own namespace": ("0::/", {"memory.max": "1000"}, [1000]),
    "one without a limit": ("0::/", {"memory.max": "max"}, []),
    "a limit of the group around it": (
        "0::/a.slice/b.scope",
        {SLICE: "3000", "a.slice/memory.max": "2000", "a.slice/c.scope/memory.max": "10"},
        [3000, 2000],
    ),
    "version 1: the machine's path, and the group is mounted as the outermost": (
        "5:cpu,cpuacct:/docker/7f\n4:memory:/docker/7f\n0::/docker/7f",
        {V1: "4000", "cpu,cpuacct/memory.limit_in_bytes": "10"},
        [4000],
    ),
    "version 1 on the machine, where memory shares a hierarchy": (
        "4:hugetlb,memory:/jobs/7",
        {V1: V1_NONE, "memory/jobs/7/memory.limit_in_bytes": "5000"},
        [5000, int(V1_NONE)],
    ),
    "moved out of its namespace": ("0::/../a:b", {"memory.max": "6000"}, [6000]),
    "in no group": ("", {"memory.max": "10"}, []),
    "invalid lines and limits": (
        "0\n0:\nmemory:/\n\n0::/a/b/c/d",
        {DEEP: "0", "a/b/c/memory.max": "-1", "a/b/memory.max": "x", "a/memory.max": "", "memory.max": "8", V1: "10"},
        [8],
    ),
}


@pytest.mark.parametrize(("membership", "files", "limits"), GROUPS.values(), ids=GROUPS)
def test_the_limits_are_those_of_its_groups_and_of_the_groups_around_them(tmp_path, membership, files, limits):
    assert host.memory_limits(in_groups(tmp_path, membership, files)) == limits


@linux
def test_without_readable_limits_memory_is_the_machines_and_else_the_least_limit(tmp_path, monkeypatch):
    assert host.memory_limits(tmp_path / "nowhere") == []
    (tmp_path / "sys/fs/cgroup/memory.max").mkdir(parents=True)  # a folder
    assert host.memory_limits(in_groups(tmp_path, "0::/", {})) == []
    for limits in ([], [int(V1_NONE)]):
        monkeypatch.setattr(host, "memory_limits", {Path("/"): limits}.get)
        assert Path("/proc/meminfo").read_text().split()[:3] == ["MemTotal:", str(host.memory() // 1024), "kB"]
    monkeypatch.setattr(host, "memory_limits", {Path("/"): [int(V1_NONE), 4096, 8192]}.get)
    assert host.memory() == 4096


@linux
def test_cores_are_those_that_the_process_may_use():
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert host.cores() == 1
    finally:
        os.sched_setaffinity(0, mine)
    assert host.cores() == len(mine)


def test_a_process_is_named_by_its_host_and_a_number_that_is_distinct_in_containers():
    numbers = [host.process_number(*given) for given in ((1234, 4026531836), (7, 4026532181), (7, 12))]
    assert numbers == ["1234", "341.7", "12.7"]
    name, _, number = host.process_name().rpartition("-")
    assert (name, number.rpartition(".")[2]) == (socket.gethostname(), str(os.getpid()))


# --- memory that is kept: page faults are counted, in a process of its own, since it changes the whole process -----

STEPS = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from pswire.system.host import keep_memory

if sys.argv[1] == "keep":
    assert keep_memory() and keep_memory()

def step():
    arrays = [np.ones(size, np.float32) for size in (300_000, 3_000_000)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

threads = [ThreadPoolExecutor(1) for _ in range(4)]
for thread in threads:
    thread.submit(int).result()
before = step()
print([thread.submit(step).result() for thread in threads][-1] - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
@pytest.mark.slow
def test_large_arrays_cost_no_page_faults_in_any_thread_once_memory_is_kept():
    commands = [(sys.executable, "-c", STEPS, mode) for mode in ("keep", "default")]
    kept, given_back = (int(subprocess.check_output(command, timeout=60)) for command in commands)
    assert kept < 500  # of 3,222 pages that each step writes
    assert given_back > 10 * kept


def windows(name):
    raise TypeError("LoadLibrary() argument 1 must be str, not None")


@pytest.mark.parametrize(
    ("library", "agreed"),
    [
        (windows, False),
        (lambda name: SimpleNamespace(), False),  # macOS: no mallopt
        (lambda name: SimpleNamespace(mallopt=lambda option, value: 0), False),  # musl: does nothing
        (lambda name: SimpleNamespace(mallopt=lambda option, value: value <= 32 << 20 or option == -1), True),
    ],
)
def test_another_c_library_is_left_alone(monkeypatch, library, agreed):
    monkeypatch.setattr(ctypes, "CDLL", library)
    assert host.keep_memory() is agreed


DESCRIPTORS = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from pswire.system.host import raise_descriptor_limit
raise_descriptor_limit()
raise_descriptor_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@linux
@pytest.mark.parametrize(("before", "after"), [((256, 1024), "1024 1024"), ((1024, 1024), "1024 1024")])
def test_a_server_may_have_as_many_open_files_as_its_process_may_allow_itself(before, after):
    command = [sys.executable, "-c", DESCRIPTORS, *map(str, before)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip() == after


def test_a_server_asks_for_no_more_open_files_than_it_uses(monkeypatch):
    resource, asked = pytest.importorskip("resource"), []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(limits))
    for now, most in ((1024, resource.RLIM_INFINITY), (1024, 1 << 20), (1 << 17, 1 << 20), (-1, -1)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, now=now, most=most: (now, most))
        host.raise_descriptor_limit()
    assert asked == [(host.MAX_DESCRIPTORS, resource.RLIM_INFINITY), (host.MAX_DESCRIPTORS, 1 << 20)]
