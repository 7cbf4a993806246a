"""One server: a shard behind gRPC, with its clock and shutdown. `serve` runs in the caller's event loop.

`ServerThread` is a server in a thread of the process, for tests and notebooks.
"""

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
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio

from psjob.terminal.logs import identify
from psjob.tracing.tracing import open_tracing
from psserver.config import ServerConfig
from psserver.core.options import ShardOptions
from psserver.core.shard import Shard
from psserver.measurements import Measurements
from psserver.rpc.access import Access
from psserver.rpc.call_errors import CallErrors
from psserver.rpc.direct.listener import DirectListener, DirectSockets
from psserver.rpc.health import Health
from psserver.rpc.identity import Identity
from psserver.rpc.running import RunningServer
from psserver.rpc.service import SERVICE_NAME, Service
from psserver.rpc.tls import Certificates
from psserver.rpc.transfer_memory import SharedMemory
from psserver.rpc.unix_sockets import sweep
from psserver.runtime.clock import Clock, Linger, tick_seconds
from psserver.runtime.executor import Executor
from psserver.runtime.start_shard import start_shard
from psserver.storage.folders import lock_shard
from pswire.addresses import check_address
from pswire.errors import ConfigurationError
from pswire.messages import Status, StatusReport
from pswire.network.channel import SERVER_OPTIONS
from pswire.system.extras import missing_package

log = logging.getLogger(__name__)

#: Seconds that workers have to leave a server that stops; workers that are stopped at the same time need less than one.
LEAVE_TIMEOUT = 2.0

#: Seconds between two looks whether they have.
_LEAVE_PAUSE = 0.02

#: What else a process serves while its server runs, such as the live page.
Beside = Callable[[RunningServer], AbstractContextManager[object]]


async def serve(
    config: ServerConfig, on_ready: Callable[[str], None], stop: asyncio.Event, beside: Beside | None = None
) -> StatusReport:
    """Serve one shard until `stop` is set, then let calls in progress finish; returns the shard's last report.

    A server of several that keeps its state first waits until all workers have left, for `LEAVE_TIMEOUT` at most.

    With `config.linger` it sets `stop` itself when the job is over (`Linger`). `on_ready` is called once with the
    address, port included, as soon as calls are answered. The block that `beside` makes of the running server is
    entered after that, and left, in a thread, when calls in progress have finished. The event loop should have no
    other tasks: at the end it waits, for a second at most, for all of them.

    Raises:
        ConfigurationError: the address cannot be bound, a package is missing, or a certificate or token file cannot be
            used.
        StorageError: the folder of checkpoints is in use or cannot be used, or its files are damaged or of another job.
    """
    with ExitStack() as stack:
        if config.storage is not None:
            stack.enter_context(closing(lock_shard(config.storage.folder, config.shard, config.shards)))
        if config.shared_memory and (swept := sweep()):
            log.info("removed %d sockets for shared memory of killed servers", swept)
        shared = stack.enter_context(
            closing(SharedMemory(config.shared_memory_limit if config.shared_memory else None))
        )
        if shared.refused:
            log.info("no shared memory: %s", shared.refused)
        return await _serve(config, shared, on_ready, stop, beside, stack)


async def _serve(
    config: ServerConfig,
    shared: SharedMemory,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
    beside: Beside | None,
    stack: ExitStack,
) -> StatusReport:
    """Serve one shard, whose files no other process writes; what it opens is closed at the end of `stack`."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    measurements = Measurements()
    call_errors = CallErrors(measurements)
    health = Health(("", SERVICE_NAME), call_errors)
    server.add_generic_rpc_handlers((health.handlers(),))
    if config.reflection:
        _add_reflection(server)
    access = None if config.token_file is None else Access(config.token_file)
    identity = Identity(config.job_key())
    tracing = open_tracing("psserver", f"shard-{config.shard}")
    certificates = _certificates(config)
    tls = None if certificates is None else certificates.credentials()
    address = bind(server, config.bind, tls)  # before the shard's run begins: one that only fails here is none
    unix = config.shared_memory and not shared.refused
    sockets = stack.enter_context(closing(DirectSockets(config.bind, config.direct_port, unix=unix)))
    if config.exposure:
        log.warning("%s", config.exposure)
    if certificates is not None:
        certificates.warn_of_end()
    tick = tick_seconds(config.lease)
    clock = Clock(time.monotonic, tick)
    executor = _start_executor(config, clock, measurements)
    identify("shard", config.shard, lambda: executor.shard.global_step)
    service = Service(
        executor,
        identity,
        call_errors,
        config.traffic_limit,
        config.lease,
        shared,
        access=access,
        max_calls=config.max_calls,
        exposure=config.exposure,
        tracing=tracing,
        direct=sockets.where,
    )
    server.add_generic_rpc_handlers((service.handlers(),))
    await server.start()
    sockets_tls = None if certificates is None else certificates.of_sockets()
    direct = DirectListener(sockets, service.serve_direct, sockets_tls, config.lease)

    async def tick_until_the_job_ends() -> None:
        loop = asyncio.get_running_loop()
        linger = None if config.linger is None else Linger(config.linger, config.lease)
        while linger is None or not linger.ends(executor.shard.job_end, clock()):
            due = loop.time() + tick
            await asyncio.sleep(tick)
            measurements.late_seconds.add(loop.time() - due)
            try:
                executor.tick()
                if access is not None:
                    access.look()
                if certificates is not None:
                    certificates.warn_of_end()
                service.tick()
            except Exception:
                log.exception("the shard failed on a tick; it continues")
        stop.set()

    ticking = asyncio.create_task(tick_until_the_job_ends())
    running, others = RunningServer(config, address, executor, access), ExitStack()
    try:
        on_ready(address)
        if beside is not None:
            others.enter_context(beside(running))
        await stop.wait()
    finally:
        running.draining = True
        health.drain()
        if stop.is_set() and config.shards > 1 and config.storage is not None:
            await _workers_left(executor)
        log.info("stopping: calls in progress get %g s", config.grace)
        service.close()
        call_errors.close()
        executor.close()
        await asyncio.gather(server.stop(config.grace), direct.stop(config.grace))
        try:
            await asyncio.to_thread(others.close)  # it may wait for a status
        except Exception:
            log.exception("what is served beside the shard failed at its end; the shard is written down")
        ticking.cancel()
        report = await executor.step(Status())
        await executor.shutdown()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
        # gRPC still has tasks for cancelled calls, and logs errors if the loop ends before them
        if unfinished := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(unfinished, timeout=1.0)
    assert isinstance(report, StatusReport)
    return report


async def _workers_left(executor: Executor) -> None:
    """Serve on until no worker is live, for `LEAVE_TIMEOUT` at most.

    Workers that are stopped at the same time end their pushes on all shards, and leave. Refused at once, the part of a
    push would be missing in what this shard keeps, and another shard would have the other part.
    """
    if not executor.shard.live_workers:
        return
    log.info("stopping: workers get %g s to leave", LEAVE_TIMEOUT)
    loop = asyncio.get_running_loop()
    end = loop.time() + LEAVE_TIMEOUT
    while executor.shard.live_workers and loop.time() < end:
        await asyncio.sleep(_LEAVE_PAUSE)


def _start_executor(config: ServerConfig, clock: Clock, measurements: Measurements) -> Executor:
    """The executor of a new shard, or of one that continues from its files. Raises `StorageError`."""
    new_shard = partial(_new_shard, config)
    if config.storage is None:
        return Executor(new_shard(), clock, measurements)
    shard, start = start_shard(config.storage, new_shard, clock())
    executor = Executor(shard, clock, measurements)
    executor.persist(config.storage, new_shard, start)
    return executor


def _new_shard(config: ServerConfig) -> Shard:
    options = ShardOptions(
        shard=config.shard,
        shards=config.shards,
        lease=config.lease,
        memory_limit=config.variables_limit,
        consistency=config.consistency,
        staleness=config.staleness,
        one_job=config.linger is not None,
        progress_timeout=config.progress_timeout,
        max_workers=config.max_workers,
        max_gradient_norm=config.max_gradient_norm,
    )
    return Shard(options, identity=secrets.randbits(62) + 1, stores_cuts=config.storage is not None)


def _add_reflection(server: grpc.aio.Server) -> None:
    try:
        from grpc_reflection.v1alpha import reflection
    except ModuleNotFoundError:
        raise missing_package("reflection needs", "reflection") from None
    names = (SERVICE_NAME, "grpc.health.v1.Health", reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)


def _certificates(config: ServerConfig) -> Certificates | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    return Certificates(config.tls_cert, config.tls_key, config.tls_ca, ask_clients=config.asks_clients)


def bind(server: grpc.aio.Server, address: str, tls: grpc.ServerCredentials | None = None) -> str:
    """Bind `server`, with TLS if there are credentials; the address with its actual port.

    `ConfigurationError` if it is taken, or not of this machine.
    """
    address = check_address(address)
    try:
        _try(address)
        port = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "gRPC cannot bind it"
        advice = f"choose another address, or a free port: --bind {address.rpartition(':')[0]}:0"
        if address.startswith("unix:"):
            advice = "choose another path"
        raise ConfigurationError(f"cannot listen on {address}: {reason}; {advice}") from error
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def _try(address: str) -> None:
    """Raise `OSError` with the system's reason if `address` cannot be bound; gRPC only logs that reason."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):  # gRPC replaces a socket that a killed server has left
                os.stat(os.path.dirname(path) or ".")
                return
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    host, _, port = address.rpartition(":")
    for family, kind, protocol, _, place in socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)


class ServerThread:
    """A server in a thread of this process, as a context manager.

        with ServerThread(ServerConfig(lease=60.0)) as server:
            transport = NetworkTransport([server.address])

    Entering returns when the server answers; leaving stops it as Ctrl-C would. `beside` is as in `serve`.

    Raises:
        ConfigurationError: on entering, as `serve` does.
    """

    def __init__(self, config: ServerConfig | None = None, beside: Beside | None = None) -> None:
        self._config, self._beside = config or ServerConfig(), beside
        self._thread = threading.Thread(target=self._run, name="psserver", daemon=True)
        self._started: Future[tuple[str, Callable[[], object]]] = Future()
        self._ended: Future[StatusReport] = Future()

    @property
    def address(self) -> str:
        """The address it listens on."""
        return self._started.result()[0]

    @property
    def report(self) -> StatusReport:
        """The shard's last report, when the server has ended."""
        return self._ended.result()

    def __enter__(self) -> "ServerThread":
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server ended by itself; its error is raised below
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

        def on_ready(address: str) -> None:
            self._started.set_result((address, partial(loop.call_soon_threadsafe, stop.set)))

        return await serve(self._config, on_ready, stop, self._beside)


def _ignore_idle_wakeup(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Drop a harmless error: several event loops in one process share gRPC's event queue.

    Its wake-up byte wakes all of them; one reads it, and the others find nothing to read
    (https://github.com/grpc/grpc/issues/25364).
    """
    if isinstance(context.get("exception"), BlockingIOError) and "PollerCompletionQueue" in str(context.get("handle")):
        return
    loop.default_exception_handler(context)
