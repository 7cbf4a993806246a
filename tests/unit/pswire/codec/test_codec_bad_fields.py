"""A message with one invalid field is refused as malformed, and the refusal names the field or variable."""

import math

import pytest

from pswire.codec import decode
from pswire.errors import Malformed
from pswire.tensors.transport import InlineReceiver
from pswire.v1 import paramserver_pb2 as pb

ME = pb.Sender(worker="w", incarnation=1)
SGD = {"kind": "gradient_descent"}


def tensor(name="W", dtype="float32", shape=(2,), data=bytes(8), **place):
    return pb.Tensor(name=name, dtype=dtype, shape=shape, **(place or {"inline": data}))


def push(*gradients, **fields):
    return pb.PushRequest(**{"sender": ME, "sequence": 1, "gradients": gradients, **fields})


def gradient(version=0, **fields):
    return push(pb.Gradient(tensor=tensor(**fields), version=version))


def rows(of=5, **indices):
    """Two rows of a vector, and their numbers unless told otherwise."""
    return push(pb.Gradient(tensor=tensor(), indices=tensor(**{"name": "", "dtype": "int32", **indices}), rows=of))


def declaration(optimizer=None, first=0, of=5, **fields):
    proto = pb.Declaration(tensor=tensor(**fields), part=pb.Part(first=first, of=of))
    if optimizer is not None:
        proto.optimizer.fields.SetInParent()
        proto.optimizer.fields.update(optimizer)
    return pb.RegisterRequest(sender=ME, declarations=[proto])


INT8 = pb.Packing(form="int8", parts=[tensor(), tensor(shape=())])
NAMELESS = pb.Queue(size=1, block=1, epochs=1)
BAD = [
    (pb.JoinRequest(worker="", shards=1), "1 to 256 printable characters, got ''"),
    (pb.JoinRequest(worker="a\nb", shards=1), r"printable characters, got 'a\\nb'"),
    (pb.JoinRequest(worker="w", incarnation=-1, shards=1), "JoinRequest.incarnation must be at least 0, got -1"),
    (pb.JoinRequest(worker="w", shards=0), "shard must be at least 0 and below shards 0, got 0"),
    (pb.JoinReply(incarnation=1, lease=math.nan), "JoinReply.lease must be at least 0.001, got nan"),
    (pb.RenewRequest(), "a name has 1 to 256"),
    (pb.RenewRequest(sender=pb.Sender(worker="w", incarnation=-2)), "Sender.incarnation must be at least 0, got -2"),
    (pb.PullRequest(sender=ME, names=["a", ""]), "a name has 1 to 256"),
    (pb.PullRequest(sender=ME, names=["a", "b", "a"]), "'a' is in the message more than once"),
    (pb.PullRequest(sender=ME, choices=[pb.Choice(name="W", rows=tensor())]), "row numbers of 'W' must be integers"),
    (push(sequence=0), "PushRequest.sequence must be at least 1, got 0"),
    (push(after=[pb.ChangeId(sender=ME)]), "ChangeId.sequence must be at least 1, got 0"),
    (push(after=[pb.ChangeId(sender=ME, sequence=1)] * 2), "is in the message more than once"),
    (push(shards=[1, -1]), "PushRequest.shards must be at least 0, got -1"),
    (push(known_versions=[-2]), "PushRequest.known_versions must be at least -1, got -2"),
    (push(gradient().gradients[0], gradient().gradients[0]), "'W' is in the message more than once"),
    (gradient(version=-1), "Gradient.version must be at least 0, got -1"),
    (gradient(dtype="float128"), "variable 'W': dtype 'float128' is not one of"),
    (gradient(shape=(-1, -2)), "variable 'W': shape"),
    (gradient(shape=(1,) * 17), "16 of them at most"),
    (gradient(shape=(2**62, 4)), "exceeds the address space"),
    (gradient(shape=(0, 2**62, 2**62), data=b""), "exceeds the address space"),
    (gradient(shape=(3,)), r"W float32\[3\]: 12 bytes expected, there are 8"),
    (gradient(shape=(1,)), r"W float32\[1\]: 4 bytes expected, there are 8"),
    (gradient(streamed=True), "its elements are not in the message"),
    (gradient(packing=INT8), r"cannot be in the form 'int8' with the parts float32\[2\], float32\[\]"),
    (rows(of=-1), "Gradient.rows must be at least 0, got -1"),
    (rows(shape=(1, 2)), r"gradient for variable 'W': .* indices of shape \(n,\), .* \(2,\) and \(1, 2\)"),
    (rows(dtype="float32"), "gradient for variable 'W': IndexedSlices: indices must be integers, .* float32"),
    (pb.PushReply(outcome=pb.OUTCOME_UNSPECIFIED), "PushReply.outcome cannot be 0"),
    (pb.AssignRequest(sender=ME, sequence=1, assignments=[tensor(), tensor()]), "more than once"),
    (pb.RegisterRequest(sender=ME, declarations=[declaration().declarations[0]] * 2), "more than once"),
    (declaration(first=-1), "Part.first must be at least 0, got -1"),
    (declaration(first=6), "a part must begin at a row from 0 to 5, not at 6"),
    (declaration(first=4), r"variable W float32\[2\] does not fit into 5 rows from row 4 on"),
    (declaration(shape=(), data=bytes(4)), r"variable W float32\[\] does not fit into 5 rows from row 0 on"),
    (declaration({}), "variable 'W': unknown optimizer None"),
    (declaration(SGD), r"variable 'W': .*missing \['learning_rate'\]"),
    (declaration(SGD | {"learning_rate": None}), "variable .W.: .*learning_rate must be .*, got None"),
    (declaration(SGD | {"learning_rate": {"x": 1}}), "variable 'W': unknown schedule None; known kinds: "),
    (pb.TakeRequest(sender=ME, queue=NAMELESS), "a name has 1 to 256"),
    (pb.TakeRequest(sender=ME, queue=pb.Queue(name="q", size=1, block=0, epochs=1)), "Queue.block must be"),
    (pb.TakeReply(block=pb.Block(epoch=1, start=1, stop=1)), "Block.start must be at least 0 and below stop 1, got 1"),
    (pb.StatusReply(shards=1, workers=[pb.WorkerStatus(name="w", state="dead")]), "state cannot be 'dead'"),
]


@pytest.mark.parametrize(("proto", "reason"), BAD, ids=[f"{type(p).__name__}-{r[:40]}" for p, r in BAD])
def test_an_invalid_field_is_named(proto, reason):
    with pytest.raises(Malformed, match=reason):
        decode(type(proto).FromString(proto.SerializeToString()), InlineReceiver())


def test_a_long_list_of_names_is_searched_for_doubles_in_one_pass():
    names = [f"v{number}" for number in range(30_000)]
    with pytest.raises(Malformed, match="'v29999' is in the message more than once"):
        decode(pb.PullRequest(sender=ME, names=[*names, names[-1]]), InlineReceiver())


@pytest.mark.parametrize("letter", ["w", "é", "名"])
def test_a_name_may_have_256_letters_of_any_alphabet(letter):
    longest = 256 * letter
    assert decode(pb.JoinRequest(worker=longest, shards=1), InlineReceiver()).worker == longest
    assert decode(pb.PullRequest(sender=ME, names=[longest]), InlineReceiver()).names == (longest,)
    assert decode(gradient(name=longest), InlineReceiver()).gradients[0].name == longest
