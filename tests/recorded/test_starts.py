"""A shard that starts from a recorded folder says what it said, and has the state that it had (`starts.json`)."""

import pytest

from tests.recorded import formats
from tests.recorded.starts import copy_of, outcome

CASES = formats.read_json("starts.json")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"].replace(" ", "_"))
def test_a_start_says_and_does_what_it_did(case, tmp_path):
    assert outcome(case, copy_of(case, tmp_path / "job")) == case["outcome"]
