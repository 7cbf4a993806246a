"""One server: starts a shard behind gRPC, lets time pass for it, and stops it in good order.

Owns the clock, the event loop and the port. `serve` runs in a loop of the caller's, `ServerThread` brings its own, for
tests and notebooks. May import service, entrance, config and pswire.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import grpc.aio
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse

from psserver.config import ServerConfig
from psserver.core.shard import Shard
from psserver.entrance import Entrance
from psserver.service import SERVICE_NAME, Service
from pswire.channel import SERVER_OPTIONS, check_address
from pswire.errors import ConfigurationError
from pswire.messages import Status, StatusReport

#: Seconds between two looks at the leases.
TICK = 1.0

log = logging.getLogger(__name__)


async def serve(config: ServerConfig, on_ready: Callable[[str], None], stop: asyncio.Event) -> StatusReport:
    """Serves one shard until `stop` is set, then lets the calls under way end; returns how the shard was at the end.

    Args:
        config: what to serve, and where.
        on_ready: called once with the address, port included, as soon as calls are answered.
        stop: set it, in this loop, to end.

    Raises:
        ConfigurationError: the address cannot be had, or a package is missing.
    """
    entrance = Entrance(Shard(config.shard, config.shards, config.lease, config.variables_limit), time.monotonic)
    server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=config.max_calls)
    server.add_generic_rpc_handlers((Service(entrance, config.traffic_limit, config.lease).handlers(),))
    health_servicer = await _add_health(server)
    if config.reflection:
        _add_reflection(server)
    address = bind(server, config.bind)
    await server.start()
    ticking = asyncio.create_task(_tick(entrance))
    try:
        on_ready(address)
        await stop.wait()
    finally:
        log.info("stopping: calls under way get %g s", config.grace)
        await health_servicer.enter_graceful_shutdown()
        entrance.close()
        await server.stop(config.grace)
        ticking.cancel()
        report = await entrance.step(Status())
        entrance.shutdown()
    assert isinstance(report, StatusReport)
    return report


async def _tick(entrance: Entrance) -> None:
    while True:
        await asyncio.sleep(TICK)
        try:
            await entrance.tick()
        except Exception:
            log.exception("the shard failed on a tick; it goes on")


async def _add_health(server: grpc.aio.Server) -> Any:
    servicer = health.aio.HealthServicer()
    await servicer.set(SERVICE_NAME, HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return servicer


def _add_reflection(server: grpc.aio.Server) -> None:
    try:
        from grpc_reflection.v1alpha import reflection
    except ModuleNotFoundError:
        raise ConfigurationError(
            "reflection needs a package that is not installed: pip install 'paramserver[reflection]'"
        ) from None
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


# --- the port ---------------------------------------------------------------------------------------------------------


def bind(server: grpc.aio.Server, address: str) -> str:
    """Binds `server` to `address`, and returns it with the port that it got.

    Raises:
        ConfigurationError: it is taken, or is no address of this machine.
    """
    address = check_address(address)
    try:
        _try(address)
        port = server.add_insecure_port(address)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "gRPC cannot bind it"
        raise ConfigurationError(f"cannot listen on {address}: {reason}") from error
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def _try(address: str) -> None:
    """Raises `OSError` if `address` cannot be bound: the system's reason, which gRPC tells to nobody but its own log."""
    if address.startswith("unix:"):
        _try_path(address.removeprefix("unix:"))
        return
    host, _, port = address.rpartition(":")
    for family, kind, protocol, _, place in socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)


def _try_path(path: str) -> None:
    """A socket that nobody listens at is what a killed server leaves behind; gRPC takes it over."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            os.stat(os.path.dirname(path) or ".")
        else:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


# --- in a thread ------------------------------------------------------------------------------------------------------


class ServerThread:
    """A server in a thread of this process, for tests and notebooks.

        with ServerThread(ServerConfig(lease=60.0)) as server:
            transport = NetworkTransport([server.address])

    Entering starts it and returns when it answers; leaving stops it as Ctrl-C would, and ends the thread.

    Raises:
        ConfigurationError: on entering, as `serve` does.
    """

    def __init__(self, config: ServerConfig | None = None) -> None:
        self._config = config or ServerConfig()
        self._thread = threading.Thread(target=self._run, name="psserver", daemon=True)
        self._ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._report: concurrent.futures.Future[StatusReport] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._ready.result()

    @property
    def report(self) -> StatusReport:
        """How the shard was at the end; waits for it."""
        return self._report.result()
