"""Batches of a PyTorch dataset, each example once an epoch over all workers, loaded by PyTorch's `DataLoader`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch.utils.data

from pswire.errors import DatasetError
from pswire.messages import EpochReport
from pswire.tensors.values import Array
from psworker.data.sources import FunctionDataset, Stream
from psworker.sessions.session import session_here


def loader(
    dataset: torch.utils.data.Dataset[Any],
    batch_size: int,
    epochs: int | None = 1,
    *,
    shuffle: bool = True,
    seed: int = 0,
    steps: int | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
    name: str | None = None,
    **options: Any,  # noqa: ANN401 - of DataLoader
) -> Iterator[Any]:
    """Batches as `DataLoader` makes them, of examples that the servers hand out: see `Session.batches`.

        for x, y in pst.loader(dataset, batch_size=64, epochs=10, num_workers=2):

    All workers of the job together load each example of a dataset with a length exactly once an epoch; what a worker
    that dies had not trained goes to others. Processes of `num_workers` load the next batches of the block that this
    worker has. An `IterableDataset` is read by each worker as a whole, in its order: give each its part, by
    `session.number`.

    Args:
        dataset: with `__getitem__` and `__len__`, or an `IterableDataset`; nothing is read before its turn.
        batch_size: examples in a batch; the last of an epoch may be smaller.
        epochs: passes over the dataset; None: without end.
        shuffle: whether each epoch has an order of its own, by `seed`.
        seed: from 0; the same in every worker.
        steps: batches of all workers together after which it ends.
        on_epoch: called with each epoch's mean cost over all workers.
        name: the data queue's name [one for each call, in the order of calls].
        options: of `DataLoader`: num_workers, collate_fn, pin_memory, prefetch_factor, worker_init_fn, ...

    Raises:
        ConfigurationError: no session is open.
        DatasetError: the dataset is empty, or has no length.
        TypeError: an option that `DataLoader` does not have, or that the servers decide, such as `sampler`.
    """
    session = session_here("read the loader inside `with pst.session():`")
    if decided := {"sampler", "batch_sampler", "drop_last"} & options.keys():
        raise TypeError(
            f"loader: {', '.join(sorted(decided))} cannot be given: the servers choose the examples of each worker"
        )
    source = _stream(dataset, batch_size, options) if _is_iterable(dataset) else _Loading(dataset, batch_size, options)
    reading = session.batches(
        source,
        None if isinstance(source, Stream) else batch_size,
        epochs,
        seed,
        steps=steps,
        shuffle=shuffle,
        on_epoch=on_epoch,
        name=name,
    )
    return (batch.value for batch in reading)


class _Loaded:
    """What `DataLoader` made of some examples."""

    def __init__(self, value: Any, count: int) -> None:  # noqa: ANN401
        self.value, self._count = value, count

    def __len__(self) -> int:
        return self._count


class _Loading(FunctionDataset):
    """A dataset whose examples a `DataLoader` reads: those of a block are announced before they are taken."""

    def __init__(self, dataset: torch.utils.data.Dataset[Any], batch_size: int, options: dict[str, Any]) -> None:
        try:
            size = len(dataset)
        except TypeError:
            raise DatasetError(
                f"{type(dataset).__name__} has no length: give it __len__, or make it an IterableDataset"
            ) from None
        super().__init__(_never, size, type(dataset).__name__)
        self._batch_size, self._announced = batch_size, _Announced()
        if options.get("num_workers"):
            options = {"persistent_workers": True} | options
        self._loader = torch.utils.data.DataLoader(dataset, batch_sampler=self._announced, **options)
        self._batches: Iterator[Any] = iter(())

    def expect(self, rows: Array) -> None:
        """Announces the examples that come next, a batch at a time: processes may load them."""
        size = self._batch_size
        self._announced.batches = [rows[start : start + size].tolist() for start in range(0, len(rows), size)]
        self._batches = iter(self._loader)

    def take(self, indices: Any, epoch: int | None = None) -> Any:  # noqa: ANN401
        """The next announced batch, whose examples these are."""
        return _Loaded(next(self._batches), len(indices))


class _Announced:
    """The batches that a `DataLoader` is to read, as lists of numbers."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Batches(Stream):
    """The batches of an `IterableDataset`, as its `DataLoader` makes them."""

    def _one_pass(self, batch_size: int | None, epoch: int) -> Iterator[Any]:
        for value in self._source:  # type: ignore[union-attr]
            yield _Loaded(value, _length(value))


def _stream(dataset: torch.utils.data.Dataset[Any], batch_size: int, options: dict[str, Any]) -> Stream:
    return _Batches(torch.utils.data.DataLoader(dataset, batch_size=batch_size, **options))


def _is_iterable(dataset: object) -> bool:
    return isinstance(dataset, torch.utils.data.IterableDataset)


def _length(value: Any) -> int:  # noqa: ANN401
    """The number of examples of a batch: the length of its first tensor."""
    while isinstance(value, (Sequence, dict)) and not isinstance(value, str):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return len(value) if isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim else 1


def _never(indices: Array) -> Any:  # noqa: ANN401
    raise AssertionError(f"a batch is taken as announced, not by {indices}")
