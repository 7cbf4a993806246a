"""Makes the pictures of the documentation, docs/images/, of real runs of examples/deep_mnist.py.

    python -m tests.tools.screenshots [NAME ...]          # make screenshots: all of PICTURES

Needs Chromium (`apt-get install chromium chromium-driver`), MNIST, and about two minutes a name.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.tools.screenshots import page, plot, tensorboard, terminal

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"

#: What can be named, and the function that writes its pictures: its arguments are the folder of the pictures, and one
#: for files of the run, which is removed.
PICTURES: dict[str, Callable[[Path, Path], None]] = {
    "page": page.take,
    "plot": plot.take,
    "terminal": terminal.take,
    "tensorboard": tensorboard.take,
}


def main(names: list[str]) -> None:
    """Make these pictures, or all."""
    if unknown := set(names) - PICTURES.keys():
        sys.exit(f"no pictures {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}")
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in names or PICTURES:
        before = {path: path.stat().st_mtime_ns for path in IMAGES.iterdir()}
        with tempfile.TemporaryDirectory(prefix="screenshots-") as folder:
            PICTURES[name](IMAGES, Path(folder))
        made = [path for path in sorted(IMAGES.iterdir()) if before.get(path) != path.stat().st_mtime_ns]
        for path in made:
            sys.stdout.write(f"{path.relative_to(IMAGES.parents[1])}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
