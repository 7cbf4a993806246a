"""Mutants of the tape, of accurate sums, and of gradients of ops."""

from contextlib import contextmanager

import numpy as np

from psworker.autodiff.tape import _recording, stop_gradient
from tests.tools.mutant_plugin import mutant

TAPE = "psworker.autodiff.tape"
SUMS = "pswire.tensors.sums"
OPS = "psworker.autodiff.ops"
UNIT = "tests/unit/psworker/autodiff"
TESTS, EDGES, ALL = f"{UNIT}/test_tape.py", f"{UNIT}/test_edges.py", f"{UNIT}/test_ops.py"


@mutant("Recording is on after a no_grad within another", f"{TAPE}:no_grad", TESTS)
@contextmanager
def _(original):
    _recording.on = False
    try:
        yield
    finally:
        _recording.on = True


@mutant("An x that is requested twice gets the same array twice", f"{TAPE}:_result", TESTS)
def _(original, x, totals, owned):
    return original(x, totals, set(owned))


@mutant("A borrowed gradient is written into", f"{TAPE}:_plus", TESTS)
def _(original, total, gradient):
    if isinstance(total, np.ndarray) and isinstance(gradient, np.ndarray):
        total += gradient
        return total
    return original(total, gradient)


@mutant("Rows and arrays of one node are not added up", f"{TAPE}:_plus", TESTS)
def _(original, total, gradient):
    return original(total, gradient) if type(total) is type(gradient) else gradient


@mutant("Gradients of a promoted float16 operand are rounded before they are added", f"{TAPE}:_fitted", EDGES)
def _(original, gradient, value, vjp):
    return original(gradient, value, vjp).astype(value.dtype, copy=False)


@mutant("A NumPy number of float64 makes a float32 tensor wide", f"{TAPE}:_operand", EDGES)
def _(original, x):
    return x if isinstance(x, np.float64) else original(x)


@mutant("A gradient inside of a differentiated function is a constant", f"{TAPE}:differentiating", TESTS)
@contextmanager
def _(original):
    yield


@mutant("Rows of float16 are rounded each time that one is added", f"{SUMS}:add_rows", EDGES)
def _(original, total, indices, rows):
    np.add.at(total, indices, rows)


@mutant("Sums along the first axis add one number after the other", f"{SUMS}:_down", EDGES)
def _(original, matrix):
    return np.add.reduce(matrix, axis=0)


@mutant("The targets of a mean squared error have no gradient", f"{OPS}.losses:mean_squared_error", ALL)
def _(original, predictions, targets):
    return original(predictions, stop_gradient(targets))


@mutant(
    "Filters of very different magnitudes use Winograd convolution",
    f"{OPS}.convolution.winograd:filters_have_narrow_range",
    f"{UNIT}/test_convolution.py",
)
def _(original, filters):
    return True


