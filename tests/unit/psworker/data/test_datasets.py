"""MNIST as published, where it is searched for, and the errors when it is missing or modified."""

from pathlib import Path

import numpy as np
import pytest

from pswire.errors import DatasetError
from psworker.data import datasets, idx

REPOSITORY = Path(__file__).resolve().parents[4]
MNIST = REPOSITORY / "datasets" / "mnist"
SMALL = "t10k-labels-idx1-ubyte.gz"


@pytest.fixture(scope="module")
def mnist():
    return datasets.mnist()


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


def test_the_parts_have_the_published_sizes_shapes_dtypes_and_examples(mnist):
    for part, name, size in zip(mnist, ("train", "validation", "test"), (55_000, 5_000, 10_000), strict=True):
        assert (part.name, part.columns) == (f"mnist/{name}", ("image", "label"))
        assert (part.image.shape, part.image.dtype) == ((size, 784), np.float32)
        assert (part.label.shape, part.label.dtype) == ((size,), np.int64)
        assert part.image.flags.c_contiguous
    assert mnist.validation.label[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.label[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    training = np.bincount(mnist.train.label) + np.bincount(mnist.validation.label)
    assert training.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.test.label).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    labels = idx.read(MNIST / "train-labels-idx1-ubyte.gz")
    assert mnist.validation.label.tolist() + mnist.train.label.tolist() == labels.tolist()


def test_a_pixel_is_its_byte_over_255_correctly_rounded(mnist):
    raw = idx.read(MNIST / "t10k-images-idx3-ubyte.gz").reshape(10_000, 784)
    exact = (np.arange(256, dtype=np.float64) / 255).astype(np.float32)
    np.testing.assert_array_equal(mnist.test.image, exact[raw])


def test_each_file_in_the_repository_has_the_digest_that_its_readme_and_the_loader_name():
    readme = (MNIST / "README.md").read_text(encoding="utf-8")
    assert "CC BY-SA 3.0" in readme
    assert sorted(path.name for path in MNIST.glob("*.gz")) == sorted(datasets.MNIST_FILES)
    for name, (here, published) in datasets.MNIST_FILES.items():
        assert f"| `{name}` | `{here}` | `{published}` |" in readme


def test_the_search_goes_from_the_environment_to_the_repository_to_the_cache(monkeypatch):
    explicit, environment = [Path("/mine"), Path("/mine/mnist")], [Path("/data"), Path("/data/mnist")]
    assert datasets.data_directories(None, "/data", "/cache") == [*environment, MNIST, Path("/cache/mnist")]
    assert datasets.data_directories(None, None, "/cache") == [MNIST, Path("/cache/mnist")]
    assert datasets.data_directories("/mine", "/data", "/cache") == explicit
    monkeypatch.setattr(datasets, "__file__", "/usr/lib/python3/site-packages/psworker/data/datasets.py")
    assert datasets.data_directories(None, None, "/cache") == [Path("/cache/mnist")]


def test_the_first_folder_with_the_files_is_used_and_one_with_some_of_them_is_an_error(tmp_path):
    folder, second = link_mnist(tmp_path / "mnist"), link_mnist(tmp_path / "second")
    for given in (folder, tmp_path):  # the folder itself, or its parent
        assert datasets.find_mnist(datasets.data_directories(given, None, "/cache")) == folder
    assert datasets.find_mnist([tmp_path / "none", tmp_path, second, folder]) == second
    partial = link_mnist(tmp_path / "partial", without=SMALL)
    with pytest.raises(DatasetError, match=f"partial .lacks {SMALL}.; copy what is missing there"):
        datasets.find_mnist([tmp_path / "none", partial, folder])
    with pytest.raises(DatasetError, match=f"partial .lacks {SMALL}") as caught:
        datasets.mnist(partial)
    assert str(MNIST) not in str(caught.value)
    with pytest.raises(DatasetError) as caught:
        datasets.find_mnist([tmp_path / "none", tmp_path])
    message = str(caught.value)
    assert f"{tmp_path / 'none'} (no such folder); {tmp_path} (has none of the files)" in message
    assert f"Copy {', '.join(datasets.MNIST_FILES)} into one of these folders, or set PARAMSERVER_DATA" in message


@pytest.mark.parametrize(
    ("variable", "place"),
    [("PARAMSERVER_DATA", ""), ("PARAMSERVER_DATA", "mnist"), ("XDG_CACHE_HOME", "paramserver/mnist")],
)
def test_the_environment_is_searched(monkeypatch, tmp_path, variable, place):
    """The first file found there is modified: the error shows that it was the one read."""
    name = next(iter(datasets.MNIST_FILES))
    folder = link_mnist(tmp_path / "user" / place, without=name)
    (folder / name).write_bytes(b"modified")
    monkeypatch.setattr(datasets, "__file__", "/usr/lib/python3/site-packages/psworker/data/datasets.py")
    monkeypatch.setenv(variable, str(tmp_path / "user"))
    with pytest.raises(DatasetError, match="truncated or modified") as caught:
        datasets.mnist()
    assert str(folder / name) in str(caught.value)


def test_a_file_that_is_truncated_or_modified_by_one_bit_or_unreadable_is_refused_by_name(tmp_path, monkeypatch):
    name = next(iter(datasets.MNIST_FILES))
    folder = link_mnist(tmp_path / "mnist", without=name)
    whole = (MNIST / name).read_bytes()
    flipped = bytearray(whole)
    flipped[4] ^= 1  # gzip's time stamp: even a bit without data counts
    for modified in (whole[:-1], whole + b"\0", flipped):
        (folder / name).write_bytes(modified)
        with pytest.raises(DatasetError, match="truncated or modified") as caught:
            datasets.mnist(folder)
        assert str(folder / name) in str(caught.value)
        assert all(digest[:12] in str(caught.value) for digest in datasets.MNIST_FILES[name])

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(idx, "open", deny, raising=False)
    with pytest.raises(DatasetError, match=r"train-images.* cannot be read .*Permission denied"):
        datasets.mnist(folder)
