"""JSON that is made in parts is that of the whole."""

import json

import pytest

from psserver.monitor.json_text import encode_in_parts

DATA = {"a": [1, {"b": [[None, 0.5], []]}, "ü\n"], "c": {"d": {"e": {"f": [True]}}}, "": 1e300, "g": {}, "h": []}


@pytest.mark.parametrize("depth", range(6))
def test_parts_are_put_together_to_the_same_text(depth):
    assert encode_in_parts(DATA, depth) == json.dumps(DATA, separators=(",", ":"))


def test_a_number_that_json_does_not_have_is_an_error():
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_in_parts({"a": [float("nan")]})
