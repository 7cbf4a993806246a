"""Mutants of the tape, of accurate sums, and of gradients of ops."""

from contextlib import contextmanager

import numpy as np

from psworker.autodiff.tape import _recording
from tests.tools.mutant_plugin import mutant

TAPE = "psworker.autodiff.tape"
SUMS = "pswire.tensors.sums"
OPS = "psworker.autodiff.ops"
UNIT = "tests/unit/psworker/autodiff"
TESTS, EDGES, ALL = f"{UNIT}/test_tape.py", f"{UNIT}/test_edges.py", f"{UNIT}/test_ops.py"


@mutant(
    "Recording is on after a no_grad within another",
    f"{TAPE}:no_grad",
    f"{TESTS}::test_no_grad_records_nothing_nests_decorates_ends_with_an_exception_and_is_of_its_own_thread",
)
@contextmanager
def _(original):
    _recording.on = False
    try:
        yield
    finally:
        _recording.on = True


@mutant(
    "An x that is requested twice gets the same array twice",
    f"{TAPE}:_result",
    f"{TESTS}::test_gradients_are_those_of_the_sum_of_all_ys_weighted_by_grad_ys_and_a_borrowed_one_is_not_written_into",
)
def _(original, x, totals, owned):
    return original(x, totals, set(owned))


@mutant(
    "A borrowed gradient is written into",
    f"{TAPE}:_plus",
    f"{TESTS}::test_gradients_are_those_of_the_sum_of_all_ys_weighted_by_grad_ys_and_a_borrowed_one_is_not_written_into",
)
def _(original, total, gradient):
    if isinstance(total, np.ndarray) and isinstance(gradient, np.ndarray):
        total += gradient
        return total
    return original(total, gradient)


@mutant(
    "Rows and arrays of one node are not added up",
    f"{TAPE}:_plus",
    f"{TESTS}::test_rows_stay_rows_are_added_to_rows_or_arrays_and_belong_to_the_caller",
)
def _(original, total, gradient):
    return original(total, gradient) if type(total) is type(gradient) else gradient


@mutant(
    "Gradients of a promoted float16 operand are rounded before they are added",
    f"{TAPE}:_fitted",
    f"{EDGES}::test_gradients_of_one_node_are_added_in_float32_and_reach_its_op_in_float16",
)
def _(original, gradient, value, vjp):
    with np.errstate(over="ignore"):
        return original(gradient, value, vjp).astype(value.dtype, copy=False)


@mutant(
    "A NumPy number of float64 makes a float32 tensor wide",
    f"{TAPE}:_operand",
    f"{EDGES}::test_an_operand_that_is_no_tensor_takes_the_dtype_of_the_tensor_beside_it",
)
def _(original, x):
    return x if isinstance(x, np.float64) else original(x)


@mutant(
    "A gradient inside of a differentiated function is a constant",
    f"{TAPE}:differentiating",
    f"{TESTS}::test_a_gradient_within_a_function_that_is_differentiated_is_refused",
)
@contextmanager
def _(original):
    yield


@mutant(
    "Rows of float16 are rounded each time that one is added",
    f"{SUMS}:add_rows",
    f"{EDGES}::test_values_and_gradients_of_long_sums_are_those_of_float64_rounded_once",
)
def _(original, total, indices, rows):
    np.add.at(total, indices, rows)


@mutant(
    "Sums along the first axis add one number after the other",
    f"{SUMS}:_down",
    f"{EDGES}::test_normalisation_in_float32_is_as_precise_far_from_0_as_its_input",
)
def _(original, matrix):
    return np.add.reduce(matrix, axis=0)
