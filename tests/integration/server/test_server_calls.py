"""Calls to a server over gRPC: what they do, how bad ones are refused, and that it serves on afterwards."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.core.shard import Shard
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire.codec import decode, encode
from pswire.messages import (
    Assign,
    Assignment,
    Declaration,
    Finished,
    Gradient,
    Join,
    Leave,
    Outcome,
    Pull,
    Push,
    QueueSpec,
    Register,
    Renew,
    Sender,
    Take,
)
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.tensors.values import TensorSpec

W = np.arange(6, dtype=np.float32).reshape(2, 3)
QUEUE = QueueSpec("train", size=10, block=10, epochs=1)


@pytest.fixture
def server():
    with ServerThread(ServerConfig(lease=60.0)) as server:
        yield server


@pytest.fixture
def sender(client):
    """A worker that has joined and registered `w`, a float32[2, 3]."""
    sender = client.join()
    client.register(sender, w=W)
    return sender


def push(sender, sequence=1, name="w", array=W, version=0, **fields):
    return Push(sender, sequence, (Gradient(name, version, array),), **fields)


def as_proto(message):
    return encode(message, InlineSender())


def edited(message, edit):
    proto = as_proto(message)
    edit(proto)
    return proto


def with_tensor(sender, edit):
    """A push whose gradient has an edited protobuf."""
    return edited(push(sender), lambda proto: edit(proto.gradients[0].tensor))


BAD = {
    "unknown variable": (lambda s: push(s, pull=("v",)), errors.UnknownVariable, "no variable 'v'"),
    "wrong shape": (lambda s: push(s, array=W.T), errors.ShapeMismatch, r"'w' is float32\[3, 2\].* float32\[2, 3\]"),
    "NaN": (lambda s: push(s, array=W * np.nan), errors.NotFinite, "'w' has 6 of 6 elements"),
    "version of the future": (lambda s: push(s, version=1), errors.InvalidMessage, "'w' at version 1"),
    "the same gradient twice": (
        lambda s: edited(push(s), lambda proto: proto.gradients.append(proto.gradients[0])),
        errors.Malformed,
        "'w' is in the message more than once",
    ),
    "too few bytes inline": (
        lambda s: with_tensor(s, lambda tensor: setattr(tensor, "inline", b"123")),
        errors.Malformed,
        r"float32\[2, 3\].*24 bytes.* 3",
    ),
    "terabytes announced": (
        lambda s: with_tensor(s, lambda tensor: tensor.shape.__setitem__(slice(None), [1 << 20, 1 << 20])),
        errors.Malformed,
        "4398046511104 bytes.* 24",
    ),
    "no bytes at all": (
        lambda s: with_tensor(s, lambda tensor: tensor.ClearField("place")),
        errors.Malformed,
        r"float32\[2, 3\].*not in the message",
    ),
    "a worker that never joined": (lambda s: push(Sender("w9", 1)), errors.NotJoined, "'w9' has not joined"),
    "another shape registered": (
        lambda s: Register(s, (Declaration(TensorSpec("w", (7,)), np.zeros(7, "f4")),)),
        errors.AlreadyRegistered,
        r"registered as float32\[2, 3\], this worker declares float32\[7\]",
    ),
    "a shard of another job": (lambda s: Join("w1", 0, 1, 2), errors.WrongShard, "shard"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD)
def test_bad_input_is_refused_with_its_error_and_the_server_serves_on(case, client, sender):
    make, kind, text = case
    bad = make(sender)
    method, proto = (type(bad).__name__, as_proto(bad)) if not hasattr(bad, "DESCRIPTOR") else ("Push", bad)
    with pytest.raises(errors.ParamServerError, match=text) as caught:
        client.send(method, proto)
    assert type(caught.value) is kind
    np.testing.assert_array_equal(client.value(sender, "w"), W)
    assert client.unary(push(sender)).outcome is Outcome.APPLIED


@pytest.mark.parametrize("method", ["Join", "Push"])
def test_garbage_is_malformed_whatever_it_claims_to_be(method, client, sender):
    with pytest.raises(errors.Malformed, match=rf"4 bytes that are not a paramserver.v1.{method}Request"):
        client.send_bytes(method, b"\xff\xfe\xfd\xfc")
    with pytest.raises(errors.ConfigurationError, match="not a parameter server, or runs a different version"):
        client.send_bytes("Guess", b"")
    assert client.unary(Renew(sender)).global_step == 0


@pytest.mark.parametrize("tensor_transport", ["unary", "transfer"])
def test_a_push_that_is_retried_is_applied_once_and_answered_with_fresh_values(tensor_transport, client, sender):
    call = getattr(client, tensor_transport)
    first = call(push(sender, array=np.ones_like(W), pull=("w",)))
    client.unary(Assign(client.join("w1"), 1, (Assignment("w", W),)))
    again = call(push(sender, array=np.ones_like(W), pull=("w",)))
    assert (first.outcome, again.outcome) == (Outcome.APPLIED, Outcome.REPEATED)
    np.testing.assert_array_equal(first.values[0].array, W - 1)
    np.testing.assert_array_equal(again.values[0].array, W)
    assert client.status().global_step == 1


def test_messages_too_large_for_one_call_are_refused_before_anything_is_done(client, sender):
    client.register(sender, large=np.zeros((1 << 18) + 1, np.float64))
    with pytest.raises(errors.TooLarge, match=r"2,097,160 bytes of values.*use Transfer"):
        client.unary(push(sender, pull=("large",)))
    beyond_grpc = with_tensor(sender, lambda tensor: setattr(tensor, "inline", bytes(5 << 20)))
    with pytest.raises(errors.TooLarge):
        client.send_bytes("Push", beyond_grpc.SerializeToString())
    np.testing.assert_array_equal(client.value(sender, "w"), W)
    assert client.transfer(push(sender, pull=("large",))).outcome is Outcome.APPLIED
    assert client.status().global_step == 1


def test_a_pending_take_is_answered_when_the_other_worker_is_done(client, sender):
    other = client.join("w1")
    block = client.unary(Take(sender, QUEUE)).block
    pending = park(client, Take(other, QUEUE), behind=sender)
    assert client.unary(Take(sender, QUEUE, Finished(block.number))).done
    answer = decode(pending.result(), InlineReceiver())
    while answer.waiting_for:  # a Take that waits for some seconds gets the names of others, and is sent again
        answer = client.unary(Take(other, QUEUE))
    assert answer.done


def test_a_pending_take_that_is_cancelled_leaves_the_block_to_the_next(client, sender):
    other, third = client.join("w1"), client.join("w2")
    block = client.unary(Take(sender, QUEUE)).block
    park(client, Take(other, QUEUE), behind=sender).cancel()
    client.unary(Leave(other))
    client.unary(Leave(sender))
    assert client.unary(Take(third, QUEUE)).block == block


def park(client, take, behind):
    """Sends a Take that must wait, and returns its call once the shard has it: its lease is the younger one then."""
    call = client.stub.Take.future(as_proto(take), timeout=30)
    left = {}
    while not left or left[take.sender.worker] <= left[behind.worker]:
        left = {worker.name: worker.lease_left for worker in client.status().workers}
    return call


@pytest.mark.parametrize(("tensor_transport", "pushes", "shape"), [("unary", 25, (3,)), ("transfer", 5, (1 << 18,))])
def test_no_push_of_several_threads_is_lost_or_doubled(tensor_transport, pushes, shape, server, connect, client):
    client.register(client.join(), w=np.zeros(shape))

    def work(number):
        own = connect(server)
        sender = own.join(f"pusher-{number}")
        for sequence in range(1, pushes + 1):
            getattr(own, tensor_transport)(push(sender, sequence, array=np.full(shape, -float(number))))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))
    status = client.status()
    assert status.global_step == status.variables[0].version == 4 * pushes
    np.testing.assert_array_equal(client.value(client.join(), "w"), np.full(shape, 10.0 * pushes))


def test_a_failure_of_the_server_itself_is_logged_and_answered_with_a_reference(client, sender, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(Shard, "answer_bytes", lambda self, message, **_: 1 // 0)
        with pytest.raises(errors.InternalError, match="the server failed on this message") as caught:
            client.unary(Pull(sender, ("w",)))
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info[0] is ZeroDivisionError
    assert record.args[0] in str(caught.value)
    assert "ZeroDivisionError" not in str(caught.value)
    caplog.clear()
    assert client.unary(push(sender)).outcome is Outcome.APPLIED
