"""Well-known datasets, read from local files and verified by SHA-256; nothing is downloaded."""

import gzip
import hashlib
import os
import struct
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pswire.errors import DatasetError
from pswire.tensors.values import Array
from psworker import config
from psworker.data.dataset import Dataset

#: MNIST's four files, with the SHA-256 of this project's file and of the authors': the same data, compressed anew.
MNIST_FILES = {
    "train-images-idx3-ubyte.gz": (
        "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels-idx1-ubyte.gz": (
        "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images-idx3-ubyte.gz": (
        "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}
#: Public copies of the files as first published. Nothing here downloads them: errors name them.
MNIST_PAGES = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
VALIDATION = 5_000  # examples


class Mnist(NamedTuple):
    """The parts of MNIST, with columns `image` and `label`: see `mnist`."""

    train: Dataset
    validation: Dataset
    test: Dataset


def mnist(data_dir: str | os.PathLike[str] | None = None) -> Mnist:
    """Handwritten digits: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".

        mnist = datasets.mnist()
        mnist.train.image    # float32 (55000, 784), 28 x 28 pixels: byte / 255, 0 background, 1 ink
        mnist.train.label    # int64 (55000,), 0 to 9; int64 because numpy indexes with it without conversion

    `train` has the last 55,000 of the 60,000 training examples, `validation` the first 5,000, `test` its own 10,000.

    `data_dir`: the folder with the four files, or the parent of such a folder `mnist`. By default `$PARAMSERVER_DATA`
    (either of the two), then `datasets/mnist` of a checkout of the repository, then `~/.cache/paramserver/mnist`.

    Raises DatasetError when a file is missing, truncated, modified or unreadable. For missing ones it has the addresses
    of public copies, and the folder to put them in.
    """
    folder = _find_mnist(data_dir)
    images, labels, test_images, test_labels = (
        _read_idx(folder / name, digests) for name, digests in MNIST_FILES.items()
    )
    return Mnist(
        train=_examples("mnist/train", images[VALIDATION:], labels[VALIDATION:]),
        validation=_examples("mnist/validation", images[:VALIDATION], labels[:VALIDATION]),
        test=_examples("mnist/test", test_images, test_labels),
    )


def _find_mnist(data_dir: str | os.PathLike[str] | None) -> Path:
    """The first folder with any of the files; DatasetError if it lacks some, or if there is none."""
    parent = config.data_dir() if data_dir is None else data_dir
    folders = [] if parent is None else [Path(parent), Path(parent, "mnist")]
    if data_dir is None:
        checkout = Path(__file__).resolve().parents[2]
        if (checkout / "pyproject.toml").is_file():
            folders.append(checkout / "datasets" / "mnist")
        folders.append(Path(config.cache_dir(), "mnist"))
    for folder in folders:
        missing = [name for name in MNIST_FILES if not (folder / name).is_file()]
        if not missing:
            return folder
        if len(missing) < len(MNIST_FILES):
            raise DatasetError(f"MNIST is incomplete in {folder}. {_how_to_get(missing, folder)}")
    searched = (f"{folder} ({'has none of the files' if folder.is_dir() else 'no such folder'})" for folder in folders)
    own = folders[-1] if parent is None else folders[0]  # without a choice of the user's, the cache
    raise DatasetError(
        f"MNIST was not found. Searched: {'; '.join(searched)}. {_how_to_get(MNIST_FILES, own)}\nFiles elsewhere: name "
        "their folder, by datasets.mnist(data_dir=...) or the environment variable PARAMSERVER_DATA"
    )


def _how_to_get(names: Iterable[str], folder: Path) -> str:
    """The end of an error's text: the files, where they are published, and the folder that they belong in."""
    first, second = MNIST_PAGES
    rows = (f"\n  {first}{name}  SHA-256 {MNIST_FILES[name][1]}" for name in names)
    return f"Download into {folder}, without unpacking (the same files are at {second}):{''.join(rows)}"


def _read_idx(path: Path, sha256: Collection[str]) -> Array:
    """The bytes of a gzipped IDX file as an array, read-only; DatasetError unless the file has one of the digests.

    Format: `00 00`, 08 for bytes, the number of dimensions, their sizes (uint32, big-endian), the data (Y. LeCun,
    C. Cortes, C. Burges, section "The IDX file format"). The digest is checked first: nothing else needs a check.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be read ({error.strerror or error}); check that the file is there and readable"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found not in sha256:
        raise DatasetError(
            f"{path} was truncated or modified: its SHA-256 begins with {found[:12]}, expected "
            f"{' or '.join(digest[:12] for digest in sha256)}; replace it with a fresh copy of the original"
        )
    data = gzip.decompress(content)
    dimensions = data[3]
    sizes = struct.unpack_from(f">{dimensions}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(sizes)


def _examples(name: str, images: Array, labels: Array) -> Dataset:
    """A part of MNIST, from bytes: pixels are byte / 255, correctly rounded."""
    pixels = np.divide(images.reshape(len(images), -1), np.float32(255), dtype=np.float32)
    return Dataset({"image": pixels, "label": labels.astype(np.int64)}, name)
