"""Which events in the reports of a shard are new, for those who ask for its status again and again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy is not loaded for a list of runs
    from pswire.messages import EventReport


class NewEvents:
    """Finds the events of each shard that were in no report before. Not thread-safe.

    A shard numbers the events of its process from 1, so when it is started again its numbers begin anew: its report
    then has lower numbers, or another event under a number that was seen.
    """

    def __init__(self) -> None:
        self._last: dict[int, EventReport] = {}  # of each shard

    def of(self, shard: int, events: Sequence[EventReport]) -> Sequence[EventReport]:
        """Those of the `events` in the newest report of a shard that are new."""
        if not events:
            return ()
        last = self._last.get(shard)
        self._last[shard] = events[-1]
        if last is None:
            return events
        same_process = events[-1].number >= last.number and all(
            one.time == last.time and one.text == last.text for one in events if one.number == last.number
        )
        return [one for one in events if one.number > last.number] if same_process else events
