"""Fixtures of client tests: small partitioned variables, and retries without pauses."""

import pytest

from psworker.client import placement, retrying_calls


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """No pause between two tries."""
    monkeypatch.setattr(retrying_calls, "FIRST_PAUSE", 0.0)


@pytest.fixture
def split_small(monkeypatch):
    """Variables of more than 64 bytes are partitioned."""
    monkeypatch.setattr(placement, "SPLIT_BYTES", 64)
