"""Single calls of a shard with two members, variables, a table, pushes, a data queue and a minimization.

The first byte is a policy.
"""

import functools

import numpy as np

from pswire import messages as ms
from pswire.codec import encode
from pswire.optimizers import Adam, GradientDescent
from pswire.specs.initializers import RowUniform
from pswire.specs.vectors import GRADIENT, Fill
from pswire.tensors.transport import InlineSender
from pswire.tensors.values import TensorSpec
from tests.fuzz.packets import unpack
from tests.fuzz.served_shard import KINDS, METHODS, serve

__all__ = ["COVERS", "KINDS", "run"]

HEAD = 1
COVERS = ["psserver.rpc.service", "psserver.core"]


@functools.cache
def before() -> list[tuple[int, bytes]]:
    """The calls that come first."""
    w0, w1 = ms.Sender("w0", 1), ms.Sender("w1", 1)
    value = np.ones((3, 2), np.float32)
    declarations = (
        ms.Declaration(TensorSpec("W", (3, 2)), value, GradientDescent(0.5)),
        ms.Declaration(TensorSpec("b", (2,)), np.ones(2, np.float32), Adam(0.1)),
        ms.Declaration(TensorSpec("T", (8, 4)), None, GradientDescent(0.5), RowUniform(-1.0, 1.0, 7)),
    )
    messages = [
        ms.Join(worker="w0", process_nonce=1, name_key=bytes(16)),
        ms.Join(worker="w1", process_nonce=2, name_key=bytes(range(16))),
        ms.Register(sender=w0, declarations=declarations),
        ms.Compute(
            sender=w0,
            sequence=1,
            names=("W",),
            operations=(Fill(GRADIENT, 0.0),),
            minimization="minimize-1",
            term=1,
            note="{}",
        ),
        ms.Push(sender=w0, sequence=2, gradients=(ms.Gradient("W", 0, value),), loss=0.5, pull=("W",)),
        ms.Take(sender=w0, queue=ms.QueueSpec(name="batches", size=100, block=10, epochs=2, seed=1)),
        ms.Pull(sender=w1, names=("W", "b")),
        ms.Evaluate(sender=w0, name="minimize-1", evaluation=ms.Evaluation(1, 10, 4), wait=False, term=1),
        ms.TakePortion(sender=w1, name="minimize-1"),
        ms.ClaimPortion(sender=w1, name="minimize-1", evaluation=1, portion=0, loss=0.5),
        ms.TakePortion(sender=w1, name="minimize-1", evaluation=1),
    ]
    return [(METHODS.index(type(one).__name__), encode(one, InlineSender()).SerializeToString()) for one in messages]


def run(data: bytes) -> None:
    serve([*before(), *unpack(data[1:])[:2]], policy=data[0] if data else 0)
