"""The checks of a job: facts in, one verdict per check out. Pure; standard library only.

The expected figures are those of examples/softmax_mnist.py with default arguments in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.compose.docker import Container
from tests.compose.logs import Ended, EpochDone, GivenBack, HandedOut, Note

EPOCHS, EXAMPLES = 10, 55_000
COST, COST_TOLERANCE = 0.3924, 0.01
ACCURACY, ACCURACY_TOLERANCE = 0.873, 0.005
#: 128 + SIGKILL, 128 + SIGTERM.
KILLED, TERMINATED = 137, 143


@dataclass(frozen=True)
class Verdict:
    """The result of a check, with its figures."""

    passed: bool
    says: str

    def __str__(self) -> str:
        return f"{'OK' if self.passed else 'FAILED':8}{self.says}"


@dataclass(frozen=True)
class Facts:
    """The observed facts of a job.

    Attributes:
        seconds: from `up` until all containers have ended by themselves; None: not in time.
        notes: events of shard 0.
        accuracies: on the first 3,000 test images, one for each time it was printed.
        killed: the worker whose container was killed.
        cut: the worker that was disconnected for a while.
        steps: its steps before it was connected again.
        containers: their final states, by name.
    """

    seconds: float | None
    notes: Sequence[Note]
    accuracies: Sequence[float]
    killed: str
    cut: str
    steps: int
    containers: Mapping[str, Container]


def check(facts: Facts) -> list[Verdict]:
    return [look(facts) for look in _CHECKS]


def _ended(facts: Facts) -> Verdict:
    if facts.seconds is None:
        return Verdict(False, "the job has not ended by itself")
    return Verdict(True, f"the job ended by itself, {facts.seconds:.0f} s after `up`")


def _epochs(facts: Facts) -> Verdict:
    seen = [(note.epoch, note.examples) for note in facts.notes if isinstance(note, EpochDone)]
    if seen == [(epoch, EXAMPLES) for epoch in range(1, EPOCHS + 1)]:
        return Verdict(True, f"all {EPOCHS} epochs are complete, with {EXAMPLES:,} examples each")
    listed = ", ".join(f"{epoch} ({examples:,})" for epoch, examples in seen) or "none"
    return Verdict(False, f"{EPOCHS} epochs of {EXAMPLES:,} examples must be complete, in order; are: {listed}")


def _cost(facts: Facts) -> Verdict:
    costs = [note.cost for note in facts.notes if isinstance(note, EpochDone) and note.epoch == EPOCHS]
    return _near("cost of the last epoch", costs, COST, COST_TOLERANCE)


def _accuracy(facts: Facts) -> Verdict:
    return _near("accuracy on the first 3,000 test images", facts.accuracies, ACCURACY, ACCURACY_TOLERANCE)


def _near(what: str, values: Sequence[float], wanted: float, tolerance: float) -> Verdict:
    passed = len(values) == 1 and abs(values[0] - wanted) <= tolerance
    says = ", ".join(f"{value:.4f}" for value in values) or "not to be found"
    return Verdict(passed, f"{what}: {says} (once, within {tolerance:g} of {wanted:g})")


def _handed_out_again(facts: Facts) -> Verdict:
    gone = {note.block for note in facts.notes if isinstance(note, GivenBack) and note.worker == facts.killed}
    taken = [
        note
        for note in facts.notes
        if isinstance(note, HandedOut) and note.before == facts.killed and note.worker != facts.killed
    ]
    if not gone:
        return Verdict(False, f"nothing that the killed {facts.killed} had was given back")
    if lost := gone - {note.block for note in taken}:
        return Verdict(False, f"blocks {sorted(lost)} of the killed {facts.killed} went to nobody else")
    listed = ", ".join(f"{note.block} to {note.worker}" for note in taken)
    return Verdict(True, f"what the killed {facts.killed} had was handed out again: block {listed}")


def _took_part_again(facts: Facts) -> Verdict:
    ends = [note.steps for note in facts.notes if isinstance(note, Ended) and note.worker == facts.cut]
    says = f"{facts.cut} was cut off after {facts.steps:,} steps"
    if not ends:
        return Verdict(False, f"{says}, and has not come to its end")
    return Verdict(ends[-1] > facts.steps, f"{says}, and came to its end after {ends[-1]:,}")


def _exit_codes(facts: Facts) -> Verdict:
    return exit_codes(facts.containers, {facts.killed: KILLED})


def exit_codes(containers: Mapping[str, Container], others: Mapping[str, int] | None = None) -> Verdict:
    """Whether all have ended without a restart, with code 0 or the one in `others`."""
    wanted = dict.fromkeys(containers, 0) | dict(others or {})
    ends = {name: _end(container) for name, container in containers.items()}
    passed = bool(ends) and ends == {name: str(code) for name, code in wanted.items()}
    return Verdict(passed, "exit codes: " + (", ".join(f"{name} {end}" for name, end in ends.items()) or "none"))


def exit_codes_at_once(containers: Mapping[str, Container]) -> Verdict:
    """As `exit_codes`, for containers stopped right after their start: a worker may end with 143.

    While Python starts, SIGTERM ends it like any process.
    """
    early = [name for name, one in containers.items() if name.startswith("worker-") and one.exit_code == TERMINATED]
    verdict = exit_codes(containers, dict.fromkeys(early, TERMINATED))
    why = f" ({TERMINATED}: Python was still starting)" * bool(early)
    return Verdict(verdict.passed, verdict.says + why)


def _end(container: Container) -> str:
    if container.running:
        return "(still running)"
    return f"{container.exit_code}" + f" after {container.restarts} restarts" * bool(container.restarts)


_CHECKS: list[Callable[[Facts], Verdict]] = [
    _ended,
    _epochs,
    _cost,
    _accuracy,
    _handed_out_again,
    _took_part_again,
    _exit_codes,
]
