"""Tables: variables of which only rows are transferred, for embeddings that do not fit into a worker's memory.

May import the variables and the engine; rows come from the open session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from operator import index
from typing import Any, NoReturn

import numpy as np

from pswire.errors import ConfigurationError
from pswire.specs.initializers import RowInitializer, check_fits, rows_of
from pswire.tensors.values import Array, IndexedSlices
from psworker.autodiff.ops.selection.indexing import RowSource
from psworker.autodiff.tape import is_recording
from psworker.autodiff.tensor import TensorLike
from psworker.model.base_variable import BaseVariable, as_assigned
from psworker.model.collection import context
from psworker.versions import ReadVersion

__all__ = ["Table"]

_MAX_BYTES = np.iinfo(np.intp).max  # of one array


class Table(BaseVariable, RowSource):
    """A variable that only the servers hold as a whole.

        words = Table((1_000_000, 64), RowUniform(-0.05, 0.05), name="words")
        with session():
            vectors = ops.embedding(words, ids)        # pulls the distinct rows of the batch, as they are now

    The servers compute a row's initial value from the initializer's seed and the row's number. The gradient is
    `IndexedSlices`; a push sends only these rows, and its answer has none. Before a session, lookups give the initial
    rows; after it they raise. Without a session, those of a table that `psworker.load` has set are read from the file.

    Args:
        shape: (rows, ...): at least one axis.
        initializer: such as `RowUniform`, `RowNormal` or `RowConstant`.
        name, trainable: as a variable's.
        dtype: float32, float64 or float16.

    Raises:
        ConfigurationError: the name is taken, or a size is negative.
        TypeError: the shape, the initializer or the dtype has the wrong type.
        ValueError: the shape has no axis, the table would exceed the address space, or the dtype cannot hold the
            initializer's values.
    """

    __slots__ = ("dtype", "initializer", "looked_up", "shape", "stored")

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(
        self,
        shape: Sequence[int],
        initializer: RowInitializer,
        name: str | None = None,
        dtype: str = "float32",
        trainable: bool = True,
    ) -> None:
        if not isinstance(initializer, RowInitializer):
            raise TypeError(
                "a Table's initializer computes rows from their numbers, such as psworker.RowUniform(-0.05, 0.05), not "
                f"{initializer!r}: for an arbitrary initial value use a psworker.Variable"
            )
        check_fits(initializer, dtype)
        try:
            self.shape = tuple(index(size) for size in shape)
        except TypeError:
            raise TypeError(
                f"a Table's shape is a tuple of whole numbers, such as (1_000_000, 64), got {shape!r}"
            ) from None
        if not self.shape:
            raise ValueError("a Table has at least one axis, its rows: its shape is ()")
        self.dtype = np.dtype(dtype)
        nbytes = prod(max(size, 1) for size in self.shape) * self.dtype.itemsize  # as numpy counts empty axes
        if nbytes > _MAX_BYTES:
            raise ValueError(
                f"a Table of shape {self.shape} has {nbytes:,} bytes, and no memory has more than {_MAX_BYTES:,}: give "
                "it fewer rows, such as the remainders of its ids"
            )
        self.initializer = initializer
        self.looked_up = False  # since the last gradient
        self.stored: Callable[[Array], Array] | None = None  # the rows of a loaded file, by their numbers
        context.collection.enter(self, name, trainable)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def value(self) -> NoReturn:  # type: ignore[override]
        """Raises TypeError: no worker has a table as a whole."""
        raise TypeError(
            f"{self.name!r} is a Table, of which a worker has only rows: use ops.embedding(table, ids) in a model and "
            "session.rows(table, ids) to look at it"
        )

    def assign(self, value: TensorLike) -> NoReturn:
        """Raises TypeError: use `assign_rows`."""
        check_no_table([self], "assigned")
        raise AssertionError

    assign_add = assign

    def assign_rows(self, first: int, rows: TensorLike) -> None:
        """Sets successive rows on the servers, all at once, from number `first` on.

            words.assign_rows(100, np.zeros((2, 64)))      # rows 100 and 101

        Raises:
            ShapeMismatch: `rows` are no rows of the table.
            TypeError: they would lose more than precision in the table's dtype, or are a scalar.
            NotFinite: they have NaN or infinity.
            ConfigurationError: no session is open here.
        """
        session = context.collection.session
        if session is None:
            raise ConfigurationError(
                f"the rows of {self.name!r} are kept by the server, and no session is open here: assign them inside "
                "`with psworker.session() as session:`, in its thread"
            )
        values = as_assigned(self, rows)
        if not values.ndim:
            raise TypeError(f"assigned rows for {self.name!r} are a scalar: give an array of shape (n, ...)")
        session.assign_rows(self, [values], index(first))

    def fetch(self, indices: Array) -> Array:
        """The rows with these numbers, (n,): the servers', a loaded file's, or before a session the initial ones."""
        session = context.collection.session
        if session is not None:
            rows = session.look_up(self, indices)
            if is_recording():
                self.note_lookup(rows.read)
            assert not isinstance(rows.array, IndexedSlices)
            return rows.array
        if self.stored is not None:
            return self.stored(indices).astype(self.dtype, copy=False)
        if self.read.versions:  # a server has changed the rows since
            raise ConfigurationError(
                f"the rows of {self.name!r} are kept by the server, and no session is open here: look them up inside "
                "`with psworker.session() as session:`, in its thread, or save the model there and psworker.load it"
            )
        return rows_of(self.initializer, indices, self.shape[1:], self.dtype)

    def note_lookup(self, read: ReadVersion) -> None:
        """Keeps the version of rows for the next gradient: of several lookups before it, the oldest counts."""
        if self.looked_up:
            read = read._replace(versions=tuple(map(min, self.read.versions, read.versions)))
        self.read, self.looked_up = read, True


def check_no_table(variables: Iterable[BaseVariable], action: str) -> None:
    """Raises `TypeError` for a table, which cannot be `action` (a participle, such as "pulled") as a whole."""
    for variable in variables:
        if isinstance(variable, Table):
            raise TypeError(
                f"{variable.name!r} is a Table, of which only rows travel, and cannot be {action} as a whole: see rows "
                "by session.rows(table, ids), set them "
                "by table.assign_rows(first, rows), and train them by gradients of what ops.embedding(table, ids) gives"
            )
