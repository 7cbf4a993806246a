"""Fixtures of client tests: small partitioned variables, retries without pauses, and no heartbeat in the background."""

import pytest

from pswire import placement
from psworker.client import retry
from psworker.client.heartbeat import Heartbeat


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """No pause between two tries, and no heartbeat."""
    monkeypatch.setattr(retry, "INITIAL_BACKOFF", 0.0)
    monkeypatch.setattr(Heartbeat, "start", lambda *arguments: None)


@pytest.fixture
def split_small(monkeypatch):
    """Variables of more than 64 bytes are partitioned."""
    monkeypatch.setattr(placement, "SPLIT_BYTES", 64)
