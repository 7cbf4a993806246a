"""Reports of workers: which lines of their stderr are shown, and that a traceback is shown once."""

import sys
import traceback

import pytest

from psworker.launch.reports import Reports, error_line, report_no_session, reported


def raised(function, *arguments):
    """The error that a function raises."""
    try:
        function(*arguments)
    except (LookupError, ArithmeticError, SyntaxError) as error:
        return error
    raise AssertionError("no error")


def divide(number):
    return 1 / number


def look_up(number):
    return {}[number]


@pytest.fixture
def stderr(capsys):
    """The lines that a worker writes to stderr for an error, or for none."""

    def lines(error=None):
        if error is None:
            report_no_session()
        else:
            with reported(error, error_line(error)):
                traceback.print_exception(error)
        return capsys.readouterr().err.split("\n")[:-1]  # not splitlines: the mark is a separator for it

    return lines


def test_the_first_traceback_is_shown_whole_others_of_the_same_error_as_a_line_and_each_is_written_to_the_log(stderr):
    reports = Reports()
    first, same, other = raised(look_up, 1), raised(look_up, 22), raised(divide, 0)
    plain = {one: "".join(traceback.format_exception(one)).splitlines() for one in (first, same, other)}
    assert reports.read("w0", ["before", *stderr(first), "after"]) == (["before", *plain[first], "after"],) * 2
    line = "psworker: the same error as w0: KeyError: 22"
    whole, short = ["before", *plain[same], "after"], ["before", line, "after"]
    assert reports.read("w1", ["before", *stderr(same), "after"]) == (whole, short)
    assert reports.read("w2", stderr(other)) == (plain[other],) * 2, "another error"
    assert reports.errors == {"w0": "KeyError: 1", "w1": "KeyError: 22", "w2": "ZeroDivisionError: division by zero"}
    reports.started("w0")
    assert reports.read("w0", stderr(same))[1] == ["psworker: the same error again: KeyError: 22"]
    assert reports.errors["w0"] == "KeyError: 22"


def test_lines_of_several_workers_may_come_one_by_one_and_a_new_life_begins_without_what_was_hidden(stderr):
    reports = Reports()
    lines = stderr(raised(divide, 0))
    shown = {"w0": [], "w1": []}
    for line in lines:
        for worker, one in shown.items():
            one += reports.read(worker, [line])[1]
    assert shown["w0"] == lines[1:-1]
    assert shown["w1"] == ["psworker: the same error as w0"]
    reports.read("w1", lines[:2])
    assert reports.read("w1", ["hidden"])[1] == []
    reports.started("w1")
    assert (reports.read("w1", ["in"])[1], "w1" in reports.errors) == (["in"], False)


def test_a_syntax_error_is_the_same_at_the_same_place_only(stderr):
    reports = Reports()
    errors = [raised(compile, source, "train.py", "exec") for source in ("x =", "\nx =", "x =")]
    shown = [reports.read(f"w{number}", stderr(error))[1] for number, error in enumerate(errors)]
    assert [len(lines) > 1 for lines in shown] == [True, True, False]
    assert shown[2] == ["psworker: the same error as w0"]


def test_a_script_without_a_session_is_noted_and_nothing_of_that_is_shown(stderr):
    reports = Reports()
    lines = ["end", *stderr(), "more"]
    assert reports.read("w1", lines) == (["end", "more"],) * 2
    assert (reports.without_session, reports.strip(lines)) == ({"w1"}, ("end", "more"))


def test_an_error_in_a_line_is_its_first_one_and_is_cut_when_it_is_long():
    assert error_line(ValueError("no\nluck")) == "ValueError: no"
    assert error_line(AssertionError()) == "AssertionError"
    noted = ValueError("no luck")
    noted.add_note("(in the callback\nA)")
    noted.add_note("(in epoch 3)")
    assert error_line(noted) == "ValueError: no luck"
    assert error_line(ValueError("long " * 100)) == f"ValueError: {'long ' * 100}"[:200] + "…"
    assert error_line(SystemError(sys.maxsize)) == f"SystemError: {sys.maxsize}"
