"""Specs as text: the first byte chooses which; a valid one is written as text that is read as the same."""

from collections.abc import Callable
from typing import Any

from psserver.config import parse_shard, parse_size
from pswire.addresses import check_address, local_address
from pswire.network.discovery import parse_servers
from pswire.specs.checkpoints import parse_checkpoint_every
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.encodings import parse_compression, parse_encoding

COVERS = ["pswire.specs.consistency", "pswire.specs.encodings", "pswire.specs.checkpoints", "pswire.addresses"]
PARSERS: list[Callable[[str], Any]] = [
    parse_consistency,
    parse_staleness,
    parse_encoding,
    parse_compression,
    parse_checkpoint_every,
    check_address,
    lambda text: local_address(check_address(text)),
    parse_servers,
    parse_shard,
    parse_size,
]
_SAME = {parse_consistency, parse_staleness}


def run(data: bytes) -> None:
    parse = PARSERS[data[0] % len(PARSERS)] if data else parse_size
    parsed = parse(data[1:].decode(errors="replace"))
    if parse in _SAME:
        assert parse(str(parsed)) == parsed
