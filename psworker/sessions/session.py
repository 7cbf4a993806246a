"""A session: the program's variables, kept by servers while it is open, whether embedded or behind a network.

May import the client, the engine and the configuration; a transport is imported when it is needed.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, SupportsFloat, overload

import numpy as np

from psjob.terminal.logs import identify
from psjob.tracing.tracing import open_tracing
from pswire import optimizers
from pswire.errors import ConfigurationError, SessionOver
from pswire.messages import AcceptedPoint, Assignment, EpochReport, Joined, QueueStatus, WorkerStatus
from pswire.system.host import process_program
from pswire.tensors.values import Array, IndexedSlices
from psworker.autodiff import Tensor
from psworker.autodiff.ops.selection.indexing import checked_ids
from psworker.autodiff.tensor import TensorLike
from psworker.client.begun_push import BegunPush
from psworker.client.client import Client
from psworker.client.error_feedback import GradientEncoder
from psworker.client.membership import JobChoice
from psworker.config import WorkerConfig
from psworker.data.batch import Batch
from psworker.data.sources import Collate, Source, Stream, open_source
from psworker.familiar_names import SESSION, hint_attributes, hint_keywords
from psworker.metrics import Metric
from psworker.minimize.minimizers import LBFGS, Minimizer, Minimum
from psworker.model import model_files
from psworker.model.base_variable import BaseVariable, Variables, as_assigned, check_variable, listed
from psworker.model.collection import Collection, context, use
from psworker.model.gradient_transforms import GradientAndVariable
from psworker.model.interactive import is_interactive
from psworker.model.push_reports import PushReport
from psworker.model.tables import check_no_table
from psworker.model.update_ops import UpdateOp
from psworker.progress.terminal import ProgressDisplay
from psworker.sessions.best_model import MODEL, save_best
from psworker.sessions.block_batches import Reading
from psworker.sessions.data_loop import DataLoop, batches_per_block
from psworker.sessions.evaluation import Measure, check_measure, evaluated, evaluated_together, unknown
from psworker.sessions.minimization import Minimization, minimized, open_examples
from psworker.sessions.pushing import Pushing
from psworker.sessions.replica import Replica
from psworker.sessions.session_numbers import sessions_of
from psworker.sessions.strategies.downpour import Downpour
from psworker.sessions.strategies.local_steps import OUTER, LocalSteps
from psworker.sessions.variable_optimizers import Target
from psworker.sessions.worker_part import SessionPart
from psworker.summaries.summary import Summary
from psworker.summaries.worker_summaries import WorkerSummaries
from psworker.transport import Transport, open_transport
from psworker.versions import VersionedArray

__all__ = ["Session"]

logger = logging.getLogger(__name__)

#: Options of a session that are listed with the hyperparameters of a run.
SUMMARIZED = ("push_every", "pull_every", "overlap", "local_steps", "encoding", "compress")

#: Sessions that this process has opened: `psworker run` says so when a script has opened none.
opened = 0


class Session:
    """The connection between a program's variables and their servers. Made by `psworker.session()`.

    Methods that read or change variables, except `push` and `rows`, first push all pending gradients. All methods but
    `open` and `close` raise `ConfigurationError` when the session is not open. `worker` is this worker's name; `number`
    is 0 for the first worker of the job that joined, and so on. A session that is `numbered` is the n-th of its
    program, and its job the n-th of the program.
    """

    def __init__(
        self,
        config: WorkerConfig,
        transport: Transport | None = None,
        outer: optimizers.OptimizerSpec = OUTER,
        *,
        numbered: bool = False,
    ) -> None:
        if not isinstance(outer, optimizers.OptimizerSpec):
            raise ConfigurationError(f"outer must be an optimizer, such as psworker.Momentum(0.7, 0.9), got {outer!r}")
        self.worker = config.name
        self.number = 0
        self._config, self._outer, self._numbered = config, outer, numbered
        self._over = ""
        self._part, self._folder = SessionPart(), config.folder
        self._progress: ProgressDisplay | None = None
        self._summary = Summary()
        self._summary_dir = Path(config.summary_dir).absolute() if config.summary_dir else None
        if config.servers and self._folder is not None:
            logger.info("%s is used for the best model alone: the servers write the checkpoints", self._folder)
        if transport is None:
            transport = open_transport(config, self._part)
        self._loops: list[DataLoop] = []
        self._mirrored: list[str] = []  # variables of another library's tensors
        self._mirror_ends: list[Callable[[], object]] = []  # called at the end
        self.trees: dict[str, object] = {}  # of psworker.jax, by name
        workers = config.workers if config.servers else 0
        self._use(transport, JobChoice(config.job, config.resume or not config.servers, process_program(), workers))
        self._collection: Collection | None = None
        self._entered = False
        self._queues = self._minimizations = self._evaluations = 0

    def _use(self, transport: Transport, choice: JobChoice) -> None:
        """Makes the client for a transport, and the replica that uses it."""
        config = self._config
        encoder = GradientEncoder("" if config.encoding == "float32" else config.encoding, config.compress)
        key = config.name_key.encode()
        self._client = Client(transport, config.name, config.timeout, encoder, choice, key)
        client = weakref.ref(self._client)
        identify("worker", config.name, lambda: None if (now := client()) is None else now.membership.global_step)
        replica = self._client, self._loops
        if config.local_steps:
            self._replica: Replica = LocalSteps(*replica, config.local_steps, self._outer)
        elif config.pushes_every_step:
            self._replica = Replica(*replica)
        else:
            self._replica = Downpour(*replica, config)
        self._pushing = Pushing(self._replica)

    @property
    def global_step(self) -> int:
        """Updates that the servers had made when they last answered this worker with values, or let it pass a barrier.

        Other workers may have made more since, also after this worker's loop. After `barrier` it has all updates by
        pushes from before the barrier, and is the same in all workers; in a generation it is the generation's.
        """
        return self._client.membership.global_step

    @property
    def staleness(self) -> int:
        """Updates that the weights of the last answered push had missed."""
        return self._replica.staleness

    @property
    def dropped(self) -> int:
        """Number of pushes of this worker that the servers have dropped, on all shards; each is logged with its reason.

        `half_applied` counts pushes that were dropped on some shards only.
        """
        return self._replica.dropped

    @property
    def half_applied(self) -> int:
        """Number of pushes of this worker that some of their shards have applied, and others have not.

        Those shards dropped their part as it came too late, or could not be reached: then the push has also raised an
        error. Each is logged; a push's report has the outcome on each shard.
        """
        return self._client.membership.half_applied

    @property
    def job(self) -> str:
        """The name of the job in which this worker takes part."""
        return self._client.membership.job.name

    @property
    def checkpoint_dir(self) -> Path | None:
        """The session's `checkpoint_dir`, absolute: with `psworker local --run-dir` and in a sweep the run's folder.

        A program may write files of its own there. None: the session has none.
        """
        return self._folder

    @property
    def stopped(self) -> str:
        """Why the job was stopped (`stop_all`), as shard 0 last reported, within a third of a lease; "": it was not.

        Loops over `batches` end by themselves; others check it.
        """
        return self._over or self._client.membership.stopped

    @property
    def over(self) -> bool:
        """True if the other workers had finished this session of the program when this worker came to it.

        As a worker that is started again while the others are in their third session comes to its first two. Then
        nothing is trained and saved in it: it is `stopped`, so loops over `batches` end at once, `evaluate` returns
        NaN, and this worker is not the chief. The variables keep the values that they have.
        """
        return bool(self._over)

    @property
    def summary(self) -> Summary:
        """Writes a program's scalars, pictures and so on for TensorBoard; nothing without a `summary_dir`."""
        return self._summary

    @property
    def local_steps(self) -> int:
        """Steps of the program's optimizer in this worker whose sum is pushed as one gradient; 0: none."""
        return self._config.local_steps

    @property
    def workers(self) -> list[WorkerStatus]:
        """The live workers of the job, in the order in which they joined first: asks shard 0 each time."""
        self._known()
        return [worker for worker in self._client.shard_status().workers if worker.state == "live"]

    @property
    def is_chief(self) -> bool:
        """True if this worker is the chief, which does the work needed once per job: its first worker, or a successor.

        As last reported by shard 0, with each block of examples and each heartbeat: check it each time. A chief that
        the network has cut off learns that it has been replaced only when it is back.
        """
        return self._client.membership.chief and not self._over

    def __enter__(self) -> Self:
        """Joins the servers and registers the variables made so far; they get the server's values.

        Raises `ConfigurationError` if a session is open already, the servers' policies do not fit the strategy, or the
        program's variables are not those of its checkpoint; `StorageError` if no checkpoint can be read, or the folder
        cannot be used; `Unavailable` if a server could not be reached in time.
        """
        here = context.collection
        if here.session is not None:
            raise ConfigurationError(
                "a session is already open, and a program has one session at a time: leave its `with` block, or close "
                "it by session.close(), or by psworker.reset(), which forgets all variables too"
            )
        if self._entered:
            raise ConfigurationError("this session was open before: make a new one by psworker.session()")
        self._entered = True
        try:
            if is_interactive():
                here.forget_unreferenced()
            if self._config.servers:
                self._client.tracing = open_tracing("psworker", self.worker)
            joined = self._join()
            self._replica.check()
            self.number = joined.number
            self._collection, self._replica.variables = here, here.variables
            self.register(list(here.variables.values()))
            self._open_summaries()
        except BaseException:
            self._collection = None
            self._client.leave(failed=True)
            self._client.close()
            raise
        here.session = self
        progress, embedded = "off" if self._over else self._config.progress, not self._config.servers
        self._progress = ProgressDisplay(progress, self._client.status, embedded=embedded)
        global opened
        opened += 1
        sessions = sessions_of(self._config)
        sessions.count += 1
        if self._numbered and not self._over:
            sessions.name = self._client.membership.job.name
        return self

    def _join(self) -> Joined:
        """Joins the job of this session, or a shard of this process if it is over."""
        sessions = sessions_of(self._config)
        session = sessions.count + 1 if self._numbered else 0
        try:
            return self._client.join(session, sessions.name if self._numbered else "")
        except SessionOver as error:
            self._over = str(error)
        logger.warning(
            "%s trains nothing in this session, and its variables keep the values that they have: %s",
            self.worker,
            self._over,
        )
        self._client.close()
        self._use(open_transport(WorkerConfig()), JobChoice(sessions.name))
        joined = self._client.join()
        self._client.stop(self._over)
        return joined

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the job, by `close`."""
        self.close(failed=kind is not None)

    def open(self) -> Self:
        """Opens the session without a `with` block, as for several cells of a notebook, until `close`.

            session = ps.session().open()

        Raises as entering a `with` block does.
        """
        return self.__enter__()

    def close(self, *, failed: bool = False) -> None:
        """Leaves the job; the variables keep their last values. Does nothing if the session is not open.

        Gradients that were not pushed yet are pushed first, and weights are pulled if they are outdated. If it has
        `failed`, as when an exception, Ctrl-C and `sys.exit` included, leaves the `with` block, neither happens: the
        worker's examples go to others, and synchronous updates wait for a replacement.
        """
        if self._collection is None:
            return
        left_well = False
        try:
            if not failed:
                self._replica.finish()
                left_well = True
        finally:
            for end in self._mirror_ends:
                end()
            for name in self._mirrored:
                self._collection.variables.pop(name, None)
            self._collection.session = None
            self._collection = None
            if self._progress is not None:
                self._progress.close(failed=not left_well)
            self._close_summaries(failed=not left_well)
            try:
                self._client.leave(failed=not left_well)
            finally:
                self._client.close()

    def _open_summaries(self) -> None:
        if self._summary_dir is not None and not self._over:
            replica, client = self._replica, self._client
            progress = lambda: (client.membership.global_step, replica.dropped)
            options = {name: getattr(self._config, name) for name in SUMMARIZED}
            summaries = WorkerSummaries(self._summary_dir, client, self.number, progress, options)
            self._pushing.summaries = summaries
            self._summary._open(summaries, lambda: self._known().values())

    def _close_summaries(self, *, failed: bool) -> None:
        summaries, self._pushing.summaries = self._pushing.summaries, None
        if summaries is not None:
            self._summary._close()
            summaries.close(failed=failed)

    # --- variables ------------------------------------------------------------------------------------------------

    def register(self, variables: Sequence[BaseVariable]) -> None:
        """Registers variables and takes the servers' values; a session does this for each new variable itself.

        Raises `AlreadyRegistered` if another worker has registered one of this name that differs, `ConfigurationError`
        for a table if there are local steps.
        """
        self._known()  # raises when the session is not open
        if variables:
            self._replica.register(variables)

    def pull(self, variables: Variables | None = None) -> None:
        """Fetches fresh values, of variables or a layer, by default of all variables but tables."""
        chosen = listed(() if variables is None else variables)
        check_no_table(chosen, "pulled")
        names = self._names(chosen)  # raises unless the session is open
        self._replica.pull(self._replica.names if variables is None else names)

    def rows(self, table: BaseVariable, ids: TensorLike) -> Array:
        """The current rows table[ids] of the servers, read-only, for inspection. In a model, use `ops.embedding`.

        Args:
            table: a table, or any other variable; ValueError if it has no axis, TypeError if it is no variable.
            ids: integers of any shape, with repeats; TypeError for others, IndexError for a bad row.

        Returns:
            (*ids.shape, *table.shape[1:]), of the table's dtype; without gradients that servers have not applied yet.
        """
        check_variable(table, "session.rows")
        if not table.shape:
            raise ValueError(f"rows of {table.name!r}: it is a scalar and has no rows")
        numbers = checked_ids(f"session.rows: ids for {table.spec}", ids, table.shape[0])
        return _whole(self.look_up(table, numbers.reshape(-1))).reshape(*numbers.shape, *table.shape[1:])

    def look_up(self, table: BaseVariable, indices: Array) -> VersionedArray:
        """The rows with these numbers, (n,), which are checked."""
        return self._client.choose(self._names([table])[0], indices)

    def slot(self, variable: BaseVariable, name: str) -> Array:
        """A slot that the optimizer keeps beside a variable, of its shape, such as `session.slot(W, "m")`; read-only.

        With local steps it is that of the program's optimizer in this worker. Raises `ConfigurationError` if the
        variable's optimizer has no such slot, or it was never trained, `TypeError` if it is not a variable.
        """
        check_variable(variable, "session.slot")
        self._names([variable])
        return self._replica.slot(variable, name)

    def assign(self, variable: BaseVariable, value: TensorLike) -> None:
        """Sets a variable, on the servers and here; a number is for a variable of shape (). See `assign_all`."""
        self.assign_all({variable: value})

    def assign_add(self, variable: BaseVariable, delta: TensorLike) -> None:
        """Adds `delta`, of its shape, to a variable's present value on the servers. See `assign_all`."""
        self.assign_all({variable: delta}, add=True)

    def assign_all(self, values: Mapping[BaseVariable, TensorLike], *, add: bool = False) -> None:
        """Sets several variables (or adds to them), on the servers and here: those of one shard all at once, or none.

        Raises `ShapeMismatch` if a value does not have its variable's shape, `TypeError` if one is a table, or would
        lose its fraction, or its sign.
        """
        check_no_table(values, "assigned")
        names = self._names(values)
        assignments = [Assignment(name, as_assigned(*each)) for name, each in zip(names, values.items(), strict=True)]
        if assignments:
            self._replica.flush()
            self._client.assign(assignments, add=add)
            self.pull(list(values))

    def save(self, path: model_files.Path, variables: Variables | None = None) -> None:
        """Saves the servers' values, by default of all variables, to a safetensors file: see `psworker.save`."""
        known = self._known()
        model_files.save_values(self, path, known.values() if variables is None else variables)

    def save_best(self, value: SupportsFloat, *, maximize: bool = False) -> bool:
        """Saves the model as `best.safetensors` in the `checkpoint_dir` if this value is the lowest of the job so far.

            accuracy = session.evaluate(..., mnist.test)
            session.save_best(accuracy, maximize=True)

        `best.json` beside it has value, global step and time. The file is replaced whole; `psworker.load` reads it. The
        earlier values count also when the job is resumed. With several workers the chief alone saves.

        Args:
            value: of an evaluation of the present model. NaN and infinity are never best.
            maximize: whether the highest value is best; the same in each call.

        Returns:
            Whether the model was saved; False in a worker that is not the chief, and in a session that is `over`.

        Raises:
            ConfigurationError: the session has no `checkpoint_dir`, or is not open, or `maximize` has changed.
            ModelFileError: a file cannot be written, or read.
        """
        known, folder = self._known(), self._best_folder("save_best")
        if not self.is_chief:
            return False

        def save(path: Path, metadata: Mapping[str, str]) -> None:
            model_files.save_values(self, path, known.values(), metadata)

        return save_best(
            folder, float(value), maximize=maximize, global_step=self._client.membership.global_step, save=save
        )

    def load_best(self, timeout: float | None = None) -> None:
        """Sets all variables, on the servers and in every worker, to the model that `save_best` has saved.

        All workers call it, after their loops: they wait for each other, as at a `barrier`, then the chief reads the
        file, and all have its values. Slots stay as they are. In a session that is `over` nothing is set.

        Args:
            timeout: seconds to wait for other workers, before the file is read and after it [the session's].

        Raises:
            ConfigurationError: the session has no `checkpoint_dir`, or is not open.
            ModelFileError: in the chief: no model was saved, or the file does not fit the program.
            TimedOut: as `barrier`.
        """
        self._known()
        path = self._best_folder("load_best") / MODEL
        if self._over:
            return
        self.barrier(timeout)
        if self.is_chief:
            with use(self._open_collection()):
                model_files.load(path)
        self.barrier(timeout)
        self.pull()

    def _best_folder(self, call: str) -> Path:
        if self._folder is None:
            raise ConfigurationError(f"{call} needs a folder: use psworker.session(checkpoint_dir=...)")
        return self._folder

    def fetch(self, variables: Sequence[BaseVariable]) -> list[Array]:
        """The servers' values, without the session's encoding; the variables stay as they are. For model files."""
        return [_whole(value) for value in self._replica.fetch(self._names(variables))]

    def fetch_rows(self, table: BaseVariable, first: int, count: int) -> Array:
        """`count` rows of a table on the servers, from row `first` on, without the session's encoding."""
        return _whole(self._client.choose(self._names([table])[0], np.arange(first, first + count), exact=True))

    def assign_rows(self, table: BaseVariable, pieces: Iterable[Array], first: int = 0) -> None:
        """Sets the rows of a table, on the servers, to these, from row `first` on; each piece at once."""
        self._names([table])
        self._replica.flush()
        for rows in pieces:
            self._client.assign([Assignment(table.name, rows, first)])
            first += len(rows)
        table.read = self._client.choose(table.name, np.empty(0, np.int64)).read

    def set_hyperparameters(self, target: Target, **changes: Any) -> None:  # noqa: ANN401 - of any field
        """Changes hyperparameters in the running job, for all workers, from the next push on; slots stay.

            session.set_hyperparameters(optimizer, learning_rate=0.01)

        The program continues to use its optimizer object; the hyperparameters of the servers take precedence. With
        local steps the program's optimizer is changed in this worker only, and `outer` on the servers.

        Args:
            target: the optimizer, for all variables that this worker has trained with it, or such variables.
            changes: fields of the optimizer. Others stay as the servers have them, whichever worker has set them.

        Raises:
            ConfigurationError: no field is given, or an unknown one, a variable was not trained in this session, or
                the change would need other slots.
            ValueError, TypeError: an invalid value of a field, or a `target` of the wrong type.
        """
        self._known()
        self._replica.tune(target, changes)

    # --- training -------------------------------------------------------------------------------------------------

    @hint_keywords
    def batches(
        self,
        source: Source,
        batch_size: int | None,
        epochs: int | None = 1,
        seed: int = 0,
        *,
        steps: int | None = None,
        shuffle: bool = True,
        collate: Collate | None = None,
        on_epoch: Callable[[EpochReport], None] | None = None,
        name: str | None = None,
    ) -> Iterator[Batch]:
        """Batches of a dataset, distributed by shard 0: all workers together train on each example once an epoch.

        They come in blocks of a multiple of `push_every` or `local_steps`, which must be the same in all workers; a
        block is done when all its gradients are at the servers. A batch is done with the first push after the program
        has got it, or the push with its gradients if the session pushes later: if the worker dies, other workers go on
        with the next batch of its block.

        Iterables, such as generators, are read by each worker on its own, in their order: to read different examples,
        it takes those for its `session.number`. Then `steps` counts the batches of all workers, and `epochs` the passes
        of this one; a job that is resumed reads them from their beginning.

        Args:
            source: the examples; the same in every worker. A `Dataset`, a `FunctionDataset`, columns by name, a table
                or dataset of another library (docs/data.md), a sequence of examples (with `len` and numbers), an
                iterable of examples, or a function that returns one for each pass. An example is a mapping of columns,
                a named tuple, or a pair, whose columns are `x` and `y`.
            batch_size: examples in a batch; the last of an epoch may be smaller. None: each item of the iterable is a
                batch, columns by name.
            epochs: passes over the source; None: without end, until `steps`, or the program leaves the loop.
            seed: from 0; each epoch is shuffled by a generator of (seed, epoch), the same in every worker.
            steps: batches of all workers together after which it ends, if that is before the end of the last epoch. An
                epoch that it cuts off is not reported.
            shuffle: False: the order of the dataset. Iterables are never shuffled.
            collate: makes the columns of a batch of a list of examples, of a sequence or an iterable; by default it
                stacks arrays of one shape. Without a batch size it makes them of an item.
            on_epoch: called with each epoch's mean cost over all workers when it is complete, in order, in every
                worker; in one that joins late, or goes on with a job that was stopped, first of the last 1,000 epochs
                that are complete: measure the weights only after the latest one (`is_latest`). To print it once, check
                `is_chief`. Not for iterables, which have no common epochs.
            name: the data queue's name. By default the program's first call of `batches` in all workers shares one
                queue, its second another, and so on.

        Raises:
            AlreadyRegistered: another worker reads the queue of this name with other arguments.
            DatasetError: the source is none; or, in the loop, it returns no batch or example, or a pass has none.
            ValueError: a size that is not positive, a negative seed, or arguments that do not fit the source.
        """
        reading = Reading(open_source(source, collate), batch_size, epochs, seed, steps, shuffle)
        reading.check()
        if on_epoch is not None and isinstance(reading.source, Stream):
            raise ValueError("on_epoch is for datasets: each worker makes passes of its own over an iterable")
        self._known()  # raises when the session is not open
        self._queues += 1
        queue = reading.queue(name or f"batches-{self._queues}", batches_per_block(self._config.steps))
        flush, give_back, loops = self._replica.flush, self._replica.give_back, self._loops
        batches = reading.batches(queue)
        reports, count = self._part.reports, self._count_examples
        return iter(DataLoop(self._client, queue, batches, on_epoch, flush, give_back, loops, reports, count))

    def _count_examples(self, count: int) -> None:
        if self._pushing.summaries is not None:
            self._pushing.summaries.recorder.examples += count

    def queues(self) -> tuple[QueueStatus, ...]:
        """How far each data queue of the job is at present.

        Over all workers, in the order in which the queues began:

            [queue] = session.queues()
            print(f"epoch {queue.epoch} of {queue.spec.epochs}, {queue.done} of {queue.spec.total} examples")
        """
        self._known()  # raises when the session is not open
        return self._client.shard_status().queues

    def is_latest(self, report: EpochReport) -> bool:
        """True if no later epoch is complete: then the present values are those of its end, or near to them.

        For what `on_epoch` measures: it is also called for epochs that were complete before this worker came, as when a
        job is resumed, and for those that others have completed while it measured.

            def on_epoch(epoch):
                if session.is_chief and session.is_latest(epoch):
                    print(epoch.epoch, session.evaluate(loss, validation))
        """
        [queue] = [one for one in self.queues() if one.spec.name == report.queue]
        size, total = queue.spec.size, queue.spec.total
        complete = total // size if total == queue.done else queue.epoch - 1
        return report.epoch == complete

    def note_loss(self, loss: Tensor | float, variables: Iterable[BaseVariable]) -> None:
        """Keeps the loss, for the next push of these variables and the current batch; `compute_gradients` calls it."""
        self._known()
        self._pushing.note_loss(loss, variables)

    def push(
        self,
        optimizer: optimizers.UpdateSpec | Callable[[str], optimizers.UpdateSpec],
        grads_and_vars: Iterable[GradientAndVariable],
        updates: Iterable[UpdateOp] = (),
    ) -> PushReport:
        """Pushes by the strategy of the session; `Optimizer.apply_gradients` calls it, and describes its errors.

        The gradients are borrowed until this returns. `optimizer` may be a function of a variable's name, and `updates`
        has one op per variable.
        """
        if self._client.cuts.generation:
            self._client.check_changeable()
        return self._pushing.push(self._open_collection(), optimizer, grads_and_vars, updates)

    def begin_push(self, arrays: Sequence[tuple[Array, BaseVariable]], loss: float | None) -> BegunPush | None:
        """Begins to send the next `push` before its gradients are there, as `Client.begin_push`; None: it cannot.

        `arrays` are the memory from which they are sent, in this order, and `loss` is what `note_loss` will be given.
        """
        self._names([variable for _, variable in arrays])  # raises unless the session is open
        return self._pushing.begin(arrays, loss)

    def step_outside(self, values: Mapping[BaseVariable, Array], loss: float | None) -> None:
        """Counts a local step that another library's optimizer has made, with local steps; pushes at a round's end.

        `values` are the memory in which it changes the variables: read when the round ends, which may be now.
        """
        self._names(values)  # raises unless the session is open
        assert isinstance(self._replica, LocalSteps), "for sessions with local steps"
        if loss is not None:
            for loop in self._loops:
                loop.losses.append(loss)
        self._replica.step_outside({variable.name: value for variable, value in values.items()}, loss)

    def mirror(
        self,
        variables: Iterable[BaseVariable],
        receive: Callable[[Sequence[VersionedArray]], object],
        end: Callable[[], object] | None = None,
    ) -> None:
        """Calls `receive` with all values that the servers send, for tensors of another library with their own memory.

        `variables` stand for these tensors on the servers, and are forgotten at the end of the session, which calls
        `end`.
        """
        self._mirror_ends += [end] if end is not None else []
        self._mirrored += self._names(variables)
        self._replica.receivers.append(receive)

    def minimize(
        self,
        loss: Callable[[Batch], Tensor],
        source: Source,
        method: Minimizer | None = None,
        variables: Sequence[BaseVariable] | None = None,
        *,
        portion: int | None = None,
        collate: Collate | None = None,
        on_iteration: Callable[[AcceptedPoint], object] | None = None,
        name: str | None = None,
    ) -> Minimum:
        """Minimizes the mean loss over all examples: batch optimization with a line search, by all workers together.

            def loss(batch):
                return ops.softmax_cross_entropy(model(batch.image), batch.label) + 1e-4 * ops.sum(W * W)

            result = session.minimize(loss, dataset, ps.LBFGS())

        Each evaluation of the loss goes over the whole source, in portions that workers take as they come; near its end
        a portion that is late is computed by a second worker, and the first one counts. The vectors of the method are
        on the shards, and the chief, which coordinates, sees sums alone. When it dies, the next chief goes on from the
        last accepted point. The variables have the minimum's values afterwards, in every worker. All workers call it.

        Args:
            loss: of a batch: the mean over its examples, and any term that does not depend on examples, such as a
                penalty. It must be the same function in all workers, without randomness such as dropout.
            source: the examples, the same in every worker: a dataset, columns by name, or a sequence; no iterable.
            method: `ps.LBFGS`, `ps.OWLQN` or `ps.ConjugateGradient` with limits [LBFGS()].
            variables: those to minimize over; no tables [all trainable ones].
            portion: examples in a portion, the same in all workers [a 64th of the source, and 32 or more].
            collate: makes the columns of a batch of a list of examples, of a sequence.
            on_iteration: called in the chief with each accepted point: iterations, evaluations, loss, gradient, step.
                These are also written for TensorBoard, by iteration, if the session has a `summary_dir`.
            name: the minimization's name. By default the first call in all workers is one, the second another.

        Raises:
            DatasetError: the source is an iterable, or none.
            ValueError: a portion below 1, or no variables; TypeError for tables and variables of integers.
            ParamServerError: servers cannot be reached in time.
        """
        examples, known = open_examples(source, collate, portion), self._known()
        given = None if variables is None else [known[one] for one in self._names(variables)]
        chosen = minimized(known.values() if given is None else given, chosen=given is not None)
        self._client.check_changeable()
        self._replica.flush()
        self._client.report_deferred_idle()
        self._minimizations += 1
        label = name or f"minimize-{self._minimizations}"

        def report(point: AcceptedPoint) -> None:
            for what in ("loss", "gradient", "step"):
                self.summary.scalar(f"{label}/{what}", getattr(point, what), point.iterations)
            if on_iteration is not None:
                on_iteration(point)

        return Minimization(
            self._client,
            lambda: self._replica.pull([one.name for one in chosen]),
            chosen,
            loss,
            examples,
            portion,
            method or LBFGS(),
            label,
            report,
        ).run()

    @overload
    def evaluate(
        self,
        function: Callable[[Batch], SupportsFloat],
        source: Source,
        batch_size: int | None = 1000,
        *,
        collate: Collate | None = None,
        shared: bool = False,
    ) -> float: ...

    @overload
    def evaluate(
        self,
        function: Callable[[Batch], Mapping[str, SupportsFloat | Metric]],
        source: Source,
        batch_size: int | None = 1000,
        *,
        collate: Collate | None = None,
        shared: bool = False,
    ) -> dict[str, Any]: ...

    def evaluate(
        self,
        function: Measure,
        source: Source,
        batch_size: int | None = 1000,
        *,
        collate: Collate | None = None,
        shared: bool = False,
    ) -> Any:
        """What a function measures, over all examples of a source, with fresh weights and without a tape.

        By default this worker evaluates all examples, in order. If `shared`, all workers of the job call it, with the
        same arguments, at the same place of the program: they wait for each other as at a `barrier`, each example is
        evaluated by one of them, with the same weights, and all get the results. The blocks of a worker that dies are
        evaluated by the others.

        Args:
            function: of a batch: the mean over its examples, such as a loss; or what adds up (`psworker.metrics`); or
                several of these by name. The same metrics for each batch.
            source: as in `batches`; not an iterable if it is shared.
            batch_size: as in `batches`.
            collate: as in `batches`.
            shared: whether all workers evaluate together.

        Returns:
            The mean, or the metric's value, over all examples; those of several by name, as a dict.

        Raises:
            DatasetError: the source is none, or has no examples.
            ValueError: a batch size that does not fit the source, a shared iterable, or metrics that change.
            InvalidMessage: other workers evaluate other metrics, or these are too large to be shared.

        In a session that is `over` each value is NaN.
        """
        check_measure(function)
        reading = Reading(open_source(source, collate), batch_size, shuffle=False)
        reading.check()
        if shared and isinstance(reading.source, Stream):
            raise ValueError("evaluate: each worker reads an iterable by itself: give a dataset, or shared=False")
        self._known()  # raises when the session is not open
        if self._over:
            return unknown(function, reading)
        if not shared:
            self.pull()
            return evaluated(function, reading.in_order())
        self.barrier()
        self.pull()
        self._evaluations += 1
        return evaluated_together(self._client, f"evaluation-{self._evaluations}", function, reading)

    @contextmanager
    def generation(self, timeout: float | None = None) -> Iterator[int]:
        """A block in which variables have the values of one moment of the whole job, while other workers go on.

            with session.generation() as number:
                error = session.evaluate(accuracy, test_data)
                session.save("model.safetensors")

        Everything that this worker has pushed is in these values; each push of another worker is on all shards, or on
        none. `pull`, `rows`, `slot`, `evaluate` and `save` read them, and nothing can be trained in the block. The
        servers keep a copy of what changes meanwhile. After the block variables have fresh values; after an error in
        it those of the generation, or fresh ones if all shards went back to a checkpoint meanwhile.

        This worker has the values of all variables from the beginning of the block on, so servers may be killed and
        started again meanwhile. Slots and rows of tables are read from the servers: if a server was started again, or
        has taken this worker for lost, they are gone, and reading them raises `GenerationLost`. Then repeat the block:

            while True:
                try:
                    with session.generation():
                        session.save("model.safetensors")
                    break
                except ps.errors.GenerationLost as error:
                    print(error)

        Args:
            timeout: seconds to wait until all workers know of it [the session's].

        Raises:
            TimedOut: a worker did not learn of it in time, or other cuts were in progress.
            GenerationLost: in the block, by reads of slots and of tables; no other values are read instead.
            ConfigurationError: a generation is open already, or something is changed in the block.
        """
        self._known()  # raises when the session is not open
        self._client.check_changeable()
        self._replica.hold(timeout)
        try:
            yield self._client.cuts.generation
        finally:
            self._client.release_cut()
        self.pull()

    def checkpoint(self, timeout: float | None = None) -> int:
        """Makes all servers write a checkpoint of this moment; returns its number when it is written.

        In a session that is `over` it writes none, and returns 0.

        Args:
            timeout: seconds to wait [the session's].

        Raises:
            TimedOut: it is not complete, or not written, in time.
            ConfigurationError: the servers have no folder for checkpoints.
            ParamServerError: it could not be written, with the reason.
        """
        self._known()
        if self._over:
            return 0
        self._replica.flush()
        return self._client.checkpoint(timeout)

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until every live worker of the job waits at a barrier; workers that leave or are lost do not count.

        A worker that joins is waited for. Pending gradients are pushed first, so `global_step` then has the pushes of
        all workers from before the barrier, and is the same in all of them. Raises `TimedOut` after `timeout` seconds
        [the session's], with the names of the workers it waits for; they are logged earlier, too.
        """
        self._known()
        self._replica.flush()
        self._client.barrier(timeout)

    def stop_all(self, reason: str = "") -> None:
        """Stops the training of all workers: each loop over `batches` ends after its present batch.

            def stop_early(epoch):
                if epoch.cost < 0.3:
                    session.stop_all(f"cost {epoch.cost:.4f}")

            for batch in session.batches(data, 100, epochs=50, on_epoch=stop_early): ...

        Others learn of it with their next block of examples or heartbeat, and continue after their loops. `stopped`
        has the reason: the first one, if several workers stop the job. A job that is stopped may be resumed later.
        """
        self._known()
        self._replica.flush()
        self._client.stop(reason)

    def idle(self) -> None:
        """Reports that this worker has nothing to push for a while, so that no other worker waits for it.

        For programs without `batches`, where workers wait for each other's pushes (`psserver serve --consistency`):
        before a long task, such as an evaluation by one worker, and at the end. The next push ends it.
        """
        self._known()
        self._replica.flush()
        self._client.report_idle()

    def _names(self, variables: Iterable[BaseVariable]) -> list[str]:
        """Their names; raises `ConfigurationError` unless the session is open and these are its variables."""
        collection, names = self._open_collection(), []
        for variable in variables:
            collection.check_member(variable)
            names.append(variable.name)
        return names

    def _known(self) -> dict[str, BaseVariable]:
        """The program's variables by name; raises `ConfigurationError` unless the session is open."""
        return self._open_collection().variables

    def _open_collection(self) -> Collection:
        collection = self._collection
        if collection is None or collection.session not in (None, self):
            raise ConfigurationError("this session is not open: use it inside `with psworker.session() as session:`")
        return collection


hint_attributes(Session, SESSION)


def session_here(use: str) -> Session:
    """The open session of this thread, for modules of other libraries; `ConfigurationError` says how to `use` them."""
    session = context.collection.session
    if not isinstance(session, Session):
        raise ConfigurationError(f"no session is open: {use}")
    return session


def _whole(value: VersionedArray) -> Array:
    assert not isinstance(value.array, IndexedSlices), "a value has all rows"
    return value.array
