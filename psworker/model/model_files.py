"""Saving and loading variables: safetensors files, with names as in the program.

May import variables, tables and tensor files; values on servers come from the open session and go to it.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from pswire.errors import ConfigurationError, ModelFileError, NotFinite, ShapeMismatch
from pswire.tensors.tensor_files import RESERVED, StoredTensor, TensorFile, write_tensors
from pswire.tensors.values import Array, TensorSpec, not_finite
from psworker.model.base_variable import BaseVariable, Variables, check_variable, listed, set_value
from psworker.model.collection import OpenSession, context
from psworker.model.tables import Table
from psworker.versions import ReadVersion

__all__ = ["Loaded", "load", "save"]

#: Bytes of a table's rows that are in this worker's memory at a time.
PIECE_BYTES = 16 << 20

#: Names that an error lists.
LISTED = 5

#: Endings of files in other formats.
OTHER_FORMATS: tuple[str, ...] = (".onnx", ".pt", ".pth", ".ckpt", ".h5", ".hdf5", ".keras", ".pb", ".tflite")
OTHER_FORMATS += (".pkl", ".pickle", ".joblib", ".npy", ".npz")

Path: TypeAlias = str | os.PathLike[str]
#: Names in a program by names in a file, or a function of these; None: leave out.
NameMapping: TypeAlias = Mapping[str, str | None] | Callable[[str], str | None]


class Loaded(NamedTuple):
    """The result of `load`.

    `missing` are variables of the program that the file does not have, `surplus` tensors of the file that the program
    does not have; the variables keep their values. `metadata` is the file's: in a session `save` writes its
    `global_step`, as of `Session.global_step`.
    """

    missing: tuple[str, ...]
    surplus: tuple[str, ...]
    metadata: dict[str, str]


def save(path: Path, variables: Variables | None = None) -> None:
    """Saves variables, or those of a layer, by default all of the program, to a safetensors file.

        ps.save("model.safetensors")

    In a session the values are pulled from the servers: those of variables in one cut of each shard, and those of
    tables in pieces of `PIECE_BYTES`, each a cut of its own. The slots of optimizers are not saved. The file is
    replaced whole: if this raises, an earlier one stays as it was. In a session that is `over` nothing is saved.

    Raises:
        ModelFileError: the file cannot be written, for example because the disk is full.
        ConfigurationError: the name ends as those of another format do, such as "model.onnx"; there is no variable; or
            a table, whose rows are on servers, and no session is open; one that was loaded from a file has its rows
            there.
        TypeError: one is not a variable, or the path none.
    """
    here = context.collection
    save_values(here.session, path, here.variables.values() if variables is None else variables)


def save_values(
    session: OpenSession | None,
    path: Path,
    variables: Variables,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """See `save`; `metadata` is added to the file's."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"psworker.save takes the path first, save('model.safetensors', variables), got {path!r:.80}")
    root, ending = os.path.splitext(os.fspath(path))
    if ending.lower() in OTHER_FORMATS:
        raise ConfigurationError(
            f"{os.fspath(path)}: models are saved in one format, safetensors: give the name {root + '.safetensors'!r}; "
            "for programs that do not read it see docs/models.md#files-of-pytorch-jax-and-others"
        )
    chosen: dict[str, BaseVariable] = {}
    for variable in listed(variables):
        check_variable(variable, "psworker.save")
        chosen[variable.name] = variable
    if session is not None and session.over:
        return  # what others have trained in it may be in the file
    if not chosen:
        raise ConfigurationError(
            f"{os.fspath(path)}: there is no variable to save; variables belong to the thread that made them"
        )
    if RESERVED in chosen:
        raise ConfigurationError(f"a safetensors file cannot have a variable of the name {RESERVED!r}: rename it")
    tables = [variable for variable in chosen.values() if isinstance(variable, Table)]
    whole = [variable for variable in chosen.values() if not isinstance(variable, Table)]
    metadata = {"format": "np"} | dict(metadata or {})
    tensors: list[tuple[TensorSpec, Iterable[Array]]] = []
    if session is None:
        _check_has_rows(tables, path)
        values: list[Array] = [variable.value for variable in whole]
    else:
        values = session.fetch(whole)
        metadata.setdefault("global_step", str(session.global_step))
    tensors += [(table.spec, _rows_of(session, table)) for table in tables]
    tensors += [(variable.spec, [value]) for variable, value in zip(whole, values, strict=True)]
    write_tensors(path, tensors, metadata)


def load(path: Path, strict: bool = True, mapping: NameMapping | None = None) -> Loaded:
    """Sets the variables of the program to the values of a safetensors file.

        ps.load("model.safetensors")
        ps.load("other.safetensors", mapping={"fc.bias": "out/bias", "fc.scale": None})

    In a session they are assigned on the servers, as by `session.assign_all`, and tables in pieces. Without one they
    are set here, and rows of tables are read from the file, which is mapped into memory, when they are looked up.
    Nothing is set unless all names, shapes and dtypes fit, and in a session all values are finite.

    Args:
        path: the file, from `save` or from any other program that writes safetensors.
        strict: whether every variable must be in the file, and the reverse.
        mapping: the names in the program by those in the file, or a function of the name in the file; a name that a
            dict does not have stays, and None leaves a tensor out. It renames only: see the guide for transposed
            weights.

    Raises:
        ModelFileError: no such file, one that is cut or altered, or with `strict` names that do not fit.
        ShapeMismatch: a tensor does not have its variable's shape, or a dtype whose values the variable's dtype holds
            exactly and that is of the same kind, such as bfloat16 or float16 for float32.
        NotFinite: NaN or infinity, in a session.
        ConfigurationError: the mapping gives two tensors one name.
    """
    here = context.collection
    with _opened(path) as file:
        sources = _renamed(file, mapping)
        missing = tuple([name for name in here.variables if name not in sources])
        surplus = tuple([source for name, source in sources.items() if name not in here.variables])
        if strict and (missing or surplus):
            raise ModelFileError(
                f"{file.path} does not have the variables of this program: it lacks {_listed(missing)}, and has "
                f"{_listed(surplus)} beside them; see the arguments mapping and strict{_made_again(missing, sources)}"
            )
        chosen = {variable: sources[name] for name, variable in here.variables.items() if name in sources}
        for variable, source in chosen.items():
            _check_fits(variable, file.tensors[source], source, file.path)
        if here.session is None:
            _set_here(file, chosen)
        else:
            _assign(here.session, file, chosen)
        return Loaded(missing, surplus, file.metadata)


def _opened(path: Path) -> TensorFile:
    try:
        return TensorFile(path)
    except ModelFileError as error:
        if os.path.splitext(os.fspath(path))[1].lower() in OTHER_FORMATS:
            page = "docs/models.md#files-of-pytorch-jax-and-others"
            raise ModelFileError(f"{error}; files of other formats are converted before: {page}") from error
        raise


def _set_here(file: TensorFile, sources: Mapping[BaseVariable, str]) -> None:
    rows = {table: file.mapped_rows(source) for table, source in sources.items() if isinstance(table, Table)}
    values = _whole_values(file, sources)
    for table, stored in rows.items():
        table.stored, table.read = stored, ReadVersion()
    for variable, value in values.items():
        value.flags.writeable = False
        set_value(variable, value)
        variable.read = ReadVersion()


def _assign(session: OpenSession, file: TensorFile, sources: Mapping[BaseVariable, str]) -> None:
    """Looks at every element first: of several shards one might refuse its part when another has set its own."""
    values, tables = _whole_values(file, sources), [one for one in sources if isinstance(one, Table)]
    for variable, value in values.items():
        _check_finite(variable, value, file.path)
    for table in tables:
        for piece in _pieces_of(file, sources[table], table):
            _check_finite(table, piece, file.path)
    session.assign_all(values)
    for table in tables:
        session.assign_rows(table, _pieces_of(file, sources[table], table))


def _whole_values(file: TensorFile, sources: Mapping[BaseVariable, str]) -> dict[BaseVariable, Array]:
    """The values of all but tables, each of its variable's dtype."""
    return {
        variable: file.read(source).astype(variable.dtype, copy=False)
        for variable, source in sources.items()
        if not isinstance(variable, Table)
    }


def _renamed(file: TensorFile, mapping: NameMapping | None) -> dict[str, str]:
    """The names in the file by those in the program."""
    sources: dict[str, str] = {}
    for source in file.tensors:
        name: str | None = source
        if isinstance(mapping, Mapping):
            name = mapping.get(source, source)
        elif mapping is not None:
            name = mapping(source)
        if name is None:
            continue
        if not isinstance(name, str):
            raise TypeError(f"psworker.load: mapping must give a name or None for {source!r}, got {name!r}")
        if name in sources:
            raise ConfigurationError(
                f"{file.path}: the mapping gives {sources[name]!r} and {source!r} the same name, {name!r}: map one of "
                "them to another name, or to None"
            )
        sources[name] = source
    return sources


def _check_fits(variable: BaseVariable, tensor: StoredTensor, source: str, path: str) -> None:
    have, want = tensor.read_as, variable.dtype
    exact = have is not None and have.kind == want.kind and np.can_cast(have, want, "safe")
    if tensor.shape == variable.shape and exact:
        return
    hint = ""
    if tensor.shape != variable.shape and tensor.shape == variable.shape[::-1]:
        hint = ": it may be transposed (PyTorch's linear layers keep their weights as (outputs, inputs))"
    elif tensor.shape == variable.shape:
        hint = f": its values may not be exact as {want.name}; convert them before"
    raise ShapeMismatch(
        f"{path}: the tensor {source!r} is {tensor}, the variable is {variable.spec}{hint}; nothing was loaded"
    )


def _check_finite(variable: BaseVariable, value: Array, path: str) -> None:
    bad = not_finite(value)
    if bad:
        raise NotFinite(
            f"{path}: {variable.name!r} has {bad:,} elements that are NaN or infinite, which servers refuse; nothing "
            "was loaded"
        )


def _check_has_rows(tables: list[Table], path: Path) -> None:
    without = [table.name for table in tables if table.stored is None]
    if without:
        raise ConfigurationError(
            f"{os.fspath(path)}: the rows of a Table are on servers ({_listed(without)}), and no session is open: save "
            "inside `with psworker.session():`, or leave tables out"
        )


def _pieces(table: Table) -> Iterator[tuple[int, int]]:
    """The first row and the number of rows of each piece."""
    most = max(1, PIECE_BYTES // max(1, prod(table.shape[1:]) * table.dtype.itemsize))
    return ((first, min(most, len(table) - first)) for first in range(0, len(table), most))


def _rows_of(session: OpenSession | None, table: Table) -> Iterator[Array]:
    """The rows on the servers, or in the file that was loaded, in pieces."""
    if session is None:
        return (table.fetch(np.arange(first, first + count)) for first, count in _pieces(table))
    return (session.fetch_rows(table, *piece) for piece in _pieces(table))


def _pieces_of(file: TensorFile, source: str, table: Table) -> Iterator[Array]:
    """The rows in a file, in pieces."""
    return (file.read(source, *piece).astype(table.dtype, copy=False) for piece in _pieces(table))


def _made_again(missing: Iterable[str], sources: Mapping[str, str]) -> str:
    """What to do where missing names are those of the file with another number, as of layers that are made twice."""
    if not any(re.sub(r"_\d+(?=/|$)", "", name) in sources for name in missing):
        return ""
    return "; to make a model again in one program, do it in a block `with ps.collection():`, which counts names anew"


def _listed(names: Iterable[str]) -> str:
    rest = iter(names)
    first = ", ".join(map(repr, islice(rest, LISTED)))
    more = sum(1 for _ in rest)
    return (first or "nothing") + (f" and {more} more" if more else "")
