"""`psworker plot`: reads runs, makes their curves, and writes the picture of `psworker.runs.figure`."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from pswire.errors import ConfigurationError
from psworker.runs.curves import run_curves, tags
from psworker.runs.figure import Look, draw, write_picture
from psworker.runs.listing import warn
from psworker.runs.run_data import read_run_data

KINDS = ("png", "svg")


def plot(paths: Sequence[Path], by: str, value: str, look: Look, output: Path | None) -> Path:
    """Write the picture of a value of runs; the path, by default `VALUE-by-AXIS.png` in the folder of the first run.

    Raises `ConfigurationError` if a run has no such value, or the file cannot be written; `DamagedFile` for a folder
    without a run.
    """
    kind = "png" if output is None else output.suffix.lower().lstrip(".")
    if kind not in KINDS:
        raise ConfigurationError(f"{output} must end with {' or '.join(f'.{one}' for one in KINDS)}")
    runs = [read_run_data(path) for path in paths]
    warn(chain.from_iterable(run.problems for run in runs))
    drawn = []
    for run in runs:
        curves = run_curves(run, by, value)
        if not curves.job.x:
            there = ", ".join(tags(run))
            reason = f"there is: {there}" if there else "its workers have recorded nothing yet"
            raise ConfigurationError(f"{run.path} has no {value!r}: {reason}")
        drawn.append(curves)
    file = paths[0] / f"{_file_name(value)}-by-{by}.png" if output is None else output
    write_picture(file, draw(drawn, by, value, look, kind))
    return file


def _file_name(value: str) -> str:
    """A tag may have slashes."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in value).strip(".") or "value"
