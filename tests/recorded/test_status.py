"""Recorded reports of shards are shown as they were: JSON, tables, metrics and the live page (`status/`)."""

import pytest

from tests.recorded import formats
from tests.recorded.status import displays


@pytest.mark.parametrize("name", ["made_up", "real"])
def test_the_reports_of_a_job_are_shown_as_they_were(name):
    recorded = formats.read_json("status", f"{name}.json")
    found = displays([formats.decode("StatusReply", formats.from_text(one)) for one in recorded["reports"]])
    assert found.keys() == recorded["displays"].keys()
    for display, output in recorded["displays"].items():
        assert found[display] == output, display
