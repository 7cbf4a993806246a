"""Records the files of `tests/fixtures/` again: `python -m tests.tools.record_fixtures [wire] [jobs] ...`.

Only when a format changes on purpose, and `CHANGELOG.md` says so (`tests/fixtures/README.md`). In `wire` it adds the
messages that are missing: delete the file of one that is to be recorded again.
"""

import json
import shutil
import sys

from pswire.optimizers import numba_compiler
from tests.recorded.formats import FIXTURES
from tests.tools.record_fixtures import jobs, runs, starts, status, wire

WIDTH = 160
PARTS = {
    "wire": wire.record,
    "jobs": jobs.record,
    "folders": starts.record,
    "runs": runs.record,
    "status": status.record,
}


def write(*path, data):
    """Write JSON data to a file in `tests/fixtures/`."""
    file = FIXTURES.joinpath(*path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_pretty(data) + "\n")


def _pretty(data, depth=0):
    """JSON with as much in each line as fits."""
    line = json.dumps(data, ensure_ascii=False, allow_nan=False)
    if not isinstance(data, dict | list) or len(line) + depth <= WIDTH:
        return line
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(data, list):
        return "[\n" + ",\n".join([pad + _pretty(one, depth + 1) for one in data]) + f"\n{end}]"
    entries = [f"{pad}{json.dumps(key, ensure_ascii=False)}: {_pretty(one, depth + 1)}" for key, one in data.items()]
    return "{\n" + ",\n".join(entries) + f"\n{end}}}"


def main(names):
    """Record these parts, or all."""
    numba_compiler.USE_NUMBA = False  # the same bits
    for name in names or PARTS:
        if name != "wire":
            shutil.rmtree(FIXTURES / name, ignore_errors=True)
        PARTS[name](write)


if __name__ == "__main__":
    main(sys.argv[1:])
