"""How many bytes the values of an answer can have, as far as a worker knows: it lends memory for them, and no more."""

import numpy as np
import pytest

from pswire.messages import Assign, Choice, Declaration, Pull, Push, Register, Sender
from pswire.messages.sizes import most_answer_sizes
from pswire.specs.initializers import RowConstant
from pswire.tensors.values import TensorSpec

ME = Sender("w0", 1)
SPECS = {
    spec.name: spec
    for spec in (
        TensorSpec("W", (4, 3)),
        TensorSpec("d", (5,), "float64"),
        TensorSpec("s", ()),
        TensorSpec("none", (0, 3)),
    )
}
VALUES = {name: np.zeros(spec.shape, spec.dtype) for name, spec in SPECS.items()}
TABLE = Declaration(TensorSpec("E", (1000, 8)), initial=RowConstant(0.0))


@pytest.mark.parametrize(
    ("message", "sizes"),
    [
        (Register(ME, (*(Declaration(SPECS[name], VALUES[name]) for name in SPECS), TABLE)), [48, 40, 4, 0]),
        (Push(ME, 1, (), None, ("d", "W")), [40, 48]),
        (Push(ME, 1, (), None, ("d", "W", "s"), encoding="bfloat16"), [40, 24, 2]),
        (Pull(ME, ("W",), (Choice("W", np.array([3, 3])), Choice("d"), Choice("s"))), [48, 24, 40, 4]),
        (Pull(ME, (), (Choice("W", np.arange(2), "momentum"), Choice("none"))), [2 * 3 * 8, 0]),
        (Assign(ME, 1, ()), []),
    ],
)
def test_each_value_that_comes_has_its_size_at_most_and_tables_do_not_come(message, sizes):
    assert most_answer_sizes(message, SPECS.__getitem__) == sizes


def test_values_that_come_otherwise_need_no_room():
    push = Push(ME, 1, (), None, ("d", "W"))
    assert most_answer_sizes(push, SPECS.__getitem__, without=("d",)) == [48]
    registered = Register(ME, tuple(Declaration(SPECS[name], VALUES[name]) for name in SPECS))
    assert most_answer_sizes(registered, SPECS.__getitem__, without=("W", "s")) == [40, 0]
