"""The push of one step of a program: its gradients checked, declared and handed to the strategy of the session."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from pswire.errors import DtypeMismatch, ShapeMismatch
from pswire.messages import Outcome
from pswire.optimizers import MovingAverage, UpdateSpec
from pswire.tensors.values import Array, IndexedSlices
from psworker.autodiff import Tensor
from psworker.client.begun_push import BegunPush
from psworker.model.base_variable import BaseVariable
from psworker.model.collection import Collection
from psworker.model.gradient_transforms import GradientAndVariable
from psworker.model.interactive import is_interactive
from psworker.model.push_reports import PushOutcome, PushReport
from psworker.model.tables import Table, check_no_table
from psworker.model.update_ops import UpdateOp
from psworker.model.variables import Variable
from psworker.sessions.replica import Replica, Step
from psworker.summaries.worker_summaries import WorkerSummaries
from psworker.versions import ReadVersion, VersionedArray

logger = logging.getLogger(__name__)


class Pushing:
    """The pushes of one session. `summaries` are those of the open session, if it writes any."""

    def __init__(self, replica: Replica) -> None:
        self.summaries: WorkerSummaries | None = None
        self._replica = replica
        #: By variable: the loss whose gradient it gets next, and the version of the weights.
        self._computed: dict[str, tuple[float, ReadVersion]] = {}
        self._without_gradient: set[str] = set()  # variables that were logged for it

    def note_loss(self, loss: Tensor | float, variables: Iterable[BaseVariable]) -> None:
        """Keeps the loss for the next push of these variables, and for the current batch of each data loop."""
        value = loss.item() if isinstance(loss, Tensor) else loss
        for variable in variables:
            self._computed[variable.name] = value, variable.read
            if isinstance(variable, Table):
                variable.looked_up = False
        for loop in self._replica.loops:
            loop.losses.append(value)
        if self.summaries is not None and self.summaries.graph_is_due and isinstance(loss, Tensor):
            self.summaries.take_graph(loss, self._replica.variables.values())

    def push(
        self,
        collection: Collection,
        optimizer: UpdateSpec | Callable[[str], UpdateSpec],
        grads_and_vars: Iterable[GradientAndVariable],
        updates: Iterable[UpdateOp],
    ) -> PushReport:
        """As `Session.push`; `collection` has the variables of the open session."""
        known, replica, computed = collection.variables, self._replica, self._computed
        names: list[str] = []
        entries: list[VersionedArray] = []
        observed = tuple(updates)
        for op in observed:
            collection.check_member(op.variable)
        among: dict[str, BaseVariable] = {}
        loss, without = None, []
        for gradient, variable in grads_and_vars:
            name = variable.name
            if known.get(name) is not variable:
                collection.check_member(variable)  # raises
            among[name] = variable
            noted, read = computed.get(name, (None, variable.read))
            if loss is None:
                loss = noted
            if gradient is not None:
                names.append(name)
                usual = (
                    type(gradient) is np.ndarray
                    and type(variable) is Variable
                    and gradient.shape == variable.value.shape
                    and gradient.dtype == variable.value.dtype
                )
                entries.append(VersionedArray(name, read, gradient if usual else checked_gradient(gradient, variable)))
            elif variable.trainable and name not in self._without_gradient:
                without.append(name)
        if not entries:
            raise ValueError(
                f"no gradients to push for {', '.join(among) or 'no variables'}: does the loss depend on them?"
            )
        of = {optimizer: names} if isinstance(optimizer, UpdateSpec) else _by_optimizer(optimizer, names)
        if without:
            self._warn_without_gradient(without)
        for name, variable in among.items():
            computed.pop(name, None)
            if isinstance(variable, Table) and name in names:
                variable.looked_up = False
        for op in observed:
            entries.append(VersionedArray(op.variable.name, op.variable.read, op.value))
        replica.pushed = None
        for each, its_names in of.items():
            replica.declare(each, its_names)
        for op in observed:
            replica.declare(MovingAverage(op.decay), [op.variable.name])
        replica.step(Step(tuple(of), names, entries, observed, loss, tuple(among)))
        if self.summaries is not None:
            self._summarize(self.summaries, next(iter(of)), known, entries[: len(names)], loss)
        pushed, step = replica.pushed, replica.client.membership.global_step
        if pushed is None:
            return PushReport("none", 0, step)
        outcomes: dict[int, PushOutcome] = {}
        for shard, one in pushed.shards.items():
            outcomes[shard] = one.value
        return PushReport(
            "half-applied" if pushed.half_applied else pushed.outcome.value, pushed.staleness, step, outcomes
        )

    def begin(self, arrays: Sequence[tuple[Array, BaseVariable]], loss: float | None) -> BegunPush | None:
        """As `Session.begin_push`."""
        return self._replica.begin([VersionedArray(one.name, one.read, array) for array, one in arrays], loss)

    def _warn_without_gradient(self, names: Sequence[str]) -> None:
        self._without_gradient.update(names)
        logger.warning(
            "no gradient for %s: the loss does not depend on it, so this step does not train it; leave it out of "
            "var_list, or make it with trainable=False%s (logged once for each variable)",
            ", ".join(map(repr, names)),
            "; psworker.reset() forgets those of earlier cells" if is_interactive() else "",
        )

    def _summarize(
        self,
        summaries: WorkerSummaries,
        optimizer: UpdateSpec,
        known: Mapping[str, BaseVariable],
        gradients: Sequence[VersionedArray],
        loss: float | None,
    ) -> None:
        """Notes a step, and writes a point if one is due."""
        pushed = self._replica.pushed
        applied = pushed is not None and pushed.outcome is not Outcome.DROPPED
        if summaries.recorder.note(loss, pushed.staleness if pushed is not None and applied else None):
            pairs = [(one.array, known[one.name]) for one in gradients]
            summaries.write_point(optimizer, self._replica.learning_rate(gradients[0].name), pairs)


def _by_optimizer(optimizer_of: Callable[[str], UpdateSpec], names: Iterable[str]) -> dict[UpdateSpec, list[str]]:
    """The variables of each optimizer."""
    found: dict[UpdateSpec, list[str]] = {}
    for name in names:
        found.setdefault(optimizer_of(name), []).append(name)
    return found


def checked_gradient(gradient: Array | IndexedSlices | Tensor, variable: BaseVariable) -> Array | IndexedSlices:
    """The gradient as an array, or as rows, each once, in the variable's dtype; raises unless it fits the variable."""
    if isinstance(variable, Table) and not isinstance(gradient, IndexedSlices):
        check_no_table([variable], "given a gradient")
    array = gradient.summed() if isinstance(gradient, IndexedSlices) else np.asarray(gradient)
    like = variable if isinstance(variable, Table) else variable.value
    if array.shape == like.shape and (array.dtype == like.dtype or array.dtype.name == like.dtype.name):
        return array
    return _cast_gradient(array, variable)


def _cast_gradient(array: Array | IndexedSlices, variable: BaseVariable) -> Array | IndexedSlices:
    """A gradient of another floating-point dtype in the variable's, where a magnitude beyond it becomes infinite."""
    if array.shape != variable.shape:
        raise ShapeMismatch(
            f"gradient for {variable.name!r} is {array.dtype.name}{list(array.shape)}, the variable is "
            f"{variable.dtype.name}{list(variable.shape)}: gradient transforms must keep the shape"
        )
    if array.dtype.kind != "f" or variable.dtype.kind != "f":
        raise DtypeMismatch(
            f"gradient for {variable.name!r} is {array.dtype.name}, the variable is {variable.dtype.name}: only "
            "floating point is cast to another floating-point dtype; convert the gradient in its transform"
        )
    with np.errstate(over="ignore"):  # NotFinite names the variable
        return array.astype(variable.dtype)
