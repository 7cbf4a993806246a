"""What a start gives up is moved aside and not removed: what was missing may be found, and then it is needed.

    DIR/given-up-2/step-000012345/shard-0-of-2/   a checkpoint from which timeline 2 does not go on
    DIR/given-up-2/journal-0-of-2/                a journal
    DIR/given-up-2/shard-0-of-2.json              a copy of the run file of that time

Such a folder has the layout of the one that it is in: servers and `psserver checkpoint` can be pointed at it. Each
shard moves and removes what has its own name.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from psserver.storage.files import make_folder
from pswire.system.files import sync_path, write_file

_NAME = re.compile(r"given-up-(\d+)(?:-(\d+))?")


def move_aside(folder: Path, timeline: int, path: Path) -> Path:
    """Move a file or folder in `folder` to the same place in that of what `timeline` gives up, durably.

    Returns the latter, which is a further one where the place is taken. Raises `OSError`.
    """
    for attempt in count(1):
        aside = folder / (f"given-up-{timeline}" if attempt == 1 else f"given-up-{timeline}-{attempt}")
        moved = aside / path.relative_to(folder)
        if not moved.exists():
            break
    make_folder(moved.parent)
    path.rename(moved)
    for changed in (moved.parent, path.parent):
        sync_path(changed)
    return aside


def copy_aside(path: Path, aside: Path) -> None:
    """Copy a small file beside what was moved to `aside`, durably, if it is there. Raises `OSError`."""
    with suppress(FileNotFoundError):
        write_file(aside / path.name, path.read_bytes())


def remove_old(folder: Path, keep: int, shard: str) -> list[Path]:
    """Remove what was given up of one `shard`, as it is called in names, but for the newest `keep`.

    Returns the folders in which something was removed, oldest first. Raises `OSError`.
    """
    mine = [aside for aside in _asides(folder) if next(_of_shard(aside, shard), None) is not None]
    for aside in (old := mine[:-keep]):
        for path in _of_shard(aside, shard):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            with suppress(OSError):  # the folder of a step has something of another shard
                path.parent.rmdir()
        with suppress(OSError):
            aside.rmdir()
    return old


def _asides(folder: Path) -> list[Path]:
    """The folders of what was given up, oldest first."""
    found = []
    for path in folder.glob("given-up-*"):
        if (match := _NAME.fullmatch(path.name)) is not None:
            found.append((int(match[1]), int(match[2] or 1), path))
    return [path for *_, path in sorted(found)]


def _of_shard(aside: Path, shard: str) -> Iterator[Path]:
    """What is of one shard, the run file last: it belongs to the others."""
    yield from list(aside.glob(f"step-*/{shard}"))
    for path in (aside / shard.replace("shard", "journal", 1), aside / f"{shard}.json"):
        if path.exists():
            yield path
