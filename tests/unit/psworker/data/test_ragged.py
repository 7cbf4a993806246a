"""Ragged columns: rows of different length, their slices, padding, segments, and invalid ones."""

import copy
import pickle

import numpy as np
import pytest

from pswire.errors import DatasetError
from psworker import nn, ops
from psworker.data.batch import Batch
from psworker.data.dataset import Dataset
from psworker.data.ragged import Ragged

ROWS = [[4, 1], [], [7, 2, 2], [5]]


@pytest.fixture
def ragged():
    return Ragged(ROWS)


def lists(ragged):
    return [row.tolist() for row in ragged]


def test_rows_are_views_of_one_array_of_values(ragged):
    assert ragged.values.tolist() == [4, 1, 7, 2, 2, 5]
    assert ragged.row_splits.tolist() == [0, 2, 2, 5, 6]
    assert (lists(ragged), len(ragged), ragged.lengths.tolist()) == (ROWS, 4, [2, 0, 3, 1])
    assert ragged.segment_ids.tolist() == [0, 0, 2, 2, 2, 3]
    assert (ragged[-1].tolist(), ragged.dtype) == ([5], np.int64)
    assert np.shares_memory(ragged[2], ragged.values)
    with pytest.raises(IndexError):
        ragged[4]
    assert repr(ragged) == "Ragged(4 rows, 6 x int64[])"


@pytest.mark.parametrize(
    "key", [slice(None), slice(1, 3), slice(0, 0), slice(3, 1), slice(None, None, -1), slice(0, 4, 2)]
)
def test_a_slice_has_the_rows_of_a_slice_of_a_list(ragged, key):
    part = ragged[key]
    assert lists(part) == ROWS[key]
    assert part.row_splits.tolist() == [0, *np.cumsum(part.lengths)]
    assert key.step or not len(part.values) or np.shares_memory(part.values, ragged.values)


def test_take_copies_rows_in_the_given_order_with_repeats(ragged):
    taken = ragged.take([2, 1, 2, 0])
    assert lists(taken) == [ROWS[2], [], ROWS[2], ROWS[0]]
    taken.values[:] = 0
    assert lists(ragged) == ROWS
    assert lists(ragged.take([])) == []
    for indices in ([4], [-1], [0.5], [True]):
        with pytest.raises(IndexError, match="has rows 0 to 3, asked for"):
            ragged.take(indices)
    many = Ragged([[number] * (number % 3) for number in range(300)])
    assert lists(many.take(np.array([255, 254], np.uint8))) == [[], [254, 254]]


def test_rows_of_arrays_keep_their_dtype_and_the_shape_of_a_value():
    rows = [np.full((length, 2), length, np.float32) for length in (3, 0, 1)]
    ragged = Ragged(rows)
    assert (ragged.values.shape, ragged.dtype) == ((4, 2), np.float32)
    for row, given in zip(ragged, rows, strict=True):
        np.testing.assert_array_equal(row, given)
    assert Ragged([[], rows[0]]).values.shape == (3, 2), "an empty list fits to any rows"
    assert Ragged([[1, 2], [0.5]]).values.tolist() == [1.0, 2.0, 0.5]
    assert len(Ragged([[], []]).values) == 0


def test_padded_rows_have_lengths_and_a_mask_as_recurrent_layers_and_attention_take_them(ragged):
    values, lengths = ragged.padded()
    assert values.tolist() == [[4, 1, 0], [0, 0, 0], [7, 2, 2], [5, 0, 0]]
    assert lengths.tolist() == [2, 0, 3, 1]
    assert ragged.padded(-1, length=4).values[3].tolist() == [5, -1, -1, -1]
    assert ragged.padded().mask.tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0]]
    x = Ragged([np.ones((length, 2), np.float32) for length in (3, 1)]).padded()
    gru, attention = nn.GRU(2, 4, name="gru"), nn.MultiHeadAttention(2, 1, 2, name="attention")
    np.testing.assert_allclose(gru(x.values, lengths=x.lengths).value[1], gru(np.ones((1, 1, 2), np.float32)).value[0])
    assert attention(x.values, mask=x.mask[:, None]).shape == (2, 3, 2)
    with pytest.raises(DatasetError, match="a row of length 3: it cannot be padded to 2"):
        ragged.padded(length=2)


def test_segment_ids_fit_the_segment_ops(ragged):
    sums = ops.segment_sum(ragged.values.astype(np.float32), ragged.segment_ids, len(ragged))
    assert sums.value.tolist() == [5, 0, 11, 5]


def test_from_splits_borrows_the_values_which_may_be_a_memory_map(tmp_path):
    np.save(tmp_path / "values.npy", np.arange(10))
    ragged = Ragged.from_splits(np.load(tmp_path / "values.npy", mmap_mode="r"), [0, 4, 4, 10])
    assert lists(ragged) == [[0, 1, 2, 3], [], [4, 5, 6, 7, 8, 9]]
    dataset = Dataset({"text": ragged})
    base = dataset.text.values
    while not isinstance(base, np.memmap):
        base = base.base
    assert not isinstance(dataset.take([0]).text.values.base, np.memmap), "a batch is a copy"
    for splits in ([0, 4], [1, 10], [0, 5, 4, 10], [0.0, 10.0], [[0, 10]], [0], 10):
        with pytest.raises(DatasetError, match=r"row_splits must be integers .* that ascend from 0"):
            Ragged.from_splits(np.arange(10), splits)


@pytest.mark.parametrize(
    ("rows", "pattern"),
    [
        ([np.arange(2), np.zeros(3)], r"row 1 is float64\[3\] and row 0 is int64\[2\]: rows have one dtype"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], r"row 1 is float64\[1, 3\] and row 0 is float64\[1, 2\]"),
        ([[], np.zeros((1, 2)), np.zeros((0, 3))], r"row 2 is float64\[0, 3\] and row 1"),
        ([[1, 2], [[3]]], r"row 1 is int64\[1, 1\] and row 0 is int64\[2\]"),
        ([[1], 2], r"row 1 is int64 of shape \(\); give numbers, an array or list for each row"),
        ([[1], ["a", "b"]], "row 1 is <U1"),
        ([[1], [None, 2]], "row 1 is object"),
        ([[1], [[1], [2, 3]]], "row 1 is not an array"),
        ([], "there are no rows"),
    ],
)
def test_rows_that_differ_in_more_than_their_length_are_refused_by_their_numbers(rows, pattern):
    with pytest.raises(DatasetError, match=pattern):
        Ragged(rows)
    if rows:
        with pytest.raises(DatasetError, match=f"dataset 'texts', column 'x': {pattern}"):
            Dataset({"x": rows}, name="texts")


def test_a_dataset_makes_lists_of_different_length_and_arrays_of_arrays_ragged(ragged):
    objects = np.empty(4, object)
    objects[:] = [np.array(row, np.int64) for row in ROWS]
    for column in (ROWS, objects, ragged):
        dataset = Dataset({"text": column, "label": [0, 1, 2, 3]}, name="texts")
        assert repr(dataset) == "Dataset('texts', 4 x text int64[ragged], label int64[])"
        assert lists(dataset[1:3].text) == ROWS[1:3]
        batch = dataset.take([2, 0], epoch=1)
        assert (lists(batch.text), batch.label.tolist()) == ([ROWS[2], ROWS[0]], [2, 0])
        with pytest.raises(ValueError, match="read-only"):
            dataset.text.values[0] = 1
        for twin in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
            assert lists(twin.text) == ROWS
    with pytest.raises(DatasetError, match=r"unequal length \(text: 4, label: 3\)"):
        Dataset({"text": ROWS, "label": [0, 1, 2]})


def test_a_batch_is_ragged_only_if_it_is_said_so_and_never_because_of_its_rows():
    assert lists(Batch({"x": Ragged(ROWS)}).x) == ROWS
    with pytest.raises(DatasetError, match=r"a batch, column 'x': not an array .* or give ps.Ragged\(rows\)"):
        Batch({"x": ROWS})


def test_ragged_parts_are_concatenated_and_split(ragged):
    dataset = Dataset({"text": ragged, "label": [0, 1, 2, 3]})
    whole = Dataset.concatenate([dataset[2:], dataset[:2]])
    assert (lists(whole.text), whole.label.tolist()) == ([*ROWS[2:], *ROWS[:2]], [2, 3, 0, 1])
    parts = dataset.split(0.5, seed=1)
    together = {int(label): row for part in parts for label, row in zip(part.label, lists(part.text), strict=True)}
    assert together == dict(enumerate(ROWS))
    with pytest.raises(DatasetError, match="cannot be concatenated: they differ in their columns"):
        Dataset.concatenate([dataset, Dataset({"text": [1, 2], "label": [0, 1]})])
    with pytest.raises(DatasetError, match="one dtype and shape"):
        Ragged.concatenate([ragged, Ragged([[0.5]])])
