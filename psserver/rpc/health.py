"""The standard gRPC health service (grpc.health.v1) of a server that serves until it stops.

gRPC's own servicer would delay the stop of a server, because it never ends `Watch` calls, and keeps any number of them.
"""

import asyncio
from collections.abc import Iterable
from functools import partial

import grpc
from google.protobuf.message import DecodeError
from grpc.aio import ServicerContext as Context
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from psserver.rpc.call_errors import CallErrors
from psserver.rpc.deadline import Deadline
from psserver.rpc.reception import MIN_UNFINISHED, Reception
from pswire.errors import Malformed, Unavailable

#: Concurrent calls of the health service, without watches; they do not count as calls of the server.
MAX_CHECKS, CHECKS_OF_A_CONNECTION = 128, 16

#: Watches at the same time; the oldest ends for a further one.
MAX_WATCHES = 100

#: Seconds after which a watch ends, and its client watches again; and that a request may take to arrive.
WATCH_SECONDS, REQUEST_SECONDS = 300.0, 5.0


class Health:
    """SERVING, then NOT_SERVING from `drain` on. Services by their full names; "" is the server as a whole."""

    def __init__(self, services: Iterable[str], call_errors: CallErrors) -> None:
        self._services, self._call_errors = frozenset(services), call_errors
        self._draining = False
        self._reception = Reception(
            "the health service", MAX_CHECKS, MIN_UNFINISHED, REQUEST_SECONDS, CHECKS_OF_A_CONNECTION
        )
        self._watches: dict[asyncio.Event, None] = {}  # set: ends; the oldest is first

    def drain(self) -> None:
        """Report NOT_SERVING from now on, and end `Watch` calls."""
        self._draining = True
        for ends in self._watches:
            ends.set()

    def handlers(self) -> grpc.GenericRpcHandler:
        """The handlers of both methods, for `grpc.aio.Server.add_generic_rpc_handlers`: streams, as of `Service`."""
        methods = {
            name: grpc.stream_stream_rpc_method_handler(partial(self._call_errors.run, method))
            for name, method in (("Check", self._check), ("Watch", self._watch))
        }
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)

    async def _check(self, frames: object, context: Context) -> None:
        """The status of a service; NOT_FOUND for an unknown one."""
        service = await self._requested(context)
        if service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {service[:100]!r} on this server")
        await self._write(service, context)

    async def _watch(self, frames: object, context: Context) -> None:
        """The status of a service, and again when it changes, which ends the stream."""
        service = await self._requested(context)
        await self._write(service, context)
        if len(self._watches) >= MAX_WATCHES:
            oldest = next(iter(self._watches))
            del self._watches[oldest]
            oldest.set()
        ends = asyncio.Event()
        if self._draining:
            ends.set()
        self._watches[ends] = None
        try:
            async with asyncio.timeout(WATCH_SECONDS):
                await ends.wait()
        except TimeoutError:
            return
        finally:
            self._watches.pop(ends, None)
        if not self._draining:
            raise Unavailable(f"more than {MAX_WATCHES} watches: the oldest gives way; watch again")
        if service in self._services:
            await self._write(service, context)

    async def _requested(self, context: Context) -> str:
        async with self._reception.message(context, context.peer()) as request:
            try:
                service: str = HealthCheckRequest.FromString(request).service
            except DecodeError:
                raise Malformed(f"{len(request):,} bytes that are not a HealthCheckRequest") from None
        return service

    async def _write(self, service: str, context: Context) -> None:
        status = HealthCheckResponse.NOT_SERVING if self._draining else HealthCheckResponse.SERVING
        if service not in self._services:
            status = HealthCheckResponse.SERVICE_UNKNOWN
        response = HealthCheckResponse(status=status).SerializeToString()
        await Deadline(REQUEST_SECONDS).wait(context.write(response))
