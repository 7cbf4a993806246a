"""A checkpoint on demand, of servers that lose their part of it."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from psserver.cli import checkpoint_save
from pswire.messages import CutReport


def test_a_checkpoint_of_which_a_server_has_lost_its_part_begins_again(monkeypatch):
    asked = []

    def call(shard, message, kind, timeout):
        """Shard 1 was started again while it wrote checkpoint 5."""
        asked.append((shard, message.number))
        number = message.number or 4 + asked.count((0, 0))
        return CutReport(number=number, storage=True, written=number == 6, gone=(shard, number) == (1, 5))

    @contextmanager
    def stubs(addresses, credentials):
        current = list(addresses)
        yield SimpleNamespace(addresses=SimpleNamespace(find=lambda timeout: current, current=current), call=call)

    monkeypatch.setattr(checkpoint_save, "ShardStubs", stubs)
    monkeypatch.setattr(checkpoint_save.time, "sleep", lambda seconds: None)
    assert checkpoint_save.save(["a:1", "b:2"], timeout=60) == 6
    assert asked == [(0, 0), (1, 5), (0, 0), (1, 6)]


@pytest.mark.parametrize("report", [CutReport(number=5), CutReport(number=5, gone=True)])
def test_servers_without_storage_are_named(report, monkeypatch):
    servers = SimpleNamespace(call=lambda *_: report, addresses=SimpleNamespace(current=["a:1"]))
    with pytest.raises(checkpoint_save.StorageError, match="a:1 keeps no checkpoints"):
        checkpoint_save._ask(servers, 0, 0, 1.0)
