"""Spans of OpenTelemetry, in the one file that imports it, and only when a process is to make some.

A worker begins a trace with each push that is sampled (`OTEL_TRACES_SAMPLER`); the W3C's `traceparent` goes along with
its calls, and servers make spans for calls that have one. Other pushes cost the decision alone. The instrumentation of
gRPC's own (opentelemetry-instrumentation-grpc) has one span for a whole stream, on which a worker makes all its calls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import entry_points, version
from time import time_ns
from typing import TYPE_CHECKING, Any

from psjob.tracing import config
from pswire.errors import ConfigurationError
from pswire.system.extras import install_command

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

#: Seconds that the spans which are not exported yet get at the end of a process.
LAST_EXPORT = 5.0

#: The span that the calls of this thread or task belong to; None: they are not traced.
current: ContextVar[Span | None] = ContextVar("psspan", default=None)


class Span:
    """An operation under way, since `began`, in nanoseconds since 1970.

    `traceparent` is for calls that belong to it.
    """

    __slots__ = ("_span", "_tracer", "began", "traceparent")

    def __init__(self, tracer: Tracer, span: OtelSpan) -> None:
        self._tracer, self._span, self.began = tracer, span, time_ns()
        context = span.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def set(self, **attributes: str | int | float | bool) -> None:
        """Set attributes, whose names begin with `paramserver.`."""
        self._span.set_attributes({f"paramserver.{name}": value for name, value in attributes.items()})

    def child(self, name: str, begin: int, end: int, **attributes: str | int | float | bool) -> None:
        """Add a part of it that has ended; times are in nanoseconds since 1970."""
        from opentelemetry.trace import set_span_in_context

        named = {f"paramserver.{key}": value for key, value in attributes.items()}
        child = self._tracer.start_span(name, set_span_in_context(self._span), attributes=named, start_time=begin)
        child.end(end)

    def end(self, error: BaseException | None = None, at: int | None = None) -> None:
        """End it, now or at another time; with an error it has failed."""
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:500]))
        self._span.end(at)

    @contextmanager
    def active(self, *, ends: bool = False) -> Iterator[None]:
        """Within the block it is the `current` one; it ends with an error of the block, or if it `ends` with it."""
        token = current.set(self)
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise
        finally:
            current.reset(token)
        if ends:
            self.end()


class Tracing:
    """Makes the spans of a process. Thread-safe. `close` exports the last ones.

    `service` is the name of the service unless `OTEL_SERVICE_NAME` has another, `instance` the name of the process.

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed.
        ConfigurationError: an exporter is not installed.
    """

    def __init__(self, service: str, instance: str, exporters: tuple[str, ...]) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        made = [_exporter(name) for name in exporters]
        names = {"service.name": service, "service.instance.id": instance}
        resource = Resource.create(names).merge(OTELResourceDetector().detect())
        # the sampler decides before there is a span, which would cost much more than the decision
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        for exporter in made:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("paramserver", version("paramserver"))
        self._new_trace = RandomIdGenerator().generate_trace_id
        self._dropped = Decision.DROP
        self._client, self._server = trace.SpanKind.CLIENT, trace.SpanKind.SERVER
        self._extract = TraceContextTextMapPropagator().extract

    def begin(self, name: str) -> Span | None:
        """The first span of a trace; None if the sampler drops it."""
        if self._sampler.should_sample(None, self._new_trace(), name, self._client).decision is self._dropped:
            return None
        return Span(self._tracer, self._tracer.start_span(name, kind=self._client))

    def serve(self, name: str, traceparent: str) -> Span | None:
        """The span of a call from another process; None if its sender has not sampled it, or names no valid span."""
        from opentelemetry.trace import get_current_span

        context = self._extract({"traceparent": traceparent})
        if not get_current_span(context).get_span_context().trace_flags.sampled:
            return None
        return Span(self._tracer, self._tracer.start_span(name, context, self._server))

    def close(self) -> None:
        """Export what is left, for `LAST_EXPORT` seconds at most: a collector may be silent."""
        thread = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        thread.start()
        thread.join(LAST_EXPORT)


def open_tracing(service: str, instance: str) -> Tracing | None:
    """The tracing that the environment asks for; None if it does not, or if the extra is not installed.

    The latter is logged: the variable may be set for all programs of a machine. Raises `ConfigurationError` for an
    exporter that is not installed.
    """
    if not (exporters := config.exporters()):
        return None
    try:
        return Tracing(service, instance, exporters)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        log.warning("OTEL_TRACES_EXPORTER is set, but nothing is traced without: %s", install_command("tracing"))
        return None


def _exporter(name: str) -> Any:  # noqa: ANN401 - of a type that is imported by it
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        there = ", ".join(sorted({one.name for one in entry_points(group="opentelemetry_traces_exporter")}))
        raise ConfigurationError(
            f"OTEL_TRACES_EXPORTER: there is no exporter {name!r} here, but {there or 'none'}; "
            f"otlp by gRPC comes with {install_command('tracing')}"
        )
    return found[0].load()()
