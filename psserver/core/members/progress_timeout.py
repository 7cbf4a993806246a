"""The bound on waiting without progress: how long members have held others up, by the times of a shard's ticks.

Only `Shard.due` asks it, so the shard itself decides nothing by time.
"""

from collections.abc import Mapping


class ProgressTimeout:
    """Members are stalled when others have waited `seconds` for the same step or push of theirs; None: never.

    A lease does not bound that wait, since a heartbeat renews it. The time of a step is that of all its members: two
    that take turns in coming back would otherwise stop the others for ever.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._since: dict[tuple[str, int], float] = {}

    def stalled(self, awaited: Mapping[str, tuple[str, int]], now: float) -> tuple[str, ...]:
        """Those of the `awaited` workers that are stalled; each has what is waited for, as a key."""
        if self.seconds is None or not (awaited or self._since):
            return ()
        self._since = {key: self._since.get(key, now) for key in awaited.values()}
        return tuple([worker for worker, key in awaited.items() if now - self._since[key] >= self.seconds])
