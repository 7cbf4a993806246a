"""Names, scopes and collections of variables."""

import threading

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError


@pytest.fixture(autouse=True)
def own_variables():
    with ps.collection():
        yield


def test_scopes_nest_and_stand_before_the_name():
    with ps.variable_scope("generator"), ps.variable_scope("dense"):
        assert ps.Variable([1.0], name="W").name == "generator/dense/W"
    assert ps.Variable([1.0], name="W").name == "W"


def test_a_scope_does_not_match_a_prefix_of_another():
    with ps.variable_scope("gen"):
        short = ps.Variable([1.0], name="W")
    with ps.variable_scope("generator"):
        long = ps.Variable([1.0], name="W")
    assert ps.trainable_variables("gen") == [short]
    assert ps.trainable_variables("generator/") == [long]
    assert ps.trainable_variables() == [short, long]


def test_variables_without_a_name_get_one_that_is_free():
    assert [ps.Variable([1.0]).name for _ in range(3)] == ["variable", "variable_1", "variable_2"]


def test_a_name_twice_is_refused_with_what_to_do():
    ps.Variable([1.0], name="W")
    with pytest.raises(ConfigurationError, match="there is a variable 'W' already"):
        ps.Variable([1.0], name="W")


def test_integers_and_those_that_say_so_are_not_trainable():
    ps.Variable(np.arange(3), name="counts")
    ps.Variable([1.0], name="fixed", trainable=False)
    assert ps.trainable_variables() == []


def test_in_a_scope_that_is_not_trainable_nothing_is():
    with ps.variable_scope("target", trainable=False):
        layer = ps.nn.Dense(2, 3, name="out")
        with ps.variable_scope("inner", trainable=True):
            inner = ps.Variable([1.0], name="x")
    outside = ps.Variable([1.0], name="y")
    assert ps.trainable_variables() == [outside]
    assert ps.global_variables("target") == [layer.kernel, layer.bias, inner]
    assert ps.global_variables("tar") == []


def test_initial_values_depend_on_the_seed_and_the_whole_name_and_not_on_the_order():
    def kernels(seed, names):
        with ps.collection():
            ps.set_random_seed(seed)
            return {name: ps.nn.Dense(3, 2, name=name).kernel.value for name in names}

    first, other_order, other_seed = kernels(1, "ab"), kernels(1, "ba"), kernels(2, "ab")
    np.testing.assert_array_equal(first["a"], other_order["a"])
    assert not np.array_equal(first["a"], first["b"])
    assert not np.array_equal(first["a"], other_seed["a"])
    with pytest.raises(ConfigurationError, match="0 or more, got -1"):
        ps.set_random_seed(-1)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.5, "float32"), ([1.0, 2.0], "float32"), (np.float64(1.5), "float64"), (np.ones(2), "float64"), (3, "int64")],
)
def test_python_numbers_become_float32_and_arrays_keep_their_dtype(value, dtype):
    assert ps.Variable(value).dtype == dtype


def test_a_variable_copies_its_value_and_nobody_writes_into_it():
    array = np.ones(2, np.float32)
    variable = ps.Variable(array)
    array[0] = 5
    assert variable.value[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        variable.value[0] = 5


def test_a_dtype_that_cannot_travel_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="complex128"):
        ps.Variable(np.ones(2, np.complex128), name="z")


def test_threads_have_variables_of_their_own():
    ps.Variable([1.0], name="W")
    names = []

    def other() -> None:
        ps.Variable([1.0], name="W")
        names.extend(variable.name for variable in ps.trainable_variables())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert names == ["W"]


@pytest.mark.parametrize("name", ["", "/a", "a/"])
def test_a_scope_with_slashes_at_its_ends_is_refused(name):
    with pytest.raises(ConfigurationError, match="needs a name"), ps.variable_scope(name):
        pass
