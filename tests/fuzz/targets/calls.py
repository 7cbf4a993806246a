"""Sequences of calls, unary and on streams, to a new shard; the first byte is its policy."""

from tests.fuzz.packets import unpack
from tests.fuzz.served_shard import KINDS, serve

__all__ = ["COVERS", "KINDS", "run"]

HEAD = 1
COVERS = ["psserver.rpc.service", "psserver.rpc.transfer_memory", "psserver.core", "psserver.runtime.executor"]


def run(data: bytes) -> None:
    serve(unpack(data[1:])[:100], policy=data[0] if data else 0)
