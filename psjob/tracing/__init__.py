"""Spans of pushes through workers and servers, by OpenTelemetry; off unless `OTEL_TRACES_EXPORTER` is set."""
