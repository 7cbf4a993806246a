"""Arrays split along the partitions of a variable and joined again, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pswire.errors import InvalidMessage, Malformed, ShapeMismatch
from pswire.messages import Declaration, Value
from pswire.specs.initializers import RowUniform
from pswire.tensors.values import IndexedSlices, TensorSpec
from psworker.client import placement, push_pull, splitting
from psworker.client.placement import Placement
from psworker.versions import ReadVersion, VersionedArray

DETERMINISTIC = settings(derandomize=True, database=None, deadline=None, max_examples=60)
ROWS = 11
shard_counts = st.integers(1, 4)
row_shapes = st.sampled_from([(), (3,), (2, 3)])
row_numbers = st.lists(st.integers(0, ROWS - 1), max_size=30)


@pytest.fixture(autouse=True, scope="module")
def small_limit():
    """All variables but the very smallest are split."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "SPLIT_BYTES", 16)
        yield


def placed(shards, row_shape=(3,)):
    return Placement(shards).extended([TensorSpec("w", (ROWS, *row_shape))])["w"]


def some(shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def shapes(arrays):
    return [array.shape for array in arrays]


@DETERMINISTIC
@given(shard_counts, row_shapes)
def test_a_value_is_split_into_views_and_joined_read_only_or_as_it_is(shards, row_shape):
    variable, value = placed(shards, row_shape), some((ROWS, *row_shape))
    parts = splitting.split_array(variable, value)
    assert shapes(parts) == [partition.spec.shape for partition in variable.partitions]
    assert all(np.shares_memory(part, value) and part.flags.c_contiguous for part in parts)
    joined = push_pull.join(variable, [Value("w", version, part) for version, part in enumerate(parts)])
    np.testing.assert_array_equal(joined, value, strict=True)
    if shards == 1:
        assert joined is value
    else:
        assert (joined.flags.writeable, np.shares_memory(joined, value)) == (False, False)


@DETERMINISTIC
@given(shard_counts, row_shapes, row_numbers, st.sampled_from(["int8", "int32", "int64", "uint64"]))
def test_rows_are_split_by_shard_and_joined_in_the_order_asked_for_with_their_repeats(
    shards, row_shape, numbers, dtype
):
    variable, value = placed(shards, row_shape), some((ROWS, *row_shape))
    indices = np.array(numbers, dtype)
    rows = IndexedSlices(some((len(numbers), *row_shape)), indices, value.shape)
    parts = splitting.split_gradient(variable, rows)
    assert shapes(parts) == [partition.spec.shape for partition in variable.partitions]
    whole = np.concatenate([part.summed().to_dense() for part in parts])  # as the server adds them up
    np.testing.assert_array_equal(whole, rows.summed().to_dense(), strict=True)
    chosen = splitting.split_rows(variable, indices)
    answers = [part[rows] for part, rows in zip(splitting.split_array(variable, value), chosen.rows, strict=True)]
    np.testing.assert_array_equal(chosen.join(answers), value[np.array(numbers, np.int64)], strict=True)


def test_rows_that_come_sorted_are_not_copied_and_a_part_without_rows_still_counts_the_update():
    rows = IndexedSlices(some((3, 3)), np.array([0, 2, 10]), (ROWS, 3))
    parts = splitting.split_gradient(placed(3), rows)
    assert [list(part.indices) for part in parts] == [[0, 2], [], [2]]
    assert [np.shares_memory(part.values, rows.values) for part in parts] == [True, False, True]
    assert parts[1].values.shape == (0, 3)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (np.array([0, ROWS, 3]), InvalidMessage, r"'w' has no row 11: its rows are 0 \.\.\. 10"),
        (np.array([0, 12, -1]), InvalidMessage, r"'w' has no row -1"),
        (np.array([2**63], np.uint64), InvalidMessage, "'w' has no row 9223372036854775808"),
        (np.array([0.0]), TypeError, "'w': their numbers must be integers, but they are float64"),
        (np.array([True]), TypeError, "but they are bool"),
        (np.array([[0]]), ShapeMismatch, r"got shape \(1, 1\)"),
    ],
)
def test_invalid_rows_are_refused_by_number_and_name(shards, rows, error, message):
    with pytest.raises(error, match=message):
        splitting.split_rows(placed(shards), rows)


@pytest.mark.parametrize("index", [-1, ROWS])
def test_rows_of_a_gradient_that_are_not_there_are_refused_before_it_is_split(index):
    array = IndexedSlices(some((2, 3)), np.array([0, index]), (ROWS, 3), check_range=False)
    with pytest.raises(InvalidMessage, match=r"gradient for 'w': .*0 \.\.\. 10"):
        splitting.split_gradient(placed(2), array)


def test_a_declaration_is_split_with_its_value_or_its_initializer_and_a_value_must_fit():
    variable, value = placed(3), some((ROWS, 3))
    plain = splitting.split_declaration(variable, Declaration(variable.spec, value))
    assert [(one.spec, one.part.first) for one in plain] == [
        (partition.spec, first) for partition, first in zip(variable.partitions, (0, 4, 8), strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate([one.value for one in plain]), value)
    table = splitting.split_declaration(variable, Declaration(variable.spec, initial=RowUniform(-1, 1)))
    assert [(one.value, one.initial, one.part.of) for one in table] == [(None, RowUniform(-1, 1), ROWS)] * 3
    with pytest.raises(ShapeMismatch, match=r"initial value for 'w' is float32\[10, 3\]"):
        splitting.split_declaration(variable, Declaration(variable.spec, some((10, 3))))


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("named", [3, None])
def test_an_unchanged_value_must_have_the_version_that_the_worker_named(shards, named):
    variable, value = placed(shards), some((ROWS, 3))
    known = None if named is None else VersionedArray("w", ReadVersion((named,) * shards), value)
    still = [Value("w", 3, None)] * shards
    if named is not None:
        assert push_pull.join(variable, still, known) is value
    for wrong in ([Value("w", 4, None), *still[1:]], [*still[:-1], Value("w", 2, None)], still[: named is None]):
        with pytest.raises(Malformed, match=r"is still at version|values of 'w', which has"):
            push_pull.join(variable, wrong, known)
