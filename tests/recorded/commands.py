"""What commands print about recorded folders, without what depends on the time and the place."""

import json
import os
import re
import time
from contextlib import contextmanager
from unittest import mock

from click.testing import CliRunner

from psserver.cli.main import main as psserver_main
from psworker.launch.cli import main as psworker_main
from tests.recorded.descriptions import sha256


def psserver(*arguments):
    """The exit code of a command, and its lines; with `--json` the data in each of them, or in all."""
    return _invoke(psserver_main, *arguments)


def psworker(*arguments):
    """As `psserver`."""
    return _invoke(psworker_main, *arguments)


@contextmanager
def same_display():
    """Tables of the same width, and times of the same zone."""
    with mock.patch.dict(os.environ, {"COLUMNS": "150", "TZ": "UTC", "NO_COLOR": "1"}):
        time.tzset()
        try:
            yield
        finally:
            os.environ.pop("TZ")
            time.tzset()
    time.tzset()


def _invoke(main, *arguments):
    with same_display():
        result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    text = re.sub(r", in [\d.]+ s \([\d,]+ records/s\)", "", result.stdout)
    if "--json" in arguments and text:
        data = _data(text)
    else:
        data = [line.rstrip() for line in text.splitlines()]
    return {"exit code": result.exit_code, "output": data}


def _data(text):
    try:
        return json.loads(text)
    except ValueError:
        lines = [json.loads(line) for line in text.splitlines()]
        return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def outputs(folder, shards):
    """What all commands say about a folder of a job of so many shards; it is called DIR."""
    found = {}
    for shard in range(shards):
        of = f"--shard {shard}/{shards}"
        found[f"replay {of}"] = psserver("replay", folder, "--shard", f"{shard}/{shards}", "--json")
        found[f"replay {of} --verify"] = psserver("replay", folder, "--shard", f"{shard}/{shards}", "--verify")
    found["replay, as text"] = psserver("replay", folder, "--shard", f"0/{shards}")
    found["checkpoint list"] = psserver("checkpoint", "list", folder, "--json")
    if shards == 1:
        found["checkpoint show"] = psserver("checkpoint", "show", folder, "--json")
    found["checkpoint show, as text"] = psserver("checkpoint", "show", folder)
    found["checkpoint verify"] = psserver("checkpoint", "verify", folder)
    exported = folder.parent / "exported.safetensors"
    psserver("export", folder, exported, "--slots")
    found["export"] = {"sha256": sha256(exported.read_bytes())}
    exported.unlink()
    return json.loads(json.dumps(found).replace(str(folder), "DIR"))
