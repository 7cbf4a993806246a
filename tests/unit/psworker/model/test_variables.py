"""Names, scopes and collections of variables."""

import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from psworker.model import variables


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


def scope(name):
    with ps.variable_scope(name):
        pass


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: [ps.Variable([1.0], name="W") for _ in range(2)], "there is already a variable 'W'"),
        (lambda: ps.Variable(np.ones(2, np.complex128), name="z"), "complex128"),
        (lambda: ps.set_random_seed(-1), "must not be negative, got -1"),
        *((lambda name=name: scope(name), "needs a name") for name in ("", "/a", "a/")),
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
    ("value", "dtype"),
    [
        *((value, "float32") for value in (1.5, [1.0, 2.0], 10, [10, 3], [[1], [2.5]], -(2**40))),
        *((value, "bool") for value in (True, [True, False])),
        *((dtype(3), dtype.__name__) for dtype in (np.float64, np.int64, np.uint8)),
        *((np.ones(2, dtype), dtype) for dtype in ("float64", "float16", "int64", "int8", "bool")),
    ],
    ids=repr,
)
def test_python_numbers_become_float32_and_arrays_keep_their_dtype(value, dtype):
    assert ps.Variable(value).dtype == dtype


def test_a_variable_copies_its_value_and_is_read_only():
    array = np.ones(2, np.float32)
    variable = ps.Variable(array)
    array[0] = 5
    assert variable.value[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        variable.value[0] = 5


def test_threads_have_variables_of_their_own():
    ps.Variable([1.0], name="W")
    with ThreadPoolExecutor(1) as thread:
        thread.submit(ps.Variable, [1.0], name="W").result()
        found = thread.submit(ps.trainable_variables).result()
    assert [variable.name for variable in found] == ["W"]


def test_an_incomplete_layer_leaves_no_variable_behind():
    kept = ps.Variable([1.0], name="net/bias")
    with pytest.raises(ConfigurationError, match="'net/bias'"):
        ps.nn.Dense(2, 3, name="net")  # its kernel would be new
    assert ps.global_variables() == [kept]


def average(*values, dtype=np.float32, trainable=False):
    return ps.Variable(np.array(values, dtype), name="mean", trainable=trainable)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_an_update_has_the_dtype_of_its_variable_and_a_decay_of_python(dtype):
    update = ps.UpdateOp(average(1, 2, dtype=dtype), np.array([3, 4], np.float64), np.float32(0.5))
    assert update.value.dtype == dtype
    assert type(update.decay) is float


@pytest.mark.parametrize(
    ("value", "decay", "settings", "error", "message"),
    [
        ([1.0], 0.5, {}, ValueError, r"value must have the shape of 'mean', \(2,\), but its shape is \(1,\)"),
        ([1.0, 2.0], 1, {}, ValueError, "decay must be from 0 up and below 1, got 1"),
        ([1.0, 2.0], -0.1, {}, ValueError, "decay must be"),
        ([1.0, 2.0], float("nan"), {}, ValueError, "decay must be"),
        ([1.0, 2.0], 0.5, {"trainable": True}, ValueError, "'mean' is trainable.*trainable=False"),
        ([1.0, 2.0], 0.5, {"dtype": np.int64}, TypeError, "'mean' is int64"),
    ],
)
def test_an_update_that_the_server_would_refuse_is_refused_when_it_is_made(value, decay, settings, error, message):
    with pytest.raises(error, match=rf"^UpdateOp: .*{message}"):
        ps.UpdateOp(average(0, 0, **settings), value, decay)


def test_observations_of_one_variable_count_once_with_their_mean():
    mean = average(0, 0, 0)
    for value in ([1, np.inf, 3e38], [2, np.inf, 3e38], [6, 5, 3e38]):
        variables.note_update(ps.UpdateOp(mean, np.float32(value), 0.9))
    [update] = ps.update_ops()
    np.testing.assert_allclose(update.value, np.float32([3, np.inf, 3e38]), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_mean_of_3000_things_seen_is_that_of_float64(dtype):
    mean = ps.Variable(np.zeros(2, dtype), name="mean", trainable=False)
    seen = np.random.default_rng(20261122).uniform(0, 2, (3000, 2)).astype(dtype)
    seen[1000:] += 10
    for value in seen:
        variables.note_update(ps.UpdateOp(mean, value, 0.9))
    [update] = ps.update_ops()
    assert update.value.dtype == dtype
    expected = seen.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(update.value, expected, rtol=2**-11 if dtype == np.float16 else 1e-5)
