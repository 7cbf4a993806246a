"""Memory that is kept: page faults are counted, in a process of its own, since it changes the whole process."""

import ctypes
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pswire.system.malloc import keep_memory

FAULTS = """
import resource, sys
import numpy as np
from pswire.system.malloc import keep_memory

if sys.argv[1] == "keep":
    assert keep_memory() and keep_memory()

def step():
    arrays = [np.ones(size, np.float32) for size in (300_000, 3_000_000, 20_000_000)]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


FAULTS_IN_THREADS = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from pswire.system.malloc import keep_memory

if sys.argv[1] == "keep":
    assert keep_memory()

def step():
    np.ones(3_000_000, np.float32)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

threads = [ThreadPoolExecutor(1) for _ in range(4)]
for thread in threads:
    thread.submit(int).result()
before = step()
print([thread.submit(step).result() for thread in threads][-1] - before)
"""


def faults(mode, program=FAULTS):
    done = subprocess.run([sys.executable, "-c", program, mode], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is set here is glibc's")
def test_large_arrays_cost_no_page_faults_once_memory_is_kept():
    kept, given_back = faults("keep"), faults("default")
    assert kept < 100  # a few of Python's own
    assert given_back > 10 * kept


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is set here is glibc's")
def test_memory_that_one_thread_has_freed_serves_the_others():
    kept, given_back = faults("keep", FAULTS_IN_THREADS), faults("default", FAULTS_IN_THREADS)
    assert kept < 500  # of 2,930 pages that each of four threads writes
    assert given_back > 10 * kept


@pytest.mark.parametrize(
    ("library", "agreed"),
    [
        (SimpleNamespace(), False),  # macOS: no mallopt
        (SimpleNamespace(mallopt=lambda option, value: 0), False),  # musl, where it exists: does nothing
        (SimpleNamespace(mallopt=lambda option, value: int(value <= 32 << 20 or option == -1)), True),  # an old glibc
    ],
)
def test_another_c_library_is_left_alone(monkeypatch, library, agreed):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert keep_memory() is agreed


def test_a_platform_without_a_c_library_of_that_name_is_left_alone(monkeypatch):
    def refuse(name):
        raise TypeError("LoadLibrary() argument 1 must be str, not None")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert keep_memory() is False
