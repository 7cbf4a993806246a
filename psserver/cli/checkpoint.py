"""`psserver checkpoint`: what is in the checkpoints of a folder, as text or JSON; and the removal of old ones."""

import dataclasses
import json
import math
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from psjob.status.job_status import JobStatus, ShardAnswer, merge_reports
from psjob.status.shard_table import size
from psjob.terminal.fitted_table import Column, FittedTable, make_console
from psserver.cli.status import plain, tables, to_json
from psserver.core.shard import Shard
from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.variable import stored_slot_specs
from psserver.storage import checkpoints
from psserver.storage.checkpoints import Manifest, read_manifest
from psserver.storage.folders import found, shard_folder
from psserver.storage.retention import prune
from psserver.storage.stored_job import begun
from pswire.errors import DamagedFile, StorageError
from pswire.messages import QueueState, StatusReport, VariableState
from pswire.plurals import pluralize
from pswire.tensors.values import DTYPES, Array, TensorSpec


@dataclasses.dataclass(frozen=True, slots=True)
class _Listed:
    """A checkpoint of a job with this number of `shards`.

    `damaged` has a reason for each shard whose manifest cannot be read. `provisional`: servers of another number have
    written it when they started, and have accepted no change since, so the job does not continue from it.
    """

    number: int
    shards: int
    present: tuple[int, ...]
    manifests: tuple[Manifest, ...]
    damaged: tuple[str, ...]
    provisional: bool = False

    @property
    def complete(self) -> bool:
        return len(self.present) == self.shards and not self.damaged

    @property
    def final(self) -> bool:
        return bool(self.manifests) and all(one.final for one in self.manifests)

    @property
    def is_cut(self) -> bool:
        return bool(self.manifests) and all(one.is_cut for one in self.manifests)

    @property
    def written(self) -> str:
        """When the last shard was written; empty if that is unknown."""
        return max([one.written for one in self.manifests], default="")

    @property
    def nbytes(self) -> int:
        return sum([one.nbytes for one in self.manifests])

    @property
    def late(self) -> int:
        return sum([one.late for one in self.manifests])

    @property
    def kind(self) -> str:
        words = ["damaged"] * bool(self.damaged) + ["final"] * self.final + ["cut"] * self.is_cut
        words += ["provisional"] * self.provisional
        return ", ".join(words)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "number": self.number,
            "shards": self.shards,
            "present": list(self.present),
            "complete": self.complete,
            "final": self.final,
            "cut": self.is_cut,
            "provisional": self.provisional,
            "written": self.written or None,
            "timeline": max([one.timeline for one in self.manifests], default=None),
            "nbytes": self.nbytes,
            "late": self.late,
            "damaged": list(self.damaged),
        }


def show_list(directory: Path, *, as_json: bool) -> None:
    """Print all checkpoints in a folder."""
    listed = list(_listed(directory))
    if as_json:
        click.echo(json.dumps([one.to_json() for one in listed], indent=2))
        return
    if not listed:
        click.echo(f"no checkpoints in {directory}")
        return
    columns = (
        Column("number", lambda one: str(one.number), number=True),
        Column("age", lambda one: _age(one.written), number=True),
        Column("size", lambda one: size(one.nbytes), number=True),
        Column("shards", _shards_text),
        Column("kind", lambda one: one.kind),
    )
    make_console().print(FittedTable(columns, listed))


def _listed(directory: Path, only: int | None = None) -> Iterator[_Listed]:
    of_the_job = begun(directory)
    for number, there in found(directory).items():
        for shards in sorted({of for _, of in there}) if only in (None, number) else ():
            provisional = shards not in {of for _, of in of_the_job.get(number, ())}
            present = tuple(sorted(shard for shard, of in there if of == shards))
            manifests, damaged = [], []
            for shard in present:
                try:
                    manifests.append(read_manifest(directory, number, shard, shards))
                except DamagedFile as error:
                    damaged.append(str(error))
            yield _Listed(number, shards, present, tuple(manifests), tuple(damaged), provisional)


def _shards_text(one: _Listed) -> str:
    if len(one.present) == one.shards:
        return f"all {one.shards}" if one.shards > 1 else "1"
    return f"{', '.join(map(str, one.present))} of {one.shards}"


def _age(written: str) -> str:
    if not written:
        return "–"
    seconds = max(0.0, time.time() - datetime.fromisoformat(written).timestamp())
    for unit, most in (("s", 120.0), ("min", 120.0), ("h", 48.0)):
        if seconds < most:
            return f"{seconds:.0f} {unit}"
        seconds /= 60
    return f"{seconds * 60 / 24:.0f} d"


# --- one checkpoint ---------------------------------------------------------------------------------------------------


def show(directory: Path, number: int | None, *, as_json: bool) -> None:
    """Print the job in a checkpoint; without a number in its newest. Raises `StorageError`."""
    if number is None:
        listed = [one for one in _listed(directory) if one.manifests and not one.provisional]
        chosen = [one for one in listed if one.number == listed[-1].number]
    else:
        chosen = [one for one in _listed(directory, number) if one.manifests]
    if not chosen:
        which = "" if number is None else f" {number}"
        raise StorageError(f"there is no checkpoint{which} in {directory} with a manifest that is intact")
    for one in chosen:
        job, queues = _job(one), _queues(one)
        if as_json:
            at = datetime.fromisoformat(one.written).timestamp()
            data = to_json(job, at) | {"checkpoint": one.to_json()}
            data["queues"] = [plain(status) | plain(queue) for status, queue in zip(job.queues, queues, strict=True)]
            click.echo(json.dumps(data, indent=2, allow_nan=False))
        else:
            _print(directory, one, job, queues)


def _print(directory: Path, one: _Listed, job: JobStatus, queues: tuple[QueueState, ...]) -> None:
    console = make_console()
    late = f", and {pluralize(one.late, 'late change')}" if one.late else ""
    click.echo(f"checkpoint {one.number} in {directory}: {one.kind}; shards {_shards_text(one)}; {one.written}{late}")
    for reason in one.damaged:
        click.echo(f"warning: {reason}")
    console.print(tables(job, servers=False))
    for queue in queues:
        out = ", ".join([f"{held.worker} has block {held.block}" for held in queue.out]) or "none is out"
        click.echo(
            f"\ndata queue {queue.spec.name!r}: {queue.handed_out:,} blocks of {queue.spec.block:,} were handed out; "
            f"{len(queue.returned)} came back; {out}"
        )


def _queues(one: _Listed) -> tuple[QueueState, ...]:
    return tuple([queue for manifest in one.manifests for queue in manifest.state.queues])


def _job(one: _Listed) -> JobStatus:
    """The status that the servers would report with these states, of no age."""
    answers = [ShardAnswer(str(manifest.path), _report(manifest)) for manifest in one.manifests]
    job = merge_reports(answers)
    workers = [dataclasses.replace(worker, lease_left=math.nan) for worker in job.workers]
    return dataclasses.replace(job, workers=tuple(workers), problems=())


def _report(manifest: Manifest) -> StatusReport:
    state = manifest.state
    shard = Shard.for_state(state)
    shard.restore(state, {one.spec.name: _placeholders(one) for one in state.variables}, 0.0)
    return shard.status(0.0)


def _placeholders(variable: VariableState) -> VariableArrays:
    """Arrays of the right shapes that take no memory; their elements are not read."""
    slots = {name: _placeholder(spec) for name, spec in stored_slot_specs(variable).items()}
    return VariableArrays(_placeholder(variable.spec), slots)


def _placeholder(spec: TensorSpec) -> Array:
    return np.broadcast_to(np.zeros((), DTYPES[spec.dtype]), spec.shape)


# --- checks and removal -----------------------------------------------------------------------------------------------


def verify(directory: Path, number: int | None) -> bool:
    """Read checkpoints whole, and print which are intact; returns whether all are. Raises `StorageError` for none."""
    there = {n: shards for n, shards in found(directory).items() if number in (None, n)}
    if not there:
        raise StorageError(f"there is no checkpoint{'' if number is None else f' {number}'} in {directory}")
    intact = True
    for n, shards in there.items():
        for shard, of in sorted(shards, key=lambda one: (one[1], one[0])):
            try:
                read = checkpoints.read(directory, n, shard, of)
            except StorageError as error:
                intact = False
                click.echo(f"damaged: {error}")
            else:
                click.echo(f"intact: {read.manifest.path} ({size(read.manifest.nbytes)})")
    return intact


def remove_old(directory: Path, keep: int) -> None:
    """Remove old checkpoints of all shards in a folder."""
    for shard, shards in sorted({one for there in found(directory).values() for one in there}):
        try:
            removed = prune(directory, keep, shard, shards, is_intact=_is_intact)
        except OSError as error:
            raise StorageError(f"checkpoints in {directory} cannot be removed: {error}") from error
        for number in removed:
            click.echo(f"removed: {shard_folder(directory, number, shard, shards)}")


def _is_intact(manifest: Manifest) -> bool:
    directory = manifest.path.parent.parent
    try:
        checkpoints.read(directory, manifest.number, manifest.shard, manifest.shards)
    except StorageError:
        return False
    return True
