"""Recorded folders of runs are read as they were: lists, comparisons, and the curves of plots (`runs/outputs.json`)."""

from tests.recorded import formats
from tests.recorded.runs import outputs


def test_runs_and_their_curves_are_shown_as_they_were():
    found, expected = outputs(formats.FIXTURES / "runs"), formats.read_json("runs", "outputs.json")
    assert found.keys() == expected.keys()
    for name, output in expected.items():
        assert found[name] == output, name
