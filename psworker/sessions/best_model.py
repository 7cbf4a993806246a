"""The best model of a job so far, as a model file with the value that it was saved for.

    best.safetensors    the variables; the value is in its metadata too, so file and value always belong together
    best.json           the same for people and other programs: value, what is best, global step, time

May import model files.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pswire.errors import ConfigurationError, ModelFileError
from pswire.tensors.tensor_files import TensorFile, replace_file

logger = logging.getLogger(__name__)

MODEL, DESCRIPTION = "best.safetensors", "best.json"

LOWEST, HIGHEST = "lowest", "highest"


class Best(NamedTuple):
    """The value of the best model, and whether that is the "lowest" or the "highest"."""

    value: float
    best: str


def read_best(folder: Path) -> Best | None:
    """The value of the best model in a folder; None: there is none. Raises `ModelFileError` for another file."""
    path = folder / MODEL
    if not path.exists():
        return None
    with TensorFile(path) as file:
        metadata = file.metadata
    try:
        best = Best(float(metadata["value"]), metadata["best"])
    except (KeyError, ValueError):
        best = Best(math.nan, "")
    if not math.isfinite(best.value) or best.best not in (LOWEST, HIGHEST):
        raise ModelFileError(f"{path} does not say for which value it was saved: move it out of the folder")
    return best


def save_best(
    folder: Path,
    value: float,
    *,
    maximize: bool,
    global_step: int,
    save: Callable[[Path, Mapping[str, str]], None],
) -> bool:
    """Save the model, with metadata, if its value beats the model in the folder; returns whether it was saved.

    NaN and infinity are not. `save` writes a model file, whole or not at all.

    Raises:
        ModelFileError: a file cannot be read or written; then the earlier model stays.
        ConfigurationError: the earlier model was saved with another `maximize`.
    """
    if not math.isfinite(value):
        return False
    kind, before = HIGHEST if maximize else LOWEST, read_best(folder)
    if before is not None:
        if before.best != kind:
            raise ConfigurationError(
                f"{folder / MODEL} is the model with the {before.best} value: maximize must be the same in each call; "
                "for another measure use another folder"
            )
        if value <= before.value if maximize else value >= before.value:
            return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelFileError(f"{folder} cannot be made: {error.strerror}") from None
    saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    metadata = {"value": repr(value), "best": kind, "global_step": str(global_step), "time": saved}
    save(folder / MODEL, metadata)
    description = {"value": value, "best": kind, "global_step": global_step, "time": saved, "file": MODEL}
    replace_file(folder / DESCRIPTION, json.dumps(description, indent=2).encode() + b"\n")
    logger.info("the best model so far, of value %s at global step %d, is in %s", value, global_step, folder / MODEL)
    return True
