"""Log lines of a process: one line an event, as text or JSON, with the shard or worker and its global step.

A command sets its log up once (`set_up_logs`); the shard or worker that it runs adds its name (`identify`). A library
that is used without a command leaves logging to the program. Standard library only.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

#: Of `--log-format` and `--log-level`.
FORMATS, LEVELS = ("text", "json"), ("debug", "info", "warning", "error")

#: The loggers of these packages.
LOGGERS = ("pswire", "psjob", "psserver", "psworker")

#: Characters of a message, and of a traceback, in a line; the rest is cut.
MAX_TEXT, MAX_TRACEBACK = 16_000, 64_000


def escaped(text: str) -> str:
    """The text in one line: each line end, control character and other unprintable character as a Python escape."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else one.encode("unicode_escape").decode() for one in text])


class Origin:
    """The process that logs: the kind "shard" or "worker", its name, and a function for its global step, if known."""

    def __init__(self) -> None:
        self.kind = ""
        self.name: int | str = ""
        self.step: Callable[[], int | None] = lambda: None

    def fields(self) -> dict[str, object]:
        """`shard` or `worker`, and `step`, as far as they are known."""
        fields: dict[str, object] = {self.kind: self.name} if self.kind else {}
        if (step := self.step()) is not None:
            fields["step"] = step
        return fields


def text_line(record: logging.LogRecord, origin: Origin) -> str:
    """A record such as `2026-11-23 08:12:00.123 INFO shard 0 step 7 psserver.runtime.executor: worker 'w' joined`.

    The lines of a traceback follow, each after four blanks.
    """
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
    who = "".join([f" {name} {value}" for name, value in origin.fields().items()])
    text = escaped(record.getMessage()[:MAX_TEXT])
    line = f"{at}.{int(record.msecs):03} {record.levelname}{escaped(who)} {record.name}: {text}"
    return "\n    ".join([line, *map(escaped, _traceback(record).splitlines())])


_TEXT_LINE = re.compile(
    r"\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d)\.\d{3} ([A-Z]+) (?:(?:shard|worker|step) \S+ )*ps[\w.]+: (.*)"
)


def shortened(line: str) -> str:
    """A line of `text_line` where the process is known: time of day, level and text. Other lines stay."""
    return _TEXT_LINE.sub(r"\1 \2 \3", line)


def json_line(record: logging.LogRecord, origin: Origin) -> str:
    """A record as a JSON object: time, level, logger, shard or worker, step, event (its kind), text, traceback."""
    fields: dict[str, object] = {"time": utc(record.created), "level": record.levelname.lower(), "logger": record.name}
    fields |= origin.fields()
    if (kind := getattr(record, "event", None)) is not None:
        fields["event"] = kind
    fields["text"] = record.getMessage()[:MAX_TEXT]
    if traceback := _traceback(record):
        fields["traceback"] = traceback
    return json.dumps(fields)


def utc(seconds: float) -> str:
    """A time in seconds since 1970 as ISO 8601 in UTC with milliseconds: 2026-11-23T08:12:00.123Z."""
    return f"{datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _traceback(record: logging.LogRecord) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return (record.exc_text or "")[-MAX_TRACEBACK:]  # its end has the error


class LogHandler(logging.Handler):
    """Writes records to standard error, as it is at that moment, with the present values of `origin`.

    Unless it is `exclusive`, it writes nothing once the program has handlers of its own at the root logger.
    """

    def __init__(self, level: str, form: str, *, exclusive: bool) -> None:
        super().__init__(level.upper())
        self.origin = Origin()
        self.line = json_line if form == "json" else text_line
        self._exclusive = exclusive

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; errors are handled as by all handlers of logging."""
        if sys.stderr is None or not (self._exclusive or set(logging.getLogger().handlers) <= {self}):
            return
        try:
            sys.stderr.write(f"{self.line(record, self.origin)}\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - of a closed stream, a step that cannot be read, or arguments that do not fit
            self.handleError(record)


def set_up_logs(level: str, form: str, loggers: Sequence[str] = LOGGERS, *, exclusive: bool = True) -> LogHandler:
    """Write the records of these loggers, from `level` on, to standard error, in one of `FORMATS`.

    If it is `exclusive`, these loggers have no other handlers from then on; else a program that sets up logging by
    itself gets their records in its handlers instead of this one.
    """
    handler = LogHandler(level, form, exclusive=exclusive)
    for name in loggers:
        logger = logging.getLogger(name)
        logger.handlers = [one for one in logger.handlers if not isinstance(one, LogHandler)]
        logger.addHandler(handler)
        logger.propagate = not exclusive
        if exclusive or handler.level < logger.getEffectiveLevel():
            logger.setLevel(handler.level)
    return handler


def identify(kind: str, name: int | str, step: Callable[[], int | None]) -> None:
    """Have the lines of this process begin with a shard or worker and its step; nothing without `set_up_logs`.

    `step` is called for each line, in any thread, and kept: it must not refer to objects that the process frees.
    """
    for logger in map(logging.getLogger, ("", *LOGGERS)):
        for handler in logger.handlers:
            if isinstance(handler, LogHandler):
                handler.origin.kind, handler.origin.name, handler.origin.step = kind, name, step


def writes_json() -> bool:
    """True if this process logs JSON, and so writes no other lines to standard error."""
    handlers = [handler for name in ("", *LOGGERS) for handler in logging.getLogger(name).handlers]
    return any(isinstance(handler, LogHandler) and handler.line is json_line for handler in handlers)
