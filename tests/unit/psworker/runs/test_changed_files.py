"""Files of a run that were changed: the commands show what can be read and name the rest, whatever is in them."""

import json
import random

import pytest
from click.testing import CliRunner

from psworker.launch.cli import main
from tests.support.combinations import few_fast
from tests.unit.psworker.runs.conftest import life, point

#: In place of a value: of other types, beyond what a number of 64 bits or a double has, and texts that none can print.
VALUES = [
    *(None, True, "", "x", "a\0b\n\x1b[31m", "\ud800", "nan", [], [None], {}, {"a": 1}, [[]] * 3),
    *(0, -1, 1.5, -1.5, 2**31, 2**63, -(2**63), 2**70, 10**400, 1e-320, 1e15, 1e308, -1e308),
]

COMMANDS = [
    ("runs", "."),
    ("runs", "--json", "."),
    ("runs", "a"),
    ("runs", "--json", "a"),
    ("runs", "--compare", "a", "b", "--cost", "0.5"),
    ("runs", "--compare", "--json", "a", "b"),
]


def places(data, path=()):
    """The paths of all values in JSON data."""
    yield path
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inside:
        yield from places(value, (*path, key))


def changed(data, path, value):
    """The data with another value at a path."""
    if not path:
        return value
    copy = data.copy()
    copy[path[0]] = changed(data[path[0]], path[1:], value)
    return copy


@pytest.fixture
def folder(make_run):
    """The folder of a run with two lives, points and events, beside another run."""
    points = {"w0": [point(1, 3, 0.9, steps=3, scalars={"tag": 1.0}), point(2, 6, 0.7, steps=6, examples=5)]}
    events = [("joined", "w0", 1, 2), ("lost", "w0", 2, 3)]
    make_run("b", points=points)
    return make_run("a", lives=[life(), life(1_700_000_020.0)], points=points, events=events)


@pytest.mark.parametrize("changes", few_fast([15, 120]))
@pytest.mark.parametrize("name", ["run.json", "events.jsonl", "scalars/w0.jsonl"])
def test_whatever_is_in_a_file_of_a_run_the_commands_have_no_error_of_python(folder, name, changes):
    text = (folder / name).read_text()
    lines = [json.loads(text)] if name == "run.json" else [json.loads(line) for line in text.splitlines()]
    everything = [(number, path, value) for number, one in enumerate(lines) for path in places(one) for value in VALUES]
    rng = random.Random(1)
    for number, path, value in rng.sample(everything, changes):
        others = [*lines[:number], changed(lines[number], path, value), *lines[number + 1 :]]
        (folder / name).write_text("\n".join(json.dumps(one) for one in others))
        for command in rng.sample(COMMANDS, 2):
            found = CliRunner().invoke(main, command)
            assert found.exception is None or isinstance(found.exception, SystemExit), (command, path, value)
            assert "Traceback" not in found.output
