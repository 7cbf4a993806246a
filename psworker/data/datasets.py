"""Well-known datasets, read from local files and verified by SHA-256; nothing is downloaded."""

import csv
import gzip
import hashlib
import io
import os
import struct
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pswire.errors import DatasetError
from pswire.tensors.values import Array
from psworker import environment, familiar_names
from psworker.data.dataset import Dataset

__all__ = ["Mnist", "Senate", "mnist", "senate"]

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
#: Of a file: twice the largest that there is. A longer one is not read to its end.
MAX_FILE_BYTES = 20 << 20
VALIDATION = 5_000  # examples
SENATE_FILES = {"senate.csv.gz": ("85a4e83a42cd9684a57a6f3c8134f4635c4170e7188194850d34af274e7cd534",)}


class Mnist(NamedTuple):
    """The parts of MNIST, with columns `image` and `label`: see `mnist`."""

    train: Dataset
    validation: Dataset
    test: Dataset


def mnist(data_dir: str | os.PathLike[str] | None = None, *, one_hot: bool = False) -> Mnist:
    """Handwritten digits: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits".

        mnist = datasets.mnist()
        mnist.train.image    # float32 (55000, 784), 28 x 28 pixels: byte / 255, 0 background, 1 ink
        mnist.train.label    # int64 (55000,), 0 to 9; int64 because numpy indexes with it without conversion

    `train` has the last 55,000 of the 60,000 training examples, `validation` the first 5,000, `test` its own 10,000.

    `data_dir`: the folder with the four files, or the parent of such a folder `mnist`. By default `$PARAMSERVER_DATA`
    (either of the two), then `datasets/mnist` of a checkout of the repository, then `~/.cache/paramserver/mnist`.

    `one_hot`: labels are float32 (rows, 10), 1 at the digit and 0 elsewhere, as in programs written for TensorFlow.

    Raises DatasetError when a file is missing, truncated, modified or unreadable. For missing ones it has the addresses
    of public copies, and the folder to put them in.
    """
    folder = _find("mnist", "MNIST", MNIST_FILES, data_dir, _mnist_pages)
    images, labels, test_images, test_labels = (
        _read_idx(folder / name, digests) for name, digests in MNIST_FILES.items()
    )
    return Mnist(
        train=_examples("mnist/train", images[VALIDATION:], labels[VALIDATION:], one_hot),
        validation=_examples("mnist/validation", images[:VALIDATION], labels[:VALIDATION], one_hot),
        test=_examples("mnist/test", test_images, test_labels, one_hot),
    )


class Senate(NamedTuple):
    """Votes, with columns `senator`, `roll_call` and `yea`, and what their numbers mean: see `senate`."""

    votes: Dataset
    senators: tuple[str, ...]
    roll_calls: tuple[str, ...]


def senate(data_dir: str | os.PathLike[str] | None = None) -> Senate:
    """Votes of the 109th Senate of the United States, 2005 and 2006: 101 senators, 645 roll calls, 62,742 votes.

        senate = datasets.senate()
        senate.votes.senator      # int64 (62742,): 0 to 100; senate.senators[0] is "SESSIONS R-AL"
        senate.votes.roll_call    # int64 (62742,): 0 to 644; senate.roll_calls has date, question and description
        senate.votes.yea          # float32 (62742,): 1 yea, 0 nay; there is no vote of those who were absent

    Votes are in the order of the roll calls. `data_dir` is as that of `mnist`, for a folder `senate`.

    Raises DatasetError when the file is missing, modified or unreadable.
    """
    folder = _find("senate", "The Senate's record", SENATE_FILES, data_dir, _senate_origin)
    [(name, digests)] = SENATE_FILES.items()
    text = gzip.decompress(_verified(folder / name, digests)).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    senators = tuple(column for column in rows[0] if column.isupper())
    votes = np.array([[row[name] for name in senators] for row in rows])
    roll_call, senator = np.nonzero(votes != "")
    columns = {
        "senator": senator.astype(np.int64),
        "roll_call": roll_call.astype(np.int64),
        "yea": (votes[roll_call, senator] == "Yea").astype(np.float32),
    }
    roll_calls = tuple(f"{row['date']} {row['question']}: {row['description']}" for row in rows)
    return Senate(Dataset(columns, "senate"), senators, roll_calls)


def _find(
    name: str,
    title: str,
    files: Collection[str],
    data_dir: str | os.PathLike[str] | None,
    how_to_get: Callable[[Iterable[str], Path], str],
) -> Path:
    """The first folder with any of the files; DatasetError if it lacks some, or if there is none."""
    parent = environment.data_dir() if data_dir is None else data_dir
    folders = [] if parent is None else [Path(parent), Path(parent, name)]
    if data_dir is None:
        checkout = Path(__file__).resolve().parents[2]
        if (checkout / "pyproject.toml").is_file():
            folders.append(checkout / "datasets" / name)
        folders.append(Path(environment.cache_dir(), name))
    for folder in folders:
        missing = [file for file in files if not (folder / file).is_file()]
        if not missing:
            return folder
        if len(missing) < len(files):
            raise DatasetError(f"{title} is incomplete in {folder}. {how_to_get(missing, folder)}")
    searched = (f"{folder} ({'has none of the files' if folder.is_dir() else 'no such folder'})" for folder in folders)
    own = folders[-1] if parent is None else folders[0]  # without a choice of the user's, the cache
    raise DatasetError(
        f"{title} was not found. Searched: {'; '.join(searched)}. {how_to_get(files, own)}\nFiles elsewhere: name "
        f"their folder, by datasets.{name}(data_dir=...) or the environment variable PARAMSERVER_DATA"
    )


def _mnist_pages(names: Iterable[str], folder: Path) -> str:
    """The end of an error's text: the files, where they are published, and the folder that they belong in."""
    first, second = MNIST_PAGES
    rows = (f"\n  {first}{name}  SHA-256 {MNIST_FILES[name][1]}" for name in names)
    return f"Download into {folder}, without unpacking (the same files are at {second}):{''.join(rows)}"


def _senate_origin(names: Iterable[str], folder: Path) -> str:
    return f"Copy {', '.join(names)} of datasets/senate in the project's repository into {folder}"


def _verified(path: Path, sha256: Collection[str]) -> bytes:
    """The content of a file; DatasetError unless it can be read and has one of the digests."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)  # a longer one has another digest
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
    return content


def _read_idx(path: Path, sha256: Collection[str]) -> Array:
    """The bytes of a gzipped IDX file as an array, read-only; DatasetError unless the file has one of the digests.

    Format: `00 00`, 08 for bytes, the number of dimensions, their sizes (uint32, big-endian), the data (Y. LeCun,
    C. Cortes, C. Burges, section "The IDX file format"). The digest is checked first: nothing else needs a check.
    """
    data = gzip.decompress(_verified(path, sha256))
    dimensions = data[3]
    sizes = struct.unpack_from(f">{dimensions}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(sizes)


def _examples(name: str, images: Array, labels: Array, one_hot: bool) -> Dataset:
    """A part of MNIST, from bytes: pixels are byte / 255, correctly rounded."""
    pixels = np.divide(images.reshape(len(images), -1), np.float32(255), dtype=np.float32)
    label: Array = np.eye(10, dtype=np.float32)[labels] if one_hot else labels.astype(np.int64)
    return Dataset({"image": pixels, "label": label}, name)


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        raise familiar_names.missing("datasets", name)
