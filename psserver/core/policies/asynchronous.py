"""Asynchronous: every push is applied as it arrives, every wish for values answered at once (Downpour SGD).

Source: J. Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

from psserver.core.policies.policy import Apply, Serve, Verdict, View, Waiting


class Asynchronous:
    """Nobody waits for anybody."""

    def decide(self, waiting: Sequence[Waiting], view: View) -> list[Verdict]:
        """Applies pushes and serves pulls, in order of arrival."""
        verdicts: list[Verdict] = []
        for one in waiting:
            if not one.applied:
                verdicts.append(Apply((one.ticket,)))
            verdicts.append(Serve(one.ticket))
        return verdicts

    def explain(self, one: Waiting, waiting: Sequence[Waiting], view: View) -> str:
        """It is not held."""
        return "async: its turn comes at once"
