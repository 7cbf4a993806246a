"""The ops: functions on tensors, arrays and numbers, each of which knows its derivative.

`from psworker import ops`, then `ops.matmul(x, W)`; a `Tensor`'s operators are these same functions. To add one:
write a function with `@op` in the family's file (math, array, nn, loss), name it in that file's `__all__`, and give it
rows in tests/unit/autodiff/cases.py, without which a test fails.
"""

from psworker.autodiff.ops import operators
from psworker.autodiff.ops.array import argmax, equal, getitem, one_hot, ones, reshape, transpose, zeros
from psworker.autodiff.ops.loss import accuracy, mean_squared_error, softmax_cross_entropy
from psworker.autodiff.ops.math import (
    add,
    clip,
    divide,
    exp,
    log,
    matmul,
    max,
    mean,
    multiply,
    negative,
    power,
    square,
    subtract,
    sum,
    tanh,
)
from psworker.autodiff.ops.nn import log_softmax, relu, sigmoid, softmax

operators.bind()

__all__ = [
    "accuracy",
    "add",
    "argmax",
    "clip",
    "divide",
    "equal",
    "exp",
    "getitem",
    "log",
    "log_softmax",
    "matmul",
    "max",
    "mean",
    "mean_squared_error",
    "multiply",
    "negative",
    "one_hot",
    "ones",
    "power",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy",
    "square",
    "subtract",
    "sum",
    "tanh",
    "transpose",
    "zeros",
]
