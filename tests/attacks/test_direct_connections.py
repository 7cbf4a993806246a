"""Direct connections of strangers, of members that send other bytes than they announce, and of slow or broken peers."""

import logging
import os
import socket
import struct
from contextlib import closing, suppress

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc import admission, service
from psserver.rpc import server as server_module
from psserver.rpc.deadline import Deadline
from psserver.rpc.direct.listener import STRANGERS
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.codec import to_frame
from pswire.security.credentials import NO_CREDENTIALS
from pswire.specs.consistency import Synchronous
from pswire.tensors import direct
from pswire.tensors.stream import StreamSender
from pswire.tensors.transport import MAX_INLINE_MESSAGE
from pswire.v1 import paramserver_pb2 as pb
from tests.support.combinations import few_fast, together
from tests.support.commands import wait_until
from tests.support.direct_connection import DirectConnection, bytes_of
from tests.support.servers import Certificates, Client

SMALL = np.ones(2000, np.float32)
LARGE = np.ones(MAX_INLINE_MESSAGE // 4 + 1000, np.float32)  # its elements do not come with its header


class Served:
    """A server whose direct connections, and bytes of calls in progress, are known."""

    def __init__(self, config, patch, credentials):
        self._credentials = credentials
        admissions, listeners = [], []
        for module, name, found in ((service, "Admission", admissions), (server_module, "DirectListener", listeners)):
            make = getattr(module, name)
            patch.setattr(module, name, lambda *args, make=make, found=found: found.append(make(*args)) or found[0])
        self._thread = ServerThread(config)
        self._admissions, self._listeners = admissions, listeners

    def __enter__(self):
        self.address = self._thread.__enter__().address
        self.client = Client(self.address, self._credentials)
        self.sender = self.client.join()
        self.client.register(self.sender, small=0 * SMALL, large=0 * LARGE)
        return self

    def __exit__(self, *error):
        self.client.channel.close()
        self._thread.__exit__(*error)

    @property
    def connections(self):
        return len(self._listeners[0]._tasks)

    @property
    def strangers(self):
        return len(self._listeners[0]._strangers)

    @property
    def held(self):
        return self._admissions[0]._used, self._admissions[0]._waiting

    def push(self, name="small", sequence=1, **fields):
        gradient = ms.Gradient(name, 0, {"small": SMALL, "large": LARGE}[name])
        return ms.Push(sender=self.sender, sequence=sequence, gradients=(gradient,), **fields)

    @property
    def pull(self):
        return ms.Pull(sender=self.sender, names=("small",))

    def versions(self):
        return [one.version for one in self.client.status().variables]


@pytest.fixture
def serve(monkeypatch):
    """A function that makes a server, of which nothing of a call and no connection may be left after the test."""

    def begin(*, credentials=NO_CREDENTIALS, **options):
        config = ServerConfig(grace=0.0, **{"lease": 60.0, "shared_memory": False} | options)
        served.append(Served(config, monkeypatch, credentials))
        return served[0].__enter__()

    served = []
    yield begin
    wait_until(lambda: not served[0].connections and served[0].held == (0, {}), lambda: served[0].held)
    served[0].__exit__(None, None, None)


@pytest.fixture
def server(serve):
    return serve()


@pytest.fixture
def connect(request):
    """A function that makes a direct connection of a server's client, which is closed at the end of the test."""
    made = []

    def make(server, *args, **options):
        made.append(DirectConnection(server.client, *args, **options))
        return made[-1]

    make.made = made
    request.getfixturevalue("serve")  # ends after this one
    yield make
    for one in made:
        one.close()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


# --- strangers --------------------------------------------------------------------------------------------------------


def test_of_connections_that_say_nothing_the_oldest_give_way_and_the_others_have_a_time(server, connect, monkeypatch):
    monkeypatch.setattr("psserver.rpc.direct.listener.STRANGERS", 3)
    before = descriptors()
    idle = [connect(server) for _ in range(8)]
    assert {one.rest() for one in idle[:5]} <= {direct.GREETING, b""}
    assert server.strangers == 3
    member = connect(server).greet()
    for sequence in range(1, 4):
        member.send(server.push(sequence=sequence))
        assert member.answer().outcome is ms.Outcome.APPLIED
        connect(server)  # each takes the place of an older one, and never that of a member
    assert server.strangers == 3
    monkeypatch.setattr("psserver.rpc.direct.listener.STRANGER_SECONDS", 0.05)
    assert connect(server).rest() == direct.GREETING, "its time is over"
    for one in connect.made:
        one.close()
    wait_until(lambda: descriptors() == before, descriptors)


HELLOS = {
    "another shard": ({"shard": 7}, errors.Unavailable, "a call for shard 7 has reached shard 0 of 1"),
    "no token": ({"member": b""}, errors.Unauthenticated, "a Transfer is for members"),
    "an invented token": ({"member": bytes(80)}, errors.Unauthenticated, "is not of this job"),
}


@together(("fields", "error", "text"), HELLOS.values(), ids=lambda case: case[2])
def test_a_hello_of_no_member_is_refused_with_the_reason(server, connect, fields, error, text):
    one = connect(server, **fields).greet()
    with pytest.raises(error, match=text):
        one.frame()
    assert one.frame() is None


NO_HELLOS = {
    "too large": b"".join(direct.message(pb.Hello(member=bytes(direct.MAX_HELLO)))),
    "no protobuf": b"".join(direct.message(pb.Hello()))[:4] + struct.pack("<IQ", 3, 0) + b"\xff" * 16,
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@together("data", NO_HELLOS.values())
def test_what_is_no_hello_ends_the_connection(server, connect, caplog, data):
    caplog.set_level(logging.INFO, "psserver.rpc.direct.listener")
    caplog.clear()
    one = connect(server)
    one.send(data)
    assert one.rest() in (direct.GREETING, b"")  # of a reset
    wait_until(lambda: [text for text in caplog.messages if text.startswith("no direct connection of ipv4:")])


def test_refused_connections_count_as_strangers_until_they_have_gone(server, connect, monkeypatch):
    """Or a stranger would have as many as it likes for some time each."""
    monkeypatch.setattr("psserver.rpc.direct.listener.STRANGERS", 3)
    monkeypatch.setattr("psserver.rpc.direct.connection.REFUSAL_SECONDS", 1000.0)
    refused = [connect(server, b"").greet() for _ in range(8)]
    for one in refused:
        with pytest.raises(errors.Unauthenticated):
            one.frame()
    wait_until(lambda: server.connections == 3)


def test_a_member_sends_its_own_messages_only(server, connect):
    one = connect(server).greet()
    other = server.client.join("other")
    one.send(ms.Pull(sender=other, names=()))
    with pytest.raises(errors.Unauthenticated, match="with the token of 'w0'"):
        one.answer()


@pytest.mark.slow
def test_a_member_trains_while_strangers_come_and_stay(server, connect):
    member = connect(server).greet()
    for sequence in range(1, 101):
        for _ in range(3):
            connect(server)
        connect(server, b"").greet()
        member.send(server.push(sequence=sequence))
        assert member.answer().outcome is ms.Outcome.APPLIED
        assert server.strangers <= STRANGERS + 1
    assert server.versions() == [100, 0]


def test_tls_handshakes_that_stall_end_and_a_client_without_tls_reads_nothing(serve, connect, tmp_path, monkeypatch):
    monkeypatch.setattr("psserver.rpc.direct.listener.STRANGER_SECONDS", 0.1)
    certificates = Certificates(tmp_path / "c")
    credentials = certificates.client()
    server = serve(credentials=credentials, **certificates.server)
    silent, begun, plain = connect(server), connect(server), connect(server)
    begun.send(bytes.fromhex("16030100c8010000c4"))  # of a ClientHello
    plain.send(b"".join(direct.message(pb.Hello(member=server.client.tokens.of()))))
    assert [silent.rest(), begun.rest()] == [b"", b""]
    assert direct.GREETING[:4] not in plain.rest()
    whole = connect(server)
    whole.socket = credentials.context().wrap_socket(whole.socket, server_hostname="127.0.0.1")
    whole.greet().send(server.push())
    assert whole.answer().outcome is ms.Outcome.APPLIED
    assert whole.socket.version() == "TLSv1.3"


# --- messages of members ----------------------------------------------------------------------------------------------


def message_with(message, elements):
    """The bytes of a message whose prefix announces other elements than its tensors have; these follow."""
    sender = StreamSender(few=0)
    head = to_frame(message, sender).SerializeToString()
    data = b"".join(sender.data)
    data = data[:elements] + bytes(max(0, elements - len(data)))
    return raw(head, data)


def raw(head, data=b"", *, announced=None, mark=b"psd1"):
    elements = len(data) if announced is None else announced
    return struct.pack("<4sIQ", mark, len(head), elements) + head + bytes(-len(head) % 16) + data


NOTHING = ms.Pull(sender=ms.Sender("w0", 1), names=())
ATTACH = pb.Frame(attach=pb.AttachRequest(segment=0, nbytes=4096)).SerializeToString()
MALFORMED = {
    "fewer elements": (lambda at: message_with(at.push(), SMALL.nbytes - 4), "ends before its elements"),
    "none": (lambda at: message_with(at.push(), 0), r"of 8000 bytes were declared, but 0 bytes follow"),
    "more elements": (lambda at: message_with(at.push(), SMALL.nbytes + 4), "but 8004 bytes were received"),
    "many more": (lambda at: message_with(at.push(), LARGE.nbytes), f"8000 bytes .*, but {LARGE.nbytes} bytes follow"),
    "a call behind": (
        lambda at: message_with(at.push(), SMALL.nbytes + len(bytes_of(NOTHING))),
        "bytes were received",
    ),
    "fewer elements of a large one": (
        lambda at: message_with(at.push("large"), LARGE.nbytes - 4),
        f"{LARGE.nbytes} bytes were declared, but {LARGE.nbytes - 4} bytes follow",
    ),
    "few of a large one": (lambda at: message_with(at.push("large"), 4096), "ends before its elements"),
    "more of a large one": (
        lambda at: message_with(at.push("large"), LARGE.nbytes + 4),
        f"{LARGE.nbytes} bytes were declared, but {LARGE.nbytes + 4} bytes follow",
    ),
    "2^63 elements": (
        lambda at: raw(to_frame(at.push("large"), StreamSender(few=0)).SerializeToString(), announced=1 << 63),
        f"but {1 << 63} bytes follow",
    ),
    "elements of a call without": (
        lambda at: raw(to_frame(at.pull, StreamSender()).SerializeToString(), b"1234"),
        "4 ",
    ),
    "many of these": (
        lambda at: raw(to_frame(at.pull, StreamSender()).SerializeToString(), announced=LARGE.nbytes),
        f"of 0 bytes were declared, but {LARGE.nbytes} bytes follow",
    ),
    "elements of a request for memory": (lambda at: raw(ATTACH, b"1234"), "but 4 bytes were received"),
    "a header of 4 GB": (
        lambda at: struct.pack("<4sIQ", b"psd1", 0xFFFFFFFF, 0),
        "has .* bytes at most, this one 4,294",
    ),
    "another mark": (lambda at: raw(b"", mark=b"psd2"), "begins otherwise"),
    "no header": (lambda at: raw(b""), "begins with a message, this one with nothing"),
    "no protobuf": (lambda at: raw(b"\xff" * 40), "not a paramserver.v1.Frame"),
    "elements in the header": (
        lambda at: raw(to_frame(at.pull, StreamSender()).SerializeToString() + b"\x82\x01\x04abcd"),
        "the header of a direct message has no elements",
    ),
    "a chunk": (lambda at: raw(pb.Frame(chunk=b"abcd").SerializeToString()), "the header of a direct message has no"),
    "a refusal": (lambda at: raw(pb.Frame(refusal=pb.Refusal(error="x")).SerializeToString()), "Refusal|request"),
    "an answer": (lambda at: raw(pb.Frame(pushed=pb.PushReply()).SerializeToString()), "an answer, not a request"),
}


@together(("data", "text"), MALFORMED.values(), ids=lambda case: case[1])
def test_a_message_whose_lengths_or_header_are_wrong_is_refused_and_applied_in_no_part(server, connect, data, text):
    one = connect(server).greet()
    with suppress(ConnectionError):
        one.send(data(server), server.push(sequence=2))
    with pytest.raises(errors.Malformed, match=text):
        one.answer()
    assert one.frame() is None, "what came behind is no call"
    assert server.versions() == [0, 0]


def test_a_message_has_room_before_its_bytes_are_read(serve, connect, monkeypatch):
    monkeypatch.setattr(admission, "MIN_SMALL_BYTES", 1 << 20)
    server = serve(memory_limit=40 << 20)
    server._admissions[0]._used += 20 << 20
    try:
        one = connect(server).greet()
        one.send(struct.pack("<4sIQ", b"psd1", 4 << 20, 0))
        with pytest.raises(errors.Unavailable, match="no room for a call of 4,194,3"):
            one.frame()
    finally:
        server._admissions[0]._used -= 20 << 20


def test_large_elements_are_refused_by_their_header_before_they_come(server, connect):
    one = connect(server).greet()
    tensor = pb.Tensor(name="large", dtype="float32", shape=(1 << 40,), streamed=True)
    push = pb.PushRequest(sender=pb.Sender(worker="w0", incarnation=1), sequence=1, gradients=[pb.Gradient()])
    push.gradients[0].tensor.CopyFrom(tensor)
    one.send(raw(pb.Frame(push=push).SerializeToString(), announced=4 << 40))
    with pytest.raises(errors.InvalidMessage, match="large"):
        one.frame()


def test_calls_that_come_before_the_answer_to_the_first_are_served_one_after_the_other(server, connect):
    one = connect(server).greet()
    one.send(*[server.push(sequence=sequence) for sequence in range(1, 101)])
    found = [one.answer() for _ in range(100)]
    assert [answer.outcome for answer in found] == [ms.Outcome.APPLIED] * 100
    one.send(server.push("large", 101), server.push(sequence=102))
    assert [one.answer().outcome for _ in range(2)] == [ms.Outcome.APPLIED] * 2
    assert server.versions() == [101, 1]


def test_a_member_has_so_many_direct_connections(server, connect, monkeypatch):
    monkeypatch.setattr("psserver.rpc.streams.STREAMS_OF_A_MEMBER", 2)
    for _ in range(2):
        one = connect(server).greet()
        one.send(server.pull)
        assert one.answer().values[0].array.size == SMALL.size
    with pytest.raises(errors.Unavailable, match="worker 'w0' has 2 streams open"):
        connect(server).greet().answer()


# --- slow and broken peers --------------------------------------------------------------------------------------------

PUSH, LARGE_PUSH = (lambda at: bytes_of(at.push())), (lambda at: bytes_of(at.push("large")))
PARTS = {
    "of a prefix": (PUSH, 7),
    "of large elements": (LARGE_PUSH, 1 << 20),
    "of a header": (PUSH, 30),
    "of elements": (PUSH, 4000),
    "without an element": (LARGE_PUSH, 112),
}


@pytest.mark.parametrize(("data", "nbytes"), few_fast(PARTS.values(), 2, slow=3, ids=PARTS))
def test_a_part_of_a_message_ends_in_time_and_changes_nothing(serve, connect, monkeypatch, data, nbytes):
    for module in ("psserver.rpc.service", "psserver.rpc.direct.connection"):
        monkeypatch.setattr(f"{module}.Deadline", lambda seconds: Deadline(seconds / 1000))
    monkeypatch.setattr("psserver.rpc.deadline.LEAST_RATE", 1 << 40)
    server = serve()
    one = connect(server).greet()
    one.send(data(server)[:nbytes])
    with pytest.raises(errors.TimedOut, match=r"stalled for 0\.06 s"):
        one.frame()
    assert server.versions() == [0, 0]


STAGES = {
    "greeting": lambda at, one: None,
    "half a Hello": lambda at, one: one.send(b"".join(direct.message(one._hello))[:20]),
    "hello": lambda at, one: one.greet(),
    **{name: lambda at, one, part=part: one.greet().send(part[0](at)[: part[1]]) for name, part in PARTS.items()},
    "answer": lambda at, one: one.greet().send(ms.Pull(sender=at.sender, names=("large",))),
    "large answer": lambda at, one: (one.greet().send(ms.Pull(sender=at.sender, names=("large",))), one.read(100_000)),
}


@pytest.mark.parametrize("how", few_fast(["reset", "close"]))
def test_a_connection_that_breaks_at_any_moment_leaves_nothing(server, connect, how):
    before = descriptors()
    for stage in STAGES.values():
        one = connect(server)
        stage(server, one)
        getattr(one, how)()
    wait_until(lambda: not server.connections)
    assert (server.versions(), server.held) == ([0, 0], (0, {}))
    wait_until(lambda: descriptors() == before, descriptors)


def test_a_call_that_waits_for_others_ends_with_its_connection(serve, connect):
    server = serve(consistency=Synchronous(2))
    one = connect(server).greet()
    one.send(server.push())
    wait_until(lambda: server.client.status().workers[0].waiting_for)
    one.reset()
    wait_until(lambda: not server.connections)


def test_an_answer_that_is_not_read_ends_in_time_without_a_byte_behind_its_part(serve, connect, monkeypatch):
    """A refusal there would be taken for elements."""
    server = serve()
    huge = np.arange(4 << 20, dtype=np.float32)
    server.client.register(server.sender, huge=huge)
    monkeypatch.setattr("psserver.rpc.service.Deadline", lambda seconds: Deadline(seconds / 600))
    monkeypatch.setattr("psserver.rpc.deadline.LEAST_RATE", 1 << 40)
    one = connect(server).greet()
    one.send(ms.Pull(sender=server.sender, names=("huge",)))
    wait_until(lambda: server.held != (0, {}))
    assert server.client.value(server.sender, "small").size == SMALL.size, "another call is answered"
    wait_until(lambda: not server.connections)
    found = one.rest()
    assert len(found) < huge.nbytes
    place = direct.lengths(found).begin
    assert found[place:] == huge.tobytes()[: len(found) - place]


@pytest.mark.parametrize("how", few_fast(["left", "replaced"]))
def test_the_connections_of_a_worker_end_when_it_is_no_member_any_more(serve, connect, monkeypatch, how):
    monkeypatch.setattr("psserver.runtime.clock.TICK", 0.01)
    server = serve()
    client, token = server.client, server.client.tokens.of()
    other = client.join("other")
    connections = [connect(server, one).greet() for one in (token, token, client.tokens.of())]
    wait_until(lambda: server.connections == 3 and not server.strangers)
    if how == "left":
        client.unary(ms.Leave(server.sender))
    else:
        server.sender = client.join()
    for one in connections[:2]:
        with pytest.raises((errors.NotJoined, errors.Zombie), match=r"has left|has joined since"):
            one.answer()
    connections[2].send(ms.Pull(sender=other, names=()))
    assert connections[2].answer().global_step == 0


def test_a_server_that_stops_ends_idle_connections_with_the_reason(serve, connect):
    server = serve()
    one = connect(server).greet()
    one.send(server.pull)
    one.answer()
    with closing(one):
        server._thread._started.result()[1]()  # as Ctrl-C
        try:
            found = one.frame()
        except errors.Unavailable as error:
            found = str(error)
    assert found is None or "stop" in found


def test_a_socket_of_this_host_carries_the_same(serve, connect, tmp_path):
    server = serve(bind=f"unix:{tmp_path}/s", shared_memory=True)
    one = connect(server).greet()
    assert one.socket.family == socket.AF_UNIX
    one.send(server.push(pull=("small",)))
    np.testing.assert_array_equal(one.answer().values[0].array, -SMALL)
