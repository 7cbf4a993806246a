"""A worker's part of a minimization: it computes loss and gradient of portions of the data, until it is over.

In the chief a coordinator runs beside it (`psworker.minimize.coordinator`). One more thread takes the next portion, and
reads its data, while one is computed; all else is done in the thread of the program.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np

from pswire.messages import CountedPortions, Portion, PortionTaken
from pswire.tensors.values import Array, IndexedSlices
from psworker.autodiff import Tensor, gradients
from psworker.client.client import Client
from psworker.data.batch import Batch
from psworker.data.dataset import Dataset
from psworker.data.sources import FunctionDataset
from psworker.minimize.coordinator import Coordinator
from psworker.minimize.descent import Progress
from psworker.minimize.minimizers import Minimizer, Minimum
from psworker.minimize.shard_space import ShardSpace
from psworker.model.base_variable import BaseVariable

logger = logging.getLogger(__name__)

#: Portions of a data set, and the least examples of one, unless the program says otherwise: the work of one is lost
#: when its worker is late, and each takes two messages.
PORTIONS, LEAST_PORTION = 64, 32

#: Seconds after which a worker pushes what it has claimed, also if it has more to compute: others wait for that if it
#: becomes slow.
PUSH_SECONDS = 0.25

#: Seconds to wait for the coordinator when this worker has failed.
STOP_SECONDS = 5.0


class Minimization:
    """One minimization, as this worker takes part in it; `run` it once.

    Args:
        client: of the session.
        pull: gives the variables fresh values.
        variables: those that are minimized over.
        loss: of a batch, the mean over its examples.
        source: the examples, the same in all workers.
        portion: examples in a portion.
        minimizer: used by the chief alone.
        name: of the minimization, the same in all workers.
        report: is called with each accepted point, in the chief.
    """

    def __init__(
        self,
        client: Client,
        pull: Callable[[], None],
        variables: Sequence[BaseVariable],
        loss: Callable[[Batch], Tensor],
        source: Dataset | FunctionDataset,
        portion: int,
        minimizer: Minimizer,
        name: str,
        report: Callable[[Progress], object] | None,
    ) -> None:
        self._client, self._pull, self._variables, self._loss = client, pull, list(variables), loss
        self._name, self._report = name, report
        self._accepted: SimpleQueue[Progress] = SimpleQueue()
        names = [variable.name for variable in variables]
        self._minimizer, self._space = minimizer, partial(ShardSpace, client, names, name, len(source), portion)
        self._coordinator: Coordinator | None = None
        self._batches = PortionBatches(source)
        self._thread = ThreadPoolExecutor(1, "psworker-portions")
        self._sum = GradientSum(self._variables)
        self._evaluation, self._recoveries = 0, -1
        self._withdrawn: tuple[int, ...] = ()
        self._waits_for = ""

    def run(self) -> Minimum:
        """Compute portions until the minimization is over; its result."""
        try:
            end = self._work()
            if self._coordinator is not None:
                self._coordinator.join()
                self._coordinator.check()
        except BaseException:
            if self._coordinator is not None:
                self._coordinator.stop()
                self._coordinator.join(STOP_SECONDS)
            raise
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._pull()
        self._tell()
        return Minimum(**json.loads(end))

    def _work(self) -> str:
        """The result, as text."""
        next_one = self._take(())
        while True:
            self._coordinate()
            taken, batch = next_one.result()
            self._tell()
            if taken.end:
                return taken.end
            self._begin(taken.evaluation)
            if taken.push:
                self._push()
            portion = taken.portion
            if portion is None or batch is None:
                self._note_waiting(taken)
                next_one = self._take(())
                continue
            next_one = self._take((portion.number,))
            self._compute(portion, batch)

    def _take(self, holding: tuple[int, ...]) -> "Future[tuple[PortionTaken, Batch | None]]":
        """Ask for a portion, and read its data, in the other thread."""
        withdrawn, self._withdrawn = self._withdrawn, ()
        return self._thread.submit(self._fetch, self._evaluation, holding, withdrawn)

    def _fetch(
        self, evaluation: int, holding: tuple[int, ...], withdrawn: tuple[int, ...]
    ) -> tuple[PortionTaken, Batch | None]:
        taken = self._client.take_portion(self._name, evaluation, holding, withdrawn)
        return taken, None if taken.portion is None else self._batches.read(taken.portion)

    def _coordinate(self) -> None:
        """Have a coordinator while this worker is chief."""
        if self._coordinator is not None:
            self._coordinator.check()
        if self._client.chief and (self._coordinator is None or self._coordinator.superseded):
            self._coordinator = Coordinator(self._minimizer, self._space, self._accepted.put)
            self._coordinator.start()

    def _begin(self, evaluation: int) -> None:
        """Discard what belongs to another evaluation, and take the values of this one."""
        at = evaluation, self._client.recoveries
        if at != (self._evaluation, self._recoveries):
            self._evaluation, self._recoveries = at
            self._sum.clear()
            if evaluation:
                self._pull()

    def _compute(self, portion: Portion, batch: Batch) -> None:
        loss = self._loss(batch)
        found = gradients(loss, self._variables)
        if self._client.recoveries != self._recoveries:
            return
        if not self._client.claim_portion(self._name, self._evaluation, portion.number, loss.item() * len(batch)):
            return
        if portion.alone:
            alone = GradientSum(self._variables)
            alone.add(portion.number, found, len(batch))
            self._push_sum(alone)
            return
        self._sum.add(portion.number, found, len(batch))
        if time.monotonic() - self._sum.since >= PUSH_SECONDS:
            self._push()

    def _push(self) -> None:
        if self._sum.numbers:
            self._push_sum(self._sum)
            self._sum.clear()

    def _push_sum(self, total: "GradientSum") -> None:
        portions = CountedPortions(self._name, self._evaluation, tuple(total.numbers))
        reason = self._client.push_sum(total.arrays(), portions)
        if reason:
            logger.info("a sum of gradients is discarded: %s", reason)
            self._withdrawn += portions.numbers

    def _note_waiting(self, taken: PortionTaken) -> None:
        if taken.waiting_for and taken.waiting_for != self._waits_for:
            logger.info("%s waits for %s", self._name, taken.waiting_for)
        self._waits_for = taken.waiting_for

    def _tell(self) -> None:
        """Call the program's function with the points that were accepted since."""
        while True:
            try:
                progress = self._accepted.get_nowait()
            except Empty:
                return
            if self._report is not None:
                self._report(progress)


class PortionBatches:
    """The examples of portions as batches; those of a `FunctionDataset` are read once, and kept. For one thread."""

    def __init__(self, source: Dataset | FunctionDataset) -> None:
        self._source, self._kept = source, dict[tuple[int, int], Batch]()

    def read(self, portion: Portion) -> Batch:
        """The batch of a portion."""
        source, at = self._source, (portion.start, portion.stop)
        if isinstance(source, Dataset):
            rows = source[slice(*at)]
            return Batch({name: rows[name] for name in rows.columns})
        if at not in self._kept:
            self._kept[at] = source.take(np.arange(*at))
        return self._kept[at]


class GradientSum:
    """The sum of the gradients of claimed portions, in float64; `since` the first one was added (monotonic)."""

    def __init__(self, variables: Sequence[BaseVariable]) -> None:
        self._variables = variables
        self._totals = [np.zeros(variable.shape) for variable in variables]
        self.numbers: list[int] = []
        self.since = 0.0

    def clear(self) -> None:
        """Begin again."""
        if self.numbers:
            self.numbers = []
            for total in self._totals:
                total[...] = 0.0

    @np.errstate(all="ignore")
    def add(self, number: int, found: Sequence[Array | IndexedSlices | None], examples: int) -> None:
        """Add the mean gradients of a portion with so many examples; None is 0."""
        if not self.numbers:
            self.since = time.monotonic()
        self.numbers.append(number)
        for total, gradient in zip(self._totals, found, strict=True):
            if isinstance(gradient, IndexedSlices):
                rows = gradient.summed()
                total[rows.indices] += rows.values.astype(np.float64) * examples
            elif gradient is not None:
                total += np.asarray(gradient, np.float64) * examples

    @np.errstate(all="ignore")
    def arrays(self) -> dict[str, Array]:
        """By variable, in its dtype."""
        pairs = zip(self._variables, self._totals, strict=True)
        return {variable.name: total.astype(variable.dtype) for variable, total in pairs}
