"""Spans of one thread: when functions ran, and the time in each without that in the ones it called.

Times are nanoseconds of a clock that never goes back. Standard library only.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: The phase of a span whose caller has none.
PROGRAM = "program"


class Span(NamedTuple):
    """A call: its phase, its name within it, its begin and duration; `own` is without the spans in it."""

    phase: str
    name: str
    begin: int
    duration: int
    own: int


class Spans:
    """The spans of the thread that makes this, since `clear`, in the order of their ends."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self._found: list[tuple[str, str, int, int, int]] = []  # fields of spans, which cost less as plain tuples
        self._open: list[list[Any]] = []  # of each span under way its phase, and the duration of the spans in it
        self._thread = threading.get_ident()

    @property
    def found(self) -> list[Span]:
        """The spans."""
        return [Span(*fields) for fields in self._found]

    @property
    def is_within(self) -> bool:
        """Whether a span is under way."""
        return bool(self._open)

    def clear(self) -> None:
        """Forget the spans so far."""
        self._found.clear()

    def timed(self, function: _Function, phase: str, name: str, within: dict[str, str] | None = None) -> _Function:
        """The function, whose calls are spans of a phase; "": that of its caller.

        `within` has other phases of the span, by the phase of its caller.
        """
        return functools.update_wrapper(self.bare(function, phase, name, within), function)  # type: ignore[return-value]

    def bare(self, function: Callable[..., Any], phase: str, name: str, within: dict[str, str] | None = None) -> Any:  # noqa: ANN401
        """As `timed`, without the signature and the name of the function."""
        open_spans, found, clock, thread = self._open, self._found, self.clock, self._thread
        get_thread = threading.get_ident

        def timed(*args: Any, **constants: Any) -> Any:  # noqa: ANN401 - as the function
            if get_thread() != thread:
                return function(*args, **constants)
            caller = open_spans[-1][0] if open_spans else PROGRAM
            mine = (within.get(caller, phase) if within else phase) or caller
            span: list[Any] = [mine, 0]
            open_spans.append(span)
            begin = clock()
            try:
                return function(*args, **constants)
            finally:
                duration = clock() - begin
                open_spans.pop()
                if open_spans:
                    open_spans[-1][1] += duration
                found.append((mine, name, begin, duration, duration - span[1]))

        return timed
