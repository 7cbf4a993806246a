"""Log lines: one line an event whatever its text, with the process and its step, as text and as JSON."""

import io
import json
import logging
import re
import sys
from contextlib import contextmanager

import click
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from psjob.terminal import logs
from psjob.terminal.log_options import log_options


def record(text, *arguments, level=logging.INFO, error=None, **extra):
    made = logging.LogRecord("psserver.runtime", level, __file__, 1, text, arguments, error)
    made.created, made.msecs = 1_700_000_000.0625, 62.5
    vars(made).update(extra)
    return made


def origin(kind="shard", name=1, step=12):
    one = logs.Origin()
    one.kind, one.name, one.step = kind, name, lambda: step
    return one


def traceback_of(text):
    try:
        raise ValueError(text)
    except ValueError:
        return sys.exc_info()


@settings(max_examples=30)
@given(text=st.text())
def test_an_event_is_one_line_of_printable_characters_from_which_its_text_can_be_read_again(text):
    line = logs.text_line(record("%s", text), origin())
    assert line.isprintable()
    parsed = json.loads(logs.json_line(record("%s", text), origin()))
    assert (parsed["text"], logs.json_line(record("%s", text), origin()).isascii()) == (text, True)
    if "\\" not in text:
        assert logs.escaped(text).encode("latin-1", "backslashreplace").decode("unicode_escape") == text


def test_a_line_has_the_time_the_level_the_process_its_step_the_logger_and_the_text():
    line = logs.text_line(record("worker %r joined", "w\n2026 ERROR"), origin())
    assert re.fullmatch(
        r"2023-11-1[45] \d\d:\d\d:20\.062 INFO shard 1 step 12 psserver\.runtime: worker 'w\\n2026 ERROR' joined", line
    )
    assert " WARNING psserver.runtime: x" in logs.text_line(record("x", level=logging.WARNING), logs.Origin())
    assert " INFO worker w\\x1b[2J psserver" in logs.text_line(record("x"), origin("worker", "w\x1b[2J", None))
    of_json = json.loads(logs.json_line(record("lost", level=logging.WARNING, event="lost"), origin("worker", "w", 3)))
    assert list(of_json.items()) == [
        ("time", "2023-11-14T22:13:20.062Z"),
        ("level", "warning"),
        ("logger", "psserver.runtime"),
        ("worker", "w"),
        ("step", 3),
        ("event", "lost"),
        ("text", "lost"),
    ]
    assert logs.utc(0.9996) == "1970-01-01T00:00:00.999Z"


def test_a_line_is_shortened_to_time_level_and_text_where_its_process_is_known_and_others_are_not_changed():
    for who in (origin(), origin("worker", "w-1", None), logs.Origin()):
        line = logs.shortened(logs.text_line(record("a: b"), who))
        assert re.fullmatch(r"\d\d:\d\d:20 INFO a: b", line), line
    for line in ("2026-11-23 08:12:00.123 INFO program: x", "", "Traceback", "08:12:00 INFO psserver: x"):
        assert logs.shortened(line) == line


def test_the_traceback_of_an_error_is_a_string_in_json_and_indented_lines_in_text():
    failed = record("failed", level=logging.ERROR, error=traceback_of("a\n2026-11-23 INFO forged\x1b"))
    first, *others = logs.text_line(failed, origin()).split("\n")
    assert first.endswith(": failed")
    assert others[0] == "    Traceback (most recent call last):"
    assert others[-2:] == ["    ValueError: a", "    2026-11-23 INFO forged\\x1b"]
    text = json.loads(logs.json_line(failed, origin()))["traceback"]
    assert text.splitlines()[-2:] == ["ValueError: a", "2026-11-23 INFO forged\x1b"]


@contextmanager
def own_logging(monkeypatch):
    """Standard error as a buffer, and no handlers, not even pytest's; afterwards the loggers are as before."""
    loggers = [logging.getLogger(name) for name in ("", "pswire", "psjob", "psserver", "psworker")]
    before = [(one.handlers[:], one.level, one.propagate) for one in loggers]
    loggers[0].handlers = []
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", buffer := io.StringIO())
        try:
            yield buffer
        finally:
            for logger, (logger.handlers, level, logger.propagate) in zip(loggers, before, strict=True):
                logger.setLevel(level)


def test_what_a_program_logs_by_itself_is_left_to_it_and_gets_our_records_too_unless_the_format_is_chosen(monkeypatch):
    with own_logging(monkeypatch) as stderr:
        ours = logging.getLogger("psworker.client")
        logs.set_up_logs("warning", "text", exclusive=False)
        logs.identify("worker", "w0", lambda: 7)
        ours.warning("one")
        ours.info("not this")
        theirs = logging.StreamHandler(own := io.StringIO())
        logging.getLogger().addHandler(theirs)
        ours.warning("two")
        logs.set_up_logs("info", "json")
        logs.identify("worker", "w0", lambda: 8)
        ours.info("three")
        assert (own.getvalue(), logs.writes_json()) == ("two\n", True)
        first, second = stderr.getvalue().splitlines()
        assert first.endswith(" WARNING worker w0 step 7 psworker.client: one")
        assert json.loads(second)["text"] == "three"


def test_a_record_below_the_level_is_not_formatted_and_one_that_cannot_be_does_not_end_the_program(monkeypatch):
    with own_logging(monkeypatch) as stderr:
        logs.set_up_logs("warning", "text")

        class Costly:
            def __str__(self):
                raise AssertionError("formatted")

        logging.getLogger("psserver.rpc").info("%s", Costly())
        assert stderr.getvalue() == ""
        logs.identify("shard", 0, lambda: 1 // 0)
        logging.getLogger("psserver.rpc").warning("on")
        assert "--- Logging error ---" in stderr.getvalue()
        sys.stderr = None
        logging.getLogger("psserver.rpc").warning("nowhere")


def test_the_options_have_variables_and_say_whether_they_are_the_defaults(monkeypatch):
    with own_logging(monkeypatch):
        seen = []

        @click.command(context_settings={"auto_envvar_prefix": "PSTEST"})
        @log_options("info")
        def command(logs):
            seen.append(logs)

        for words, environment in (
            ([], {}),
            (["--log-level", "DEBUG"], {}),
            ([], {"PSTEST_LOG_FORMAT": "json", "PSTEST_LOG_LEVEL": "error"}),
        ):
            done = CliRunner().invoke(command, words, env=environment)
            assert done.exit_code == 0, done.output
        assert [(one.level, one.form, one.changed) for one in seen] == [
            ("info", "text", False),
            ("debug", "text", True),
            ("error", "json", True),
        ]
        seen[2].set_up()
        [handler] = logging.getLogger().handlers
        assert (type(handler), handler.level, logging.getLogger().level) == (
            logs.LogHandler,
            logging.ERROR,
            logging.ERROR,
        )
        assert CliRunner().invoke(command, ["--log-format", "xml"]).exit_code == 2
