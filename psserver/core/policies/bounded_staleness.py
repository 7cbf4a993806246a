"""Bounded staleness: who is too far ahead of the slowest waits for it (stale synchronous parallel).

Source: Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from __future__ import annotations

from collections.abc import Sequence

from psserver.core.policies.policy import Apply, Serve, Verdict, View, Waiting, listed


class BoundedStaleness:
    """No push takes its worker's clock more than `steps` beyond the least clock in the race; pulls wait for nobody."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def decide(self, waiting: Sequence[Waiting], view: View) -> list[Verdict]:
        """Applies every push that may go, one update each, in order of arrival.

        It is the largest set of pushes after which the bound holds. Pushes that go together raise the least clock when
        all of the slowest are among them, and then by one, whoever else goes: so with 0 steps each round of the race
        goes as a whole, and nobody waits for one who waits.
        """
        members = view.members
        slowest = self._slowest(waiting, view)
        floor = members.least_clock + (0 if slowest else 1)
        verdicts: list[Verdict] = []
        for one in waiting:
            if one.applied:
                verdicts.append(Serve(one.ticket))
            elif self._clock(one, view) + 1 <= floor + self.steps:
                verdicts.append(Apply((one.ticket,)))
        return verdicts

    def explain(self, one: Waiting, waiting: Sequence[Waiting], view: View) -> str:
        """Names the slowest, who have no push here."""
        slowest, least = self._slowest(waiting, view), view.members.least_clock
        behind = self._clock(one, view) - least
        how_far = f", {behind} behind" if behind else ", which is not done"
        return (
            f"bounded:{self.steps}: {listed(slowest)} {'is' if len(slowest) == 1 else 'are'} at step {least}{how_far}"
        )

    def _slowest(self, waiting: Sequence[Waiting], view: View) -> list[str]:
        """Those with the least clock who have no push here: none, when the least clock is about to rise."""
        least = view.members.least_clock
        pushed = {one.worker for one in waiting if not one.applied}
        return [name for name, racer in view.members.racers.items() if racer.clock == least and name not in pushed]

    def _clock(self, one: Waiting, view: View) -> int:
        member = view.members.get(one.worker)
        assert member is not None, "only members wait"
        return member.clock
