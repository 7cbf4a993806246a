"""Embeddings whose rows stay on the servers: only the rows of a batch, and their gradients, travel."""

import numpy as np
import torch

from pswire.errors import ConfigurationError
from pswire.specs.initializers import RowInitializer, RowNormal
from pswire.tensors.values import IndexedSlices
from psworker.autodiff import no_grad
from psworker.model.tables import Table


class Embedding(torch.nn.Module):
    """As `torch.nn.Embedding`, for tables that need not fit into a worker's memory (`psworker.Table`).

        model.users = pst.Embedding(1_000_000, 16)

    `distribute` makes the table, named `users.weight` after its place in the model, which is trained by the rule of the
    optimizer's first group. Equal ids of a batch are looked up once. There is no parameter: `model.parameters()` and
    `model.state_dict()` do not have it, `session.save` does.

    Args:
        num_embeddings: rows of the table.
        embedding_dim: elements of a row, float32.
        padding_idx: a row that gets no gradient.
        initializer: of the rows, by default normal numbers with mean 0 and deviation 1, as in PyTorch.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        initializer: RowInitializer | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self._initializer = initializer or RowNormal(0.0, 1.0)
        self._table: Table | None = None
        self._lookups: list[tuple[np.ndarray, torch.Tensor]] = []  # ids and rows since the last gradient

    @property
    def table(self) -> Table:
        """The table on the servers. Raises `ConfigurationError` before `distribute`."""
        if self._table is None:
            raise ConfigurationError("the rows of a pst.Embedding are on servers: call pst.distribute before the model")
        return self._table

    def make_table(self, name: str) -> Table:
        """Makes the table, which the open session registers."""
        self._table = Table((self.num_embeddings, self.embedding_dim), self._initializer, name=name)
        return self._table

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the table: ids, integers of any shape, give (*ids.shape, embedding_dim).

        Raises IndexError for an id outside of the table, TypeError for ids that are not integers.
        """
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(f"Embedding: ids must be integers, but they are {ids.dtype}")
        numbers, places = np.unique(ids.cpu().numpy().reshape(-1), return_inverse=True)
        if numbers.size and not 0 <= numbers[0] <= numbers[-1] < self.num_embeddings:
            raise IndexError(
                f"Embedding: ids must be in 0 ... {self.num_embeddings - 1}, but they span "
                f"{numbers[0]} ... {numbers[-1]}"
            )
        if torch.is_grad_enabled():
            rows = torch.from_numpy(np.array(self.table.fetch(numbers))).requires_grad_()
            self._lookups.append((numbers, rows))
        else:
            with no_grad():
                rows = torch.from_numpy(np.array(self.table.fetch(numbers)))
        found = torch.nn.functional.embedding(torch.from_numpy(places), rows, self._padding(numbers))
        return found.reshape(*ids.shape, self.embedding_dim).to(ids.device)

    def take_gradient(self) -> IndexedSlices | None:
        """The gradient of the rows looked up since the last one; None if the loss does not depend on any."""
        lookups, self._lookups = self._lookups, []
        found = [(numbers, rows.grad.numpy()) for numbers, rows in lookups if rows.grad is not None]
        if not found:
            return None
        ids, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return IndexedSlices(values, ids, (self.num_embeddings, self.embedding_dim))

    def _padding(self, numbers: np.ndarray) -> int | None:
        """The place of the padding among these numbers."""
        place = np.flatnonzero(numbers == self.padding_idx) if self.padding_idx is not None else np.empty(0)
        return int(place[0]) if place.size else None


def embeddings(model: torch.nn.Module) -> dict[str, Embedding]:
    """The embeddings of a model on tables, by the names of their tables; each once."""
    return {f"{path}.weight": one for path, one in model.named_modules() if isinstance(one, Embedding)}
