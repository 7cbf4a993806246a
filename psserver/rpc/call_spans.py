"""The span of a call on a server, with its parts: decode, step, held, array tasks, encode."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import time_ns

from psjob.tracing.tracing import Span, Tracing
from psserver.runtime.call_times import CallTimes, call_times

#: In the metadata of unary calls.
METADATA_KEY = "traceparent"


@contextmanager
def call_span(tracing: Tracing, name: str, traceparent: str, shard: int) -> Iterator[None]:
    """A span around a call, as a child of its sender's; the block must be in the task that steps the call."""
    span = tracing.serve(name, traceparent)
    if span is None:
        yield
        return
    times = CallTimes()
    token = call_times.set(times)
    failed: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failed = error
        raise
    finally:
        end = time_ns()
        call_times.reset(token)
        span.set(shard=shard)
        _add_parts(span, times, end)
        span.end(failed, end)


def _add_parts(span: Span, times: CallTimes, last: int) -> None:
    """Add the parts that have begun, the last one until the end of the call."""
    parts = [("decode", times.decoded), ("step", times.stepped)]
    if times.decided != times.stepped or not times.stepped:
        parts.append(("held", times.decided))
    parts += [("array tasks", times.answered), ("encode", last)]
    begin = times.began
    for name, end in parts:
        span.child(name, begin, end or last)
        if not end:
            return
        begin = end
