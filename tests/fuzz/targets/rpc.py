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
        ms.Join("w0", process_nonce=1, name_key=bytes(16)),
        ms.Join("w1", process_nonce=2, name_key=bytes(range(16))),
        ms.Register(w0, declarations),
        ms.Compute(w0, 1, ("W",), (Fill(GRADIENT, 0.0),), "minimize-1", 1, "{}"),
        ms.Push(w0, 2, (ms.Gradient("W", 0, value),), 0.5, ("W",)),
        ms.Take(w0, ms.QueueSpec("batches", 100, 10, 2, 1)),
        ms.Pull(w1, ("W", "b")),
        ms.Evaluate(w0, "minimize-1", ms.Evaluation(1, 10, 4), wait=False, term=1),
        ms.TakePortion(w1, "minimize-1"),
        ms.ClaimPortion(w1, "minimize-1", 1, 0, 0.5),
        ms.TakePortion(w1, "minimize-1", 1),
    ]
    return [(METHODS.index(type(one).__name__), encode(one, InlineSender()).SerializeToString()) for one in messages]


def run(data: bytes) -> None:
    serve([*before(), *unpack(data[1:])[:2]], policy=data[0] if data else 0)
