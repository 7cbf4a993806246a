"""Servers in a test: a client of one whose answers are messages, transports as parameters, tokens and certificates."""

import queue
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from psserver.certificates import make_certificates
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import placement
from pswire.codec import decode, encode, from_frame, to_frame
from pswire.messages import Declaration, Join, Pull, Register, Sender, Status
from pswire.network.channel import error_from, member_metadata, open_channel
from pswire.network.service_stub import ServiceStub
from pswire.optimizers import GradientDescent
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.security.token_files import Role, add_token
from pswire.tensors.frame import incoming
from pswire.tensors.shared_memory import SharedReceiver
from pswire.tensors.stream import StreamReceiver, StreamSender
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.sessions.strategies.local_steps import OUTER
from psworker.transport import calls, shared_memory
from psworker.transport.connection import MemberTokens
from psworker.transport.embedded import EmbeddedTransport
from tests.support.commands import BOUND
from tests.support.files import shared_folder

#: Workers may take the place of others of their name.
NAME_KEY = b"0123456789abcdef"


def join_all(clients, worker):
    """The sender, when a worker has joined all shards of a job."""
    first, *others = clients
    joined = first.unary(Join(worker=worker, shards=len(clients), name_key=NAME_KEY))
    for shard, client in enumerate(others, 1):
        client.tokens = first.tokens
        client.unary(
            Join(worker=worker, incarnation=joined.incarnation, shard=shard, shards=len(clients), job=joined.job)
        )
    return Sender(worker, joined.incarnation)


class Client:
    """One channel to a server, of its own or this one."""

    def __init__(self, address, credentials=NO_CREDENTIALS, channel=None):
        self.address, self.credentials = address, credentials
        self.channel = channel or open_channel(address, credentials)
        self.stub = ServiceStub(self.channel)
        self.tokens = MemberTokens()

    def token(self, sender):
        """The token of a worker that has joined."""
        return self.tokens.of(Pull(sender=sender, names=()))

    def unary(self, message):
        answer = self.send(type(message).__name__, encode(message, InlineSender()), self.tokens.of(message))
        if isinstance(message, Join):
            self.tokens.note(message, answer)
            self.direct = answer.direct
        return answer

    def send(self, method, proto, token=None):
        """Sends a protobuf, also one that no codec would make, with the token of the last worker or another one."""
        metadata = member_metadata(self.tokens.of() if token is None else token)
        try:
            return decode(getattr(self.stub, method)(proto, timeout=BOUND, metadata=metadata), InlineReceiver())
        except grpc.RpcError as error:
            raise error_from(error, self.address, self.credentials) from None

    def send_bytes(self, method, data):
        try:
            return self.channel.unary_unary(f"/paramserver.v1.ParameterServer/{method}")(data, timeout=BOUND)
        except grpc.RpcError as error:
            raise error_from(error, self.address, self.credentials) from None

    def send_frames(self, frames, token=None):
        """The answers to a Transfer of any frames, as they come."""
        stream = Stream(self, token)
        stream.send(*frames, None)
        yield from iter(stream.answer, None)

    def transfer(self, message):
        """One call in a stream of its own, its tensors in chunks, however small."""
        (answer,) = self.send_frames(frames_of(message), self.tokens.of(message))
        return answer

    def join(self, worker="w0"):
        return Sender(worker, self.unary(Join(worker=worker, name_key=NAME_KEY)).incarnation)

    def register(self, sender, optimizer=GradientDescent(1.0), **arrays):  # noqa: B008 - frozen
        declared = [Declaration(TensorSpec.of(name, array), array, optimizer) for name, array in arrays.items()]
        return self.transfer(Register(sender=sender, declarations=tuple(declared)))

    def value(self, sender, name):
        return self.transfer(Pull(sender=sender, names=(name,))).values[0].array

    def status(self):
        return self.unary(Status())


class Stream:
    """An open Transfer of the last worker, or the one with `token`.

    `memories` has the segments that it has attached, by their numbers.
    """

    def __init__(self, client, token=None):
        self._client, self._frames, self.memories = client, queue.SimpleQueue(), {}
        transfer = client.channel.stream_stream("/paramserver.v1.ParameterServer/Transfer", pb.Frame.SerializeToString)
        metadata = member_metadata(client.tokens.of() if token is None else token)
        self._received = transfer(iter(self._frames.get, None), timeout=BOUND, metadata=metadata)

    def send(self, *frames):
        """Sends frames; None ends the stream."""
        for frame in frames:
            self._frames.put(frame)

    def flush(self):
        """Waits until gRPC has taken all frames: then all but the last are handed to the connection."""
        while not self._frames.empty():
            pass

    def is_active(self):
        """Whether the server has not ended it."""
        return self._received.is_active()

    def close(self):
        self.send(None)
        self._received.cancel()

    def attach(self, number, nbytes):
        """The server's reply to a request for a segment."""
        self.send(pb.Frame(attach=pb.AttachRequest(segment=number, nbytes=nbytes)))
        return self.frame().header.attached

    def frame(self):
        """The next frame of an answer; None at the end."""
        try:
            data = next(self._received, None)
        except grpc.RpcError as error:
            raise error_from(error, self._client.address, self._client.credentials) from None
        return None if data is None else incoming(data)

    def answer(self):
        """The next answer, with arrays in shared memory as views; None at the end."""
        if (frame := self.frame()) is None:
            return None
        receiver = StreamReceiver(frame.data, SharedReceiver(self.memories))
        answer = from_frame(frame, receiver)
        if receiver.nbytes:
            receiver.allocate()
            answer = from_frame(frame, receiver)
            while not receiver.complete:
                receiver.feed(self.frame())
        return answer


def frames_of(message):
    """The frames of a call: a list whose first is the header."""
    sender = StreamSender(few=0)
    header = to_frame(message, sender)
    return [header, *(pb.Frame(chunk=b"".join(pieces)) for pieces in sender.chunks())]


def frame_of(message):
    """A call in one frame, with its tensors, which are few."""
    sender = StreamSender(few=0)
    (data,) = sender.frames(to_frame(message, sender))
    return pb.Frame.FromString(data)


@dataclass(frozen=True)
class TransportCase:
    """A tensor transport and a number of servers; 0: a shard in the worker.

    Two servers split each variable of 64 bytes; shared memory is used for all tensors, however small, or for none.
    """

    name: str
    shards: int = 1
    shared_memory: bool = False
    unix: bool = False
    transport: str = "auto"  # for shared memory: that of the run

    @property
    def used(self) -> list[str]:
        """The tensor transport of each shard, as a session shows it."""
        streams = "gRPC" if self.transport == "grpc" else "direct"
        return ["shared memory" if self.shared_memory else streams] * self.shards

    @contextmanager
    def sessions(self) -> Iterator[Callable[..., Session]]:
        """A function that makes the session of a worker; all sessions share the same new shards.

        Options after the worker's name: fields of `WorkerConfig`, and `outer`.
        """
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            if self.shared_memory:
                stack.enter_context(shared_folder(patch))
                patch.setattr(calls, "MIN_SHARED_BYTES", 1)
                patch.setattr(shared_memory, "MIN_BORROWED_BYTES", 1)
                patch.setattr(shared_memory, "MIN_SEGMENT_BYTES", 4096)
            if self.shards > 1:
                patch.setattr(placement, "SPLIT_BYTES", 64)
            transport = None if self.shards else EmbeddedTransport()
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ps-"))
            binds = [f"unix:{folder}/{shard}" if self.unix else "127.0.0.1:0" for shard in range(self.shards)]
            configs = [ServerConfig(bind, shard=shard, shards=self.shards) for shard, bind in enumerate(binds)]
            addresses = tuple([stack.enter_context(ServerThread(config)).address for config in configs])

            def session(worker: str, *, outer: Any = OUTER, **options: Any) -> Session:
                options |= {"shared_memory": self.shared_memory, "transport": self.transport, "resume": True}
                config = WorkerConfig(addresses, worker, 30, **options)
                return Session(config, transport, outer)

            yield session


EMBEDDED = TransportCase("embedded", shards=0)
GRPC = TransportCase("grpc", transport="grpc")
GRPC_OF_TWO = TransportCase("grpc over unix sockets, 2 shards", shards=2, unix=True, transport="grpc")
DIRECT = TransportCase("direct", transport="direct")
DIRECT_OF_TWO = TransportCase("direct, 2 shards", shards=2, transport="direct")
SHARED = TransportCase("shared memory", shared_memory=True)
SHARED_OF_TWO = TransportCase("shared memory, 2 shards", shards=2, shared_memory=True)


def parameters(*cases: TransportCase, slow: Sequence[TransportCase] = ()) -> list[Any]:
    """The cases as parameters of a test or a fixture, those of `slow` marked as slow."""
    return [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case in slow)) for case in (*cases, *slow)]


def token_credentials(folder: Path, name: str = "job") -> tuple[Path, dict[Role, Credentials]]:
    """A new token file of servers, and credentials with a token of each role, in files of the folder."""
    servers, files = folder / f"{name}-tokens", {}
    for role in Role:
        files[role] = folder / f"{name}-{role}.token"
        files[role].touch(mode=0o600)
        files[role].write_text(add_token(servers, role, role) + "\n")
    return servers, {role: Credentials(token_file=str(path)) for role, path in files.items()}


class Certificates:
    """The certificates in a folder of `psserver certs`: options of servers, and credentials of clients."""

    def __init__(self, folder: Path, hosts: tuple[str, ...] = (), **options: object) -> None:
        self.folder = folder
        make_certificates(folder, hosts, 30, **options)

    @property
    def server(self) -> dict[str, Path]:
        """Fields of `ServerConfig` for TLS."""
        return {"tls_cert": self.folder / "server.crt", "tls_key": self.folder / "server.key"}

    @property
    def mutual(self) -> dict[str, object]:
        """Fields of `ServerConfig` for TLS with certificates of clients."""
        return {**self.server, "tls_ca": self.folder / "ca.crt", "client_certificates": "required"}

    def client(self, *, certificate: bool = False, token_file: str = "", tls_name: str = "") -> Credentials:
        """Credentials that check servers by this CA, with a certificate of their own or without."""
        own = [str(self.folder / name) for name in ("client.crt", "client.key")] if certificate else ["", ""]
        return Credentials(str(self.folder / "ca.crt"), *own, token_file, tls_name)
