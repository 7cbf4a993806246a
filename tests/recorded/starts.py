"""The starts of shards from recorded folders: changes of a copy, and what a start says and does."""

import logging
import shutil

from psserver.core.shard import Shard
from pswire import messages as ms
from pswire.errors import ParamServerError
from psworker.config import WorkerConfig
from psworker.transport.embedded_checkpoints import EmbeddedCheckpoints
from tests.recorded.descriptions import as_json, describe, summarize_shard
from tests.recorded.formats import FIXTURES
from tests.recorded.server import Server, facts, go_back, in_words
from tests.support.shards import run_step

#: What a start may be (`psserver.storage.start.Start`).
FLAGS = ("lost", "gave_up", "replayed", "stored", "torn", "went_back", "provisional")


def copy_of(case, destination):
    """A copy of the folders of a case, one over the other, changed as the case says; without any there is nothing."""
    for folder in case["folders"]:
        shutil.copytree(FIXTURES / folder, destination, dirs_exist_ok=True)
    for change in case.get("changes", ()):
        path = destination / change["file"]
        match change["what"]:
            case "remove":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            case "flip":  # a bit of a byte, from the end if it is negative
                data = bytearray(path.read_bytes())
                data[change["at"]] ^= 1
                path.write_bytes(data)
            case "cut":
                path.write_bytes(path.read_bytes()[: -change["bytes"]])
            case "append":
                path.write_bytes(path.read_bytes() + bytes.fromhex(change["hex"]))
            case "write":
                path.write_text(change["text"])
    return destination


def outcome(case, folder):
    """What the start of a case's shards says and does in its folder."""
    if case.get("embedded"):
        return as_json(_embedded(folder))
    shards, options, found, servers = case["shards"], case.get("options", {}), [], []
    for shard in case.get("of", range(shards)):
        try:
            server = Server(folder, shard, shards, **options)
        except ParamServerError as error:
            found.append({"shard": shard} | in_words(error))
        else:
            servers.append(server)
            found.append(_started(shard, server))
    for server in servers:
        server.close()
    result = {"starts": found}
    if case.get("go back"):
        before, after = go_back(servers)
        result["restored"] = [[describe(one) for one in answers] for answers in (before, after)]
        result["shards"] = [summarize_shard(one.shard) for one in servers]
    return as_json(result | {"files": _files(folder)})


def _started(shard, server):
    start = server.start
    found = {"shard": shard, "checkpoint": start.number, "timeline": start.timeline, "from cut": start.timeline_cut}
    found["is"] = [name for name in FLAGS if getattr(start, name)]
    return found | {"log": server.log, "state": summarize_shard(server.shard)}


def _files(folder):
    """All files but locks and what holds only arrays."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if not name.endswith((".lock", "/lock", ".safetensors")))


class _Worker:
    """The worker's part of an embedded checkpoint."""

    def __init__(self):
        self.restored = None

    def note_push(self):
        pass

    def data(self):
        return {}

    def restore(self, data):
        self.restored = data


def _embedded(folder):
    worker, log = _Worker(), []
    kept = EmbeddedCheckpoints(WorkerConfig(checkpoint_dir=str(folder)), worker)
    handler = logging.Handler()
    handler.emit = lambda record: log.append([record.levelname, facts(record.getMessage())])
    logger = logging.getLogger("psworker.transport.embedded_checkpoints")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    shard = Shard()
    try:
        kept.start(shard)
        state = summarize_shard(shard)
        run_step(shard, 0, ms.Join(worker="worker", resume=True), 0.0)
        kept.joined()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        kept.close()
    return {"state": state, "worker": worker.restored, "log": log}
