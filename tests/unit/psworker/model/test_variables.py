"""Variables: names, scopes, collections, and update ops of moving averages."""

import zlib

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError


def test_scopes_nest_before_the_name_and_decide_what_is_trainable_and_found():
    with ps.variable_scope("target", trainable=False):
        layer = ps.nn.Dense(2, 3, name="out")
        with ps.variable_scope("inner", trainable=True):
            inner = ps.Variable([1.0], name="x")
    with ps.variable_scope("tar"):
        short = ps.Variable([1.0], name="y")
    outside = ps.Variable([1.0], name="y")
    assert [variable.name for variable in (inner, short, outside)] == ["target/inner/x", "tar/y", "y"]
    assert ps.trainable_variables() == [short, outside]
    assert ps.global_variables("target/") == [layer.kernel, layer.bias, inner]
    assert ps.global_variables("tar") == [short]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: [ps.Variable([1.0], name="W") for _ in range(2)], "there is already a variable 'W'"),
        (lambda: ps.Variable(np.ones(2, np.complex128), name="z"), "complex128"),
        (lambda: ps.set_random_seed(-1), "must not be negative, got -1"),
        *((lambda name=name: ps.variable_scope(name).__enter__(), "needs a name") for name in ("", "/a", "a/")),
    ],
)
def test_invalid_names_dtypes_and_seeds_are_refused(call, message):
    with pytest.raises(ConfigurationError, match=message):
        call()


def test_initial_values_depend_on_the_seed_and_the_whole_name_and_not_on_the_order():
    def kernels(seed, names):
        with ps.collection():
            ps.set_random_seed(seed)
            made = {name: ps.nn.Dense(3, 2, name=name).kernel.value.tolist() for name in names}
        return [made[name] for name in sorted(made)]

    [a, b], [other_seed] = kernels(1, "ab"), kernels(2, "a")
    assert [a, b] == kernels(1, "ba")
    assert a not in (b, other_seed)
    one, other = sorted("ab", key=lambda name: zlib.crc32(name.encode()))  # seed and name of the same sum
    seed = zlib.crc32(other.encode()) - zlib.crc32(one.encode())
    assert kernels(seed, one) != kernels(0, other)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.5, [1.0, 2.0], 10, [10, 3], [[1], [2.5]], -(2**40), np.float32([1])], "float32"),
        ([True, [True, False], np.ones(2, bool)], "bool"),
        *(([kind(3), np.ones(2, kind)], kind) for kind in (np.float64, np.float16, np.int64, np.uint8)),
    ],
)
def test_python_numbers_become_float32_and_arrays_keep_their_dtype(values, dtype):
    assert {ps.Variable(value).dtype for value in values} == {np.dtype(dtype)}


def test_a_variable_copies_its_value_and_is_read_only():
    array = np.ones(2, np.float32)
    variable = ps.Variable(array)
    array[0] = 5
    assert variable.value[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        variable.value[0] = 5


def test_an_incomplete_layer_leaves_no_variable_behind():
    kept = ps.Variable([1.0], name="net/bias")
    with pytest.raises(ConfigurationError, match="'net/bias'"):
        ps.nn.Dense(2, 3, name="net")  # its kernel would be new
    assert ps.global_variables() == [kept]


def average(dtype=np.float32, trainable=False):
    return ps.Variable(np.zeros(2, dtype), name="mean", trainable=trainable)


@pytest.mark.parametrize(
    ("value", "decay", "settings", "error", "message"),
    [
        ([1.0], 0.5, {}, ValueError, r"value must have the shape of 'mean', \(2,\), but its shape is \(1,\)"),
        ([1.0, 2.0], 1, {}, ValueError, "decay must be from 0 up and below 1, got 1"),
        ([1.0, 2.0], float("nan"), {}, ValueError, "decay must be"),
        ([1.0, 2.0], 0.5, {"trainable": True}, ValueError, "'mean' is trainable.*trainable=False"),
        ([1.0, 2.0], 0.5, {"dtype": np.int64}, TypeError, "'mean' is int64"),
    ],
)
def test_an_update_that_the_server_would_refuse_is_refused_when_it_is_made(value, decay, settings, error, message):
    with pytest.raises(error, match=rf"^UpdateOp: .*{message}"):
        ps.UpdateOp(average(**settings), value, decay)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_observations_of_one_variable_count_once_with_the_mean_of_float64(dtype):
    mean, large = average(dtype), 0.9 * np.finfo(dtype).max
    seen = np.random.default_rng(20261122).uniform(0, 2, (3000, 2)).astype(dtype)
    seen[1000:] += 10
    for values in (seen, dtype([[np.inf, large], [np.inf, large], [5, large]])):
        ps.discard_update_ops()
        for value in values:
            ps.note_update(ps.UpdateOp(mean, value.astype(np.float64), np.float32(0.5)))
        [update] = ps.update_ops()
        assert (update.value.dtype, type(update.decay)) == (dtype, float)
        expected = seen.mean(axis=0, dtype=np.float64) if values is seen else [np.inf, large]
        np.testing.assert_allclose(update.value, expected, rtol=2**-11 if dtype == np.float16 else 1e-5)
