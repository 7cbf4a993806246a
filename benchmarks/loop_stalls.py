"""How long one message holds the event loop of a server: honest ones of 20,000 variables, and the largest legal ones.

    python benchmarks/loop_stalls.py [--variables 20000]

A server process, whose event loop has a heartbeat of 1 ms beside the service. Each case is one message over gRPC on
loopback; "stall" is the longest time between two heartbeats until its answer, "answer" the time of the whole call.
While a case runs, another member renews its lease: "renew" is the longest of these calls.

The cases: the calls of a job with so many variables of one float, each in as few messages as a worker sends; each
request with as many entries in each list as its limit allows (`pswire.codec`), of one kind after the other, so that a
new message or field is covered; and bytes that are no message.
"""

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import _report
import grpc
import numpy as np
from google.protobuf.message import Message as Proto

from psserver.config import ServerConfig
from psserver.rpc.server import serve
from psserver.runtime.interpreter import set_up_interpreter
from pswire import messages as ms
from pswire.codec import decode, encode
from pswire.codec.generated import ROWS
from pswire.network.channel import MEMBER_TOKEN, open_channel
from pswire.optimizers import Adam
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.client.client import Client
from psworker.transport.network_transport import NetworkTransport
from psworker.versions import VersionedArray

HEARTBEAT = 1e-3
MAX_BYTES = _report.size(4 << 20, 4 << 10)
SERVICE = "/paramserver.v1.ParameterServer/"


def serve_and_measure(parent: Connection) -> None:
    """A server process: sends its address; then, for each thing that it receives, the longest stall since the last."""
    set_up_interpreter()
    longest = [0.0]

    async def beat() -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(HEARTBEAT)
            now = time.perf_counter()
            longest[0] = max(longest[0], now - before - HEARTBEAT)
            before = now

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        beating = asyncio.create_task(beat())

        def report() -> None:
            with suppress(EOFError):
                while parent.recv():
                    stall, longest[0] = longest[0], 0.0
                    parent.send(stall)
            loop.call_soon_threadsafe(stop.set)

        threading.Thread(target=report, daemon=True).start()
        stop_beating = asyncio.create_task(stop.wait())
        stop_beating.add_done_callback(lambda _: beating.cancel())
        await serve(ServerConfig(lease=300.0), parent.send, stop)

    asyncio.run(run())


class Member(NamedTuple):
    """A worker that has joined, and its token."""

    sender: pb.Sender
    token: bytes


class Server:
    """The server process, and a member that sends heartbeats to it while a case runs."""

    def __init__(self, stack: ExitStack) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child = context.Pipe()
        process = context.Process(target=serve_and_measure, args=(child,), daemon=True)
        process.start()
        stack.callback(process.join, 30.0)
        stack.callback(self._pipe.send, False)
        self.address: str = self._pipe.recv()
        self.channel = stack.enter_context(open_channel(self.address))
        self.member, self._watcher = self.join("member"), self.join("watcher")

    def join(self, name: str) -> Member:
        """A new member."""
        data = self.send("Join", encode(ms.Join(worker=name), InlineSender()).SerializeToString())
        joined = decode(pb.JoinReply.FromString(data), InlineReceiver())
        assert isinstance(joined, ms.Joined)
        return Member(pb.Sender(worker=name, incarnation=joined.incarnation), joined.token)

    def send(self, method: str, data: bytes, token: bytes = b"") -> bytes:
        """The bytes of an answer."""
        metadata = [(MEMBER_TOKEN, token)] if token else None
        answer: bytes = self.channel.unary_unary(SERVICE + method)(data, timeout=120, metadata=metadata)
        return answer

    def measure(self, name: str, case: Callable[[], object]) -> None:
        """Runs a case; prints the longest stall, the time until its answer, and the longest heartbeat of a member."""
        renew = pb.RenewRequest(sender=self._watcher.sender).SerializeToString()
        ended, slowest = threading.Event(), [0.0]

        def watch() -> None:
            while not ended.wait(0.005):
                begin = time.perf_counter()
                self.send("Renew", renew, self._watcher.token)
                slowest[0] = max(slowest[0], time.perf_counter() - begin)

        self._stall()
        watching = threading.Thread(target=watch)
        watching.start()
        begin = time.perf_counter()
        try:
            case()
            outcome = ""
        except grpc.RpcError as error:  # refused messages are cases, too
            outcome = f"  # refused: {error.details()[:60]}"
        taken = time.perf_counter() - begin
        time.sleep(0.05)  # what the server does after the answer counts too
        ended.set()
        watching.join()
        print(f"RESULT stall-{name} paramserver {1e3 * self._stall():.1f} ms{outcome}")
        print(f"RESULT answer-{name} paramserver {1e3 * taken:.1f} ms")
        print(f"RESULT renew-{name} paramserver {1e3 * slowest[0]:.1f} ms", flush=True)

    def _stall(self) -> float:
        self._pipe.send(True)
        stall: float = self._pipe.recv()
        return stall


def honest(server: Server, variables: int, stack: ExitStack) -> None:
    """The calls of a worker whose model has so many variables of one float."""
    client = stack.enter_context(closing(Client(NetworkTransport([server.address]), "honest", 300.0)))
    client.join()
    names = [f"layers/block-{number}/kernel" for number in range(variables)]
    one = np.ones(1, np.float32)
    declared = [ms.Declaration(TensorSpec.of(name, one), one, Adam(1e-3)) for name in names]
    known: list[VersionedArray] = []
    server.measure("register", lambda: known.extend(client.register(declared)))

    def push() -> None:
        gradients = [VersionedArray(value.name, value.read, one) for value in known]
        known[:] = client.push(gradients, None, pull=names).result().values

    server.measure("push-and-pull", push)
    server.measure("push-and-pull-again", push)
    server.measure("pull", lambda: client.pull(names))
    server.measure("status", lambda: server.send("Status", b""))
    server.measure("cut", lambda: server.send("Cut", b"", server.member.token))


def fullest() -> Iterator[tuple[str, str, bytes]]:
    """Method, field and bytes of each request with one of its lists as full as its limit and a message allow."""
    for row in [one for one in ROWS if one.message in ms.ANSWERS]:
        for name, limit in row.limits.items():
            proto = row.proto()
            _fill(proto, name, limit)
            yield row.message.__name__, name, proto.SerializeToString()


def _fill(proto: Any, name: str, limit: int) -> None:
    """Fills a list with the smallest entries that are legal."""
    field, entries = proto.DESCRIPTOR.fields_by_name[name], getattr(proto, name)
    for number in range(limit):
        if field.message_type is None:
            text = f"v{number}"
            entries.append({field.TYPE_STRING: text, field.TYPE_BYTES: text.encode()}.get(field.type, number))
        else:
            _smallest(entries.add(), f"v{number}")
    while proto.ByteSize() > MAX_BYTES:
        del entries[-max(1, limit // 32) :]


def _smallest(part: Proto, name: str) -> None:
    """Makes an entry legal, with as little as that needs."""
    for field in part.DESCRIPTOR.fields:
        value = getattr(part, field.name)
        if isinstance(value, pb.Tensor):
            value.name, value.dtype, value.inline = name, "bool", bytes(1)
        elif field.name in ("name", "queue", "worker"):
            setattr(part, field.name, name)
        elif field.name in ("sequence", "position"):
            setattr(part, field.name, 1)
        elif isinstance(value, pb.Sender):
            _smallest(value, name)
    if isinstance(part, pb.Gradient):
        part.ClearField("indices")
    elif isinstance(part, pb.Choice):
        part.ClearField("rows")


def largest(server: Server) -> None:
    """Each request with each of its lists full, from a member."""
    sender, token = server.member
    for method, name, data in fullest():
        if method == "Join":
            head = pb.JoinRequest(worker="other", shards=1).SerializeToString()
        else:
            head = pb.LeaveRequest(sender=sender).SerializeToString()  # the sender is field 1 of all
            if method in ("Push", "Assign", "Tune"):
                head += b"\x10\x01"  # and the sequence number field 2
        server.measure(f"{method}-{name}".lower(), partial(server.send, method, head + data, token))


def no_messages(server: Server) -> None:
    """Bytes with as many parts as fit, which are refused; of a member, and of nobody."""
    head = pb.LeaveRequest(sender=server.member.sender).SerializeToString()
    for who, token in (("stranger", b""), ("member", server.member.token)):
        push, register = head + b"\x1a\x00" * (2 << 20), head + b"\x12\x02\x0a\x00" * (1 << 20)
        server.measure(f"empty-gradients-{who}", partial(server.send, "Push", push, token))
        server.measure(f"empty-tensors-{who}", partial(server.send, "Register", register, token))


def main() -> None:
    """Runs all cases."""
    parser = _report.arguments(__doc__.splitlines()[0])
    parser.add_argument("--variables", type=int, default=_report.size(20_000, 20))
    options = parser.parse_args()
    _report.describe_machine()
    with ExitStack() as stack:
        server = Server(stack)
        honest(server, options.variables, stack)
        largest(server)
        no_messages(server)


if __name__ == "__main__":
    main()
