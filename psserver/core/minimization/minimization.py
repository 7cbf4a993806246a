"""One minimization on a shard: its coordinator, its present evaluation, and its result."""

from collections.abc import Container
from dataclasses import dataclass, field, fields

from psserver.core.minimization.portions import Portions
from psserver.core.policies.policy import join_names
from pswire.errors import InvalidMessage, OutOfOrder
from pswire.messages import AcceptedPoint, Evaluation, MinimizationState, MinimizationStatus, Sender

#: Bytes that a minimization takes, with its name; and each portion of its present evaluation, by worker and state.
MINIMIZATION_BYTES, PORTION_BYTES = 4 << 10, 400


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
    def nbytes(self) -> int:
        """The most bytes that it takes."""
        return nbytes(self.evaluation, self.end, self.note)

    @property
    def _size(self) -> int:
        """The number of portions of the present evaluation."""
        return 0 if self.evaluation is None else self.evaluation.portions

    @property
    def complete(self) -> bool:
        """Whether all portions of the present evaluation are counted here."""
        return self.evaluation is not None and len(self.counted) == self._size

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
        self._keep_backups()
        if before is not None:
            same = (evaluation.examples, evaluation.portion) == (before.evaluation.examples, before.evaluation.portion)
            had = before.had if same else {}
        self.evaluation, self.counted = evaluation, set()
        self.portions = None if workers is None else Portions(evaluation, had, workers)

    def finish(self, end: str) -> None:
        """Keep the result alone."""
        self._keep_backups()
        self.end, self.portions, self.counted = end, None, set()

    @property
    def _backups_in_all(self) -> tuple[int, int]:
        portions = self.portions
        present = (0, 0) if portions is None else (portions.backups, portions.backups_won)
        return self.backups + present[0], self.backups_won + present[1]

    def _keep_backups(self) -> None:
        self.backups, self.backups_won = self._backups_in_all

    def give_up(self) -> None:
        """Drop the present evaluation: no worker is left that could go on with it."""
        self._keep_backups()
        self.evaluation, self.portions, self.counted = None, None, set()

    def missing(self) -> str:
        """What the present evaluation waits for, and which workers have it: text for people."""
        if self.portions is not None:
            return join_names(self.portions.missing())
        return f"the gradients of {self._size - len(self.counted):,} of {self._size:,} portions"

    def status(self) -> MinimizationStatus:
        """How far it is."""
        portions, (backups, won) = self.portions, self._backups_in_all
        return MinimizationStatus(
            name=self.name,
            evaluation=self.number,
            portions=self._size,
            counted=len(self.counted),
            out=0 if portions is None else portions.out,
            claimed=0 if portions is None else portions.claimed,
            backups=backups,
            backups_won=won,
            end=self.end,
            point=self.point,
        )

    def state(self) -> MinimizationState:
        """All of it."""
        backups, won = self._backups_in_all
        return MinimizationState(
            **{name: getattr(self, name) for name in _COMMON},
            counted=tuple(sorted(self.counted)),
            portions=None if self.portions is None else self.portions.state(),
            backups=backups,
            backups_won=won,
        )

    @classmethod
    def restored(cls, state: MinimizationState) -> "Minimization":
        """One that continues from a `state`."""
        portions = None
        if state.portions is not None and state.evaluation is not None:
            portions = Portions.restored(state.evaluation, state.portions, state.counted)
        kept = {name: getattr(state, name) for name in (*_COMMON, "backups", "backups_won")}
        return cls(**kept, counted=set(state.counted), portions=portions)


def nbytes(evaluation: Evaluation | None, end: str, note: str) -> int:
    """The most bytes of a minimization with this evaluation, or with this result in its place, and this note."""
    portions = 0 if evaluation is None or end else evaluation.portions
    return MINIMIZATION_BYTES + PORTION_BYTES * portions + 4 * (len(end) + len(note))


#: The fields that a minimization and its state have in common.
_OTHERS = ("counted", "portions", "backups", "backups_won")
_COMMON = tuple([one.name for one in fields(MinimizationState) if one.name not in _OTHERS])


def _sizes(evaluation: Evaluation) -> str:
    return f"{evaluation.examples:,} examples in portions of {evaluation.portion:,}"
