"""All cases of a test are run, and an error says in which it was."""

import pytest

from tests.support.combinations import together


def test_together_runs_every_case_with_the_fixtures_and_notes_the_one_that_fails():
    seen = []

    @together("letter", "ab")
    @together(("one", "other"), [(1, 2), (3, 4)])
    def check(fixture, letter, one, other):
        seen.append((fixture, letter, one, other))
        assert (letter, one) != ("b", 3), "broken"

    with pytest.raises(AssertionError, match="broken") as failure:
        check(fixture="f")
    assert seen == [("f", "a", 1, 2), ("f", "a", 3, 4), ("f", "b", 1, 2), ("f", "b", 3, 4)]
    assert failure.value.__notes__ == ["in the case (3, 4)", "in the case b"]
