"""The files of a shard: a server starts from them, or says what is wrong; checksums are right, as an attacker's are.

Tags: a manifest's data (0) or its file (1), the bodies of the files of arrays (2 to 4), late changes (5), the data of
the run file (6), records of the journal (7), any bytes behind them (8), the state in the manifest (9), and records of
the journal without elements (10).
"""

import json
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from crc32c import crc32c
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from psserver.core.shard import Shard
from psserver.storage.files import checked_json
from psserver.storage.find_start import find_start
from psserver.storage.folders import journal_folder, shard_folder
from psserver.storage.journal_segments import SegmentHeader, record_header, segment_path
from psserver.storage.shard_run import run_path
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.v1 import state_pb2 as spb
from tests.fuzz.packets import unpack
from tests.support.shards import new_shard

COVERS = ["psserver.storage.checkpoints", "psserver.storage.arrays", "psserver.storage.find_start",
          "psserver.storage.start", "psserver.storage.journal_segments", "psserver.storage.shard_run",
          "psserver.core.variable_arrays"]  # fmt: skip
ARRAYS = {2: "variables.safetensors", 3: "slots.safetensors", 4: "served.safetensors", 5: "late.log"}
KINDS = {9: spb.ShardState, 10: spb.Record}
MEMORY = 1 << 20


def run(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        state = _write(Path(folder), unpack(data))
        with suppress(ValueError, TypeError, AttributeError):  # the options of the server are not what is tested
            policy = parse_consistency(state.get("consistency", "async"))
            handling = parse_staleness(state.get("handling", "none"))
            _start(Path(folder), new_shard(0, 1, 15.0, MEMORY, policy, handling, identity=1))


def _start(folder: Path, shard: Shard) -> None:
    start = find_start(folder, 0, 1)
    if start.lost:
        start.give_up()
    start.restore(shard, 0.0)
    start.begin(shard, journal=False)


def _write(folder: Path, packets: list[tuple[int, bytes]]) -> dict[str, Any]:
    """Write the files; returns the state in the manifest, as far as it is one."""
    parts = dict(packets)
    try:
        manifest = json.loads(parts.get(0, b""))
        if 9 in parts:
            state = spb.ShardState.FromString(parts[9])
            manifest["state"] = MessageToDict(state, preserving_proto_field_name=True)
        cut = int(manifest["state"].get("cut", 0))
    except (DecodeError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        manifest, cut = None, 0
    path = shard_folder(folder, max(0, min(cut, 10**12)), 0, 1)
    path.mkdir(parents=True)
    files = {name: parts[tag] for tag, name in ARRAYS.items() if tag in parts}
    for name, content in files.items():
        (path / name).write_bytes(content)
    if manifest is not None:
        with suppress(TypeError, AttributeError, KeyError):
            for name, content in files.items():
                if name in manifest["files"]:
                    manifest["files"][name] |= {"bytes": len(content), "crc32c": f"{crc32c(content):08x}"}
        with suppress(ValueError):
            (path / "manifest.json").write_bytes(checked_json(manifest))
    elif 1 in parts:
        (path / "manifest.json").write_bytes(parts[1])
    with suppress(ValueError, RecursionError):
        run_path(folder, 0, 1).write_bytes(checked_json(json.loads(parts.get(6, b""))))
    state = manifest["state"] if isinstance(manifest, dict) and isinstance(manifest.get("state"), dict) else {}
    _write_journal(folder, packets, cut, state)
    return state


def _write_journal(folder: Path, packets: list[tuple[int, bytes]], cut: int, state: dict[str, Any]) -> None:
    with suppress(ValueError, TypeError, struct.error):
        header = SegmentHeader(cut, int(state.get("identity", 1)))
        content = header.to_bytes()
        for tag, part in packets:
            if tag == 10:
                part = struct.pack("<I", len(part)) + part
                part += bytes(-len(part) % 16)
            if tag in (7, 10):
                content += record_header(len(part), 0, crc32c(part), len(content), header.seed()) + part
            elif tag == 8:
                content += part
        journal = journal_folder(folder, 0, 1)
        journal.mkdir()
        segment_path(journal, cut).write_bytes(content)
