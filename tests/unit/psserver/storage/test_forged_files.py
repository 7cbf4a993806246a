"""Files with a right checksum and a wrong content, as no server writes them, are named in an error of ours."""

import json

import numpy as np
import pytest

from psserver.core.shard import Shard
from psserver.storage.files import checked_json
from psserver.storage.find_start import find_start
from psserver.storage.folders import shard_folder
from psserver.storage.shard_run import Run, read_run, run_path, write_run
from pswire.errors import DamagedFile, StorageError
from pswire.optimizers import GradientDescent
from tests.support.shards import ShardDriver, declared
from tests.unit.psserver.storage.stored_shards import write

REMOVED = object()


@pytest.fixture
def stored(tmp_path):
    """A checkpoint, whose manifest the returned function changes; its checksum is that of the new content."""
    driver = ShardDriver(declared("W", np.ones((2, 2), np.float32), GradientDescent(0.5)))
    write(tmp_path, driver.shard)
    path = shard_folder(tmp_path, driver.shard.state().cut, 0, 1) / "manifest.json"

    def change(name, value):
        data = json.loads(path.read_bytes())["manifest"]
        *outer, last = name.split(".")
        place = data
        for one in outer:
            place = place[one]
        if value is REMOVED:
            del place[last]
        else:
            place[last] = value
        path.write_bytes(checked_json(data))

    return tmp_path, change


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("files", REMOVED, "KeyError: 'files'"),
        ("files", [], "no manifest of a checkpoint"),
        ("files", {}, "it does not name variables"),
        ("late", "0", "'0' is not a size"),
        ("served", {"served-0": {"shape": [-1], "dtype": "float32"}}, "-1 is not a size"),
        ("state", 7, "no manifest of a checkpoint"),
        ("state.timeline", "first", "no manifest of a checkpoint"),
        ("worker", 7, "no manifest of a checkpoint"),
    ],
)
def test_a_manifest_that_is_none_is_named_as_damaged(stored, name, value, reason):
    folder, change = stored
    change(name, value)
    with pytest.raises(DamagedFile, match=reason):
        find_start(folder, 0, 1)


def test_a_state_whose_parts_contradict_each_other_is_named_as_damaged(stored):
    folder, change = stored
    change("state.members.training", ["nobody"])
    start = find_start(folder, 0, 1)
    with pytest.raises(DamagedFile, match=r"manifest.json: parts of the state contradict each other .*nobody"):
        start.restore(Shard(), 0.0)


@pytest.mark.parametrize(
    ("content", "error", "reason"),
    [
        ({}, StorageError, "another format"),
        ({"format": 1}, DamagedFile, "other fields"),
        ({"timeline": "1"}, DamagedFile, "other fields"),
        ({"began_from": -1}, DamagedFile, "negative"),
        ({"more": 1}, DamagedFile, "other fields"),
        ([], DamagedFile, "checksum"),
    ],
)
def test_a_run_file_that_is_none_is_named(tmp_path, content, error, reason):
    run = Run(1, 0, 0, journal=False)
    write_run(tmp_path, 0, 1, run)
    assert read_run(tmp_path, 0, 1) == run
    path = run_path(tmp_path, 0, 1)
    whole = json.loads(path.read_bytes())["manifest"]
    other = whole | content if content and "format" not in content else content
    path.write_bytes(checked_json(other))
    with pytest.raises(error, match=reason):
        read_run(tmp_path, 0, 1)
