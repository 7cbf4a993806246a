"""A session: the program's variables, kept by a server while it is open.

Finds out from its arguments and the environment whether the shards are in this process or behind a network; the
program is the same. May import the client and the engine; the transports are imported when one is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, SupportsFloat

import numpy as np

from pswire import specs
from pswire.errors import ConfigurationError, NotFinite, ShapeMismatch
from pswire.memory import keep_memory
from pswire.messages import Assignment, Declaration, EpochReport, Gradient, QueueSpec, Value
from pswire.values import Array, IndexedSlices, not_finite
from psworker import variables as _variables
from psworker.autodiff import Tensor, no_grad
from psworker.batches import BATCHES_A_BLOCK, BatchLoop
from psworker.client import Client
from psworker.config import WorkerConfig, worker_config
from psworker.data.dataset import Batch, Dataset
from psworker.transforms import GradientAndVariable
from psworker.transport import Transport
from psworker.variables import UpdateOp, Variable

logger = logging.getLogger(__name__)


def session(
    servers: str | Sequence[str] | None = None, name: str | None = None, timeout: float | None = None
) -> Session:
    """A session, to be used as `with psworker.session() as session:`.

    Args:
        servers: addresses in the order of their shards; by default `$PSWORKER_SERVERS`, which `psworker run` and
            `psworker local` set; when there are none, the shard runs in this process.
        name: the worker's name; by default `$PSWORKER_NAME`, or the host's name and process id.
        timeout: seconds that a call goes on trying to reach a server; by default `$PSWORKER_TIMEOUT`, or 60.

    Raises:
        ConfigurationError: a value that cannot be.
    """
    config = worker_config(servers, name, timeout)
    if config.keep_memory:
        keep_memory()
    return Session(config)


class Session:
    """The open connection between a program's variables and their server. Made by `session()`.

    Attributes:
        worker: this worker's name.
        number: 0 for the first worker of the job that joined, and so on.
        global_step: how many pushes the server had applied, when it last spoke.
        staleness: how many changes the last push's weights had missed.
    """

    def __init__(self, config: WorkerConfig, transport: Transport | None = None) -> None:
        self.worker = config.name
        self.number = 0
        self.global_step = 0
        self.staleness = 0
        self._client = Client(transport or _transport(config), config.name, config.timeout)
        self._collection: _variables.Collection | None = None
        self._optimizers: dict[str, specs.UpdateSpec] = {}
        self._specs: dict[specs.UpdateSpec, specs.UpdateSpec] = {}
        self._computed: dict[str, tuple[float, int]] = {}  # loss and version of each gradient that is not pushed yet
        self._loops: list[BatchLoop] = []
        self._queues = 0

    @property
    def is_chief(self) -> bool:
        """Whether this is the first worker of the job, which does what is to be done once."""
        return self.number == 0

    def __enter__(self) -> Self:
        """Joins the servers and registers the variables made so far; they get the server's values.

        Raises:
            ConfigurationError: a session is open already.
            Unavailable: no server could be reached in time.
        """
        here = _variables._current()
        if here.session is not None:
            raise ConfigurationError("a session is open already: close it first, one program has one session")
        try:
            joined = self._client.join()
            self.number, self.global_step = joined.number, joined.global_step
            self._collection = here
            self.register(list(here.variables.values()))
        except BaseException:
            self._client.leave()
            self._client.close()
            raise
        here.session = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the job in good order; the variables keep their last values."""
        if self._collection is not None:
            self._collection.session = None
        try:
            self._client.leave()
        finally:
            self._client.close()

    # --- variables ------------------------------------------------------------------------------------------------

    def register(self, variables: Sequence[Variable]) -> None:
        """Makes variables known to the server and takes its values; done for you when a variable is made.

        Raises:
            AlreadyRegistered: another worker has registered a variable of this name that differs.
        """
        if variables:
            self._take_values(self._client.register([Declaration(v.spec, v.value) for v in variables]))

    def pull(self, variables: Sequence[Variable] | None = None) -> None:
        """Fetches fresh values, by default of all variables."""
        names = list(self._known()) if variables is None else [variable.name for variable in variables]
        if names:
            self._take_values(self._client.pull(names))

    def assign(self, variable: Variable, value: Array | float) -> None:
        """Sets a variable, on the server and here.

        Raises:
            ShapeMismatch: the value does not have the variable's shape.
            TypeError: it would lose its fraction, or its sign.
        """
        self.assign_all({variable: value})

    def assign_add(self, variable: Variable, delta: Array | float) -> None:
        """Adds to a variable, on the server, to whatever it is there now."""
        self.assign_all({variable: delta}, add=True)

    def assign_all(self, values: Mapping[Variable, Array | float], *, add: bool = False) -> None:
        """Sets several variables (or adds to them), on the server and here: those of one shard all at once, or none.

        Raises:
            ShapeMismatch: a value does not have its variable's shape.
        """
        assignments = [
            Assignment(v.name, np.asarray(value).astype(v.dtype, casting="same_kind", copy=False))
            for v, value in values.items()
        ]
        if assignments:
            self._client.assign(assignments, add=add)
            self.pull(list(values))

    # --- training -------------------------------------------------------------------------------------------------

    def batches(
        self,
        dataset: Dataset,
        batch_size: int,
        epochs: int = 1,
        seed: int = 0,
        *,
        on_epoch: Callable[[EpochReport], None] | None = None,
        name: str | None = None,
    ) -> Iterator[Batch]:
        """Batches of a dataset, shared out by the server: all workers together see each example once an epoch.

        Args:
            dataset: the examples; the same in every worker.
            batch_size: examples in a batch; the last of an epoch may be smaller.
            epochs: passes over the dataset.
            seed: from 0; each epoch is shuffled by a generator of (seed, epoch), the same in every worker.
            on_epoch: called with each epoch's mean cost over all workers when it is complete, in order, in every
                worker; `is_chief` says in which one to print it.
            name: the data queue's name. By default the program's first call of `batches` in all workers shares one
                queue, its second another, and so on.

        Raises:
            AlreadyRegistered: another worker reads the queue of this name with other arguments.
            ValueError: a size that is not positive, or a negative seed.
        """
        if batch_size < 1 or epochs < 1 or seed < 0:
            raise ValueError(f"batch_size and epochs are 1 or more, seed 0 or more: got {batch_size}, {epochs}, {seed}")
        self._queues += 1
        queue = QueueSpec(name or f"batches-{self._queues}", len(dataset), batch_size * BATCHES_A_BLOCK, epochs, seed)
        return self._run(BatchLoop(self._client, queue, dataset, batch_size, on_epoch or _log_epoch))

    def _run(self, loop: BatchLoop) -> Iterator[Batch]:
        self._loops.append(loop)
        try:
            yield from loop
        finally:
            self._loops.remove(loop)

    def note_loss(self, loss: float, variables: Iterable[Variable]) -> None:
        """Keeps the loss whose gradient some variables will get; `compute_gradients` does this for you.

        It travels with the next push of one of them, with the versions that they have now, and counts for the batch
        that is being worked on.
        """
        self._computed |= {variable.name: (loss, variable.version) for variable in variables}
        for loop in self._loops:
            loop.note_loss(loss)

    def push(
        self,
        optimizer: specs.UpdateSpec,
        grads_and_vars: Iterable[GradientAndVariable],
        updates: Iterable[UpdateOp] = (),
    ) -> None:
        """Pushes gradients for `optimizer` to apply, and takes fresh values of all variables back.

        Args:
            optimizer: for the variables of the pairs.
            grads_and_vars: gradients, None for a variable that gets none.
            updates: what goes into moving averages by the same push, one a variable.

        Raises:
            ValueError: there is no gradient at all.
            ShapeMismatch: one has not the shape and dtype of its variable; then nothing was sent.
            NotFinite: one has NaN or infinity; then nothing was changed.
            AlreadyRegistered: a variable has another optimizer.
        """
        pairs = list(grads_and_vars)
        chosen = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if not chosen:
            names = ", ".join(variable.name for _, variable in pairs) or "no variables"
            raise ValueError(f"no gradients to push for {names}: does the loss depend on them?")
        updates = list(updates)
        computed = {v: self._computed.get(v.name, (None, v.version)) for _, v in pairs}
        gradients = [self._gradient("gradient", array, v, computed[v][1]) for array, v in chosen]
        gradients += [self._gradient("observation", one.value, one.variable, one.variable.version) for one in updates]
        self._declare(optimizer, [variable for _, variable in chosen])
        for update in updates:
            self._declare(specs.MovingAverage(update.decay), [update.variable])
        for variable in computed:
            self._computed.pop(variable.name, None)
        loss = next((loss for loss, _ in computed.values() if loss is not None), None)
        handle = self._client.push(gradients, loss, list(self._known()))
        try:
            for loop in self._loops:
                loop.prepare()  # the server works now, and so does this worker
        finally:
            pushed = handle.wait()
        self.global_step, self.staleness = pushed.global_step, pushed.staleness
        self._take_values(pushed.values)

    def evaluate(self, function: Callable[[Batch], SupportsFloat], dataset: Dataset, batch_size: int = 1000) -> float:
        """The mean of `function` over a dataset, with fresh weights and without a tape.

        Args:
            function: gives the mean over a batch, such as an accuracy or a loss.
            dataset: the examples, read in order by this worker alone.
            batch_size: examples at a time.
        """
        self.pull()
        total = 0.0
        with no_grad():
            for start in range(0, len(dataset), batch_size):
                batch = dataset.take(np.arange(start, min(start + batch_size, len(dataset))))
                total += float(function(batch)) * len(batch)
        return total / len(dataset)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _known(self) -> dict[str, Variable]:
        if self._collection is None or self._collection.session not in (None, self):
            raise ConfigurationError("this session is not open: use it inside `with psworker.session() as session:`")
        return self._collection.variables

    def _declare(self, optimizer: specs.UpdateSpec, variables: Iterable[Variable]) -> None:
        """Tells the server which optimizer a variable has, when it is first used for it."""
        spec = self._specs.get(optimizer)
        if spec is None:
            spec = self._specs[optimizer] = specs.from_plain(specs.to_plain(optimizer))
        new = [variable for variable in variables if self._optimizers.get(variable.name) != spec]
        if new:
            self._client.register([Declaration(variable.spec, None, spec) for variable in new])
            self._optimizers |= {variable.name: spec for variable in new}

    def _gradient(self, what: str, array: Array | IndexedSlices | Tensor, variable: Variable, version: int) -> Gradient:
        """What is to be sent, checked before anything is: of several shards one would have applied its part already."""
        whole = array.summed() if isinstance(array, IndexedSlices) else np.asarray(array)
        dtype = variable.dtype
        if whole.shape != variable.shape or (whole.dtype != dtype and whole.dtype.name != dtype.name):
            raise ShapeMismatch(
                f"{what} for {variable.name!r} is {whole.dtype.name}{list(whole.shape)}, the variable is "
                f"{dtype.name}{list(variable.shape)}: what is done to a gradient must keep its shape and dtype"
            )
        if self._client.shards > 1:
            bad = not_finite(whole.values if isinstance(whole, IndexedSlices) else whole)
            if bad:
                raise NotFinite(
                    f"{what} for {variable.name!r} has {bad:,} elements that are NaN or infinite: nothing was sent"
                )
        return Gradient(variable.name, version, whole)

    def _take_values(self, values: Iterable[Value]) -> None:
        known = self._known()
        for value in values:
            variable = known[value.name]
            variable.value, variable.version = value.array, value.version


def _log_epoch(report: EpochReport) -> None:
    logger.info("epoch %d: cost %s over %d examples", report.epoch, report.cost, report.examples)


def _transport(config: WorkerConfig) -> Transport:
    if not config.servers:
        from psworker.transport.embedded import EmbeddedTransport

        return EmbeddedTransport()
    from psworker.transport.network import NetworkTransport

    return NetworkTransport(config.servers)
