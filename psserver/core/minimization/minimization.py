"""One minimization on a shard: its coordinator, its present evaluation, and its result."""

from collections.abc import Container
from dataclasses import dataclass, field

from psserver.core.minimization.portions import Portions
from psserver.core.policies.policy import join_names
from psserver.core.state import MinimizationState
from pswire.errors import InvalidMessage, OutOfOrder
from pswire.messages import AcceptedPoint, Evaluation, MinimizationStatus, Sender


@dataclass(slots=True)
class Minimization:
    """A minimization: its present evaluation, and which portions of that are counted here.

    `portions` and `note` are those of shard 0. `backups` and `backups_won` are of earlier evaluations. `end` is the
    result, `point` the last accepted point. `coordinator` is the sender with the highest `term`.
    """

    name: str
    evaluation: Evaluation | None = None
    counted: set[int] = field(default_factory=set)
    portions: Portions | None = None
    backups: int = 0
    backups_won: int = 0
    end: str = ""
    point: AcceptedPoint | None = None
    coordinator: Sender | None = None
    term: int = 0
    note: str = ""

    @property
    def number(self) -> int:
        """The number of the present evaluation; 0: none has begun."""
        return 0 if self.evaluation is None else self.evaluation.number

    @property
    def complete(self) -> bool:
        """Whether all portions of the present evaluation are counted here."""
        return self.evaluation is not None and len(self.counted) == self.evaluation.portions

    def check_coordinator(self, sender: Sender, term: int) -> None:
        """Raise `OutOfOrder` if another worker has that term, or a higher one."""
        known = self.coordinator
        if known is not None and (term, sender) != (self.term, known) and term <= self.term:
            raise OutOfOrder(
                f"worker {sender.worker!r} coordinates {self.name!r} in term {term}, but worker {known.worker!r} does "
                f"so in term {self.term}"
            )

    def check_evaluation(self, evaluation: Evaluation) -> None:
        """Raise `InvalidMessage` for one before the present one, or another one of its number."""
        if self.end or self.evaluation is None:
            return
        if evaluation.number < self.number:
            raise InvalidMessage(f"evaluation {evaluation.number} of {self.name!r}, which is at {self.number} here")
        if evaluation.number == self.number and evaluation != self.evaluation:
            raise InvalidMessage(
                f"evaluation {evaluation.number} of {self.name!r} has {_sizes(self.evaluation)} here, and this worker "
                f"has {_sizes(evaluation)}"
            )

    def begin(self, evaluation: Evaluation, workers: Container[str] | None) -> None:
        """Begin an evaluation; its portions are for these live workers, None: they are not handed out here."""
        before, had = self.portions, {}
        if before is not None:
            self._keep_backups(before)
            same = (evaluation.examples, evaluation.portion) == (before.evaluation.examples, before.evaluation.portion)
            had = before.had if same else {}
        self.evaluation, self.counted = evaluation, set()
        self.portions = None if workers is None else Portions(evaluation, had, workers)

    def finish(self, end: str) -> None:
        """Keep the result alone."""
        if self.portions is not None:
            self._keep_backups(self.portions)
        self.end, self.portions, self.counted = end, None, set()

    def _keep_backups(self, portions: Portions) -> None:
        self.backups += portions.backups
        self.backups_won += portions.backups_won

    def missing(self) -> str:
        """What the present evaluation waits for, and which workers have it: text for people."""
        if self.portions is not None:
            return join_names(self.portions.missing())
        every = 0 if self.evaluation is None else self.evaluation.portions
        return f"the gradients of {every - len(self.counted):,} of {every:,} portions"

    def status(self) -> MinimizationStatus:
        """How far it is."""
        portions, backups, won = self.portions, self.backups, self.backups_won
        out, claimed = (0, 0) if portions is None else (portions.out, portions.claimed)
        if portions is not None:
            backups, won = backups + portions.backups, won + portions.backups_won
        every = 0 if self.evaluation is None else self.evaluation.portions
        return MinimizationStatus(
            self.name, self.number, every, len(self.counted), out, claimed, backups, won, self.end, self.point
        )

    def state(self) -> MinimizationState:
        """All of it."""
        status, portions = self.status(), None if self.portions is None else self.portions.state()
        counted = tuple(sorted(self.counted))
        fields = status.backups, status.backups_won, self.end, self.point, self.coordinator, self.term, self.note
        return MinimizationState(self.name, self.evaluation, counted, portions, *fields)

    @classmethod
    def restored(cls, state: MinimizationState) -> "Minimization":
        """One that continues from a `state`."""
        portions = None
        if state.portions is not None and state.evaluation is not None:
            portions = Portions.restored(state.evaluation, state.portions, state.counted)
        fields = state.backups, state.backups_won, state.end, state.point, state.coordinator, state.term, state.note
        return cls(state.name, state.evaluation, set(state.counted), portions, *fields)


def _sizes(evaluation: Evaluation) -> str:
    return f"{evaluation.examples:,} examples in portions of {evaluation.portion:,}"
