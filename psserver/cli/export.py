"""`psserver export`: the variables of a job, from its checkpoints, as one file."""

import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import numpy as np

from psserver.storage.folders import complete, found, parse_step
from psserver.storage.reshard import WholeVariable, whole_variables
from psserver.storage.stored_job import newest_job, stored_job
from pswire.errors import ConfigurationError, StorageError
from pswire.system.files import new_file
from pswire.tensors.tensor_files import write_tensors
from pswire.tensors.values import Array, TensorSpec


def export(source: Path, output: Path, form: str, *, slots: bool) -> None:
    """Write the variables of a job to one file. Raises `StorageError`, or `ConfigurationError` for the output."""
    directory, number = source, parse_step(source.name)
    if number is None:
        shards = newest_job(directory)[1]
    else:
        directory = source.parent
        there = found(directory).get(number, set())
        shards = max([of for _, of in there if complete(there, of)], default=max([of for _, of in there], default=0))
    if not shards:
        raise StorageError(f"there is no checkpoint in {source}")
    job = stored_job(directory, shards, number)
    for note in job.notes:
        click.echo(f"warning: {note}", err=True)
    variables = whole_variables(job.shards)
    arrays = {name: one.arrays.value for name, one in variables.items()}
    if slots:
        arrays |= {name: array for one in variables.values() for name, array in _slots(one)}
    try:
        entries = [(TensorSpec.of(name, array), [array]) for name, array in arrays.items()]
    except ValueError as error:
        raise ConfigurationError(f"{output} cannot have all of these arrays: {error}") from error
    step = max([shard.global_step for shard in job.shards])
    if form == "npz":
        _write_npz(output, arrays)
    else:
        metadata = {"format": "np", "paramserver": version("paramserver"), "global_step": str(step)}
        write_tensors(output, entries, metadata)
    click.echo(f"{output}: {len(arrays)} arrays of {len(variables)} variables, at global step {step:,}")


def _slots(variable: WholeVariable) -> Iterator[tuple[str, Array]]:
    for slot, array in variable.arrays.slots.items():
        yield f"{variable.spec.name}/{slot}", array


def _write_npz(output: Path, arrays: dict[str, Array]) -> None:
    """Replace a file by one with these arrays; what `numpy.savez` writes, but any name is allowed."""
    try:
        with new_file(output) as file, zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
    except OSError as error:
        raise ConfigurationError(f"{output} could not be written, and nothing was changed: {error.strerror}") from error
