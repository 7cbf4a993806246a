"""A worker's part of a minimization: it computes loss and gradient of portions of the data, until it is over.

In the chief a coordinator runs beside it (`psworker.minimize.coordinator`). One more thread takes the next portion and
reads its data while one is computed, and pushes the gradients of those before when others wait for them; all else is
done in the thread of the program.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np

from pswire.errors import DatasetError
from pswire.messages import AcceptedPoint, Portion, PortionTaken
from psworker.autodiff import Tensor, gradients
from psworker.autodiff.tape import differentiating
from psworker.client.client import Client
from psworker.data.batch import Batch
from psworker.data.dataset import Dataset
from psworker.data.sources import Collate, FunctionDataset, Source, Stream, open_source
from psworker.minimize.coordinator import Coordinator
from psworker.minimize.minimizers import Minimizer, Minimum
from psworker.minimize.shard_space import ShardSpace
from psworker.model.base_variable import BaseVariable
from psworker.model.tables import Table, check_no_table
from psworker.sessions.claimed_portions import ClaimedPortions

logger = logging.getLogger(__name__)

#: Portions of a data set, and the least examples of one, unless the program says otherwise: the work of one is
#: discarded when its worker is late, and each takes two messages.
PORTIONS, LEAST_PORTION = 64, 32

#: Requests for portions that are made ahead: one for the next portion, and one whose answer asks this worker, while it
#: computes, to push its claimed portions or to stop.
AHEAD = 2

#: Seconds to wait for the coordinator when this worker has failed.
STOP_SECONDS = 5.0


def open_examples(source: Source, collate: Collate | None, portion: int | None) -> Dataset | FunctionDataset:
    """The examples of a minimization. Raises as `Session.minimize`, also for the size of a `portion`."""
    examples = open_source(source, collate)
    if isinstance(examples, Stream):
        raise DatasetError("minimize goes over the same examples again and again: give a dataset or a sequence")
    if portion is not None and portion < 1:
        raise ValueError(f"a portion has 1 example or more, got {portion}")
    return examples


def minimized(variables: Collection[BaseVariable], chosen: bool) -> list[BaseVariable]:
    """The variables to minimize over: these if the program has `chosen` them, else the trainable ones among them."""
    if not chosen:
        variables = [one for one in variables if one.trainable and not isinstance(one, Table)]
    check_no_table(variables, "minimized over")
    if not variables or any(one.dtype.kind != "f" for one in variables):
        raise ValueError("minimize needs variables of floating point: make them before, or pass them")
    return list(variables)


class Minimization:
    """One minimization, as this worker takes part in it; `run` it once.

    Args:
        client: of the session.
        pull: gives the variables fresh values.
        variables: those that are minimized over.
        loss: of a batch, the mean over its examples.
        source: the examples, the same in all workers.
        portion: examples in a portion; None: a share of them (`PORTIONS`).
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
        portion: int | None,
        minimizer: Minimizer,
        name: str,
        report: Callable[[AcceptedPoint], object] | None,
    ) -> None:
        self._client, self._pull, self._variables, self._loss = client, pull, list(variables), loss
        self._name, self._report = name, report
        self._accepted: SimpleQueue[AcceptedPoint] = SimpleQueue()
        names = [variable.name for variable in variables]
        size = portion or max(-(-len(source) // PORTIONS), LEAST_PORTION)
        self._minimizer = minimizer.for_dtypes([variable.dtype for variable in variables])
        self._space = partial(ShardSpace, client, names, name, len(source), size)
        self._coordinator: Coordinator | None = None
        self._batches = PortionBatches(source)
        self._thread = ThreadPoolExecutor(1, "psworker-portions")
        self._claimed = ClaimedPortions(client, name, self._variables)
        self._taken = 0  # the evaluation of the last answer
        self._holding: dict[tuple[int, int], None] = {}  # evaluation and number of portions to compute
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
            self._holding.clear()
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._pull()
        self._tell()
        return Minimum(**json.loads(end))

    def _work(self) -> str:
        """The result, as text."""
        coming = deque([self._take()])
        while True:
            self._coordinate()
            taken, batch = coming.popleft().result()
            self._tell()
            if taken.end:
                return taken.end
            if self._claimed.begin(taken.evaluation) and taken.evaluation:
                self._pull()
            while len(coming) < AHEAD:
                coming.append(self._take())
            portion = taken.portion
            if portion is None or batch is None:
                self._note_waiting(taken)
            elif (taken.evaluation, portion.number) in self._holding:  # it was not withdrawn meanwhile
                self._compute(portion, batch)
                self._holding.pop((taken.evaluation, portion.number), None)

    def _take(self) -> "Future[tuple[PortionTaken, Batch | None]]":
        """Ask for a portion and read its data in the other thread, after the earlier requests."""
        return self._thread.submit(self._fetch)

    def _fetch(self) -> tuple[PortionTaken, Batch | None]:
        while True:
            taken = self._ask()
            if taken.portion is not None:
                return taken, self._batches.read(taken.portion)
            if taken.push or taken.end or taken.stopped or not self._holding:
                return taken, None

    def _ask(self) -> PortionTaken:
        holding = [number for _, number in list(self._holding)]
        withdrawn = self._claimed.withdrawn(self._taken)
        taken = self._client.evaluations.take_portion(self._name, self._taken, holding, withdrawn)
        for number in holding if taken.evaluation != self._taken else taken.stop:
            self._holding.pop((self._taken, number), None)
        self._taken = taken.evaluation
        if taken.push:  # at once: others wait for it, and the portion in hand may take long
            self._claimed.push(taken.evaluation)
        if taken.portion is not None:
            self._holding[taken.evaluation, taken.portion.number] = None
        return taken

    def _coordinate(self) -> None:
        """Have a coordinator while this worker is chief."""
        if self._coordinator is not None:
            self._coordinator.check()
        if self._client.membership.chief and (self._coordinator is None or self._coordinator.superseded):
            self._coordinator = Coordinator(self._minimizer, self._space, self._accepted.put)
            self._coordinator.start()

    def _compute(self, portion: Portion, batch: Batch) -> None:
        with differentiating():
            loss = self._loss(batch)
        self._claimed.add(portion, loss.item(), gradients(loss, self._variables), len(batch))

    def _note_waiting(self, taken: PortionTaken) -> None:
        if self._holding:
            return
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
