"""Callbacks of `psworker.Trainer.fit`: what happens beside the loop, after batches and epochs.

    trainer.fit(train, epochs=50, validation=validation, callbacks=[
        ps.callbacks.EarlyStopping(patience=3),
        ps.callbacks.BestModel(restore=True),
        ps.callbacks.EpochPrinter(),
    ])

They use the session's own methods: `stop_all`, `save_best`, `set_hyperparameters`. Learning rates that change with the
step are schedules of the optimizer (`psworker.schedules`), and scalars for TensorBoard are written by `fit` itself. No
library of a logger is imported.
"""

import csv
import io
import math
import os
import sys
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pswire.errors import ConfigurationError
from pswire.tensors.tensor_files import replace_file
from psworker import familiar_names
from psworker.data.batch import Batch
from psworker.sessions.session import Session

__all__ = ["BestModel", "CSVLogger", "Callback", "EarlyStopping", "EpochPrinter", "MetricsLogger"]

#: What is known of an epoch, as in `Callback`.
Record: TypeAlias = dict[str, Any]

#: Seconds that workers wait for the best model: the chief may still validate the last epoch.
RESTORE_TIMEOUT = 3600.0


class Callback:
    """The base of all callbacks: methods that `Trainer.fit` calls, which do nothing here.

        class HalveRate(ps.callbacks.Callback):
            def on_epoch_end(self, session, record):
                session.set_hyperparameters(optimizer, learning_rate=0.1 / 2 ** record["epoch"])

    The record of an epoch is a dict: "epoch", its number from 1; "cost", the mean loss over all workers; and with a
    validation "val_loss", and "val_" with the name of each metric. An exception in a method leaves `fit`. A job that a
    callback stops, by `session.stop_all`, is stopped for all workers.
    """

    def on_train_begin(self, session: Session) -> None:
        """Called before the first batch, in every worker."""

    def on_batch_end(self, session: Session, batch: Batch, loss: float) -> None:
        """Called after the push of a batch, in the worker that had it; `loss` is that of its forward pass."""

    def on_validation_end(self, session: Session, record: Record) -> None:
        """Called in the chief when an epoch has been validated, while variables have the values that were measured.

        To save them: nothing can be changed here (`Session.generation`). If a server loses these values meanwhile, the
        epoch is validated again, and this is called again.
        """

    def on_epoch_end(self, session: Session, record: Record) -> None:
        """Called in the chief after an epoch of all workers.

        Not for epochs that were over before the chief came to them: while it validated, or before the job was resumed.
        """

    def on_train_end(self, session: Session, history: Sequence[Record]) -> None:
        """Called after the last batch of this worker, or the stop of the job, in every worker; not after an error."""

    def __repr__(self) -> str:
        return type(self).__name__


class EarlyStopping(Callback):
    """Stops all workers when a measure has not become better for some epochs.

    Args:
        monitor: the name of the measure in the record of an epoch.
        patience: epochs without a better value after which it stops, 1 or more.
        min_delta: by how much a value must be better to count, from 0 up.
        maximize: whether higher values are better.

    For the weights of the best epoch add `BestModel(restore=True)`. When another worker becomes chief, it counts anew.
    """

    def __init__(
        self, monitor: str = "val_loss", patience: int = 1, min_delta: float = 0.0, *, maximize: bool = False
    ) -> None:
        if patience < 1:
            raise ValueError(f"EarlyStopping: patience must be 1 epoch or more, got {patience}")
        if not min_delta >= 0:
            raise ValueError(f"EarlyStopping: min_delta must be 0 or more, got {min_delta}")
        self.monitor, self.patience, self.min_delta, self.maximize = monitor, patience, min_delta, maximize
        self._best, self._waited = math.inf, 0

    def on_train_begin(self, session: Session) -> None:
        """Begins to count."""
        self._best, self._waited = math.inf, 0

    def on_epoch_end(self, session: Session, record: Record) -> None:
        """Stops the job if this epoch was the last one to wait for."""
        value = _monitored(self, self.monitor, record)
        cost = -value if self.maximize else value
        if cost < self._best - self.min_delta:
            self._best, self._waited = cost, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            best = -self._best if self.maximize else self._best
            session.stop_all(f"{self.monitor} has not been better than {best:.6g} for {self._waited} epochs")


class BestModel(Callback):
    """Keeps the model of the epoch with the best measure, by `Session.save_best`, in the session's `checkpoint_dir`.

    Args:
        monitor: the name of a measure of the validation: the model with these very values is saved.
        maximize: whether higher values are better.
        restore: whether all workers have the best model at the end (`Session.load_best`).

    Raises `ConfigurationError` when training begins if the session has no folder.
    """

    def __init__(self, monitor: str = "val_loss", *, maximize: bool = False, restore: bool = False) -> None:
        self.monitor, self.maximize, self.restore = monitor, maximize, restore
        self._validated = 0  # the last epoch

    def on_train_begin(self, session: Session) -> None:
        """Raises if there is no folder, not only at the end of the first epoch."""
        session.save_best(math.nan, maximize=self.maximize)  # never saved

    def on_validation_end(self, session: Session, record: Record) -> None:
        """Saves the model if it is the best one."""
        session.save_best(_monitored(self, self.monitor, record), maximize=self.maximize)
        self._validated = record["epoch"]

    def on_epoch_end(self, session: Session, record: Record) -> None:
        """Raises without a validation."""
        if record["epoch"] != self._validated:
            raise ConfigurationError("BestModel saves the model that was measured: give fit a validation=dataset")

    def on_train_end(self, session: Session, history: Sequence[Record]) -> None:
        """Restores the best model."""
        if self.restore:
            session.load_best(RESTORE_TIMEOUT)


class CSVLogger(Callback):
    """Writes a line with the numbers of each epoch to a CSV file, with the names in the first line.

    Lines of earlier epochs stay, of this epoch and later ones they are replaced: a resumed job, or another chief that
    has the file, continues it, and a new job begins it anew. The file is replaced whole.

    Raises `ConfigurationError` if the file is another one, `ModelFileError` if it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def on_epoch_end(self, session: Session, record: Record) -> None:
        """Writes the line."""
        rows = [*self._rows_before(record["epoch"]), {"epoch": record["epoch"]} | numbers_of(record)]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        replace_file(self.path, text.getvalue().encode())

    def _rows_before(self, epoch: int) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        try:
            rows = list(csv.DictReader(self.path.read_text(encoding="utf-8").splitlines()))
            return [row for row in rows if int(row["epoch"]) < epoch]
        except (KeyError, TypeError, ValueError):
            raise ConfigurationError(f"{self.path} was not written by CSVLogger: name another file") from None


class MetricsLogger(Callback):
    """Hands the numbers of each epoch to a logger, at the epoch's number as the step.

        ps.callbacks.MetricsLogger(mlflow)                       # mlflow.log_metrics({"cost": 0.3, ...}, step=1)
        ps.callbacks.MetricsLogger(wandb.init(project="mnist"))  # run.log({"cost": 0.3, ...}, step=1)

    Args:
        logger: an object with a method `log_metrics`, such as the module mlflow, or else `log`, such as a run of
            Weights & Biases; called with the numbers by name, and `step=`. TypeError if it has neither. It is used by
            the chief alone: other workers need none, and may be given one all the same.
    """

    def __init__(self, logger: object) -> None:
        log = getattr(logger, "log_metrics", None) or getattr(logger, "log", None)
        if not callable(log):
            raise TypeError(f"MetricsLogger takes an object with log_metrics(values, step=) or log, got {logger!r:.80}")
        self._log = log

    def on_epoch_end(self, session: Session, record: Record) -> None:
        """Hands over the numbers."""
        self._log({name: float(value) for name, value in numbers_of(record).items()}, step=record["epoch"])


class EpochPrinter(Callback):
    """Prints a line with the numbers of each epoch: `epoch 3: cost 0.1485, val_loss 0.131, val_accuracy 0.9596`."""

    def on_epoch_end(self, session: Session, record: Record) -> None:
        """Prints the line."""
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in numbers_of(record).items())
        sys.stdout.write(f"epoch {record['epoch']}: {numbers}\n")
        sys.stdout.flush()


def numbers_of(record: Record) -> Record:
    """The cost and the measures in a record that are numbers: no confusion matrices or other arrays."""
    return {name: value for name, value in record.items() if isinstance(value, Real) and name != "epoch"}


def _monitored(callback: Callback, name: str, record: Record) -> float:
    """The measure of this name; `ConfigurationError` if there is none, or it is not a number."""
    numbers = numbers_of(record)
    if name not in numbers:
        raise ConfigurationError(
            f"{callback!r} monitors {name!r}, but the numbers of an epoch are {', '.join(numbers)}: choose one of these"
            + ("" if any(one.startswith("val_") for one in numbers) else ", or give fit a validation=dataset")
        )
    return float(numbers[name])


familiar_names.hint_arguments([BestModel, CSVLogger, EarlyStopping, MetricsLogger])


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        raise familiar_names.missing("callbacks", name)
