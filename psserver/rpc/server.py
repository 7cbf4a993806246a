"""One server: starts a shard behind gRPC, lets time pass for it, and stops it in good order.

Owns the clock, the event loop and the port. `serve` runs in a loop of the caller's, `ServerThread` brings its own, for
tests and notebooks. May import service, entrance, config and pswire.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from psserver.config import ServerConfig
from psserver.core.events import counted
from psserver.core.members.membership import JobEnd
from psserver.core.shard import Shard
from psserver.rpc.health import Health
from psserver.rpc.service import SERVICE_NAME, Service
from psserver.runtime.executor import Executor
from pswire.channel import SERVER_OPTIONS, check_address
from pswire.errors import ConfigurationError
from pswire.messages import Status, StatusReport
from pswire.tensors.segments import sweep

#: Seconds between two looks at the leases, at most; short leases are looked at more often.
TICK = 1.0

#: Looks at the leases in the time of one, at least.
TICKS_A_LEASE = 12

#: Leases for which a server that ends by itself waits at least when its workers have failed, or were lost: one that was
#: cut off, or is started again, is back by then.
PATIENCE = 4

log = logging.getLogger(__name__)


async def serve(config: ServerConfig, on_ready: Callable[[str], None], stop: asyncio.Event) -> StatusReport:
    """Serves one shard until `stop` is set, then lets the calls under way end; returns how the shard was at the end.

    With `config.linger` it sets `stop` itself when nobody is left (`Lingering`).

    Meant for a loop that has nothing else to do: at the end it waits, for a second at most, for all other tasks.

    Args:
        config: what to serve, and where.
        on_ready: called once with the address, port included, as soon as calls are answered.
        stop: set it, in this loop, to end.

    Raises:
        ConfigurationError: the address cannot be had, or a package is missing.
    """
    if config.shared_memory and (swept := sweep()):
        log.warning("removed %d segments of shared memory, whose processes were killed", swept)
    shard = Shard(
        config.shard,
        config.shards,
        config.lease,
        config.variables_limit,
        config.consistency,
        config.staleness,
        identity=secrets.randbits(62) + 1,
        one_job=config.linger is not None,
    )
    tick = min(TICK, config.lease / TICKS_A_LEASE)
    clock = Clock(time.monotonic, tick)
    entrance = Executor(shard, clock)
    server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=config.max_calls)
    service = Service(entrance, config.traffic_limit, config.lease, shared_memory=config.shared_memory)
    server.add_generic_rpc_handlers((service.handlers(),))
    health = Health(("", SERVICE_NAME))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    if config.reflection:
        _add_reflection(server)
    address = bind(server, config.bind)
    await server.start()
    lingering = None if config.linger is None else Lingering(config.linger, config.lease)
    ticking = asyncio.create_task(_tick(entrance, clock, tick, lingering, stop))
    try:
        on_ready(address)
        await stop.wait()
    finally:
        log.info("stopping: calls under way get %g s", config.grace)
        health.drain()
        service.close()
        entrance.close()
        await server.stop(config.grace)
        ticking.cancel()
        report = await entrance.step(Status())
        await entrance.shutdown()
        await _settle()
    assert isinstance(report, StatusReport)
    return report


class Clock:
    """Seconds in which this process was awake.

    While a machine sleeps, or a process is stopped, it reads nothing: leases must not end by that. The clock is asked
    at each tick, so of a longer gap between two questions two ticks count: heartbeats that came are read in less.

    Args:
        now: seconds, never going back.
        tick: seconds between two questions, at most, while the process is awake.
    """

    def __init__(self, now: Callable[[], float], tick: float) -> None:
        self._now, self._tick = now, tick
        self._last = self._time = now()

    def __call__(self) -> float:
        """The time."""
        now = self._now()
        self._time += min(now - self._last, 2 * self._tick)
        self._last = now
        return self._time


class Lingering:
    """When a server of one job ends by itself: nobody is left, and for some time nobody has come.

    That time is `linger` seconds when the job is done, that is a worker has come to its end, and otherwise `PATIENCE`
    leases, if that is more.

    Args:
        linger: seconds.
        lease: seconds.
    """

    def __init__(self, linger: float, lease: float) -> None:
        self._linger, self._patience = linger, max(linger, PATIENCE * lease)
        self._warned: JobEnd | None = None

    def ends(self, over: JobEnd | None, now: float) -> bool:
        """Whether the server ends now; says why, and some time before if that is by no worker's good end."""
        if over is None:
            return False
        if not over.done and over != self._warned and now - over.since >= 2 * TICK:  # Docker starts it again sooner
            self._warned = over
            log.warning(
                "nobody is left of %s, and none has come to the job's end: the server ends in %g s unless one comes",
                counted(over.workers, "worker"),
                self._patience,
            )
        bound = self._linger if over.done else self._patience
        if now - over.since < bound:
            return False
        if over.done:
            log.info("the job is done, and nobody has come for %g s", bound)
        else:
            log.warning("nobody has come to the job's end, nor come back for %g s", bound)
        return True


async def _tick(
    entrance: Executor, clock: Clock, tick: float, lingering: Lingering | None, stop: asyncio.Event
) -> None:
    """Lets time pass for the shard, until the server ends by itself, if it does."""
    while lingering is None or not lingering.ends(entrance.job_end, clock()):
        await asyncio.sleep(tick)
        try:
            entrance.tick()
        except Exception:
            log.exception("the shard failed on a tick; it goes on")
    stop.set()


async def _settle() -> None:
    """Waits for what gRPC still does for calls that were cut off: it complains when the loop ends before it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=1.0)


def _add_reflection(server: grpc.aio.Server) -> None:
    try:
        from grpc_reflection.v1alpha import reflection
    except ModuleNotFoundError:
        raise ConfigurationError(
            "reflection needs a package that is not installed: pip install 'paramserver[reflection]'"
        ) from None
    names = (SERVICE_NAME, "grpc.health.v1.Health", reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)


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
        advice = "choose another address, or port 0 for a free port"
        raise ConfigurationError(f"cannot listen on {address}: {reason}; {advice}") from error
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def _try(address: str) -> None:
    """Raises `OSError` if `address` cannot be bound: the system's reason, which gRPC tells its own log only."""
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
            transport = GrpcTransport([server.address])

    Entering starts it and returns when it answers; leaving stops it as Ctrl-C would, and ends the thread.

    Raises:
        ConfigurationError: on entering, as `serve` does.
    """

    def __init__(self, config: ServerConfig | None = None) -> None:
        self._config = config or ServerConfig()
        self._thread = threading.Thread(target=self._run, name="psserver", daemon=True)
        self._started: Future[tuple[str, Callable[[], object]]] = Future()
        self._ended: Future[StatusReport] = Future()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._started.result()[0]

    @property
    def report(self) -> StatusReport:
        """How the shard was at the end; waits for it."""
        return self._ended.result()

    def __enter__(self) -> ServerThread:
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(RuntimeError):  # the loop is closed: it ended by itself, and why is raised below
            self._started.result()[1]()
        self._thread.join()
        if error is None:
            self._ended.result()

    def _run(self) -> None:
        try:
            self._ended.set_result(asyncio.run(self._serve()))
        except BaseException as error:  # noqa: BLE001  (raised again where the caller can see it)
            first = self._ended if self._started.done() else self._started
            first.set_exception(error)

    async def _serve(self) -> StatusReport:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(_ignore_idle_wakeup)

        def tell(address: str) -> None:
            self._started.set_result((address, partial(loop.call_soon_threadsafe, stop.set)))

        return await serve(self._config, tell, stop)


def _ignore_idle_wakeup(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Drops an error that means nothing: several loops in one process share gRPC's queue of events.

    Its wake-up byte wakes all of them, one reads it and passes the events on, and the others find nothing to read
    (https://github.com/grpc/grpc/issues/25364).
    """
    if isinstance(context.get("exception"), BlockingIOError) and "PollerCompletionQueue" in str(context.get("handle")):
        return
    loop.default_exception_handler(context)
