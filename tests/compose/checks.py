"""The checks of a job: facts in, one verdict per check out. Pure; standard library only.

The expected figures are those of examples/softmax_mnist.py with default arguments in one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.compose.docker import Container
from tests.compose.logs import Notes

EPOCHS, EXAMPLES = 10, 55_000
#: Value and tolerance.
COST, ACCURACY = (0.3924, 0.01), (0.873, 0.005)
#: 128 + SIGKILL, 128 + SIGTERM.
KILLED, TERMINATED = 137, 143


class Verdict(NamedTuple):
    """The result of a check, with its figures."""

    passed: bool
    says: str

    def __str__(self) -> str:
        return f"{'OK' if self.passed else 'FAILED':8}{self.says}"


class Facts(NamedTuple):
    """The observed facts of a job.

    Attributes:
        seconds: from `up` until all containers have ended by themselves; None: not in time.
        notes: as by `logs.notes`.
        killed: the worker whose container was killed.
        cut: the worker that was disconnected for a while.
        steps: its steps before it was connected again.
        containers: their final states, by name.
    """

    seconds: float | None
    notes: Notes
    killed: str
    cut: str
    steps: int
    containers: Mapping[str, Container]


def check(facts: Facts) -> list[Verdict]:
    notes, killed, cut = facts.notes, facts.killed, facts.cut
    epochs = [(epoch, examples) for epoch, _, examples in notes["epochs"]]
    costs = [cost for epoch, cost, _ in notes["epochs"] if epoch == EPOCHS]
    gone = {block for block, worker in notes["given back"] if worker == killed}
    again = {block: worker for block, worker, before in notes["handed out"] if before == killed != worker}
    ends = [steps for worker, steps in notes["finished"] if worker == cut]
    time = "not in time" if facts.seconds is None else f"{facts.seconds:.0f} s after `up`"
    return [
        Verdict(facts.seconds is not None, f"the job ended by itself: {time}"),
        Verdict(
            epochs == [(epoch, EXAMPLES) for epoch in range(1, EPOCHS + 1)],
            f"{EPOCHS} epochs of {EXAMPLES:,} examples are complete, in order: "
            + (", ".join(f"{epoch} ({examples:,})" for epoch, examples in epochs) or "none"),
        ),
        _near("cost of the last epoch", costs, *COST),
        _near("accuracy on the first 3,000 test images", [value for (value,) in notes["accuracy"]], *ACCURACY),
        Verdict(
            bool(gone) and gone <= again.keys(),
            f"blocks {sorted(gone)} of the killed {killed} were handed out again: "
            + (", ".join(f"{block} to {worker}" for block, worker in again.items()) or "none"),
        ),
        Verdict(
            bool(ends) and ends[-1] > facts.steps,
            f"{cut}, disconnected after {facts.steps:,} steps, finished after: {ends or 'not finished'}",
        ),
        exit_codes(facts.containers, {killed: KILLED}),
    ]


def _near(what: str, values: Sequence[float], expected: float, tolerance: float) -> Verdict:
    passed = len(values) == 1 and abs(values[0] - expected) <= tolerance
    found = ", ".join(f"{value:.4f}" for value in values) or "none"
    return Verdict(passed, f"{what}: {found} (once, within {tolerance:g} of {expected:g})")


def exit_codes(containers: Mapping[str, Container], others: Mapping[str, int] | None = None) -> Verdict:
    """Whether all have ended without a restart, with code 0 or the one in `others`."""
    expected = {name: str((others or {}).get(name, 0)) for name in containers}
    ends = {name: container.end for name, container in containers.items()}
    listed = ", ".join(f"{name} {end}" for name, end in ends.items()) or "none"
    return Verdict(bool(ends) and ends == expected, f"exit codes: {listed}")


def exit_codes_at_once(containers: Mapping[str, Container]) -> Verdict:
    """As `exit_codes`, for containers stopped right after their start: a worker may end with 143.

    While Python starts, SIGTERM ends it like any process.
    """
    early = [name for name, one in containers.items() if name.startswith("worker-") and one.exit_code == TERMINATED]
    verdict = exit_codes(containers, dict.fromkeys(early, TERMINATED))
    return verdict._replace(says=verdict.says + f" ({TERMINATED}: Python was still starting)" * bool(early))
