"""Each benchmark runs to its end in its smallest form, as `make bench` starts it: without arguments."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.combinations import few_fast

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = sorted(path.name for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
RESULT = re.compile(r"^RESULT \S+ \S+ (\S+) \S+", re.MULTILINE)


@pytest.mark.parametrize("name", few_fast(BENCHMARKS, 0, 2))
def test_a_benchmark_without_arguments_gives_results(name):
    if name == "frameworks.py":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name],
        env=os.environ | {"BENCHMARK_SMALLEST": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    if skipped := re.search(r"^skipped: (.*)", done.stdout, re.MULTILINE):
        pytest.skip(skipped[1])
    found = RESULT.findall(done.stdout)
    assert found, done.stdout
    for number in found:
        float(number)
