"""The largest size of each value in an answer: a worker provides so much memory for it, and accepts no more."""

import numpy as np

from pswire.messages import Assign, Choice, Declaration, Pull, Push, Register, Sender, most_answer_sizes
from pswire.specs.initializers import RowConstant
from pswire.tensors.values import TensorSpec

ME = Sender("w0", 1)
SHAPES = {"W": ((4, 3), "float32"), "d": ((5,), "float64"), "s": ((), "float32"), "none": ((0, 3), "float32")}
SPECS = {name: TensorSpec(name, *rest) for name, rest in SHAPES.items()}


def test_each_value_that_comes_has_its_largest_size_and_tables_do_not_come():
    declared = [Declaration(spec, np.zeros(spec.shape)) for spec in SPECS.values()]
    declared.append(Declaration(TensorSpec("E", (1000, 8)), initial=RowConstant(0.0)))
    some, slot = Choice("W", np.array([3, 3])), Choice("W", np.arange(2), "momentum")
    for message, sizes in (
        (Register(ME, tuple(declared)), [48, 40, 4, 0]),
        (Push(ME, 1, (), None, ("d", "W", "s")), [40, 48, 4]),
        (Push(ME, 1, (), None, ("d", "W", "s"), encoding="bfloat16"), [40, 24, 2]),
        (Pull(ME, ("W",), (some, Choice("d"), Choice("s"), slot, Choice("none"))), [48, 24, 40, 4, 2 * 3 * 8, 0]),
        (Assign(ME, 1, ()), []),
    ):
        assert most_answer_sizes(message, SPECS.__getitem__) == sizes
