"""A message with one invalid field is refused as malformed, and the refusal names the field or variable."""

import math

import pytest

from pswire.codec import decode
from pswire.errors import Malformed
from pswire.tensors.inline import InlineReceiver
from pswire.v1 import paramserver_pb2 as pb


def sender():
    return pb.Sender(worker="w", incarnation=1)


def tensor(name="W", dtype="float32", shape=(2,), data=bytes(8), **place):
    return pb.Tensor(name=name, dtype=dtype, shape=shape, **(place or {"inline": data}))


def push(*gradients, **fields):
    return pb.PushRequest(**{"sender": sender(), "sequence": 1, "gradients": gradients, **fields})


def gradient(version=0, **fields):
    return pb.Gradient(tensor=tensor(**fields), version=version)


def rows(of=5, tensor_shape=(2,), **indices):
    """Two rows of a vector, and their numbers unless told otherwise."""
    fields = {"name": "", "dtype": "int32", **indices}
    return pb.Gradient(tensor=tensor(shape=tensor_shape), indices=tensor(**fields), rows=of)


def declaration(**optimizer):
    proto = pb.Declaration(tensor=tensor("W"))
    proto.optimizer.fields.SetInParent()
    proto.optimizer.fields.update(optimizer)
    return pb.RegisterRequest(sender=sender(), declarations=[proto])


def part(first, of, **fields):
    return pb.RegisterRequest(
        sender=sender(), declarations=[pb.Declaration(tensor=tensor(**fields), part=pb.Part(first=first, of=of))]
    )


def cosine(**fields):
    return {"kind": "cosine_decay", "initial": 1, "decay_steps": 10, "alpha": 0, **fields}


def joined(**fields):
    return pb.JoinReply(**{"incarnation": 1, "lease": 1.0, **fields})


def worker(**fields):
    return pb.StatusReply(shards=1, workers=[pb.WorkerStatus(**{"name": "w", "state": "live", **fields})])


def taken(**block):
    return pb.TakeReply(block=pb.Block(**{"epoch": 1, "stop": 1, **block}))


BAD = [
    (pb.JoinRequest(worker="", shards=1), "1 to 256 printable characters, got ''"),
    (pb.JoinRequest(worker="a\nb", shards=1), r"printable characters, got 'a\\nb'"),
    (pb.JoinRequest(worker="w", incarnation=-1, shards=1), "JoinRequest.incarnation must be at least 0, got -1"),
    (pb.JoinRequest(worker="w", shards=0), "shard must be at least 0 and below shards 0, got 0"),
    (joined(lease=math.nan), "JoinReply.lease must be at least 0.001, got nan"),
    (pb.RenewRequest(), "a name has 1 to 256"),
    (pb.RenewRequest(sender=pb.Sender(worker="w", incarnation=-2)), "Sender.incarnation must be at least 0, got -2"),
    (pb.PullRequest(sender=sender(), names=["a", ""]), "a name has 1 to 256"),
    (pb.PullRequest(sender=sender(), names=["a", "b", "a"]), "'a' is in the message more than once"),
    (push(sequence=0), "PushRequest.sequence must be at least 1, got 0"),
    (push(remote=[pb.RemoteWeights(name="V", served_at=-1)]), "RemoteWeights.served_at must be at least 0, got -1"),
    (push(after=[pb.ChangeId(sender=sender())]), "ChangeId.sequence must be at least 1, got 0"),
    (push(after=[pb.ChangeId(sender=sender(), sequence=1)] * 2), "is in the message more than once"),
    (push(shards=[1, -1]), "PushRequest.shards must be at least 0, got -1"),
    (push(pull=["W", "W"]), "'W' is in the message more than once"),
    (push(gradient(), gradient()), "'W' is in the message more than once"),
    (push(gradient(version=-1)), "Gradient.version must be at least 0, got -1"),
    (push(gradient(dtype="float128")), "variable 'W': dtype 'float128' is not one of"),
    (push(gradient(shape=(-1, -2))), "variable 'W': shape"),
    (push(gradient(shape=(1,) * 17)), "16 of them at most"),
    (push(gradient(shape=(2**62, 4))), "exceeds the address space"),
    (push(gradient(shape=(0, 2**62, 2**62), data=b"")), "exceeds the address space"),
    (push(gradient(shape=(3,))), r"W float32\[3\]: 12 bytes expected, there are 8"),
    (push(gradient(shape=(1,))), r"W float32\[1\]: 4 bytes expected, there are 8"),
    (push(gradient(shape=(0,))), "0 bytes expected, there are 8"),
    (push(gradient(streamed=True)), "its elements are not in the message"),
    (push(pb.Gradient(tensor=pb.Tensor(name="W", dtype="float32"))), "its elements are not in the message"),
    (push(gradient(dtype="bool", data=b"\1\2")), "a bool is sent as the byte 0 or 1"),
    (push(rows(of=-1)), "Gradient.rows must be at least 0, got -1"),
    (
        push(rows(shape=(1,), data=bytes(4))),
        r"gradient for variable 'W': .* values of shape \(n, \) .* \(2,\) and \(1,\)",
    ),
    (push(rows(shape=(1, 2))), r"gradient for variable 'W': .* indices of shape \(n,\), .* \(2,\) and \(1, 2\)"),
    (push(rows(tensor_shape=(1, 2))), r"gradient for variable 'W': .* \(1, 2\) and \(2,\)"),
    (
        push(
            pb.Gradient(
                tensor=tensor(shape=(), data=bytes(4)), indices=tensor(dtype="int32", shape=(1,), data=bytes(4))
            )
        ),
        r"gradient for variable 'W': .* are \(\) and \(1,\)",
    ),
    (push(rows(dtype="float32")), "gradient for variable 'W': IndexedSlices: indices must be integers, .* float32"),
    (push(rows(shape=(2**40,))), "4398046511104 bytes expected, there are 8"),
    (pb.PushReply(outcome=pb.OUTCOME_UNSPECIFIED), "PushReply.outcome cannot be 0"),
    (pb.PushReply(outcome=pb.OUTCOME_APPLIED, staleness=-1), "PushReply.staleness"),
    (pb.AssignRequest(sender=sender(), sequence=1, assignments=[tensor(), tensor()]), "more than once"),
    (pb.RegisterRequest(sender=sender(), declarations=[pb.Declaration(tensor=tensor())] * 2), "more than once"),
    (part(first=-1, of=5), "Part.first must be at least 0, got -1"),
    (part(first=4, of=5), r"variable W float32\[2\] does not fit into 5 rows from row 4 on"),
    (part(first=0, of=5, shape=(), data=bytes(4)), r"variable W float32\[\] does not fit into 5 rows from row 0 on"),
    (declaration(), "variable 'W': unknown optimizer None"),
    (declaration(kind="gradient_descent"), r"variable 'W': .*missing \['learning_rate'\]"),
    (declaration(kind="gradient_descent", learning_rate=-1), "variable 'W': .*learning_rate must be .*-1.0"),
    (declaration(kind="gradient_descent", learning_rate=math.inf), "learning_rate must be .*inf"),
    (declaration(kind="gradient_descent", learning_rate=None), "learning_rate cannot be a null_value"),
    (
        declaration(kind="gradient_descent", learning_rate={"x": 1}),
        "variable 'W': unknown schedule None; known kinds: ",
    ),
    (declaration(kind="gradient_descent", learning_rate=cosine(initial=-1)), "CosineDecay: initial must be .*-1.0"),
    (
        declaration(kind="gradient_descent", learning_rate=cosine(momentum=1)),
        r"cosine_decay: .* unknown \['momentum'\]",
    ),
    (pb.TakeRequest(sender=sender()), "a name has 1 to 256|Queue.size must be at least 1"),
    (pb.TakeRequest(sender=sender(), queue=pb.Queue(name="q", size=1, block=0, epochs=1)), "Queue.block must be"),
    (taken(start=1), "Block.start must be at least 0 and below stop 1, got 1"),
    (worker(state="dead"), "WorkerStatus.state cannot be 'dead'"),
]


@pytest.mark.parametrize(("proto", "reason"), BAD, ids=[f"{type(p).__name__}-{r[:40]}" for p, r in BAD])
def test_an_invalid_field_is_named(proto, reason):
    with pytest.raises(Malformed, match=reason):
        decode(type(proto).FromString(proto.SerializeToString()), InlineReceiver())


def test_a_long_list_of_names_is_searched_for_doubles_in_one_pass():
    names = [f"v{number}" for number in range(30_000)]
    with pytest.raises(Malformed, match="'v29999' is in the message more than once"):
        decode(pb.PullRequest(sender=sender(), names=[*names, names[-1]]), InlineReceiver())


@pytest.mark.parametrize("letter", ["w", "é", "名"])
def test_a_name_may_have_256_letters_of_any_alphabet(letter):
    longest = 256 * letter
    assert decode(pb.JoinRequest(worker=longest, shards=1), InlineReceiver()).worker == longest
    assert decode(pb.PullRequest(sender=sender(), names=[longest]), InlineReceiver()).names == (longest,)
    assert decode(push(gradient(name=longest)), InlineReceiver()).gradients[0].name == longest
