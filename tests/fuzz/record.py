"""Records the traffic of real runs as inputs: `python -m tests.fuzz.record FOLDER` (a folder for each target).

Programs train through servers of this process, whose service hands each request, frame and answer to the recorder;
their checkpoints and journals are inputs too. `python -m tests.fuzz --minimise FOLDER` chooses what is worth keeping.
"""

import hashlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
from google.protobuf.json_format import ParseDict

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.rpc.service import Service
from psserver.storage.folders import journal_folder
from psserver.storage.journal_segments import list_segments, read_segments
from pswire import messages as ms
from pswire.specs.checkpoints import EverySteps
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.tensors.frame import incoming
from pswire.v1 import state_pb2 as spb
from tests.fuzz.packets import Packet, pack
from tests.fuzz.served_shard import IDENTITY, JOB_KEY, METHODS, POLICIES, STREAM, STREAMS
from tests.fuzz.targets import codec
from tests.fuzz.targets.http_requests import OTHER, TOKEN
from tests.fuzz.targets.state_files import ARRAYS
from tests.support.servers import Client

#: A program that uses all kinds of messages: a table, slots, tuning, assigning, a data queue, a barrier, a cut, a stop.
PROGRAM = """
import numpy as np
import psworker as ps
from psworker import ops
rng = np.random.default_rng(1)
data = {"x": rng.standard_normal((40, 3)).astype("float32"), "row": rng.integers(0, 6, 40)}
W = ps.Variable(rng.standard_normal((3, 4)).astype("float32"), name="W")
b = ps.Variable(ops.zeros((4,)), name="b")
T = ps.Table((6, 3), ps.RowUniform(-1.0, 1.0), name="T")
optimizer = ps.Adam(0.05)
with ps.session() as session:
    session.barrier()
    optimizer.minimize(ops.sum(ops.square(W)) + ops.sum(b))
    for batch in session.batches(data, batch_size=8, epochs=1):
        rows = ops.embedding(T, batch.row)
        optimizer.minimize(ops.mean(ops.square(ops.matmul(batch.x + rows, W) + b)))
    if session.is_chief:
        session.checkpoint()
        session.slot(W, "m")
        session.set_hyperparameters([W, b], learning_rate=0.01)
        session.assign(b, np.ones(4, "float32"))
        session.assign_add(b, np.ones(4, "float32"))
        session.stop_all("that is enough")
"""

#: A program with minimizations: operations on vectors, evaluations, portions and their sums.
MINIMIZE = """
import numpy as np
import psworker as ps
from psworker import ops
rng = np.random.default_rng(1)
data = {"x": rng.standard_normal((12, 2)), "y": rng.standard_normal(12)}
w = ps.Variable(np.zeros(2), name="w")
loss = lambda batch: ops.mean(ops.square(ops.matmul(batch.x, w) - batch.y))
with ps.session() as session:
    session.barrier()
    session.minimize(loss, data, ps.LBFGS(iterations=3), portion=5)
    session.minimize(loss, data, ps.OWLQN(l1=0.1, iterations=3), portion=12)
"""

#: Programs, policies, and options of workers, of the runs: one for each policy, compression and strategy, and shared
#: memory; and minimizations.
RUNS: list[tuple[str, tuple[str, str], dict[str, str]]] = [
    (PROGRAM, POLICIES[0], {"PSWORKER_ENCODING": "bfloat16"}),
    (PROGRAM, POLICIES[1], {"PSWORKER_COMPRESS": "int8"}),
    (PROGRAM, POLICIES[2], {"PSWORKER_COMPRESS": "topk:0.1"}),
    (PROGRAM, POLICIES[3], {"PSWORKER_PUSH_EVERY": "2"}),
    (PROGRAM, POLICIES[4], {}),
    (PROGRAM, POLICIES[0], {"PSWORKER_SHARED_MEMORY": "1"}),
    (MINIMIZE, POLICIES[0], {}),
]

#: Calls of an input.
LONGEST = 60

#: Header fields of a browser, and of Prometheus.
BROWSER = """Host: localhost:8080
Connection: keep-alive
sec-ch-ua: "Chromium";v="140", "Not=A?Brand";v="24"
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8
Sec-Fetch-Site: none
Referer: http://localhost:8080/
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-US,en;q=0.9
Cookie: other=1; psserver-0={}"""
PROMETHEUS = """Host: 127.0.0.1:8080
User-Agent: Prometheus/2.42.0
Accept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1
X-Prometheus-Scrape-Timeout-Seconds: 10
Authorization: Bearer {}"""

#: Requests for the live page, and their header fields, in which `{}` is a token.
REQUESTS = [
    *[(f"GET {path} HTTP/1.1", BROWSER) for path in ("/", "/?token={}", "/main.js", "/api/job", "/a%2F..?x=1&x=2&y=")],
    ("GET /api/stream?after=17 HTTP/1.1", f"{BROWSER}\nAccept: text/event-stream\nLast-Event-ID: 12"),
    ("GET /metrics HTTP/1.1", PROMETHEUS),
    *[(f"{method} /healthz HTTP/1.{minor}", "host: [::1]:8080") for method, minor in (("HEAD", 0), ("GET", 1))],
    ("GET /readyz HTTP/1.1", "Host: paramserver.example:443\nHost: localhost"),
    ("GET http://localhost:8080/api/job#x HTTP/1.1", "Host: localhost\nAuthorization: Basic OmZmZg=="),
    ("POST /api/job HTTP/1.1", "Host: localhost\nContent-Type: multipart/form-data; boundary=x\nContent-Length: 3"),
    ("GET / HTTP/2.0", "Host: localhost"),
    ("GET //[x HTTP/1.1", "Host: localhost\n folded: x"),
    ("GET / HTTP/1.1", "\n".join(f"X-{number}: {number}" for number in range(101))),
]


class Recorder:
    """The calls of a server, as packets of the target `calls`; its messages, as those of `codec`; and its frames."""

    def __init__(self) -> None:
        self.calls: list[Packet] = []
        self.messages: list[Packet] = []
        self.frames: list[bytes] = []
        self._streams = 0

    def recorded(self, handlers: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """The handlers of a service, whose calls are recorded."""
        recorder = self

        class Recorded(grpc.GenericRpcHandler):  # type: ignore[misc]
            def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
                handler = handlers.service(details)
                return handler and recorder._wrapped(details.method.rpartition("/")[2], handler)

        return Recorded()

    def _wrapped(self, method: str, handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
        tag = METHODS.index(method)
        if method == "Transfer":
            tag, self._streams = STREAM + self._streams % STREAMS, self._streams + 1

        async def unary(request: bytes, context: Any) -> bytes:
            self.note(tag, request, is_request=True)
            answer: bytes = await handler.unary_unary(request, context)
            self.note(tag, answer, is_request=False)
            return answer

        async def stream(frames: object, context: Any) -> object:
            return await handler.stream_stream(frames, _Tap(context, self, tag))

        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(unary)
        return grpc.stream_stream_rpc_method_handler(stream)

    def note(self, tag: int, data: object, *, is_request: bool) -> None:
        """Note a request, a frame or an answer; not the end of a stream."""
        if not isinstance(data, bytes):
            return
        is_attach = tag >= STREAM and incoming(data).header.HasField(
            "attach"
        )  # there is no memory to share with a file
        if is_request and not is_attach:
            self.calls.append((tag, data))
        if tag < STREAM:
            unary = [method for method in METHODS if method != "Transfer"]
            self.messages.append((2 * unary.index(METHODS[tag]) + (not is_request), data))
            return
        self.frames.append(data)
        header = incoming(data).header
        if (piece := header.WhichOneof("piece")) is not None:
            found = [number for number, kind in codec.KINDS.items() if isinstance(getattr(header, piece), kind)]
            self.messages += [(number, getattr(header, piece).SerializeToString()) for number in found]


class _Tap:
    """The context of a stream, whose frames are noted."""

    def __init__(self, context: Any, recorder: Recorder, tag: int) -> None:
        self._context, self._recorder, self._tag = context, recorder, tag

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        data = await self._context.read()
        self._recorder.note(self._tag, data, is_request=True)
        return data

    async def write(self, data: bytes) -> None:
        self._recorder.note(self._tag, data, is_request=False)
        await self._context.write(data)


def recorded(program: str, policy: tuple[str, str], options: dict[str, str], folder: Path) -> Recorder:
    """Run a program in two workers; what the server has received and answered. `folder` has its files then."""
    recorder, handlers = Recorder(), Service.handlers
    shared = "PSWORKER_SHARED_MEMORY" in options
    config = ServerConfig(
        consistency=parse_consistency(policy[0]),
        staleness=parse_staleness(policy[1]),
        lease=60.0,
        shared_memory=shared,
        keep_memory=False,
        checkpoint_dir=folder,
        checkpoint_every=EverySteps(4),
        journal=True,
        keep_journal=True,
    )
    with (
        patch.object(ServerConfig, "job_key", lambda _: JOB_KEY),
        patch.object(secrets, "randbits", lambda _: IDENTITY - 1),  # of which the server makes the shard's identity
        patch.object(Service, "handlers", lambda service: recorder.recorded(handlers(service))),
        ServerThread(config) as server,
        ExitStack() as stack,
    ):
        environment = os.environ | {"PSWORKER_SERVERS": server.address} | options
        command = [sys.executable, "-c", program]
        workers = [
            stack.enter_context(subprocess.Popen(command, env=environment | {"PSWORKER_NAME": f"w{number}"}))
            for number in range(2)
        ]
        assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
        client = Client(server.address)
        client.status()
        intervention = ms.Intervene(
            by="operator",
            reason="to record it",
            stop=True,
            quarantine=("w0",),
            release=("w1",),
            scale_learning_rate=0.5,
        )
        for message in (intervention, ms.Restore(), ms.Reset(2)):
            client.unary(message)
        client.channel.close()
    return recorder


def inputs(policy: int, recorder: Recorder, folder: Path) -> list[tuple[str, bytes]]:
    """Target and input of all that was recorded."""
    calls, head = recorder.calls, bytes([policy])
    found = [("calls", head + pack(calls[:LONGEST])), ("calls", head + pack(calls[: LONGEST // 4]))]
    found += [("rpc", head + pack([call])) for call in calls]
    found += [("codec", pack([message])) for message in recorder.messages]
    found += [("frames", pack([(0, frame)])) for frame in recorder.frames]
    found += [("placements", pack([(0, frame)])) for frame in recorder.frames if b"\x32" in frame[:200]]
    journal = journal_folder(folder, 0, 1)
    for path in sorted(folder.glob("step-*/shard-0-of-1")):
        manifest = json.loads((path / "manifest.json").read_text())["manifest"]
        identity = int(manifest["state"]["identity"])
        state = ParseDict(manifest["state"], spb.ShardState())
        parts = [(0, json.dumps(manifest | {"state": {}}).encode()), (9, state.SerializeToString())]
        parts += [(tag, (path / name).read_bytes()) for tag, name in ARRAYS.items() if (path / name).exists()]
        run = json.loads((folder / "shard-0-of-1.json").read_text())["manifest"]
        parts.append((6, json.dumps(run | {"began_from": manifest["state"].get("cut", 0)}).encode()))
        found += [("state_files", pack(parts)), ("model_files", pack([(2, (path / ARRAYS[2]).read_bytes())]))]
        cut = int(manifest["state"].get("cut", 0))
        if cut in list_segments(journal):
            tail = [(7, bytes(record.payload)) for record in read_segments(journal, identity, cut)]
            found.append(("state_files", pack([*parts, *tail[:20]])))
            heads = [payload[4 : 4 + int.from_bytes(payload[:4], "little")] for _, payload in tail]
            found.append(("state_files", pack([*parts, *[(10, head) for head in heads[:20]]])))
            for _, payload in tail:
                end = 4 + int.from_bytes(payload[:4], "little")
                found.append(("records", pack([(0, payload[4:end]), (1, payload[end + -end % 16 :])])))
    return found


def page_requests() -> list[tuple[str, bytes]]:
    """Target and input of requests for the live page, by viewers with a token and without, and with a wrong role."""
    found = []
    for number, (start, fields) in enumerate(REQUESTS):
        for token in ("", TOKEN, OTHER):
            lines = [*f"{start}\n{fields}".replace("{}", token).split("\n"), ""]
            ends = number % 2  # CRLF, or LF alone
            for choice in (0, 1, 255):
                found.append(("http_requests", bytes([choice]) + pack([(ends, line.encode()) for line in lines])))
        found.append(("http_requests", bytes(1) + pack([(2, f"{start}\r\n{fields[:40]}".encode())])))
    return found


def write(folder: Path, target: str, data: bytes) -> None:
    """Write an input of a target."""
    path = folder / target / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def main(folder: Path) -> None:
    """Record all runs into folders by target."""
    for target, data in page_requests():
        write(folder, target, data)
    for program, policy, options in RUNS:
        with tempfile.TemporaryDirectory() as files:
            recorder = recorded(program, policy, options, Path(files))
            for target, data in inputs(POLICIES.index(policy), recorder, Path(files)):
                write(folder, target, data)
        print(policy, options, len(recorder.calls), "calls", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
