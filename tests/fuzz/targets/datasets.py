"""Files of data sets: IDX, compressed (tags 0 to 3), and CSV, compressed (4), as the readers find them in a folder."""

import os
import tempfile
from pathlib import Path

from psworker import datasets
from tests.fuzz.packets import unpack

COVERS = ["psworker.data.datasets"]
_FILES = [*datasets.MNIST_FILES, *datasets.SENATE_FILES]


def run(data: bytes) -> None:
    packets = unpack(data)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        for tag, part in packets:
            Path(folder, _FILES[tag % len(_FILES)]).write_bytes(part)
        for read in (datasets.mnist, datasets.senate):
            try:
                read(folder)
            except datasets.DatasetError:
                continue
            raise AssertionError("these are not the files of the data set")
