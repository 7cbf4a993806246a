"""Which checkpoints of a shard stay, and to which a job can go back."""

from collections.abc import Callable
from pathlib import Path

from psserver.storage.checkpoint_folders import available, complete, found, remove, shard_name
from psserver.storage.checkpoint_manifest import Manifest, read_manifest
from psserver.storage.set_aside import remove_old
from pswire.errors import DamagedFile


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
    sizes of files do. Of what the shard has given up, the newest `keep` folders stay (`psserver.storage.set_aside`).

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
