"""The outcome of each push of a replayed journal, with its norms, and the events between pushes.

    observer = PushObserver(replay, watched=("W",))
    for lines in observer.records():
        ...                     # PushReport or Happening
    observer.undecided()        # pushes that are still held

A push is reported when the policy has decided about it: one that was held comes with the group of its update.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from psserver.core.variables.array_tasks import ArrayTask, StepResult, TasksPending, Update, run
from psserver.replay.journal_replay import Entry, JournalReplay
from psserver.replay.norms import VariableNorms, gradient_norm
from pswire import messages as ms
from pswire.errors import NotFinite, ParamServerError
from pswire.optimizers import OptimizerSpec, UpdateSpec
from pswire.plurals import pluralize


class Fate(Enum):
    """The outcome of a push."""

    APPLIED = "applied"
    DROPPED = "dropped"  #: by the policy
    REPEATED = "repeated"  #: a retry of one that was applied before
    REFUSED = "refused"  #: its update would not have been finite
    ABANDONED = "abandoned"  #: its worker sent a newer message, or was gone, before the policy decided
    HELD = "held"  #: the policy has not decided where the replay ends


@dataclass(slots=True, eq=False)
class Watched:
    """Norms of one variable around an update: of the pushed gradient, the update, and the value before and after."""

    gradient: float | None = None
    update: float | None = None
    before: float | None = None
    after: float | None = None


@dataclass(slots=True, eq=False)
class PushReport:
    """A push and what became of it.

    Attributes:
        worker, incarnation, sequence, loss: as it was pushed.
        gradient: the norm of all its gradients together; observations, of a `MovingAverage`, are left out.
        fate: what became of it, for this `reason` unless it was applied.
        step: the shard's global step after its update; None: it made none.
        staleness: as the policy saw it; None: it did not look.
        update: the norm of the change of all variables by its update; of the whole group if there is one.
        learning_rate: of its update, the largest if variables have different ones.
        group: the other pushes of its update, by worker and sequence number.
        watched: by variable.
    """

    worker: str
    incarnation: int
    sequence: int
    loss: float | None
    gradient: float
    fate: Fate = Fate.HELD
    reason: str = ""
    step: int | None = None
    staleness: int | None = None
    update: float | None = None
    learning_rate: float | None = None
    group: tuple[tuple[str, int], ...] = ()
    watched: dict[str, Watched] = field(default_factory=dict)

    @property
    def values(self) -> Iterator[tuple[str, float]]:
        """Its loss, and the norms of its gradient and update, by name."""
        named = [("loss", self.loss), ("norm of the gradient", self.gradient), ("norm of the update", self.update)]
        return ((name, value) for name, value in named if value is not None)


@dataclass(frozen=True, slots=True)
class Happening:
    """Another change of the shard, in a line: a worker has joined or left, a variable was registered or set."""

    step: int
    text: str


Line: TypeAlias = PushReport | Happening

_Key: TypeAlias = tuple[ms.Sender, int]


class PushObserver:
    """Follows the pushes of a journal through the steps of its shard, with the norms of the `watched` variables."""

    def __init__(self, replay: JournalReplay, watched: Collection[str] = ()) -> None:
        self._replay, self._watched = replay, frozenset(watched)
        self._open: dict[int, tuple[PushReport, ms.Push]] = {}  # by ticket
        self._held: dict[_Key, PushReport] = {}  # of the segment before, whose calls come again

    def records(self) -> Iterator[list[Line]]:
        """Step all records; yields for each, when the shard has taken it, what it has decided. Errors as `entries`."""
        for entry in self._replay.entries():
            if isinstance(entry, Entry):
                yield self._take(entry)
            else:
                self._begin_segment()
                yield [Happening(self._replay.shard.global_step, f"checkpoint {entry.number}")]

    def undecided(self) -> list[PushReport]:
        """The pushes that are held at the end of the replay."""
        return [*self._held.values(), *[report for report, _ in self._open.values()]]

    def _take(self, entry: Entry) -> list[Line]:
        """Step one record; returns what it has decided."""
        message = entry.message
        if isinstance(message, ms.Push):
            report = self._held.pop(_key(message)) if _key(message) in self._held else self._report(message)
            self._open[entry.ticket] = report, message
        known = self._known() if isinstance(message, ms.Register) else {}
        before = self._replay.shard.global_step
        result = self._step(entry)
        lines: list[Line] = [Happening(before, event.text) for event in result.events]
        present = self._known() if isinstance(message, ms.Register) else {}
        changed = [name for name, one in present.items() if name not in known or one is not known[name]]
        if text := _text(message, changed, result):
            lines.append(Happening(before, text))
        return lines + self._decided(result, before)

    def _known(self) -> dict[str, UpdateSpec | None]:
        """The optimizer of each variable, as it was declared."""
        return {name: one.declared for name, one in self._replay.shard.variables.items()}

    def _begin_segment(self) -> None:
        """The calls that are pending come again, with other tickets, if they were pending in the server too."""
        self._held |= {_key(push): report for report, push in self._open.values()}
        self._open.clear()

    # --- steps and norms ------------------------------------------------------------------------------------------

    def _step(self, entry: Entry) -> StepResult:
        """Step one record and run its tasks, with the norms of its updates."""
        try:
            result = self._replay.step(entry, settled=False)
        except TasksPending:
            return self._checked_step(entry)
        for task in result.tasks:
            self._run(task)
        return result

    def _run(self, task: ArrayTask) -> None:
        update = task.update
        if update is None:
            task.run()
            return
        gradients = [gradient for gradient, *_ in update.contributions]
        name = update.variable.spec.name
        norms = VariableNorms(update.variable, gradients, of_value=name in self._watched)
        task.run()
        norms.done()
        self._note_all(update, norms)

    def _checked_step(self, entry: Entry) -> StepResult:
        """As `_step`, where updates are made within the step: norms are over all its updates together."""
        variables = self._replay.shard.variables
        gradients: dict[str, list[ms.Gradient]] = {}
        for _, push in self._open.values():
            for gradient in push.gradients:
                gradients.setdefault(gradient.name, []).append(gradient)
        all_norms = {
            name: VariableNorms(variables[name], mine, of_value=name in self._watched)
            for name, mine in gradients.items()
        }
        result = self._replay.step(entry)
        run(result.tasks)
        for norms in all_norms.values():
            norms.done()
        for update in result.checked:
            self._note_all(update, all_norms[update.variable.spec.name])
        return result

    def _note_all(self, update: Update, norms: VariableNorms) -> None:
        """Add the norms of an update of one variable to all pushes that have made it."""
        for report, push in self._open.values():
            if any(one is gradient for one in push.gradients for gradient, *_ in update.contributions):
                self._note(report, update.variable.spec.name, norms, update.step.learning_rate)

    def _note(self, report: PushReport, name: str, norms: VariableNorms, rate: float) -> None:
        """Add the norms of the update of one variable to the push that has made it."""
        if self._is_gradient(name):
            report.update = math.hypot(report.update or 0.0, norms.update)
            report.learning_rate = max(report.learning_rate or 0.0, rate)
        if name in report.watched:
            watched = report.watched[name]
            watched.update, watched.before, watched.after = norms.update, norms.before, norms.after

    def _report(self, push: ms.Push) -> PushReport:
        """A push that has arrived."""
        norms = {one.name: gradient_norm(one) for one in push.gradients}
        total = math.hypot(*[one for name, one in norms.items() if self._is_gradient(name)])
        sender = push.sender
        watched = {name: Watched(one) for name, one in norms.items() if name in self._watched}
        return PushReport(sender.worker, sender.incarnation, push.sequence, push.loss, total, watched=watched)

    def _is_gradient(self, name: str) -> bool:
        variable = self._replay.shard.variables.get(name)
        return variable is not None and isinstance(variable.optimizer, OptimizerSpec)

    # --- outcomes -------------------------------------------------------------------------------------------------

    def _decided(self, result: StepResult, before: int) -> list[Line]:
        """The pushes that were answered, in the order of the answers."""
        steps: dict[object, int] = {}  # by update, in order
        lines: list[Line] = []
        for reply in result.replies:
            report, push = self._open.pop(reply.ticket, (None, None))
            if report is None or push is None:
                continue
            answer = reply.answer
            if isinstance(answer, ms.Pushed):
                report.fate, report.staleness = Fate(answer.outcome.value), answer.staleness
                report.reason = answer.reason
                if report.fate is Fate.APPLIED:
                    of_group = reply.ticket if answer.group is None else answer.group
                    report.step = steps.setdefault(of_group, before + 1 + len(steps))
                    report.group = _others(answer.group, push)
            elif isinstance(answer, ParamServerError):
                again = any(one is not push and _key(one) == _key(push) for _, one in self._open.values())
                if again:  # a retry has taken its place
                    continue
                report.fate = Fate.REFUSED if isinstance(answer, NotFinite) else Fate.ABANDONED
                report.reason = str(answer)
            lines.append(report)
        return lines


def _key(push: ms.Push) -> _Key:
    return push.sender, push.sequence


def _others(group: ms.UpdateGroup | None, push: ms.Push) -> tuple[tuple[str, int], ...]:
    """The other pushes of an update."""
    members = [] if group is None else [(one.sender, one.sequence) for one in group.members]
    return tuple([(sender.worker, sequence) for sender, sequence in members if (sender, sequence) != _key(push)])


def _text(message: ms.Message, changed: Collection[str], result: StepResult) -> str:
    """A line about a message that has changed variables or their optimizers, and makes no event; "" for others.

    `changed` are those that a registration has made, or given an optimizer.
    """
    refusals = [str(reply.answer) for reply in result.replies if isinstance(reply.answer, ParamServerError)]
    match message:
        case ms.Register():
            what = ", ".join([_declared(one) for one in message.declarations if one.spec.name in changed])
            return f"worker {message.sender.worker!r} registered {what}" if what else ""
        case ms.Assign(portions=ms.CountedPortions(name, _, numbers)):
            dropped = [one.answer.reason for one in result.replies if isinstance(one.answer, ms.Assigned)]
            text = f"worker {message.sender.worker!r} pushed the gradients of {pluralize(len(numbers), 'portion')}"
            return f"{text} of {name!r}" + "".join([f": dropped: {reason}" for reason in dropped if reason])
        case ms.Assign():
            names = ", ".join([one.name for one in message.assignments])
            verb = "added to" if message.add else "set"
            refused = f": refused: {refusals[-1]}" if refusals else ""
            return f"worker {message.sender.worker!r} {verb} {names}{refused}"
        case ms.Compute():
            what = ", ".join(map(str, message.operations))
            return f"worker {message.sender.worker!r} computed {what}" if message.names else ""
        case ms.Tune():
            what = ", ".join([f"{name}={getattr(message.optimizer, name)}" for name in message.fields])
            return f"worker {message.sender.worker!r} set {what} for {', '.join(message.names)}"
        case _:
            return ""


def _declared(declaration: ms.Declaration) -> str:
    return f"{declaration.spec}" + ("" if declaration.optimizer is None else f" with {declaration.optimizer}")
