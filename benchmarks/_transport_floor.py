"""Lower bounds for transport.py: the parts of a step on their own. Medians in milliseconds."""

import asyncio
import itertools
import multiprocessing
import queue
import socket
import statistics
import time
from collections.abc import Callable

import grpc
import numpy as np
from _push_pull import ELEMENTS, RATE, arrays

from pswire import optimizers
from pswire.network.channel import SERVER_OPTIONS, open_channel
from pswire.optimizers import Step, numba_compiler, rule_for
from pswire.system.host import keep_memory
from pswire.tensors.transport import CHUNK

NBYTES = 4 * ELEMENTS
_METHOD = "/floor/Echo"
_spawn = multiprocessing.get_context("spawn")


def median_ms(step: Callable[[], object], runs: int = 30, warm_up: int = 5) -> float:
    """Median over several runs."""
    seen = []
    for _ in range(warm_up + runs):
        began = time.perf_counter()
        step()
        seen.append((time.perf_counter() - began) * 1e3)
    return statistics.median(seen[warm_up:])


def copy() -> float:
    """Copies all weights once, on one thread."""
    source, out = np.ones((2, ELEMENTS), np.float32)
    return median_ms(lambda: np.copyto(out, source))


def adam(*, numba: bool) -> float:
    """The update alone, on one thread."""
    numba_compiler.USE_NUMBA = numba
    rule = rule_for(optimizers.Adam(RATE))
    values, gradients = arrays(0.1, 0), arrays(1.0, 1)
    slots = {name: rule.slots(value) for name, value in values.items()}
    numbers = itertools.count(1)

    def update() -> None:
        step = Step(number := next(numbers), number, RATE)
        for name, value in values.items():
            rule.dense(value, slots[name], gradients[name], step)

    return median_ms(update)


# --- gRPC -----------------------------------------------------------------------------------------------------------


def echoes() -> tuple[float, float]:
    """Round trips on a gRPC stream: an empty message, and 13.1 MB each way in chunks of plain bytes."""
    here, there = _spawn.Pipe()
    server = _spawn.Process(target=_serve, args=(there,), daemon=True)
    server.start()
    requests: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
    channel = open_channel(f"127.0.0.1:{here.recv()}")
    answers = channel.stream_stream(_METHOD)(itertools.chain.from_iterable(iter(requests.get, None)))
    chunks = _chunks()

    def large() -> None:
        requests.put([b"%d" % len(chunks), *chunks])
        for _ in chunks:
            next(answers)

    def empty() -> None:
        requests.put([b"0"])
        next(answers)

    try:
        return median_ms(empty, 500), median_ms(large)
    finally:
        requests.put(None)
        channel.close()
        here.send("stop")
        server.join()


def _chunks() -> list[bytes]:
    return [bytes(min(CHUNK, NBYTES - place)) for place in range(0, NBYTES, CHUNK)]


def _serve(pipe) -> None:
    keep_memory()
    asyncio.run(_serving(pipe))


async def _serving(pipe) -> None:
    chunks = _chunks()

    async def echo(requests, context: grpc.aio.ServicerContext) -> None:
        while (head := await context.read()) is not grpc.aio.EOF:
            for _ in range(int(head)):
                await context.read()
            for chunk in chunks[: int(head)] or [b""]:
                await context.write(chunk)

    server = grpc.aio.server(options=SERVER_OPTIONS)
    service, method = _METHOD[1:].split("/")
    handler = grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(echo)})
    server.add_generic_rpc_handlers((handler,))
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await asyncio.to_thread(pipe.recv)
    await server.stop(None)


# --- sockets ----------------------------------------------------------------------------------------------------------


def sockets() -> float:
    """13.1 MB each way over one TCP connection, one direction after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = _spawn.Process(target=_answer, args=(listener.getsockname(),), daemon=True)
        peer.start()
        connection, _ = listener.accept()
    mine, theirs = bytearray(NBYTES), memoryview(bytearray(NBYTES))

    def step() -> None:
        connection.sendall(mine)
        assert _fill(connection, theirs)

    with connection:
        ms = median_ms(step)
    peer.join()
    return ms


def _answer(address: tuple[str, int]) -> None:
    mine, theirs = bytearray(NBYTES), memoryview(bytearray(NBYTES))
    with socket.create_connection(address) as connection:
        while _fill(connection, theirs):
            connection.sendall(mine)


def _fill(connection: socket.socket, view: memoryview) -> bool:
    """Receives into the whole buffer; False if the other side has closed first."""
    place = 0
    while place < len(view):
        count = connection.recv_into(view[place:])
        if not count:
            return False
        place += count
    return True
