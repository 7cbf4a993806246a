"""For all tests of recorded files."""

import pytest

from pswire.optimizers import numba_compiler


@pytest.fixture(autouse=True)
def without_compiling(monkeypatch):
    """Update rules in numpy, which have the same bits: compiling them would take longer than all tests."""
    monkeypatch.setattr(numba_compiler, "USE_NUMBA", False)
