"""The default strategy: a push every step. May import the contract."""

from __future__ import annotations

from psworker.sessions.strategies.strategy import Step, Strategy


class EveryStep(Strategy):
    """Pushes each step; the answer brings fresh weights before the next step begins."""

    def step(self, step: Step) -> None:
        """One push and its answer."""
        replica = self.replica
        replica.declare(step.optimizer, step.names)
        if step.updates:
            step.declare(replica)
        replica.push(step.entries, step.loss, replica.names, self.prepare)

    def flush(self) -> None:
        """Does nothing: no step is kept."""
