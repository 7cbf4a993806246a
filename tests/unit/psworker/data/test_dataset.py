"""Datasets and batches: rows stay together, views stay read-only, and what does not fit is refused by name."""

import copy
import pickle

import numpy as np
import pytest

from pswire.errors import DatasetError
from psworker.data.dataset import Batch, Dataset


@pytest.fixture
def images():
    return np.arange(12, dtype=np.float32).reshape(6, 2)


@pytest.fixture
def dataset(images):
    return Dataset({"image": images, "label": [0, 10, 20, 30, 40, 50]}, name="digits")


def test_columns_are_reached_by_attribute_and_by_key(dataset, images):
    assert dataset.columns == ("image", "label")
    assert len(dataset) == 6
    np.testing.assert_array_equal(dataset.image, images)
    assert dataset["image"] is dataset.image
    assert dataset.label.tolist() == [0, 10, 20, 30, 40, 50]


def test_a_users_own_arrays_are_a_dataset_in_one_line(images):
    assert Dataset({"x": images, "y": images[:, 0]}).columns == ("x", "y")


def test_columns_are_not_copied_and_the_users_own_array_stays_writable(dataset, images):
    assert np.shares_memory(dataset.image, images)
    images[0, 0] = 7
    assert dataset.image[0, 0] == 7


def test_columns_cannot_be_written_or_replaced(dataset):
    with pytest.raises(ValueError, match="read-only"):
        dataset.image[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        dataset[1:3].image[0] = 1
    with pytest.raises(AttributeError):
        dataset.image = np.zeros((6, 2))
    with pytest.raises(AttributeError):
        dataset.name = "other"


def test_a_slice_is_a_dataset_of_views_whose_name_says_which_rows(dataset, images):
    part = dataset[4:1:-2]
    assert part.label.tolist() == [40, 20]
    assert part.name == "digits[4:1:-2]"
    assert np.shares_memory(part.image, images)
    assert dataset[-2:].name == "digits[4:6]"
    assert dataset[-2:].label.tolist() == [40, 50]


def test_two_slices_split_a_dataset_without_loss(dataset):
    train, validation = dataset[2:], dataset[:2]
    assert validation.label.tolist() + train.label.tolist() == dataset.label.tolist()


def test_take_copies_rows_in_the_order_asked_for(dataset, images):
    batch = dataset.take([5, 0, 5], epoch=3)
    assert isinstance(batch, Batch)
    assert len(batch) == 3
    assert batch.epoch == 3
    assert batch.columns == dataset.columns
    assert batch["label"].tolist() == [50, 0, 50]
    np.testing.assert_array_equal(batch.image, images[[5, 0, 5]])
    batch.image[:] = -1
    assert images.min() == 0


def test_a_batch_belongs_to_no_epoch_unless_someone_says_so(dataset):
    batch = dataset.take(np.array([1], np.uint16))
    assert batch.epoch is None
    batch.epoch = 1
    assert batch.epoch == 1


def test_the_dtype_of_a_column_is_kept_in_slices_and_batches(dataset):
    assert dataset.image.dtype == dataset[:2].image.dtype == dataset.take([0]).image.dtype == np.float32


@pytest.mark.parametrize(
    ("indices", "pattern"),
    [
        ([6], "'digits'.* has rows 0 to 5, asked for 6 to 6"),
        ([0, -1], "asked for -1 to 0"),
        ([], "non-empty list of integer indices, got float64 of shape"),
        (np.zeros(0, np.int64), "non-empty list"),
        ([0.0, 1.0], "integer indices, got float64"),
        ([True] * 6, "integer indices, got bool"),
        ([[0, 1]], r"of shape \(1, 2\)"),
        (3, r"of shape \(\)"),
    ],
)
def test_indices_that_cannot_be_rows_are_refused(dataset, indices, pattern):
    with pytest.raises(DatasetError, match=pattern):
        dataset.take(indices)


@pytest.mark.parametrize(
    ("columns", "pattern"),
    [
        ({}, "dataset 'digits' has no columns"),
        ({"x": [1, 2], "y": [1, 2, 3]}, r"dataset 'digits' has columns of unequal length \(x: 2, y: 3\)"),
        ({"x": []}, "dataset 'digits' has no rows"),
        ({"x": 5}, r"column 'x': int64 of shape \(\)"),
        ({"x": [[1, 2], [3]]}, "column 'x': not an array"),
        ({"x": [None, object()]}, "column 'x': object"),
        ({"epoch": [1]}, "cannot have a column 'epoch'"),
        ({"take": [1]}, "cannot have a column 'take'"),
        ({"_x": [1]}, "cannot have a column '_x'"),
    ],
)
def test_columns_that_make_no_table_are_refused_with_their_names(columns, pattern):
    with pytest.raises(DatasetError, match=pattern):
        Dataset(columns, name="digits")


def test_every_public_attribute_is_reserved_so_that_no_column_hides_behind_it(dataset):
    batch = dataset.take([0])
    public = {name for thing in (dataset, batch) for name in dir(thing) if not name.startswith("_")}
    assert public == {"columns", "epoch", "name", "take"}
    for name in public:
        with pytest.raises(DatasetError, match=name):
            Batch({name: [1]})


def test_an_empty_slice_is_refused_with_its_rows(dataset):
    with pytest.raises(DatasetError, match=r"digits\[6:6\].* has no rows"):
        dataset[10:]


@pytest.mark.parametrize("make", [lambda d: d, lambda d: d.take([0])], ids=["dataset", "batch"])
def test_an_unknown_column_is_refused_with_the_columns_there_are(dataset, make):
    table = make(dataset)
    with pytest.raises(DatasetError, match=r"image float32\[2\], label int64\[\].* has no column 'lable'"):
        table["lable"]
    with pytest.raises(AttributeError, match="no attribute or column 'lable'"):
        _ = table.lable
    assert not hasattr(table, "lable")


def test_a_single_row_is_asked_for_with_take_and_the_error_says_so(dataset):
    with pytest.raises(TypeError, match="take"):
        dataset[0]


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_datasets_and_batches_survive_copying_and_pickling(dataset, clone):
    twin, batch = clone(dataset), clone(dataset.take([1, 2], epoch=2))
    assert (twin.name, twin.label.tolist()) == ("digits", dataset.label.tolist())
    assert (batch.epoch, batch.label.tolist()) == (2, [10, 20])


def test_repr_shows_size_shapes_and_dtypes(dataset):
    assert repr(dataset) == "Dataset('digits', 6 x image float32[2], label int64[])"
    assert repr(dataset.take([0, 1], epoch=2)) == "Batch(epoch 2, 2 x image float32[2], label int64[])"
