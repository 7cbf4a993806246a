"""Tables without a server, against an array of the same rows."""

import tracemalloc

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from pswire.specs import initializers
from pswire.specs.initializers import fill
from psworker import nn, ops

SEED = 20131016
UNIFORM = ps.RowUniform(-1, 1, seed=SEED)


IDS = {
    "repeats": [5, 1, 5, 5, 0, 1],
    "two axes": [[9, 2, 9], [0, 9, 2]],
    "none": np.zeros((2, 0), np.uint8),
    "empty lists": [[], []],
    "a number": 4,
    "many": np.random.default_rng(SEED).integers(0, 10, 1000),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("shape", [(10, 3), (10,), (10, 2, 2)], ids=str)
def test_a_lookup_and_its_gradient_equal_those_of_an_array_to_the_last_bit(ids, shape):
    rows = np.empty(shape, np.float32)
    fill(UNIFORM, rows)
    table, array = ps.Table(shape, UNIFORM), ps.Tensor(rows, requires_grad=True)
    vectors, expected = ops.embedding(table, ids), ops.embedding(array, ids)
    np.testing.assert_array_equal(vectors.value, expected.value, strict=True)
    weights = np.random.default_rng(SEED).normal(size=vectors.shape).astype(np.float32)
    [gradient] = ps.gradients(ops.sum(ops.square(vectors) * weights), table)
    [reference] = ps.gradients(ops.sum(ops.square(expected) * weights), array)
    assert (gradient.indices.tolist(), gradient.shape) == (sorted(set(np.ravel(ids).tolist())), shape)
    np.testing.assert_array_equal(gradient.values, reference.summed().values, strict=True)


def test_a_table_is_in_its_collection_beside_the_variables():
    with ps.variable_scope("model"):
        table = ps.Table((1000, 4), UNIFORM, name="words")
        frozen = ps.Table((5, 1), ps.RowConstant(1), dtype="float16", trainable=False)
    assert not isinstance(table, ps.Variable)
    assert (ps.global_variables("model"), ps.trainable_variables()) == ([table, frozen], [table])
    assert repr(table) == "Table(model/words float32[1000, 4], version 0)"
    assert repr(frozen) == "Table(model/variable float16[5, 1], version 0)"
    assert (frozen.ndim, len(frozen)) == (2, 5)
    assert ops.embedding(frozen, [1]).value.tolist() == [[1]]
    assert [ops.embedding(one, [1]).requires_grad for one in (table, frozen)] == [True, False]


def test_nothing_as_large_as_the_table_is_made():
    tracemalloc.start()
    try:
        table = ps.Table((10**9, 64), ps.RowNormal(0.1, seed=3))
        vectors = ops.embedding(table, [10**9 - 1, 5, 5])
        [gradient] = ps.gradients(ops.sum(ops.square(vectors)), table)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert gradient.indices.tolist() == [5, 10**9 - 1]
    np.testing.assert_array_equal(gradient.values, (2 * vectors.value)[[1, 0]] * np.float32([[2], [1]]))
    assert peak < 10**7


@pytest.mark.parametrize(
    "use",
    [
        lambda table: table.value,
        lambda table: np.ones(2, np.float32) @ table,
        lambda table: ops.gather(table, np.array([1])),
        lambda table: table[1],
        lambda table: ops.accuracy(table, np.zeros(4, int)),
        lambda table: ps.Variable(table),
        lambda table: bool(table),
        lambda table: ps.add_decayed_weights([(np.ones((4, 2)), table)], 0.1),
    ],
)
def test_any_other_use_of_a_table_is_refused_with_what_to_do(use):
    with pytest.raises(
        TypeError, match=r"'words' is a Table.*ops\.embedding\(table, ids\).*session\.rows\(table, ids\)"
    ):
        use(ps.Table((4, 2), UNIFORM, name="words"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((), UNIFORM), ValueError, "at least one axis"),
        (((2.5, 3), UNIFORM), TypeError, r"shape is a tuple of whole numbers.*got \(2\.5, 3\)"),
        ((5, UNIFORM), TypeError, r"shape is a tuple of whole numbers.*got 5"),
        (((-1, 3), UNIFORM), ConfigurationError, "sizes from 0 up"),
        (((1 << 62, 4), UNIFORM), ValueError, r"has 73,786,976,294,838,206,464 bytes, and no memory has more"),
        (((1 << 62, 0), UNIFORM), ValueError, "no memory has more"),
        (((2, 3), initializers.zeros()), TypeError, r"such as psworker\.RowUniform"),
        (((2, 3), ps.RowConstant(1e6), None, "float16"), ValueError, "float16 cannot hold"),
        (((2, 3), UNIFORM, None, "int32"), TypeError, "not int32"),
    ],
)
def test_an_invalid_table_is_refused_and_leaves_nothing_behind(arguments, error, message):
    with pytest.raises(error, match=message):
        ps.Table(*arguments)
    assert ps.global_variables() == []


def test_an_embedding_with_an_initializer_of_rows_has_a_table():
    layer = nn.Embedding(10**8, 3, initializer=UNIFORM, name="users")
    assert isinstance(layer.table, ps.Table)
    assert (layer.table.name, str(layer)) == ("users/table", "Embedding('users': 100000000 rows of 3)")
    np.testing.assert_array_equal(layer([[7]]).value, ops.embedding(layer.table, [[7]]).value)
