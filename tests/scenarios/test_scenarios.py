"""Every `*.txt` here, replayed. `SCENARIOS=rewrite pytest tests/scenarios` writes what the shard answers now instead:
then read the difference. What the commands are: `interpreter.py`.
"""

import os
from pathlib import Path

import pytest

from tests.scenarios.interpreter import replay

FILES = sorted(Path(__file__).parent.glob("*.txt"))
assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_shard_answers_as_the_scenario_says(path):
    written = path.read_text()
    replayed = replay(written)
    if os.environ.get("SCENARIOS") == "rewrite":
        path.write_text(replayed)
    else:
        assert replayed.splitlines() == written.splitlines()


def test_an_answer_that_is_not_the_shards_does_not_pass():
    right = "join w0\n----\nw0: joined as worker 0, incarnation 1, step 0\n\njoin w0\n----\nanything\n"
    assert replay(right) == right.replace("anything", "w0: joined as worker 0, incarnation 2, step 0")
