"""`session.summary`: what a program writes for TensorBoard, beside what is written by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex

import numpy as np

from pswire.tensors.values import Array
from psworker.autodiff.tensor import Tensor, TensorLike, as_array
from psworker.model.base_variable import BaseVariable

if TYPE_CHECKING:
    from psworker.summaries.worker_summaries import WorkerSummaries

__all__ = ["Summary"]


class Summary:
    """What a program writes for TensorBoard: `session.summary`, in each worker to its own run.

        with ps.session(summary_dir="runs/a") as session:
            for batch in session.batches(mnist.train, 100, epochs=3):
                optimizer.minimize(loss(batch))
                if session.is_chief and session.global_step % 1000 < 10:
                    session.summary.scalar("accuracy", session.evaluate(accuracy, mnist.test))

    All methods do nothing, at the cost of a call, while the session has no folder for summaries (`summary_dir`). With
    one they need the extra `tensorboard`, but for `scalar`; without it they raise `ConfigurationError`. They are for
    the thread of the session. What they are given is read before they return, and on disk within a second; what cannot
    be written is left out, with one warning in the log.

    A `tag` is the name of a chart, `group/name` for a group of them; TypeError if it is no text, ValueError if it is
    empty. A `step` is the place on the axis, by default `session.global_step`; TypeError if it is no integer.
    """

    def __init__(self) -> None:
        self._worker: WorkerSummaries | None = None
        self._variables: Callable[[], Iterable[BaseVariable]] = tuple

    def _open(self, worker: WorkerSummaries, variables: Callable[[], Iterable[BaseVariable]]) -> None:
        """Write from now on; a session calls it, and `_close`. `variables` are those of the program."""
        self._worker, self._variables = worker, variables

    def _close(self) -> None:
        self._worker = None

    def scalar(self, tag: str, value: SupportsFloat, step: SupportsIndex | None = None) -> None:
        """Writes a number, such as an accuracy.

            session.summary.scalar("accuracy", 0.97)

        That of the chief is written to the run of the job, `cluster`, as well, where it continues when another worker
        becomes chief. It is also in the next line of the worker's file of scalars, of one tag the last value since the
        line before.

        Args:
            tag: the name of the chart.
            value: a number, or an array or tensor of one element; TypeError for anything else.
            step: the place on the axis.
        """
        worker = self._worker
        if worker is None:
            return
        place = _place(worker, tag, step)
        try:
            number = float(value.item() if isinstance(value, np.ndarray | Tensor) else value)
        except (TypeError, ValueError):
            raise TypeError(f"summary.scalar({tag!r}) takes a number, or one element, got {value!r:.80}") from None
        worker.add_scalar(tag, number, place)

    def histogram(self, tag: str, values: TensorLike, step: SupportsIndex | None = None) -> None:
        """Writes how values are distributed, in 30 buckets of equal width from the least to the largest.

            session.summary.histogram("weights/fc1", hidden.kernel)

        Args:
            tag: the name of the chart.
            values: real numbers of any shape; TypeError for others. NaN and infinity are left out.
            step: the place on the axis.
        """
        worker = self._worker
        if worker is None:
            return
        place = _place(worker, tag, step)
        array = as_array(values)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"summary.histogram({tag!r}) takes real numbers, got {array.dtype}")
        finite = array[np.isfinite(array)]
        worker.put(worker.events.histogram(time.time(), place, tag, finite))

    def image(self, tag: str, array: TensorLike, step: SupportsIndex | None = None) -> None:
        """Writes a picture.

            session.summary.image("filters/0", hidden.kernel.value[:, 0].reshape(28, 28))

        Args:
            tag: the name of the picture.
            array: (height, width) or (height, width, 1) in shades of grey, (height, width, 3) in red, green and blue,
                or (height, width, 4) with opacity; ValueError for other shapes. uint8 from 0 to 255, bool, or floating
                point from 0 to 1, where numbers beyond are clipped and NaN is 0; TypeError for others.
            step: the place on the axis.
        """
        worker = self._worker
        if worker is None:
            return
        place = _place(worker, tag, step)
        pixels = _pixels(f"summary.image({tag!r})", as_array(array))
        worker.put(worker.events.image(time.time(), place, tag, pixels))

    def text(self, tag: str, text: str, step: SupportsIndex | None = None) -> None:
        """Writes a text, which TensorBoard shows as Markdown.

            session.summary.text("sample", sample(length=200))

        Args:
            tag: the name of the text.
            text: TypeError if it is none.
            step: the place on the axis.
        """
        worker = self._worker
        if worker is None:
            return
        place = _place(worker, tag, step)
        if not isinstance(text, str):
            raise TypeError(f"summary.text({tag!r}) takes a text, got {type(text).__name__}")
        worker.put(worker.events.text(time.time(), place, tag, text))

    def graph(self, loss: Tensor) -> None:
        """Writes the graph of a loss: ops and variables with shapes and dtypes, and the shard of each variable.

            loss = ops.mean(ops.square(model(x) - y))
            session.summary.graph(loss)

        The chief writes that of its first gradient by itself, to the run of the job; this is for others, such as the
        second loss of two. It has what gradients flow through: no inputs, and no other constants.

        Args:
            loss: a tensor that was made by ops of variables; TypeError if it is none, ValueError if it depends on no
                variable, or the graph has more than 10,000 nodes.
        """
        worker = self._worker
        if worker is None:
            return
        if not isinstance(loss, Tensor):
            raise TypeError(f"summary.graph takes a Tensor made by ops, got {type(loss).__name__}")
        worker.put(worker.graph(loss, self._variables()))

    def hyperparameters(self, values: Mapping[str, object]) -> None:
        """Adds to the hyperparameters of the run, by which TensorBoard's page HParams lists and compares runs.

            session.summary.hyperparameters(vars(options))

        The chief writes them, once, with those that are there by themselves: the optimizer of the first step and its
        hyperparameters, the numbers of workers and shards, the policies, and the options of the session. Metrics
        beside them are the scalars of the run `cluster`.

        Args:
            values: by name; numbers, booleans and texts as they are, anything else as its `str`. They replace those of
                the same name. TypeError if a name is no text.

        Raises:
            ConfigurationError: there was a step already.
        """
        worker = self._worker
        if worker is None:
            return
        if not all(isinstance(name, str) for name in values):
            raise TypeError(f"summary.hyperparameters takes values by name, got {values!r:.80}")
        worker.add_hyperparameters(values)


def _place(worker: WorkerSummaries, tag: str, step: SupportsIndex | None) -> int:
    """The step of a summary; raises for a bad one, or a bad tag."""
    if not isinstance(tag, str):
        raise TypeError(f"a tag is a text, the name of a chart, got {tag!r:.80}")
    if not tag:
        raise ValueError("a tag is the name of a chart, and is empty here")
    return worker.global_step if step is None else index(step)


def _pixels(call: str, array: Array) -> Array:
    """The picture as an array of uint8, (height, width) or (height, width, 3 or 4)."""
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or 0 in array.shape:
        raise ValueError(f"{call} takes (height, width) or (height, width, 1, 3 or 4), got {array.shape}")
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "bf":
        raise TypeError(f"{call} takes uint8 from 0 to 255, bool, or floating point from 0 to 1, got {array.dtype}")
    shades = np.nan_to_num(np.clip(array.astype(np.float32), 0, 1), nan=0.0)
    return np.round(shades * 255).astype(np.uint8)
