"""Messages of more parts than a job has: refused before anything is made of them, and others are served on."""

import threading
from contextlib import closing

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc import service
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire.limits import MAX_CHOICES, MAX_ENTRIES, MAX_SMALL_REQUEST
from pswire.messages import Declaration
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from psworker.client.client import Client as WorkerClient
from psworker.transport.network_transport import NetworkTransport
from psworker.versions import VersionedArray
from tests.support.combinations import few_fast
from tests.support.servers import Client

TOO_MANY = MAX_ENTRIES + 1
W = np.zeros(2, np.float32)


@pytest.fixture(scope="module")
def server():
    with ServerThread(ServerConfig(lease=60.0)) as server:
        yield server


@pytest.fixture
def decoded(monkeypatch):
    """The messages that the server decodes, by the names of their protobufs."""
    names = []
    for name in ("decode", "from_frame"):
        whole = getattr(service, name)

        def record(proto, receiver, whole=whole):
            names.append(type(proto).__name__)
            return whole(proto, receiver)

        monkeypatch.setattr(service, name, record)
    return names


@pytest.fixture
def client(server):
    client = Client(server.address)
    yield client
    client.channel.close()


def huge(sender):
    """By method, a request with more entries than any job has, most of them of no use."""
    sender = pb.Sender(worker=sender.worker, incarnation=sender.incarnation)
    tensor = pb.Tensor(name="v", dtype="float32", shape=[1], inline=bytes(4))
    return {
        "Pull": pb.PullRequest(sender=sender, choices=[pb.Choice(name="W")] * 222_000),
        "Register": pb.RegisterRequest(sender=sender, declarations=[pb.Declaration(tensor=tensor)] * TOO_MANY),
        "Push": pb.PushRequest(sender=sender, sequence=1, gradients=[pb.Gradient(tensor=tensor)] * TOO_MANY),
        "Assign": pb.AssignRequest(sender=sender, sequence=1, assignments=[pb.Assignment(tensor=tensor)] * TOO_MANY),
        "Tune": pb.TuneRequest(sender=sender, sequence=1, names=map("v{}".format, range(TOO_MANY))),
    }


def legal(sender):
    """The same with as many entries as are legal."""
    found = huge(sender)
    for method, proto in found.items():
        del getattr(proto, LISTS[method])[MAX_CHOICES if method == "Pull" else MAX_ENTRIES :]
    return found


LISTS = {
    "Pull": "choices",
    "Register": "declarations",
    "Push": "gradients",
    "Assign": "assignments",
    "Tune": "names",
}
FIELDS = {
    "Pull": f"PullRequest.choices has {MAX_CHOICES:,} entries at most, ",
    "Register": f"RegisterRequest.declarations has {MAX_ENTRIES:,} entries at most, ",
    "Push": f"PushRequest.gradients has {MAX_ENTRIES:,} entries at most, ",
    "Assign": f"AssignRequest.assignments has {MAX_ENTRIES:,} entries at most, ",
    "Tune": f"TuneRequest.names has {MAX_ENTRIES:,} entries at most, ",
}
COUNTS = r"(got [\d,]+|and these [\d,]+ bytes have more)"
PIECES = ("Pull", "Register", "Push", "Assign")


@pytest.mark.parametrize("method", few_fast(FIELDS, slow=2))
def test_a_request_of_nobody_who_has_joined_is_refused_before_it_is_decoded(client, decoded, method):
    proto = legal(pb.Sender(worker="stranger", incarnation=1))[method]
    large = proto.ByteSize() > MAX_SMALL_REQUEST
    with pytest.raises(
        errors.Unauthenticated, match="bytes from a caller that has not joined" if large else "without the token"
    ):
        client.send(method, proto)
    if method in PIECES:
        with pytest.raises(errors.Unauthenticated, match="join first"):
            next(client.send_frames([pb.Frame(**{method.lower(): proto})]))
    assert decoded == []


@pytest.mark.parametrize("method", few_fast(FIELDS, slow=2))
def test_too_many_entries_of_a_member_are_refused_with_field_count_and_limit_and_it_is_served_on(client, method):
    me = client.join(f"w-{method}")
    client.register(me, **{method: W})
    proto = huge(me)[method]
    with pytest.raises(errors.Malformed, match=FIELDS[method] + COUNTS):
        client.send(method, proto)
    if method in PIECES:
        with pytest.raises(errors.Malformed, match=FIELDS[method] + COUNTS):
            next(client.send_frames([pb.Frame(**{method.lower(): proto})]))
    np.testing.assert_array_equal(client.value(me, method), W)


@pytest.mark.parametrize("method", ["Join", "Renew", "Leave", "Take", "Barrier", "Stop", "Cut", "Restore", "Status"])
def test_a_request_without_lists_of_variables_is_not_even_parsed_when_it_is_large(client, decoded, method):
    rest = pb.Sender(worker=MAX_SMALL_REQUEST * "x").SerializeToString()
    with pytest.raises(errors.TooLarge, match=f"{method}Request has 65,536 bytes at most, got 65,"):
        client.send_bytes(method, rest)
    assert decoded == []


def test_what_people_read_has_no_codes_that_a_terminal_would_obey(client):
    me = client.join("w")
    for kind, fields in {
        "Stop": {"reason": "\x1b[2J"},
        "Renew": {"tensor_transport": "gRPC\nworker 'w0' left"},
    }.items():
        proto = getattr(pb, f"{kind}Request")(sender=pb.Sender(worker="w", incarnation=me.incarnation), **fields)
        with pytest.raises(errors.Malformed, match="has characters that cannot be printed"):
            client.send(kind, proto)
    assert client.status().stopped == ""


def test_a_tensor_transport_has_64_characters_at_most(client):
    with pytest.raises(errors.Malformed, match=r"JoinRequest\.tensor_transport has 64 characters at most, got 65"):
        client.send("Join", pb.JoinRequest(worker="w", shards=1, tensor_transport=65 * "x"))
    me = client.join("w")
    renew = pb.RenewRequest(sender=pb.Sender(worker="w", incarnation=me.incarnation), tensor_transport=65 * "x")
    with pytest.raises(errors.Malformed, match=r"RenewRequest\.tensor_transport has 64 characters at most, got 65"):
        client.send("Renew", renew)


@pytest.mark.slow
@pytest.mark.parametrize("count", few_fast([1500, 20_000], slow=0))
def test_an_honest_job_of_many_variables_is_served_in_threads_of_the_server(server, monkeypatch, count):
    threads = []
    for name in ("parse", "decode", "from_frame", "to_frame"):
        whole = getattr(service, name)

        def record(*arguments, name=name, whole=whole):
            threads.append((name, threading.current_thread().name.startswith("psserver-convert")))
            return whole(*arguments)

        monkeypatch.setattr(service, name, record)
    names = [f"layers/{'x' * (180 if count < 20_000 else 20)}/kernel-{count}-{number}" for number in range(count)]
    ones = {name: np.full(1, number, np.float32) for number, name in enumerate(names)}
    declared = [Declaration(TensorSpec(name, (1,)), one, GradientDescent(1.0)) for name, one in ones.items()]
    with closing(WorkerClient(NetworkTransport([server.address]), f"honest-{count}", 120.0)) as worker:
        worker.join()
        known = worker.register(declared)
        threads.clear()
        gradients = [VersionedArray(value.name, value.read, np.ones(1, np.float32)) for value in known]
        values = worker.push(gradients, None, pull=names).result().values
    assert [value.array[0] for value in values] == [number - 1 for number in range(count)]
    assert {name for name, aside in threads if aside} == {"parse", "from_frame", "to_frame"}
    assert [name for name, aside in threads if not aside and name != "parse"] == []
