"""A collector of OpenTelemetry spans: a real OTLP service over gRPC, as exporters expect one."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc

from tests.support.commands import BOUND


@dataclass(frozen=True)
class CollectedSpan:
    """A span that has arrived; ids as hexadecimal digits, times in nanoseconds, attributes without their prefix."""

    service: str
    instance: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    error: str
    attributes: dict[str, object]


class Collector(otlp_grpc.TraceServiceServicer):
    """Listens at `address` while it is open; `spans` are those that have arrived. A context manager."""

    def __init__(self) -> None:
        self.spans: list[CollectedSpan] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        otlp_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "Collector":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait(BOUND)

    @property
    def environment(self) -> dict[str, str]:
        """What exporters need to send their spans here, soon."""
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}", "OTEL_EXPORTER_OTLP_INSECURE": "true"}
        return {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_SCHEDULE_DELAY": "100", **endpoint}

    def Export(self, request, context):  # noqa: N802 - as gRPC calls it
        for resource in request.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_collected(names, span) for span in scope.spans]
        return otlp.ExportTraceServiceResponse()

    def wait_for(self, complete: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """The spans, once they are complete."""
        end = time.monotonic() + BOUND
        while not complete(self.spans):
            assert time.monotonic() < end, [f"{one.instance} {one.name}" for one in self.spans]
            time.sleep(0.02)
        return self.spans


def _collected(names: dict[str, str], span) -> CollectedSpan:
    values = {one.key.removeprefix("paramserver."): one.value for one in span.attributes}
    return CollectedSpan(
        names["service.name"],
        names["service.instance.id"],
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.message if span.status.code == 2 else "",
        {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()},
    )
