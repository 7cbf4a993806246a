"""What staleness does to a push when its turn comes, whatever policy says when that is: it wraps a policy.

Only up to the first update that the inner policy makes: after it, the staleness of the others is another. Delay
compensation is not here, as it changes gradients and not what happens to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from psserver.core.policies.policy import Apply, Drop, Policy, Verdict, View, Waiting


class DropStale:
    """A push with more staleness than `above` is dropped when `inner` would apply it.

    Not before: a worker that is held because it is ahead would get further ahead by it.
    """

    def __init__(self, inner: Policy, above: int) -> None:
        self.inner, self.above = inner, above

    def decide(self, waiting: Sequence[Waiting], view: View) -> list[Verdict]:
        """As `inner` does, up to its first update; without it when some of its pushes are too stale."""
        verdicts, pushes = _up_to_first_update(self.inner.decide(waiting, view), waiting)
        drops = [Drop(one.ticket, self._reason(one)) for one in pushes if one.staleness > self.above]
        return [*verdicts[:-1], *drops] if drops else verdicts

    def explain(self, one: Waiting, waiting: Sequence[Waiting], view: View) -> str:
        """As `inner` does."""
        return self.inner.explain(one, waiting, view)

    def _reason(self, one: Waiting) -> str:
        return f"drop:{self.above}: staleness {one.staleness}; compute the next with the fresh weights"


class ScaleStale:
    """The learning rate of an update is divided by its staleness, the greatest of its pushes, if that is more than 1.

    Source: W. Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016.
    """

    def __init__(self, inner: Policy) -> None:
        self.inner = inner

    def decide(self, waiting: Sequence[Waiting], view: View) -> list[Verdict]:
        """As `inner` does, up to its first update, which is scaled."""
        verdicts, pushes = _up_to_first_update(self.inner.decide(waiting, view), waiting)
        staleness = max([one.staleness for one in pushes], default=0)
        if staleness > 1:
            update = verdicts[-1]
            assert isinstance(update, Apply)
            verdicts[-1] = dataclasses.replace(update, scale=update.scale / staleness)
        return verdicts

    def explain(self, one: Waiting, waiting: Sequence[Waiting], view: View) -> str:
        """As `inner` does."""
        return self.inner.explain(one, waiting, view)


def _up_to_first_update(verdicts: Sequence[Verdict], waiting: Sequence[Waiting]) -> tuple[list[Verdict], list[Waiting]]:
    """The verdicts before the first update and this one, which comes last, and its pushes: none, if there is none."""
    for count, verdict in enumerate(verdicts, 1):
        if isinstance(verdict, Apply):
            return list(verdicts[:count]), [one for one in waiting if one.ticket in verdict.tickets]
    return list(verdicts), []
