"""The standard gRPC health service (grpc.health.v1) of a server that serves until it stops.

gRPC's own servicer would delay the stop of a server, because it never ends `Watch` calls.
"""

import asyncio
from collections.abc import Iterable

import grpc
from grpc.aio import ServicerContext as Context
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the package has no types
    """SERVING, then NOT_SERVING from `drain` on. Services by their full names; "" is the server as a whole."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(services)
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """Report NOT_SERVING from now on, and end `Watch` calls."""
        self._draining.set()

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:  # noqa: N802
        """The status of a service; NOT_FOUND for an unknown one."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} on this server")
        return self._status(request)

    async def Watch(self, request: HealthCheckRequest, context: Context) -> None:  # noqa: N802
        """The status of a service, and again when it changes, which ends the stream."""
        await context.write(self._status(request))
        await self._draining.wait()
        if request.service in self._services:
            await context.write(self._status(request))

    def _status(self, request: HealthCheckRequest) -> HealthCheckResponse:
        if request.service not in self._services:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        draining = self._draining.is_set()
        return HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING if draining else HealthCheckResponse.SERVING)
