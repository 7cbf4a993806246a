"""MNIST as published, where it is searched for, and the errors when it is missing or modified."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from pswire.errors import DatasetError
from psworker.data import datasets

REPOSITORY = Path(__file__).resolve().parents[4]
MNIST = REPOSITORY / "datasets" / "mnist"
FIRST, *_, LAST = datasets.MNIST_FILES


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


def modified_mnist(folder: Path, content: bytes = b"modified") -> Path:
    """A folder with all files, of which the first is modified."""
    (link_mnist(folder, without=FIRST) / FIRST).write_bytes(content)
    return folder


def refused(pattern: str, data_dir: Path | None = None) -> str:
    with pytest.raises(DatasetError, match=pattern) as caught:
        datasets.mnist(data_dir)
    return str(caught.value)


def test_the_parts_have_the_published_sizes_shapes_dtypes_and_examples(mnist):
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


def test_a_pixel_is_its_byte_over_255_correctly_rounded(mnist):
    raw = np.frombuffer(gzip.decompress((MNIST / "t10k-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
    np.testing.assert_array_equal(mnist.test.image.ravel(), (np.arange(256) / 255).astype(np.float32)[raw])


def test_each_file_in_the_repository_has_the_digest_that_its_readme_and_the_loader_name():
    readme = (MNIST / "README.md").read_text(encoding="utf-8")
    assert "CC BY-SA 3.0" in readme
    assert sorted(path.name for path in MNIST.glob("*.gz")) == sorted(datasets.MNIST_FILES)
    for name, (here, published) in datasets.MNIST_FILES.items():
        assert f"| `{name}` | `{here}` | `{published}` |" in readme


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


def test_a_folder_with_some_of_the_files_is_an_error_and_one_without_is_named_among_those_searched(tmp_path):
    link_mnist(tmp_path / "mnist", without=LAST)
    refused(re.escape(f"{tmp_path}/mnist (lacks {LAST}); copy what is missing there"), tmp_path)
    (tmp_path / "none").mkdir()
    message = refused("was not found", tmp_path / "none")
    assert f"{tmp_path}/none (has none of the files); {tmp_path}/none/mnist (no such folder)" in message
    assert f"Copy {', '.join(datasets.MNIST_FILES)} into one of these folders, or set PARAMSERVER_DATA" in message


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

    monkeypatch.setattr(Path, "read_bytes", deny)
    refused(r"train-images.* cannot be read .*Permission denied", folder)
