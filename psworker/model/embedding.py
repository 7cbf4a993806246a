"""The layer of an embedding: a table of rows, in the worker as a whole or by the rows of its batches.

What it has in common with the layers of `nn`, of which it is one, is in `layers`. May import the engine and variables.
"""

from __future__ import annotations

from pswire.specs.row_initializers import RowInitializer
from psworker.autodiff import Tensor, ops
from psworker.autodiff.tensor import TensorLike
from psworker.model import initializers
from psworker.model.initializers import Initializer
from psworker.model.layer_variables import new_variable, scope_of
from psworker.model.tables import Table
from psworker.model.variables import Variable, layer_scope

_SMALL_UNIFORM = initializers.random_uniform(-0.05, 0.05)


class Embedding:
    """Rows that are looked up by number: the vector of a word, a user, a product.

        vectors = nn.Embedding(50_000, 64)(ids)    # (batch, words) -> (batch, words, 64)
        vectors = nn.Embedding(50_000_000, 64, initializer=ps.RowUniform(-0.05, 0.05))(ids)

    With an initializer of rows it is a `Table`, which the servers keep: a worker pulls the rows that it looks up. With
    another it is a variable, of which each worker has a copy. The gradient is `IndexedSlices` with the rows that were
    looked up either way, so that a push carries these rows alone.

    Args:
        rows: how many there are.
        width: size of a row.
        initializer: of a variable, or a `RowInitializer`; `random_uniform(-0.05, 0.05)`, unless told otherwise.
        name: the scope of its variable; without one it is `embedding`, `embedding_1`, ...

    Attributes:
        name: the full scope of its variable.
        table: Variable or Table `<name>/table`, (rows, width), float32.

    Raises:
        ConfigurationError: the name is taken.
        TypeError, ValueError: a size or an initializer that cannot be; then no variable is made.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        *,
        initializer: Initializer | RowInitializer = _SMALL_UNIFORM,
        name: str | None = None,
    ) -> None:
        shape = rows, width
        self.table: Variable
        with layer_scope(name, "embedding"):
            if isinstance(initializer, RowInitializer):
                self.table = Table(shape, initializer, name="table")
            else:
                self.table = new_variable("table", shape, initializer)
        self.name = scope_of(self.table)

    def __call__(self, ids: TensorLike) -> Tensor:
        """Integer ids of any shape -> (*ids.shape, width).

        Raises:
            IndexError: an id is not in 0 ... rows - 1.
            TypeError: ids are not integers.
        """
        return ops.embedding(self.table, ids)

    def __repr__(self) -> str:
        return f"Embedding({self.name!r}: {self.table.shape[0]} rows of {self.table.shape[1]})"
