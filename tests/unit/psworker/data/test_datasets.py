"""MNIST as the authors published it, where it is looked for, and what is said when it is missing or altered."""

import shutil
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
    return datasets.mnist(MNIST)


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


def test_the_parts_have_the_published_sizes_shapes_and_dtypes(mnist):
    for part, name, size in zip(mnist, ("train", "validation", "test"), (55_000, 5_000, 10_000), strict=True):
        assert part.name == f"mnist/{name}"
        assert part.columns == ("image", "label")
        assert (part.image.shape, part.image.dtype) == ((size, 784), np.float32)
        assert (part.label.shape, part.label.dtype) == ((size,), np.int64)
        assert part.image.flags.c_contiguous


def test_validation_is_the_first_5000_training_examples_and_train_the_rest(mnist):
    images = idx.read(MNIST / "train-images-idx3-ubyte.gz").reshape(60_000, 784)
    labels = idx.read(MNIST / "train-labels-idx1-ubyte.gz")
    assert mnist.validation.label.tolist() == labels[:5000].tolist()
    assert mnist.train.label.tolist() == labels[5000:].tolist()
    np.testing.assert_array_equal(np.rint(mnist.validation.image * 255), images[:5000])
    np.testing.assert_array_equal(np.rint(mnist.train.image[:5000] * 255), images[5000:10_000])
    np.testing.assert_array_equal(np.rint(mnist.train.image[-5000:] * 255), images[-5000:])


def test_the_digits_are_those_that_everyone_knows(mnist):
    assert mnist.validation.label[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.label[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    training = np.bincount(mnist.train.label) + np.bincount(mnist.validation.label)
    assert training.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.test.label).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_mean_and_deviation_of_the_pixels_are_the_published_ones(mnist):
    parts = [mnist.train.image, mnist.validation.image]
    count = 60_000 * 784
    mean = sum(part.sum(dtype=np.float64) for part in parts) / count
    square = sum(np.einsum("ij,ij->i", part, part).sum(dtype=np.float64) for part in parts) / count
    assert mean == pytest.approx(0.1307, abs=5e-5)
    assert (square - mean**2) ** 0.5 == pytest.approx(0.3081, abs=5e-5)


def test_a_pixel_is_its_byte_over_255_correctly_rounded(mnist):
    raw = idx.read(MNIST / "t10k-images-idx3-ubyte.gz").reshape(10_000, 784)
    exact = (np.arange(256, dtype=np.float64) / 255).astype(np.float32)
    np.testing.assert_array_equal(mnist.test.image, exact[raw])
    assert (mnist.test.image.min(), mnist.test.image.max()) == (0.0, 1.0)


def test_each_file_in_the_repository_has_the_digest_that_its_readme_and_the_loader_name():
    readme = (MNIST / "README.md").read_text(encoding="utf-8")
    assert "CC BY-SA 3.0" in readme
    assert sorted(path.name for path in MNIST.glob("*.gz")) == sorted(datasets.MNIST_FILES)
    for name, (here, published) in datasets.MNIST_FILES.items():
        assert f"| `{name}` | `{here}` | `{published}` |" in readme
        idx.read(MNIST / name, sha256=[here])


def test_the_search_goes_from_the_environment_to_the_repository_to_the_cache(tmp_path):
    assert datasets.data_directories(None, "/data", "/home/ada/.cache/paramserver") == [
        Path("/data"),
        Path("/data/mnist"),
        MNIST,
        Path("/home/ada/.cache/paramserver/mnist"),
    ]
    assert datasets.data_directories(None, None, "/cache") == [MNIST, Path("/cache/mnist")]


def test_an_explicit_folder_is_the_only_one_searched():
    assert datasets.data_directories("/mine", "/data", "/cache") == [Path("/mine"), Path("/mine/mnist")]


def test_an_installed_package_has_no_repository_to_search(monkeypatch):
    monkeypatch.setattr(datasets, "__file__", "/usr/lib/python3/site-packages/psworker/data/datasets.py")
    assert datasets.data_directories(None, None, "/cache") == [Path("/cache/mnist")]


def test_the_folder_may_be_named_itself_or_by_its_parent(tmp_path):
    folder = link_mnist(tmp_path / "mnist")
    assert datasets.find_mnist(datasets.data_directories(folder, None, "/cache")) == folder
    assert datasets.find_mnist(datasets.data_directories(tmp_path, None, "/cache")) == folder


def test_the_first_folder_that_has_the_files_wins(tmp_path):
    first, second = link_mnist(tmp_path / "first"), link_mnist(tmp_path / "second")
    assert datasets.find_mnist([tmp_path / "none", tmp_path, first, second]) == first


def test_a_folder_that_has_some_of_the_files_is_not_passed_over_in_silence(tmp_path):
    partial = link_mnist(tmp_path / "partial", without=SMALL)
    with pytest.raises(DatasetError, match=f"partial .lacks {SMALL}.; copy what is missing there"):
        datasets.find_mnist([tmp_path / "none", partial, link_mnist(tmp_path / "whole")])


@pytest.mark.parametrize(
    ("variable", "place"),
    [("PARAMSERVER_DATA", ""), ("PARAMSERVER_DATA", "mnist"), ("XDG_CACHE_HOME", "paramserver/mnist")],
)
def test_the_environment_is_asked(monkeypatch, tmp_path, variable, place):
    """The first file found there is altered: the error tells that it was the one read."""
    name = next(iter(datasets.MNIST_FILES))
    folder = link_mnist(tmp_path / "user" / place, without=name)
    (folder / name).write_bytes(b"altered")
    monkeypatch.setattr(datasets, "__file__", "/usr/lib/python3/site-packages/psworker/data/datasets.py")
    monkeypatch.setenv(variable, str(tmp_path / "user"))
    with pytest.raises(DatasetError, match="cut or altered") as caught:
        datasets.mnist()
    assert str(folder / name) in str(caught.value)


def test_without_any_setting_the_repositorys_own_files_are_read(mnist):
    np.testing.assert_array_equal(datasets.mnist().test.label, mnist.test.label)


def test_an_explicit_folder_that_lacks_a_file_is_an_error_though_the_repository_has_it(tmp_path):
    folder = link_mnist(tmp_path / "mine", without=SMALL)
    with pytest.raises(DatasetError) as caught:
        datasets.mnist(folder)
    assert f"{folder} (lacks {SMALL})" in str(caught.value)
    assert str(MNIST) not in str(caught.value)


def test_when_mnist_is_nowhere_the_error_lists_every_place_and_what_to_do(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    folders = [tmp_path / "none", empty]
    with pytest.raises(DatasetError) as caught:
        datasets.find_mnist(folders)
    message = str(caught.value)
    assert f"{folders[0]} (no such folder); {empty} (has none of the files)" in message
    assert f"Copy {', '.join(datasets.MNIST_FILES)} into one of these folders, or set PARAMSERVER_DATA" in message


@pytest.mark.parametrize("name", datasets.MNIST_FILES)
def test_a_file_cut_or_altered_by_one_bit_is_refused_by_name(tmp_path, name):
    folder = link_mnist(tmp_path / "mnist", without=name)
    whole = (MNIST / name).read_bytes()
    flipped = bytearray(whole)
    flipped[4] ^= 1  # gzip's time stamp: even what does not touch the data is seen
    for altered in (whole[:-1], whole + b"\0", flipped):
        (folder / name).write_bytes(altered)
        with pytest.raises(DatasetError, match="cut or altered") as caught:
            datasets.mnist(folder)
        assert str(folder / name) in str(caught.value)
        assert all(digest[:12] in str(caught.value) for digest in datasets.MNIST_FILES[name])


def test_an_unreadable_file_is_refused_by_name(tmp_path, monkeypatch):
    folder = link_mnist(tmp_path / "mnist")

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(idx, "open", deny, raising=False)
    with pytest.raises(DatasetError, match=r"train-images.* cannot be read .*Permission denied"):
        datasets.mnist(folder)


def test_a_copy_of_the_files_is_as_good_as_the_repository(tmp_path, mnist):
    shutil.copytree(MNIST, tmp_path / "mnist")
    np.testing.assert_array_equal(datasets.mnist(tmp_path).validation.image, mnist.validation.image)
