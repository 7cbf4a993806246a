"""A session: the program's variables, kept by a server while it is open.

Whether the shards are in this process or behind a network, the program is the same. Reads no environment:
`psworker.sessions.opening` does. May import the client and the engine; the transports are imported when one is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, SupportsFloat

import numpy as np

from pswire import optimizers
from pswire.errors import ConfigurationError
from pswire.messages import Assignment, EpochReport, QueueSpec
from pswire.tensors.values import Array
from psworker.autodiff import no_grad
from psworker.autodiff.tensor import TensorLike
from psworker.client.client import Client
from psworker.client.error_feedback import Packer
from psworker.config import WorkerConfig
from psworker.data.dataset import Batch, Dataset
from psworker.model import variables as _variables
from psworker.model.gradient_transforms import GradientAndVariable
from psworker.model.tables import check_no_table
from psworker.model.variables import UpdateOp, Variable
from psworker.sessions.data_loop import DataLoop, batches_a_block, log_epoch
from psworker.sessions.replica import Replica
from psworker.sessions.strategies import OUTER, Computed, new_step, new_strategy
from psworker.transport import Transport, open_transport


class Session:
    """The open connection between a program's variables and their server. Made by `psworker.session()`.

    When steps are pushed, `psworker.sessions.strategies` says. Every other call here, but for `rows`, first has all at
    the servers that steps have computed.

    Attributes:
        worker: this worker's name.
        number: 0 for the first worker of the job that joined, and so on.
    """

    def __init__(
        self, config: WorkerConfig, transport: Transport | None = None, outer: optimizers.OptimizerSpec = OUTER
    ) -> None:
        if not isinstance(outer, optimizers.OptimizerSpec):
            raise ConfigurationError(f"outer must be an optimizer, such as psworker.Momentum(0.7, 0.9), got {outer!r}")
        self.worker = config.name
        self.number = 0
        self._client = _client(config, transport)
        self._mirror = Replica(self._client, self._known)
        self._exchange = new_strategy(config.strategy, outer, self._mirror, self._prepare)
        self._steps_a_push = config.strategy.steps
        self._collection: _variables.Collection | None = None
        self._computed: Computed = {}
        self._loops: list[DataLoop] = []
        self._queues = 0

    @property
    def global_step(self) -> int:
        """How many updates the servers had made, when they last spoke."""
        return self._mirror.global_step

    @property
    def staleness(self) -> int:
        """How many changes the weights of the last push that was answered had missed."""
        return self._mirror.staleness

    @property
    def dropped(self) -> int:
        """How many pushes of this worker the servers' policy has refused; each is logged with its reason."""
        return self._mirror.dropped

    @property
    def is_chief(self) -> bool:
        """Whether this worker does what is to be done once: the first of the job, or when that one died another.

        It is as the server said last, with each block of examples and each heartbeat: ask when something is to be done,
        and not once for all. A chief that the network has cut off hears only when it is back that it is none any more.
        """
        return self._client.chief

    def __enter__(self) -> Self:
        """Joins the servers and registers the variables made so far; they get the server's values.

        Raises:
            ConfigurationError: a session is open already, or what the servers do with stale pushes does not go with
                overlap, or with these numbers of steps between pushes and pulls.
            Unavailable: no server could be reached in time.
        """
        here = _variables._current()
        if here.session is not None:
            raise ConfigurationError("a session is open already: close it first, one program has one session")
        try:
            joined = self._client.join()
            self._exchange.check(self._client.consistency, self._client.staleness)
            self.number, self._mirror.global_step = joined.number, joined.global_step
            self._collection = here
            self.register(list(here.variables.values()))
        except BaseException:
            self._client.leave(failed=True)
            self._client.close()
            raise
        here.session = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the job in good order; the variables keep their last values.

        What was computed and not pushed yet is pushed first, and weights are taken if some have been pushed for since,
        unless an exception ends the session, Ctrl-C and `sys.exit` too: then the examples of it are not done, others
        get them, and synchronous updates wait for a worker in its place.
        """
        failed = True
        try:
            if kind is None:
                self._exchange.finish()
                failed = False
        finally:
            if self._collection is not None:
                self._collection.session = None
            self._collection = None
            try:
                self._client.leave(failed=failed)
            finally:
                self._client.close()

    # --- variables ------------------------------------------------------------------------------------------------

    def register(self, variables: Sequence[Variable]) -> None:
        """Makes variables known to the server and takes its values; done for you when a variable is made.

        Raises:
            AlreadyRegistered: another worker has registered a variable of this name that differs.
            ConfigurationError: a table cannot be trained by local steps.
        """
        if variables:
            self._exchange.register(variables)

    def pull(self, variables: Sequence[Variable] | None = None) -> None:
        """Fetches fresh values, by default of all variables but tables."""
        check_no_table(variables or (), "pulled")
        names = self._mirror.names if variables is None else [variable.name for variable in variables]
        self._exchange.pull(names)

    def rows(self, table: Variable, ids: TensorLike) -> Array:
        """The rows table[ids] as the servers have them now, to look at; read-only. In a model, use `ops.embedding`.

        Args:
            table: a table, or any other variable with rows.
            ids: integers of any shape, from 0 and below the number of rows, with repeats.

        Returns:
            (*ids.shape, *table.shape[1:]), of the table's dtype. What `push_every` has added up is not in it, nor with
            `overlap` what is under way: rows come while it is.

        Raises:
            IndexError: there is no such row.
            TypeError: ids are not integers, or `table` is no variable.
            ConfigurationError: the session is not open.
        """
        return self._mirror.rows(table, ids)

    def look_up(self, table: Variable, indices: Array) -> Array:
        """The rows of these numbers, for `ops.embedding`: by their versions the staleness of the gradient is known."""
        return self._mirror.look_up(table, indices)

    def slot(self, variable: Variable, name: str) -> Array:
        """A slot that the optimizer keeps beside a variable, such as `session.slot(W, "m")`; read-only.

        Returns:
            An array of the variable's shape. With local steps it is that of the program's optimizer in this worker.

        Raises:
            ConfigurationError: the variable's optimizer has no such slot, or the variable was never trained: slots are
                made by its first push.
            TypeError: `variable` is none.
        """
        self._exchange.flush()
        return self._exchange.trainer.slot(variable, name)

    def assign(self, variable: Variable, value: Array | float) -> None:
        """Sets a variable, on the server and here; a number is for a variable of shape ().

        Raises:
            ShapeMismatch: the value does not have the variable's shape.
            TypeError: it would lose its fraction, or its sign.
        """
        self.assign_all({variable: value})

    def assign_add(self, variable: Variable, delta: Array | float) -> None:
        """Adds to a variable, on the server, to whatever it is there now: `delta` has its shape. See `assign`."""
        self.assign_all({variable: delta}, add=True)

    def assign_all(self, values: Mapping[Variable, Array | float], *, add: bool = False) -> None:
        """Sets several variables (or adds to them), on the server and here: those of one shard all at once, or none.

        Raises:
            ShapeMismatch: a value does not have its variable's shape.
            TypeError: one is a table, or would lose its fraction, or its sign.
        """
        check_no_table(values, "assigned")
        assignments = [
            Assignment(v.name, np.asarray(value).astype(v.dtype, casting="same_kind", copy=False))
            for v, value in values.items()
        ]
        if assignments:
            self._exchange.flush()
            self._client.assign(assignments, add=add)
            self.pull(list(values))

    def set_hyperparameters(
        self,
        target: optimizers.UpdateSpec | Variable | Iterable[Variable],
        **changes: Any,  # noqa: ANN401 - of any field
    ) -> None:
        """Changes hyperparameters in the running job, for all workers, from the next push on; slots stay.

            session.set_hyperparameters(optimizer, learning_rate=0.01)

        The program goes on with the optimizer it has: what counts is what the servers were told last. With local steps
        the program's optimizer is changed in this worker alone, and `outer` on the servers.

        Args:
            target: the optimizer, for all variables that this worker has trained with it, or such variables.
            changes: fields of the optimizer. Those not named stay as the servers have them, whoever has set them.

        Raises:
            ConfigurationError: no field is given, there is none of this name, a variable was not trained in this
                session, or the change would need other slots.
            ValueError, TypeError: a value that the field cannot have, or `target` is none; then nothing was changed.
        """
        self._exchange.tune(target, changes)

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

        They come in blocks, each of which is done when all that was computed with it is at the servers: a whole number
        of times `push_every` or `local_steps`, which therefore must be the same in all workers.

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
        block = batch_size * batches_a_block(self._steps_a_push)
        queue = QueueSpec(name or f"batches-{self._queues}", len(dataset), block, epochs, seed)
        loop = DataLoop(self._client, queue, dataset, batch_size, on_epoch or log_epoch, self._exchange.flush)
        return self._run(loop)

    def _run(self, loop: DataLoop) -> Iterator[Batch]:
        self._loops.append(loop)
        try:
            yield from loop
        finally:
            self._loops.remove(loop)

    def note_loss(self, loss: float, variables: Iterable[Variable]) -> None:
        """Keeps the loss whose gradient some variables will get; `compute_gradients` does this for you.

        It travels with the next push of one of them, with the versions that they have now and when these were served,
        and counts for the batch that is being worked on.
        """
        noted = {variable.name: (loss, variable.versions, variable.served_at) for variable in variables}
        self._computed |= noted
        self._mirror.computed(noted)
        for loop in self._loops:
            loop.note_loss(loss)

    def push(
        self,
        optimizer: optimizers.UpdateSpec,
        grads_and_vars: Iterable[GradientAndVariable],
        updates: Iterable[UpdateOp] = (),
    ) -> None:
        """Has `optimizer` apply gradients, on the servers, and fresh values of all variables brought back.

        This is done at once, unless the session was told to do it every so many steps.

        Args:
            optimizer: for the variables of the pairs.
            grads_and_vars: gradients, None for a variable that gets none; borrowed until this returns.
            updates: what goes into moving averages by the same push, one a variable.

        Raises:
            ValueError: there is no gradient at all.
            ShapeMismatch: one has not the shape and dtype of its variable; then nothing was sent.
            NotFinite: one has NaN or infinity; then nothing was changed.
            AlreadyRegistered: a variable has another optimizer.
        """
        step = new_step(optimizer, list(grads_and_vars), tuple(updates), self._computed)
        self._mirror.computed(step.names)
        self._exchange.step(step)

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

    def idle(self) -> None:
        """Says that this worker has nothing to push for a while, and nobody shall wait for it.

        A program with a loop of its own, where workers wait for each other's pushes (`psserver serve --consistency`),
        calls it before something long, such as an evaluation by one worker, and when it is through. With the next push
        it takes part again. `batches` does this by itself when there are no examples.
        """
        self._exchange.flush()
        self._client.idle()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _known(self) -> dict[str, Variable]:
        if self._collection is None or self._collection.session not in (None, self):
            raise ConfigurationError("this session is not open: use it inside `with psworker.session() as session:`")
        return self._collection.variables

    def _prepare(self) -> None:
        """The servers work now, and so does this worker."""
        for loop in self._loops:
            loop.prepare()


def _client(config: WorkerConfig, transport: Transport | None) -> Client:
    transfer = config.transfer
    if transport is None:
        transport = open_transport(config.servers, shared_memory=transfer.shared_memory)
    packer = Packer("" if transfer.encoding == "float32" else transfer.encoding, transfer.compression)
    return Client(transport, config.name, config.timeout, packer=packer)
