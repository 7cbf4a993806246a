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


class Verdict(NamedTuple):
    """The result of a check, with its figures."""

    passed: bool
    says: str

    def __str__(self) -> str:
        return f"{'OK' if self.passed else 'FAILED':8}{self.says}"


def check(
    seconds: float | None, notes: Notes, killed: str, cut: str, steps: int, containers: Mapping[str, Container]
) -> list[Verdict]:
    """The checks of a job.

    Args:
        seconds: from `up` until all containers have ended by themselves; None: not in time.
        notes: as by `logs.notes`.
        killed: the worker whose container was killed.
        cut, steps: the worker that was disconnected for a while; its steps before it was connected again.
        containers: their final states, by name.
    """
    epochs = [(epoch, examples) for epoch, _, examples in notes["epochs"]]
    costs = [cost for epoch, cost, _ in notes["epochs"] if epoch == EPOCHS]
    gone = {block for block, worker in notes["given back"] if worker == killed}
    again = {block: worker for block, worker, before in notes["handed out"] if before == killed != worker}
    ends = [steps for worker, steps in notes["finished"] if worker == cut]
    time = "not in time" if seconds is None else f"{seconds:.0f} s after `up`"
    return [
        Verdict(seconds is not None, f"the job ended by itself: {time}"),
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
            bool(ends) and ends[-1] > steps,
            f"{cut}, disconnected after {steps:,} steps, finished after: {ends or 'not finished'}",
        ),
        exit_codes(containers, killed),
    ]


def _near(what: str, values: Sequence[float], expected: float, tolerance: float) -> Verdict:
    passed = len(values) == 1 and abs(values[0] - expected) <= tolerance
    found = ", ".join(f"{value:.4f}" for value in values) or "none"
    return Verdict(passed, f"{what}: {found} (once, within {tolerance:g} of {expected:g})")


def exit_codes(containers: Mapping[str, Container], killed: str = "", *, at_once: bool = False) -> Verdict:
    """Whether all have ended without a restart, with code 0, or 137 for the killed one.

    A worker that is stopped `at_once` after its start may end with 143: SIGTERM ends Python while it starts.
    """
    ends = {name: container.end for name, container in containers.items()}
    wrong = [name for name, end in ends.items() if end != ("137" if name == killed else "0")]
    early = [name for name in wrong if at_once and name.startswith("worker-") and ends[name] == "143"]
    listed = ", ".join(f"{name} {end}" for name, end in ends.items()) or "none"
    why = " (143: Python was still starting)" * bool(early)
    return Verdict(bool(ends) and wrong == early, f"exit codes: {listed}{why}")
