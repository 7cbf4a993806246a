"""docs/protocol.md, "The direct transport": a worker that is written by the page, of sockets, numbers and protobuf."""

import re
import socket
import struct
from pathlib import Path

import grpc
import numpy as np

from psserver.testing import serve
from pswire.v1 import paramserver_pb2 as pb

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("## The direct transport")[2].partition("\n## ")[0]


class Connection:
    """A direct connection, and the call of gRPC by which its worker becomes a member."""

    def __init__(self, address, worker="by-the-page"):
        with grpc.insecure_channel(address) as channel:
            join = channel.unary_unary("/paramserver.v1.ParameterServer/Join", None, pb.JoinReply.FromString)
            request = pb.JoinRequest(worker=worker, shards=1, process_nonce=7, name_key=bytes(32))
            self.joined = join(request.SerializeToString(), timeout=20)
        self.sender = pb.Sender(worker=worker, incarnation=self.joined.incarnation)
        self.socket = socket.create_connection(("127.0.0.1", self.joined.direct.port), 20)
        self.greeting = self.exactly(16)
        self.hello = message(pb.Hello(member=self.joined.token))

    def exactly(self, nbytes):
        data = b""
        while len(data) < nbytes:
            more = self.socket.recv(nbytes - len(data))
            assert more, f"the end after {data!r}"
            data += more
        return data

    def call(self, elements=b"", before=b"", **piece):
        self.socket.sendall(before + message(pb.Frame(**piece), elements))
        return self.answer()

    def answer(self):
        mark, header_bytes, element_bytes = struct.unpack("<4sIQ", self.exactly(16))
        assert mark == b"psd1"
        header = pb.Frame.FromString(self.exactly(header_bytes))
        assert not any(self.exactly(-header_bytes % 16))
        return header, self.exactly(element_bytes)

    def end(self):
        assert self.socket.recv(1) == b""
        self.socket.close()


def message(header, elements=b""):
    head = header.SerializeToString()
    return struct.pack("<4sIQ", b"psd1", len(head), len(elements)) + head + bytes(-len(head) % 16) + elements


def test_the_bytes_on_the_page_are_a_hello_and_the_greeting():
    [block] = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    shown = bytes.fromhex("".join(line.partition("     ")[0] for line in block.splitlines()))
    assert shown == message(pb.Hello(member=b"ab", shard=1))
    [greeting] = re.findall(r"16 bytes: .* \(([0-9a-f ]+)\)", PAGE)
    assert bytes.fromhex(greeting) == b"paramserver/1\r\n\0"


def test_every_call_and_answer_that_a_frame_of_a_direct_connection_may_have_is_on_the_page():
    pieces = {field.name for field in pb.Frame.DESCRIPTOR.oneofs_by_name["piece"].fields}
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| [56] \|.*$", PAGE, re.MULTILINE))))
    assert named - {"Frame"} == pieces - {"attach", "attached", "chunk", "refusal"}


def test_a_worker_written_by_the_page_trains_on_one_connection_and_is_told_why_a_call_is_refused():
    value, gradient = np.arange(300, dtype="<f4"), np.full(300, 2, "<f4")
    with serve() as servers:
        connection = Connection(servers.addresses[0])
        [greeting] = re.findall(r"16 bytes: .* \(([0-9a-f ]+)\)", PAGE)
        assert connection.greeting == bytes.fromhex(greeting)
        declaration = pb.Declaration(tensor={"name": "W", "dtype": "float32", "shape": [300], "streamed": True})
        declaration.optimizer.fields.update({"kind": "gradient_descent", "learning_rate": 0.25})
        register = pb.RegisterRequest(
            sender=connection.sender, declarations=[declaration], states=[connection.joined.state]
        )
        answer, _ = connection.call(value.tobytes(), connection.hello, register=register)
        [registered] = answer.registered.values
        push = pb.PushRequest(sender=connection.sender, sequence=1, pull=["W"])
        push.gradients.add(tensor=declaration.tensor, version=registered.version)
        answer, elements = connection.call(gradient.tobytes(), push=push)
        [fresh] = answer.pushed.values
        assert (fresh.tensor.name, fresh.tensor.WhichOneof("place")) == ("W", "streamed")
        assert np.array_equal(np.frombuffer(elements, "<f4"), value - np.float32(0.5))
        answer, _ = connection.call(renew=pb.RenewRequest(sender=connection.sender))
        assert answer.renewed.direct == connection.joined.direct

        answer, _ = connection.call(pull=pb.PullRequest(sender=connection.sender, names=["V"]))
        assert answer.refusal.error == "UnknownVariable"
        assert "'V'" in answer.refusal.message
        connection.end()


def test_what_is_no_message_of_this_protocol_is_refused_after_the_hello():
    with serve() as servers:
        for worker, wrong in {
            "another protocol": lambda _: b"PRI * HTTP/2.0\r\n\r\n",
            "a long header": lambda _: struct.pack("<4sIQ", b"psd1", (4 << 20) + (64 << 10) + 1, 0),
            "elements in the header": lambda _: message(pb.Frame(chunk=b"1")),
            "elements of no tensor": lambda sender: message(pb.Frame(renew=pb.RenewRequest(sender=sender)), b"1234"),
        }.items():
            connection = Connection(servers.addresses[0], worker)
            connection.socket.sendall(connection.hello + wrong(connection.sender))
            answer, _ = connection.answer()
            assert answer.refusal.error == "Malformed", worker
            connection.end()
