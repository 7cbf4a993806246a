"""Retention: which checkpoints of a shard stay, which are cuts to go back to, and what a start moves aside.

Files that a start gives up are moved aside, not removed: a missing file may be found again, and then they are needed.

    DIR/given-up-2/step-000012345/shard-0-of-2/   a checkpoint that timeline 2 gave up
    DIR/given-up-2/journal-0-of-2/                a journal
    DIR/given-up-2/shard-0-of-2.json              a copy of the run file at that moment

Such a folder has the layout of a folder of checkpoints, so servers and `psserver checkpoint` can be pointed at it. Each
shard moves and removes only its own files.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from psserver.storage.checkpoints import Manifest, read_manifest
from psserver.storage.files import make_folder
from psserver.storage.folders import available, complete, found, remove, shard_name
from pswire.errors import DamagedFile
from pswire.system.files import sync_path, write_file

_ASIDE = re.compile(r"given-up-(\d+)(?:-(\d+))?")


def cuts(folder: Path, shard: int, shards: int) -> list[int]:
    """The numbers of a shard's checkpoints that are cuts, ascending: to which a job can go back.

    Raises `StorageError` if one may not be read.
    """
    return [number for number in available(folder, shard, shards) if _is_cut(_manifest(folder, number, shard, shards))]


def prune(
    folder: Path,
    keep: int,
    shard: int,
    shards: int,
    *,
    protect: int | None = None,
    spare: int | None = None,
    is_intact: Callable[[Manifest], bool] | None = None,
) -> list[int]:
    """Remove old checkpoints of a shard; returns their numbers, ascending.

    What stays: the newest `keep` (from 1) cuts and all that are newer than the oldest of these, and the newest
    checkpoint that is intact with all that are newer. Where the folder has checkpoints of other shards of the job too,
    cuts count only if all shards have them: otherwise the shards might keep no common one. Where it has not, that is
    what `protect` is for: nothing from this number on is removed. It is the newest cut that all shards are known to
    have. `spare` stays in any case: a journal begins with it. `is_intact` decides with a manifest; without it, the
    sizes of files do. Of what the shard has given up, the newest `keep` folders stay (`move_aside`).

    Raises `OSError`, or `StorageError` if a checkpoint may not be read.
    """
    remove_old(folder, keep, shard_name(shard, shards))
    there = found(folder)
    manifests = {
        number: _manifest(folder, number, shard, shards) for number in there if (shard, shards) in there[number]
    }
    shared = any(of == shards and other != shard for one in there.values() for other, of in one)
    counted = [n for n, one in manifests.items() if _is_cut(one) and (not shared or complete(there[n], shards))]
    if len(counted) < keep:
        return []
    first = counted[-keep]
    check = is_intact or has_right_sizes
    intact = next((n for n, one in reversed(manifests.items()) if one is not None and check(one)), first)
    first = min(first, intact, first if protect is None or shared else protect)
    old = [number for number in manifests if number < first and number != spare]
    for number in old:
        remove(folder, number, shard, shards)
    return old


def given_up(folder: Path, timeline: int, cut: int, shard: int, shards: int) -> list[int]:
    """The checkpoints of a shard that came after `cut` in timelines before `timeline`, which began there; ascending.

    One whose manifest is damaged is not among them: it may be of any timeline. Raises `StorageError` if one may not be
    read.
    """
    later = [number for number in available(folder, shard, shards) if number > cut]
    manifests = {number: _manifest(folder, number, shard, shards) for number in later}
    return [number for number, one in manifests.items() if one is not None and one.timeline < timeline]


def has_right_sizes(manifest: Manifest) -> bool:
    """Whether all files of a checkpoint are there, in their sizes."""
    try:
        return all((manifest.path / name).stat().st_size == one.nbytes for name, one in manifest.files.items())
    except OSError:
        return False


def _manifest(folder: Path, number: int, shard: int, shards: int) -> Manifest | None:
    """None: it is damaged."""
    try:
        return read_manifest(folder, number, shard, shards)
    except DamagedFile:
        return None


def _is_cut(manifest: Manifest | None) -> bool:
    return manifest is not None and manifest.is_cut


def move_aside(folder: Path, timeline: int, path: Path) -> Path:
    """Move a file or folder of `folder` to the same place in the folder of what `timeline` gives up, durably.

    Returns that folder; another one is made where the place is taken. Raises `OSError`.
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
    """Remove what a shard, by its `shard_name`, gave up, except for the newest `keep` times.

    Returns the folders in which something was removed, oldest first. Raises `OSError`.
    """
    mine = [aside for aside in _asides(folder) if next(_of_shard(aside, shard), None) is not None]
    for aside in (old := mine[:-keep]):
        for path in _of_shard(aside, shard):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            with suppress(OSError):  # another shard has files in the folder of the step
                path.parent.rmdir()
        with suppress(OSError):
            aside.rmdir()
    return old


def _asides(folder: Path) -> list[Path]:
    """The folders of what was given up, oldest first."""
    found = []
    for path in folder.glob("given-up-*"):
        if (match := _ASIDE.fullmatch(path.name)) is not None:
            found.append((int(match[1]), int(match[2] or 1), path))
    return [path for *_, path in sorted(found)]


def _of_shard(aside: Path, shard: str) -> Iterator[Path]:
    """The files of one shard; the run file last, as it belongs to the others."""
    yield from list(aside.glob(f"step-*/{shard}"))
    for path in (aside / shard.replace("shard", "journal", 1), aside / f"{shard}.json"):
        if path.exists():
            yield path
