"""Datasets and batches: columns, views, invalid ones, the order of an epoch; MNIST as published, and its search."""

import copy
import gzip
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from pswire.errors import ConfigurationError, DatasetError
from psworker.data import datasets
from psworker.data.batch import Batch
from psworker.data.dataset import Dataset
from psworker.data.epoch_order import epoch_order

REPOSITORY = Path(__file__).resolve().parents[4]
MNIST = REPOSITORY / "datasets" / "mnist"
FIRST, *_, LAST = datasets.MNIST_FILES


@pytest.fixture
def images():
    return np.arange(12, dtype=np.float32).reshape(6, 2)


@pytest.fixture
def dataset(images):
    return Dataset({"image": images, "label": [0, 10, 20, 30, 40, 50]}, name="digits")


def test_columns_are_read_only_views_by_attribute_and_by_key(dataset, images):
    assert (dataset.columns, len(dataset)) == (("image", "label"), 6)
    assert dataset["image"] is dataset.image
    images[0, 0] = 7
    assert dataset.image[0, 0] == 7
    for part in (dataset, dataset[1:3]):
        with pytest.raises(ValueError, match="read-only"):
            part.image[0] = 1
    for name in ("image", "name"):
        with pytest.raises(AttributeError):
            setattr(dataset, name, np.zeros((6, 2)))


def test_a_slice_is_a_dataset_of_views_whose_name_says_which_rows(dataset, images):
    part = dataset[4:1:-2]
    assert (part.label.tolist(), part.name) == ([40, 20], "digits[4:1:-2]")
    assert np.shares_memory(part.image, images)
    assert (dataset[-2:].label.tolist(), dataset[-2:].name) == ([40, 50], "digits[4:6]")
    with pytest.raises(DatasetError, match=r"digits\[6:6\].* has no rows"):
        dataset[10:]
    with pytest.raises(TypeError, match="take"):
        dataset[0]


def test_take_copies_rows_in_the_given_order_into_a_batch(dataset, images):
    batch = dataset.take([5, 0, 5], epoch=3)
    assert isinstance(batch, Batch)
    assert (len(batch), batch.epoch, batch.columns, batch["label"].tolist()) == (3, 3, dataset.columns, [50, 0, 50])
    assert (dataset.num_examples, batch.num_examples) == (6, 3)
    np.testing.assert_array_equal(batch.image, images[[5, 0, 5]])
    batch.image[:] = -1
    assert images.min() == 0
    other = dataset.take(np.array([1], np.uint16))
    assert (other.epoch, other.image.dtype) == (None, np.float32)
    other.epoch = 1


@pytest.mark.parametrize(
    ("indices", "pattern"),
    [
        ([6], "'digits'.* has rows 0 to 5, asked for 6 to 6"),
        ([0, -1], "asked for -1 to 0"),
        ([], "non-empty list of integer indices, got float64 of shape"),
        ([True] * 6, "integer indices, got bool"),
        ([[0, 1]], r"of shape \(1, 2\)"),
    ],
)
def test_invalid_indices_are_refused(dataset, indices, pattern):
    with pytest.raises(DatasetError, match=pattern):
        dataset.take(indices)


@pytest.mark.parametrize(
    ("columns", "pattern"),
    [
        ({}, "dataset 'digits' has no columns"),
        ({"x": [1, 2], "y": [1, 2, 3]}, r"dataset 'digits' has columns of unequal length \(x: 2, y: 3\)"),
        ({"x": []}, "dataset 'digits' has no rows"),
        ({"x": 5}, r"column 'x': int64 of shape \(\)"),
        ({"x": [None, object()]}, r"column 'x': objects \(NoneType, object\) of shape \(2,\); convert them to numbers"),
        (
            {"x": np.array(["a", 5], object)},
            r"column 'x': objects \(int, str\).*\(words: np\.unique\(words, .*cat\.codes and",
        ),
        *(({name: [1]}, f"cannot have a column '{name}'") for name in ("_x", "columns", "epoch", "name", "take")),
        *(
            ({name: [1]}, f"cannot have a column '{name}'")
            for name in ("concatenate", "next_batch", "num_examples", "split")
        ),
    ],
)
def test_invalid_columns_and_reserved_names_are_refused_with_their_names(columns, pattern, dataset):
    with pytest.raises(DatasetError, match=pattern):
        Dataset(columns, name="digits")
    with pytest.raises(DatasetError, match="a batch"):
        Batch(columns)
    tables = dataset, dataset.take([0])
    public = {name for table in tables for name in dir(table) if not name.startswith("_")} - {*dataset.columns}
    assert public == {"columns", "concatenate", "epoch", "name", "next_batch", "num_examples", "split", "take"}


def test_an_unknown_column_is_refused_with_the_columns_there_are(dataset):
    for table in (dataset, dataset.take([0])):
        with pytest.raises(DatasetError, match=r"image float32\[2\], label int64\[\].* has no column 'lable'"):
            table["lable"]
        with pytest.raises(AttributeError, match="no attribute or column 'lable'"):
            _ = table.lable


def test_a_split_has_each_row_in_one_part_and_is_the_same_in_every_process(dataset):
    first, second = dataset.split(0.67, seed=3)
    assert (len(first), len(second), first.columns) == (4, 2, dataset.columns)
    assert sorted([*first.label, *second.label]) == dataset.label.tolist()
    assert (first.label // 10).tolist() == epoch_order(6, 3, 0)[:4].tolist()
    np.testing.assert_array_equal(second.image, dataset.image[second.label // 10])
    assert first.name == "digits.split(0.67, seed=3)[0]"
    for fraction in (0, 1, -0.5, 1.5, 0.01, 0.99):
        with pytest.raises(DatasetError, match=f"cannot be split at {fraction}"):
            dataset.split(fraction)


def test_parts_are_concatenated_in_order_if_their_columns_are_alike(dataset):
    whole = Dataset.concatenate([dataset[4:], dataset[:1], dataset[1:2]], name="whole")
    assert (whole.name, whole.label.tolist(), whole.columns) == ("whole", [40, 50, 0, 10], dataset.columns)
    for other in ({"image": dataset.image}, {"image": dataset.image, "label": np.zeros(6)}):
        with pytest.raises(DatasetError, match="cannot be concatenated"):
            Dataset.concatenate([dataset, Dataset(other)])
    with pytest.raises(DatasetError, match="nothing to concatenate"):
        Dataset.concatenate([])


def test_next_batch_reads_shuffled_passes_one_after_the_other(dataset):
    labels = [label for _ in range(6) for label in dataset.next_batch(4, seed=5)[1]]
    passes = [labels[start : start + 6] for start in range(0, 24, 6)]
    assert [sorted(one) for one in passes] == [dataset.label.tolist()] * 4
    assert len({tuple(one) for one in passes}) > 1
    in_order = [label for _ in range(3) for label in dataset[1:].next_batch(2, shuffle=False)[1]]
    assert in_order == [10, 20] * 3, "each slice has a position of its own"
    part = dataset[1:]
    assert [part.next_batch(2, shuffle=False)[1].tolist() for _ in range(3)] == [[10, 20], [30, 40], [50, 10]]
    image, label = dataset.next_batch(13)
    np.testing.assert_array_equal(image, dataset.image[label // 10])
    with pytest.raises(ValueError, match="at least one row, got 0"):
        dataset.next_batch(0)
    twin = copy.deepcopy(dataset)
    assert [one.tolist() for one in twin.next_batch(5)] == [one.tolist() for one in dataset.next_batch(5)]


def test_columns_of_a_memory_map_stay_on_disk_and_a_batch_is_a_copy_of_its_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20).reshape(10, 2))
    dataset = Dataset({"x": np.load(tmp_path / "x.npy", mmap_mode="r")})[2:]
    base = dataset.x
    while not isinstance(base, np.memmap):
        base = base.base
    batch = dataset.take([3, 0])
    assert batch.x.tolist() == [[10, 11], [4, 5]]
    batch.x[:] = 0


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_datasets_and_batches_survive_copying_and_pickling_and_have_a_repr(dataset, clone):
    twin, batch = clone(dataset), clone(dataset.take([1, 2], epoch=2))
    assert (twin.name, twin.label.tolist()) == ("digits", dataset.label.tolist())
    assert (batch.epoch, batch.label.tolist()) == (2, [10, 20])
    assert repr(twin) == "Dataset('digits', 6 x image float32[2], label int64[])"
    assert repr(batch) == "Batch(epoch 2, 2 x image float32[2], label int64[])"


def test_the_order_of_an_epoch_has_every_row_once_and_is_the_same_on_every_worker_and_with_every_numpy():
    assert epoch_order(10, seed=0, epoch=1).tolist() == [1, 3, 8, 6, 2, 0, 7, 5, 4, 9]
    assert epoch_order(10, seed=0, epoch=2).tolist() == [1, 4, 9, 8, 5, 2, 6, 3, 0, 7]
    assert epoch_order(10, seed=2**64 + 7, epoch=1).tolist() == [5, 8, 4, 0, 2, 3, 6, 1, 7, 9]
    assert epoch_order(55_000, seed=0, epoch=1)[:5].tolist() == [788, 42714, 35978, 11549, 18753]
    for size in (0, 1, 2, 1000, 55_000):
        order = epoch_order(size, seed=3, epoch=1)
        assert order.dtype == np.int64
        np.testing.assert_array_equal(np.sort(order), np.arange(size))
    assert len({tuple(epoch_order(100, seed, epoch)) for seed in range(10) for epoch in range(10)}) == 100
    assert not np.array_equal(epoch_order(100, 2**32 + 5, 0), epoch_order(100, 5, 1))
    for name in ("size", "seed", "epoch"):
        with pytest.raises(ConfigurationError, match=f"{name} is -1"):
            epoch_order(**{"size": 3, "seed": 0, "epoch": 1, name: -1})


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    """The user's own folders take no part in these tests."""
    monkeypatch.delenv("PARAMSERVER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def link_mnist(folder: Path, *, without: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in datasets.MNIST_FILES:
        if name != without:
            (folder / name).symlink_to(MNIST / name)
    return folder


def modified_mnist(folder: Path, content: bytes = b"modified") -> Path:
    """A folder with all files, of which the first is modified."""
    (link_mnist(folder, without=FIRST) / FIRST).write_bytes(content)
    return folder


def refused(pattern: str, data_dir: Path | None = None) -> str:
    with pytest.raises(DatasetError, match=pattern) as caught:
        datasets.mnist(data_dir)
    return str(caught.value)


@pytest.mark.slow
def test_the_parts_have_the_published_sizes_shapes_dtypes_and_examples_and_a_pixel_is_its_byte_over_255_rounded():
    mnist = datasets.mnist()
    for part, name, size in zip(mnist, ("train", "validation", "test"), (55_000, 5_000, 10_000), strict=True):
        assert (part.name, part.columns) == (f"mnist/{name}", ("image", "label"))
        assert (part.image.shape, part.image.dtype) == ((size, 784), np.float32)
        assert (part.label.shape, part.label.dtype) == ((size,), np.int64)
        assert part.image.flags.c_contiguous
    assert mnist.validation.label[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.label[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert np.bincount(mnist.test.label).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    labels = gzip.decompress((MNIST / "train-labels-idx1-ubyte.gz").read_bytes())[8:]
    assert mnist.validation.label.tolist() + mnist.train.label.tolist() == list(labels)
    raw = np.frombuffer(gzip.decompress((MNIST / "t10k-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
    np.testing.assert_array_equal(mnist.test.image.ravel(), (np.arange(256) / 255).astype(np.float32)[raw])


@pytest.mark.slow
def test_one_hot_labels_have_a_one_at_the_digit():
    plain, one_hot = datasets.mnist(), datasets.mnist(one_hot=True)
    for part, other in zip(plain, one_hot, strict=True):
        assert (other.label.shape, other.label.dtype) == ((len(part), 10), np.float32)
        assert (other.label.sum(axis=1) == 1).all()
        np.testing.assert_array_equal(other.label.argmax(axis=1), part.label)


def test_each_file_in_the_repository_has_the_digest_that_its_readme_and_the_loader_name():
    readme = (MNIST / "README.md").read_text(encoding="utf-8")
    assert "CC BY-SA 3.0" in readme
    assert sorted(path.name for path in MNIST.glob("*.gz")) == sorted(datasets.MNIST_FILES)
    for name, (here, published) in datasets.MNIST_FILES.items():
        assert f"| `{name}` | `{here}` | `{published}` |" in readme


@pytest.mark.slow
def test_the_search_goes_from_the_argument_or_the_environment_to_the_repository_to_the_cache(monkeypatch, tmp_path):
    """Where a modified file is found first, the error names it."""
    modified = {name: modified_mnist(tmp_path / name) for name in ("user", "parent/mnist", "cache/paramserver/mnist")}
    for data_dir, found in ((tmp_path / "user", "user"), (tmp_path / "parent", "parent/mnist")):
        assert str(modified[found]) in refused("truncated or modified", data_dir)
        with monkeypatch.context() as environment:
            environment.setenv("PARAMSERVER_DATA", str(data_dir))
            assert str(modified[found]) in refused("truncated or modified")
    assert refused("was not found", tmp_path).count("; ") == 1  # of an argument, no other folder is searched
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("PARAMSERVER_DATA", str(tmp_path / "none"))
    assert len(datasets.mnist().test) == 10_000
    monkeypatch.setattr(datasets, "__file__", "/usr/lib/python3/site-packages/psworker/data/datasets.py")
    assert str(modified["cache/paramserver/mnist"]) in refused("truncated or modified")


def test_a_folder_with_some_of_the_files_is_an_error_that_has_the_address_of_each_one_that_it_lacks(tmp_path):
    link_mnist(tmp_path / "mnist", without=LAST)
    message = refused(re.escape(f"MNIST is incomplete in {tmp_path}/mnist. Download into {tmp_path}/mnist"), tmp_path)
    assert re.findall(r"https://\S+/(\S+\.gz)  SHA-256 (\w+)", message) == [(LAST, datasets.MNIST_FILES[LAST][1])]


def test_when_no_folder_has_them_the_error_names_those_searched_the_addresses_and_the_folder_to_put_the_files_in(
    monkeypatch, tmp_path
):
    (tmp_path / "none").mkdir()
    message = refused("was not found", tmp_path / "none")
    assert f"{tmp_path}/none (has none of the files); {tmp_path}/none/mnist (no such folder)" in message
    assert f"Download into {tmp_path}/none, " in message
    assert "PARAMSERVER_DATA" in message
    addresses = dict(re.findall(r"(https://\S+\.gz)  SHA-256 (\w+)", message))
    published = {name: digests[1] for name, digests in datasets.MNIST_FILES.items()}
    assert addresses == {f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}": published[name] for name in published}
    monkeypatch.setattr(datasets, "__file__", "/usr/lib/python3/site-packages/psworker/data/datasets.py")
    assert f"Download into {tmp_path}/cache/paramserver/mnist, " in refused("was not found")
    monkeypatch.setenv("PARAMSERVER_DATA", str(tmp_path / "none"))
    assert f"Download into {tmp_path}/none, " in refused("was not found")


def test_a_file_that_is_truncated_or_modified_by_one_bit_or_unreadable_is_refused_by_name(tmp_path, monkeypatch):
    whole = (MNIST / FIRST).read_bytes()
    flipped = bytearray(whole)
    flipped[4] ^= 1  # gzip's time stamp: even a bit without data counts
    for number, content in enumerate((whole[:-1], whole + b"\0", flipped)):
        folder = modified_mnist(tmp_path / str(number), content)
        message = refused("truncated or modified", folder)
        assert all(part in message for part in (str(folder / FIRST), *(d[:12] for d in datasets.MNIST_FILES[FIRST])))

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    refused(r"train-images.* cannot be read .*Permission denied", folder)


def test_the_votes_of_the_senate_are_those_of_the_record():
    """Tallies that the Senate has published: of Rice, Roberts and Alito; Obama voted for the first one alone."""
    senate = datasets.senate(REPOSITORY / "datasets")
    votes = senate.votes
    assert (len(votes), len(senate.senators), len(senate.roll_calls)) == (62_742, 101, 645)
    assert (votes.senator.dtype, votes.roll_call.dtype, votes.yea.dtype) == (np.int64, np.int64, np.float32)
    assert len(set(zip(votes.senator.tolist(), votes.roll_call.tolist(), strict=True))) == len(votes)
    known = {"2005-01-26 .*Rice": (85, 13), "2005-09-29 .*Roberts": (78, 22), "2006-01-31 .*Alito": (58, 42)}
    obama = []
    for pattern, tally in known.items():
        [number] = [k for k, text in enumerate(senate.roll_calls) if re.match(pattern, text)]
        yea = votes.yea[votes.roll_call == number]
        assert ((yea == 1).sum(), (yea == 0).sum()) == tally
        [vote] = votes.yea[(votes.roll_call == number) & (votes.senator == senate.senators.index("OBAMA D-IL"))]
        obama.append(vote)
    assert obama == [1, 0, 0]


def test_votes_that_are_not_there_or_not_those_are_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"The Senate's record was not found\. .*Copy senate\.csv\.gz of data"):
        datasets.senate(tmp_path)
    (tmp_path / "senate.csv.gz").write_bytes(b"nothing")
    with pytest.raises(DatasetError, match=r"senate\.csv\.gz was truncated or modified: .* expected 85a4e83a42cd;"):
        datasets.senate(tmp_path)


@pytest.mark.slow
def test_a_file_that_is_much_too_long_is_refused_and_not_read_to_its_end(tmp_path):
    link_mnist(tmp_path, without=LAST)
    with (tmp_path / LAST).open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    assert str(tmp_path / LAST) in refused("truncated or modified", tmp_path)
