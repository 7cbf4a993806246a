"""What a process may use of a machine, and of a container on it: control groups as folders of files."""

import os
import socket
import sys
from pathlib import Path

import pytest

from pswire.system import host
from pswire.system.host import cores, memory, memory_limits, process_name, process_number

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks what only Linux says")
V1_NONE = "9223372036854771712"  # what version 1 says where nobody has set a limit: 2^63 in pages


def in_groups(root, membership, limits):
    """A folder with the files that Linux has, for a process whose /proc/self/cgroup is `membership`."""
    for path, text in {"proc/self/cgroup": membership, **limits}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n" if text else "")
    return root


@pytest.mark.parametrize(
    ("membership", "files", "limits"),
    [
        pytest.param("0::/", {"sys/fs/cgroup/memory.max": "1000"}, [1000], id="a container with its own namespace"),
        pytest.param("0::/", {"sys/fs/cgroup/memory.max": "max"}, [], id="one without a limit"),
        pytest.param("0::/", {}, [], id="no container: the root has no such file"),
        pytest.param(
            "0::/a.slice/b.scope",
            {
                "sys/fs/cgroup/a.slice/b.scope/memory.max": "3000",
                "sys/fs/cgroup/a.slice/memory.max": "2000",
                "sys/fs/cgroup/a.slice/c.scope/memory.max": "10",
            },
            [3000, 2000],
            id="a limit of the group around it",
        ),
        pytest.param(
            "5:cpu,cpuacct:/docker/7f\n4:memory:/docker/7f\n0::/docker/7f",
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000",
                "sys/fs/cgroup/cpu,cpuacct/memory.limit_in_bytes": "10",
            },
            [4000],
            id="version 1: the machine's path, and the group is mounted as the outermost",
        ),
        pytest.param(
            "4:memory:/jobs/7",
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_NONE,
                "sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes": "5000",
            },
            [5000, int(V1_NONE)],
            id="version 1 on the machine",
        ),
        pytest.param("0::/../a:b", {"sys/fs/cgroup/memory.max": "6000"}, [6000], id="moved out of its namespace"),
        pytest.param("", {"sys/fs/cgroup/memory.max": "10"}, [], id="in no group"),
        pytest.param(
            "4:hugetlb,memory:/jobs/7",
            {"sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes": "5000"},
            [5000],
            id="version 1, where memory shares a hierarchy",
        ),
        pytest.param(
            "0\n0:\nmemory:/\n\n0::/",
            {"sys/fs/cgroup/memory.max": "7000", "sys/fs/cgroup/memory/memory.limit_in_bytes": "10"},
            [7000],
            id="lines that are none",
        ),
        pytest.param(
            "0::/a/b/c/d",
            {
                "sys/fs/cgroup/a/b/c/d/memory.max": "0",
                "sys/fs/cgroup/a/b/c/memory.max": "-1",
                "sys/fs/cgroup/a/b/memory.max": "many",
                "sys/fs/cgroup/a/memory.max": "",
                "sys/fs/cgroup/memory.max": "8000",
            },
            [8000],
            id="limits that are none",
        ),
    ],
)
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
    ("process", "namespace", "number"),
    [
        pytest.param(1234, 4026531836, "1234", id="of-the-machine-itself"),
        pytest.param(7, 4026532181, "341.7", id="of-a-container"),
        pytest.param(7, 12, "12.7", id="of-a-kernel-that-counts-otherwise"),
        pytest.param(7, 4026532182, "342.7", id="of-another-container-where-ids-are-the-same"),
    ],
)
def test_processes_of_containers_with_the_name_of_their_host_are_told_apart(process, namespace, number):
    assert process_number(process, namespace) == number


def test_a_process_is_called_by_its_host_and_its_number():
    host, _, number = process_name().rpartition("-")
    assert (host, number.rpartition(".")[2]) == (socket.gethostname(), str(os.getpid()))
