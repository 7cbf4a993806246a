"""`Trainer`: the training loop as an object, in the manner of Keras, for programs that do not write the loop.

It is written on the public interface: `fit` is a loop over `session.batches` with `optimizer.minimize`, and gives the
same bits as that loop. What else happens is up to callbacks (`psworker.callbacks`).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import numpy as np

from pswire.errors import ConfigurationError, GenerationLost
from pswire.messages import EpochReport
from pswire.tensors.values import Array
from psworker.autodiff import Tensor, no_grad
from psworker.autodiff.tensor import TensorLike, as_array
from psworker.callbacks import Callback, Record, numbers_of
from psworker.data.batch import Batch, ColumnLike
from psworker.data.dataset import Dataset
from psworker.data.sources import Source, open_source
from psworker.familiar_names import HISTORY, TRAINER, hint_arguments, hint_attributes, hint_keywords, is_of_torch, shown
from psworker.model.collection import context
from psworker.model.layers.composition import training_parameter
from psworker.model.optimizers import Optimizer, ParameterGroups
from psworker.sessions.opening import session as open_session
from psworker.sessions.session import Session

__all__ = ["Trainer"]

logger = logging.getLogger(__name__)

#: What a metric gives: a mean over the examples of a batch, or what adds up (`psworker.metrics`).
MetricFunction: TypeAlias = Callable[[Any, Any], Any]


class Trainer:
    """A model with its loss, optimizer and metrics, and the loop that trains it.

        trainer = ps.Trainer(model, ops.softmax_cross_entropy, ps.Adam(0.001), metrics=[ps.metrics.accuracy])
        with ps.session() as session:
            history = trainer.fit(mnist.train, epochs=5, batch_size=100, validation=mnist.validation)
            results = trainer.evaluate(mnist.test)      # {"loss": 0.12, "accuracy": 0.96}
        logits = trainer.predict(mnist.test.image[:5])

    `fit` and `evaluate` use the open session. Without one each call opens its own, which is a job of its own: a program
    for several workers opens one around all of them.

    Args:
        model: a layer or a function of the columns of inputs. If it has a parameter `training`, it is called with
            True by `fit`, and with False for measures and predictions. If it takes one input, and there are several
            columns of numbers (n,), as of a DataFrame, it gets them side by side: (n, columns), of their common dtype.
        loss: a function of the model's output and the labels that returns a tensor of one element, the mean over the
            batch, such as `ops.softmax_cross_entropy`.
        optimizer: such as `ps.Adam(0.001)`, or `ps.ParameterGroups`; its learning rate may be a schedule, and its
            gradients pass its transform (`Optimizer.with_transform`). It trains all trainable variables of the program.
        metrics: one or several functions of output and labels that return a metric (`ps.metrics`) or the mean over the
            batch; those of a list have their own names.
        inputs: the column, or columns, that the model gets, in this order [all but the labels].
        labels: the column of the labels [the last one].

    Raises:
        TypeError: the model, the loss or a metric is not a function, or the optimizer is none.
        ValueError: two metrics of a list have one name, or one is named "loss".
    """

    def __init__(
        self,
        model: Callable[..., Any],
        loss: Callable[[Any, Any], Tensor],
        optimizer: Optimizer | ParameterGroups,
        metrics: MetricFunction | Iterable[MetricFunction] | Mapping[str, MetricFunction] = (),
        *,
        inputs: str | Sequence[str] | None = None,
        labels: str | None = None,
    ) -> None:
        _check_function("model must be a layer, or a function of the inputs", model, "nn")
        _check_function("loss must be a function of output and labels, such as ops.softmax_cross_entropy", loss, "ops")
        if not isinstance(optimizer, Optimizer | ParameterGroups):
            raise TypeError(
                f"Trainer: optimizer must be an optimizer, such as ps.Adam(0.001), got {shown(optimizer, 'ps')}"
            )
        self.model, self.loss, self.optimizer, self.metrics = model, loss, optimizer, _by_name(metrics)
        self._inputs = (inputs,) if isinstance(inputs, str) else inputs
        self._labels = labels
        self._takes_training = training_parameter(model) is not None
        self._takes_one = _takes_one(model)

    @hint_keywords
    def fit(
        self,
        data: Source,
        epochs: int | None = 1,
        batch_size: int = 32,
        *,
        validation: Source | None = None,
        callbacks: Callback | Iterable[Callback] = (),
        seed: int = 0,
        steps: int | None = None,
        shuffle: bool = True,
    ) -> list[Record]:
        """Trains on all examples in each epoch, all workers together, as a loop over `Session.batches` does.

        After an epoch the chief measures the validation data, while other workers go on, and calls its callbacks. If
        one of them saves what is measured (`BestModel`), both are in a `Session.generation`. With a `summary_dir` the
        numbers of each epoch are written for TensorBoard too. A job that was stopped stays stopped: another `fit` needs
        another session.

        Args:
            data: a dataset, columns by name or a sequence of examples, as in `Session.batches`; no iterable.
            epochs: passes over the data; None: without end, until `steps` or a callback stops the job.
            batch_size: examples in a batch.
            validation: data that loss and metrics are measured on after each epoch, as in `Session.evaluate`.
            callbacks: one or several, called in their order.
            seed: of the order of examples, as in `Session.batches`.
            steps: batches of all workers together after which it ends, as in `Session.batches`.
            shuffle: False: the order of the data.

        Returns:
            A record of each epoch: a dict with "epoch", its number, and "cost", the mean loss over all workers. Those
            of the chief also have "val_loss", and "val_" with the name of each metric, except for epochs that were over
            before it came to them.

        Raises:
            TypeError: a callback is none.
            ConfigurationError: the data have one column, and neither inputs nor labels are named; or several columns
                that are not numbers (n,) for a model that takes one input.

        Otherwise raises as `Session.batches`, `Session.evaluate`, the model and the callbacks do; an error of a
        callback has a note with its name.
        """
        called = _Callbacks(callbacks)
        if validation is not None:
            open_source(validation, None)  # raises now, and not after the first epoch
        history = History()
        with _session() as session:

            def on_epoch(report: EpochReport) -> None:
                record: Record = {"epoch": report.epoch, "cost": report.cost}
                history.append(record)
                if session.is_chief and session.is_latest(report):
                    if validation is not None:
                        self._validate(session, validation, record, called)
                    for name, value in numbers_of(record).items():
                        session.summary.scalar(f"epoch/{name}", float(value))
                    called("on_epoch_end", session, record)

            batches = session.batches(data, batch_size, epochs, seed, steps=steps, shuffle=shuffle, on_epoch=on_epoch)
            if session.stopped and not session.over:
                logger.warning(
                    "nothing is trained: the job was stopped before (%s); open another session", session.stopped
                )
            called("on_train_begin", session)
            for batch in batches:
                output, labels = self._output(batch, training=True)
                loss = self.optimizer.minimize(self.loss(output, labels))
                called("on_batch_end", session, batch, loss)
            called("on_train_end", session, history)
        return history

    def evaluate(self, data: Source, batch_size: int = 1000, *, shared: bool = False) -> dict[str, Any]:
        """The loss and the metrics over all examples, by name, with fresh weights.

        Args:
            data: as in `fit`.
            batch_size: examples that are measured at a time.
            shared: whether all workers, which all call it, measure together, as in `Session.evaluate`.

        Returns:
            "loss", and each metric by its name.

        Raises as `Session.evaluate` and the model do.
        """
        with _session() as session:
            return session.evaluate(self._measure, data, batch_size, shared=shared)

    def predict(self, *inputs: ColumnLike, batch_size: int = 1000) -> Array:
        """The model's output for inputs of any number of examples: (examples, ...).

        In a session with fresh weights, otherwise with those that the variables have.

        Args:
            inputs: what the model gets: one array, or another column, with a row for each example, or several.
            batch_size: examples that are computed at a time.

        Raises `TypeError` for a dataset, `DatasetError` if inputs are no columns of equal length, `ValueError` for a
        batch size below 1; otherwise as the model does.
        """
        if batch_size < 1:
            raise ValueError(f"predict: batch_size must be 1 or more, got {batch_size}")
        if any(isinstance(one, Dataset | Batch) for one in inputs):
            raise TypeError("predict takes what the model gets, columns of a dataset: trainer.predict(data.x)")
        columns = Dataset({f"input_{number}": column for number, column in enumerate(inputs)}, "inputs of predict")
        if context.collection.session is not None:
            with _session() as session:
                session.pull()
        with no_grad():
            parts = [columns[start : start + batch_size] for start in range(0, len(columns), batch_size)]
            return np.concatenate([as_array(self._call({name: one[name] for name in one.columns})) for one in parts])

    def _validate(self, session: Session, data: Source, record: Record, called: _Callbacks) -> None:
        """Add the measures to the record; the callbacks that save find the values that were measured."""
        while True:
            try:
                with session.generation() if called.save else nullcontext():
                    results = session.evaluate(self._measure, data)
                    record |= {f"val_{name}": value for name, value in results.items()}
                    called("on_validation_end", session, record)
            except GenerationLost as error:
                logger.warning("epoch %d is validated again: %s", record["epoch"], error)
            else:
                return

    def _measure(self, batch: Batch) -> dict[str, Any]:
        output, labels = self._output(batch, training=False)
        return {"loss": self.loss(output, labels)} | {
            name: metric(output, labels) for name, metric in self.metrics.items()
        }

    def _output(self, batch: Batch, *, training: bool) -> tuple[Any, Any]:
        """The model's output for a batch, and its labels."""
        labels = batch.columns[-1] if self._labels is None else self._labels
        inputs = [name for name in batch.columns if name != labels] if self._inputs is None else self._inputs
        if not inputs:
            raise ConfigurationError(
                f"Trainer: the data have the column {labels!r} alone: say what it is, such as "
                f"Trainer(..., inputs={labels!r}, labels={labels!r})"
            )
        return self._call({name: batch[name] for name in inputs}, training=training), batch[labels]

    def _call(self, columns: Mapping[str, TensorLike], *, training: bool = False) -> Any:  # noqa: ANN401 - a tensor, or several
        inputs = [_side_by_side(columns)] if self._takes_one and len(columns) > 1 else list(columns.values())
        return self.model(*inputs, training=training) if self._takes_training else self.model(*inputs)


class History(list[Record]):
    """The records of `Trainer.fit`, with hints for familiar names."""


class _Callbacks:
    """Calls a method of all callbacks, in their order. Raises TypeError for what is no callback.

    `save`: one of them does something with the values that were measured.
    """

    def __init__(self, callbacks: Callback | Iterable[Callback]) -> None:
        self._callbacks = (callbacks,) if isinstance(callbacks, Callback) else tuple(callbacks)
        for one in self._callbacks:
            if not isinstance(one, Callback):
                raise TypeError(
                    f"fit: a callback must be an object of a class of ps.callbacks.Callback, got {one!r:.80}"
                )
        self.save = any(type(one).on_validation_end is not Callback.on_validation_end for one in self._callbacks)

    def __call__(self, method: str, *arguments: object) -> None:
        for callback in self._callbacks:
            try:
                getattr(callback, method)(*arguments)
            except Exception as error:
                error.add_note(f"(raised in {method} of the callback {callback!r})")
                raise


@contextmanager
def _session() -> Iterator[Session]:
    """The open session, or else a new one."""
    present = context.collection.session
    if isinstance(present, Session):
        yield present
    else:
        with open_session() as session:
            yield session


def _takes_one(model: Callable[..., Any]) -> bool:
    """True if the model can be called with one input alone, besides `training`."""
    try:
        parameters = inspect.signature(model).parameters.values()
    except ValueError:  # of a function of C that has no signature
        return False
    by_place = [one for one in parameters if one.kind is not one.KEYWORD_ONLY and one.kind is not one.VAR_KEYWORD]
    inputs = [one for one in by_place if one.name != "training"]
    return len(inputs) == 1 and inputs[0].kind is not inputs[0].VAR_POSITIONAL


def _side_by_side(columns: Mapping[str, TensorLike]) -> Array:
    """Columns of numbers (n,) as one matrix (n, columns)."""
    arrays = {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}
    unfit = [
        name
        for name in columns
        if name not in arrays or arrays[name].ndim != 1 or arrays[name].dtype.kind not in "biuf"
    ]
    if unfit:
        raise ConfigurationError(
            f"Trainer: the model takes one input, and the data have {len(columns)} columns for it: "
            f"{', '.join(columns)}; such columns are put side by side if each has a number for each example, which is "
            f"not so of {', '.join(unfit)}: choose by Trainer(..., inputs=..., labels=...), or make the model a "
            f"function of {len(columns)} inputs"
        )
    return np.column_stack(list(arrays.values()))


def _by_name(
    metrics: MetricFunction | Iterable[MetricFunction] | Mapping[str, MetricFunction],
) -> dict[str, MetricFunction]:
    several: Any = [metrics] if callable(metrics) or isinstance(metrics, str) else metrics
    pairs = list(several.items()) if isinstance(several, Mapping) else [(_name(one), one) for one in several]
    for name, metric in pairs:
        _check_function(
            "a metric must be a function of output and labels, such as ps.metrics.accuracy", metric, "metrics"
        )
        if name == "loss" or [one for one, _ in pairs].count(name) > 1:
            raise ValueError(f'Trainer: the name {name!r} is taken: give metrics by name, as in {{"top 3": top_3}}')
    return dict(pairs)


def _name(metric: object) -> str:
    return getattr(metric, "__name__", type(metric).__name__)


def _check_function(expected: str, given: object, module: str) -> None:
    if not callable(given) or isinstance(given, type) or is_of_torch(given):
        raise TypeError(f"Trainer: {expected}, got {shown(given, module)}")


hint_attributes(Trainer, TRAINER)
hint_arguments([Trainer])
hint_attributes(History, HISTORY)
