"""Memory that is kept: page faults are counted, in a process of its own, since it changes the whole process."""

import ctypes
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pswire.system.malloc import keep_memory

DATA_OFFSET = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from pswire.system.malloc import keep_memory

if sys.argv[1] == "keep":
    assert keep_memory() and keep_memory()

def step():
    arrays = [np.ones(size, np.float32) for size in (300_000, 3_000_000)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
"""
ONE_THREAD = (
    DATA_OFFSET
    + """
before = step()
for _ in range(10):
    after = step()
print(after - before)
"""
)
SEVERAL_THREADS = (
    DATA_OFFSET
    + """
threads = [ThreadPoolExecutor(1) for _ in range(4)]
for thread in threads:
    thread.submit(int).result()
before = step()
print([thread.submit(step).result() for thread in threads][-1] - before)
"""
)


def faults(mode, program):
    done = subprocess.run([sys.executable, "-c", program, mode], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
@pytest.mark.parametrize("program", [ONE_THREAD, SEVERAL_THREADS], ids=["one thread", "several threads"])
def test_large_arrays_cost_no_page_faults_once_memory_is_kept(program):
    kept, given_back = faults("keep", program), faults("default", program)
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
    assert keep_memory() is agreed
