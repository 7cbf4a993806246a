"""An evaluation: the sums of metrics over all examples of a source, by one worker or by all of them together.

Together, workers take blocks of examples from a data queue of shard 0, whose sums it adds up when a block is finished:
a worker that dies in a block has added nothing of it, and others evaluate the block. May import the client and data.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsFloat, TypeAlias

import numpy as np

from pswire.errors import InvalidMessage
from pswire.limits import MAX_SUMS
from pswire.messages import Finished
from pswire.tensors.values import Array
from psworker.autodiff import no_grad
from psworker.client.client import Client
from psworker.data.batch import Batch
from psworker.metrics import Metric
from psworker.metrics import mean as mean_of
from psworker.model.layers.layer import Layer
from psworker.sessions.block_batches import Reading

#: What a program measures of a batch: the mean over its examples, or what adds up; or several by name.
Measure: TypeAlias = Callable[[Batch], SupportsFloat | Metric | Mapping[str, SupportsFloat | Metric]]

_ALONE = ""  # the name of a measure that has none


class Totals:
    """The metrics of a `measure`, added up over batches."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self.metrics: dict[str, Metric] = {}

    def add(self, batch: Batch) -> None:
        """Measure a batch. Raises `ValueError` if it has other metrics than those before."""
        with no_grad():
            measured = self._measure(batch)
        named = measured if isinstance(measured, Mapping) else {_ALONE: measured}
        found = {name: _metric(one, len(batch)) for name, one in named.items()}
        if self.metrics and found.keys() != self.metrics.keys():
            raise ValueError(f"the metrics of each batch must be the same, got {list(found)} and {list(self.metrics)}")
        self.metrics = {name: self.metrics[name] + one if self.metrics else one for name, one in found.items()}

    @property
    def sums(self) -> tuple[float, ...]:
        """Those of all metrics, one after the other."""
        return tuple([float(one) for metric in self.metrics.values() for one in metric.sums])

    def results(self, sums: Array | None = None) -> Any:  # noqa: ANN401 - of one measure, or by name
        """The values, of other sums of these metrics if given."""
        values, first = {}, 0
        for name, metric in self.metrics.items():
            mine = metric.sums if sums is None else sums[first : first + len(metric.sums)]
            first += len(metric.sums)
            values[name] = metric.finish(mine)
        return values[_ALONE] if values.keys() == {_ALONE} else values


def check_measure(measure: Measure) -> None:
    """Raises TypeError unless it is a function of a batch."""
    try:
        fits = not isinstance(measure, Layer) and inspect.signature(measure).bind(None) is not None
    except TypeError:
        fits = False
    except ValueError:  # of a function of C that has no signature
        fits = True
    if not fits:
        raise TypeError(
            "evaluate takes a function of a batch, such as lambda batch: loss(model(batch.x), batch.y), "
            f"got {measure!r:.80}"
        )


def evaluated(measure: Measure, batches: Iterable[Batch]) -> Any:  # noqa: ANN401 - as `Totals.results`
    """The results over batches, all evaluated here."""
    totals = Totals(measure)
    for batch in batches:
        totals.add(batch)
    return totals.results()


def evaluated_together(client: Client, name: str, measure: Measure, reading: Reading) -> Any:  # noqa: ANN401
    """The results over all examples, of which each is evaluated by one worker.

    Raises `InvalidMessage` if other workers evaluate other metrics, or they have more than `MAX_SUMS` sums.
    """
    queue = reading.queue(name, 1, evaluates=True)
    batches, finished, layout = reading.batches(queue), None, Totals(measure)
    while True:
        taken = client.blocks.take(queue, finished)
        if taken.done:
            break
        finished = None
        if taken.block is not None:
            batches.begin(taken.block)
            totals = Totals(measure)
            for batch in iter(batches.next, None):
                totals.add(batch)
            layout, finished = totals, Finished(taken.block.number, None, _checked(totals.sums))
    if not layout.metrics:  # the others were faster
        layout.add(next(reading.in_order()))
    sums = taken.reports[-1].sums if taken.reports else ()
    if len(sums) != len(layout.sums):  # other evaluations have begun since: this worker is far behind
        return evaluated(measure, reading.in_order())
    return layout.results(np.array(sums))


def unknown(measure: Measure, reading: Reading) -> Any:  # noqa: ANN401 - as `Totals.results`
    """NaN for each result; the first batch says which there are."""
    totals = Totals(measure)
    totals.add(next(reading.in_order()))
    return math.nan if totals.metrics.keys() == {_ALONE} else dict.fromkeys(totals.metrics, math.nan)


def _checked(sums: tuple[float, ...]) -> tuple[float, ...]:
    if len(sums) > MAX_SUMS:
        raise InvalidMessage(
            f"metrics with {len(sums):,} sums together, {MAX_SUMS:,} at most: evaluate a confusion matrix of many "
            "classes in one worker"
        )
    return sums


def _metric(measured: SupportsFloat | Metric, examples: int) -> Metric:
    if isinstance(measured, Metric):
        return measured
    one = mean_of(float(measured))
    return Metric(one.sums * examples, one.finish)
