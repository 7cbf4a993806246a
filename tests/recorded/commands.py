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
from tests.recorded.descriptions import digest, sha256


def psserver(*arguments):
    """The exit code of a command, and the lines that it prints; with `--json` its data."""
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
    lines = [line.rstrip() for line in text.splitlines()]
    return {"exit code": result.exit_code, "output": _data(text) if "--json" in arguments and text else lines}


def _data(text):
    try:
        return json.loads(text)
    except ValueError:
        lines = [json.loads(line) for line in text.splitlines()]
        return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def outputs(folder, shards):
    """What commands say about a folder of a job of so many shards, which is called DIR; of JSON a digest."""
    found = {}
    for shard in range(shards):
        of = f"{shard}/{shards}"
        found[f"replay {of}"] = psserver("replay", folder, "--shard", of)
        found[f"replay {of} --json"] = psserver("replay", folder, "--shard", of, "--json")
        found[f"replay {of} --verify"] = psserver("replay", folder, "--shard", of, "--verify")
    found["checkpoint list --json"] = psserver("checkpoint", "list", folder, "--json")
    found["checkpoint show"] = psserver("checkpoint", "show", folder)
    found["checkpoint show --json"] = psserver("checkpoint", "show", folder, "--json")
    found["checkpoint verify"] = psserver("checkpoint", "verify", folder)
    exported = folder.parent / "exported.safetensors"
    psserver("export", folder, exported, "--slots")
    found["export"] = {"output": sha256(exported.read_bytes())}
    exported.unlink()
    found = json.loads(json.dumps(found).replace(str(folder), "DIR"))
    for name, one in found.items():
        if name.endswith("--json"):
            one["output"] = digest(one["output"])
    return found
