"""The exporter of spans that the environment selects. All other `OTEL_` variables are read by the OpenTelemetry SDK."""

import os


def exporters() -> tuple[str, ...]:
    """The names in `$OTEL_TRACES_EXPORTER`, such as otlp or console; none by default, unlike in the SDK.

    "otlp" is `otlp_proto_grpc` or `otlp_proto_http`, by `$OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` or
    `$OTEL_EXPORTER_OTLP_PROTOCOL`.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ()
    protocol = "grpc"
    for variable in ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"):
        protocol = os.environ.get(variable) or protocol
    otlp = "otlp_proto_http" if protocol.startswith("http") else "otlp_proto_grpc"
    names = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",")]
    return tuple([otlp if name == "otlp" else name for name in names if name not in ("", "none")])
