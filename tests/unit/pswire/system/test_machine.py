"""Cores and memory that a process may use, also in a container: control groups as folders of files."""

import os
import socket
import sys
from pathlib import Path

import pytest

from pswire.system import host
from pswire.system.host import cores, memory, memory_limits, process_name, process_number

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
    "no container: the root has no such file": ("0::/", {}, []),
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
    "invalid lines": ("0\n0:\nmemory:/\n\n0::/", {"memory.max": "7000", V1: "10"}, [7000]),
    "invalid limits": (
        "0::/a/b/c/d",
        {DEEP: "0", "a/b/c/memory.max": "-1", "a/b/memory.max": "x", "a/memory.max": "", "memory.max": "8000"},
        [8000],
    ),
}


@pytest.mark.parametrize(("membership", "files", "limits"), GROUPS.values(), ids=GROUPS)
def test_the_limits_are_those_of_its_groups_and_of_the_groups_around_them(tmp_path, membership, files, limits):
    assert memory_limits(in_groups(tmp_path, membership, files)) == limits


def test_what_cannot_be_read_is_no_limit(tmp_path):
    assert memory_limits(tmp_path / "nowhere") == []
    (tmp_path / "sys/fs/cgroup/memory.max").mkdir(parents=True)
    assert memory_limits(in_groups(tmp_path, "0::/", {})) == []


@linux
@pytest.mark.parametrize("limits", [[], [int(V1_NONE)]])
def test_memory_without_a_limit_is_the_machines(monkeypatch, limits):
    monkeypatch.setattr(host, "memory_limits", lambda root: limits)
    total = Path("/proc/meminfo").read_text().split()[:3]
    assert total == ["MemTotal:", str(memory() // 1024), "kB"]


def test_memory_with_limits_is_the_least_of_them(monkeypatch):
    monkeypatch.setattr(host, "memory_limits", {Path("/"): [int(V1_NONE), 4096, 8192]}.get)
    assert memory() == 4096


@linux
def test_cores_are_those_that_the_process_may_use():
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, mine)
    assert cores() == len(mine)


@pytest.mark.parametrize(
    ("process", "namespace", "number"), [(1234, 4026531836, "1234"), (7, 4026532181, "341.7"), (7, 12, "12.7")]
)
def test_processes_of_containers_have_distinct_numbers(process, namespace, number):
    assert process_number(process, namespace) == number


def test_a_process_is_called_by_its_host_and_its_number():
    host, _, number = process_name().rpartition("-")
    assert (host, number.rpartition(".")[2]) == (socket.gethostname(), str(os.getpid()))
