"""Embedding vectors, looked up by row number in a variable or a table."""

from __future__ import annotations

from pswire.specs import initializers
from pswire.specs.initializers import Initializer, RowInitializer
from psworker.autodiff import Tensor, ops
from psworker.autodiff.tensor import TensorLike
from psworker.model.collection import layer_scope
from psworker.model.layers.layer import Layer, new_variable
from psworker.model.tables import Table
from psworker.model.variables import Variable

_UNIFORM = initializers.random_uniform(-0.05, 0.05)


class Embedding(Layer):
    """Embedding vectors, of words, users or products, looked up by row number.

        vectors = nn.Embedding(50_000, 64)(ids)    # (batch, words) -> (batch, words, 64)
        vectors = nn.Embedding(50_000_000, 64, initializer=ps.RowUniform(-0.05, 0.05))(ids)

    With a row initializer it is a `Table` on the servers, and a worker pulls the rows it looks up; otherwise it is a
    variable, of which each worker has a copy. Either way the gradient is `IndexedSlices`, and a push sends only rows
    that were looked up.

    Args:
        rows, width: number and size of the rows.
        initializer: of a variable, or a `RowInitializer`; by default `random_uniform(-0.05, 0.05)`.

    Variable: `table`, a Variable or Table (rows, width), float32.
    """

    def __init__(
        self, rows: int, width: int, *, initializer: Initializer | RowInitializer = _UNIFORM, name: str | None = None
    ) -> None:
        shape = rows, width
        self.table: Variable | Table
        with layer_scope(name, "embedding") as self.name:
            if isinstance(initializer, RowInitializer):
                self.table = Table(shape, initializer, name="table")
            else:
                self.table = new_variable("table", shape, initializer)

    def __call__(self, ids: TensorLike) -> Tensor:
        """Look up integer ids of any shape: (*ids.shape, width).

        Raises IndexError when an id is not in 0 ... rows - 1, TypeError when ids are not integers.
        """
        return ops.embedding(self.table, ids)

    def __repr__(self) -> str:
        return f"Embedding({self.name!r}: {self.table.shape[0]} rows of {self.table.shape[1]})"
