"""The addresses of a job's shards, which are looked up again when one of them cannot be reached.

Shared by the transport of workers and by what asks for a job's status. Makes no connections to shards for others.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from pswire.discovery import check_servers, is_name, look_up
from pswire.errors import ConfigurationError, ParamServerError, Unavailable

logger = logging.getLogger(__name__)

#: Seconds between two looks, at least; and between two log lines of a wait.
LOOK_EVERY, LOG_EVERY = 1.0, 5.0


class ShardAddresses:
    """The addresses of the shards, in their order. Any thread may call.

    Args:
        servers: as `pswire.discovery.parse_servers` returns them. Addresses stay as they are; those behind a name are
            found by `find`, and again after `look_again`.
        changed: called after an address that was known has changed, in another thread.

    Attributes:
        name: the name in place of addresses; "" without one.
        current: the addresses, as far as they are known: "" for a missing one, () while not even their number is known.

    Raises `ConfigurationError` for invalid servers.
    """

    def __init__(self, servers: Sequence[str], changed: Callable[[], object] = bool) -> None:
        checked = check_servers(servers)
        self.name = checked[0] if is_name(checked[0]) else ""
        self.current: tuple[str, ...] = () if self.name else checked
        self._changed = changed
        self._state = threading.Condition()
        self._looking = self._closed = False
        self._next_look = 0.0
        self._error: ParamServerError | None = None

    def find(self, timeout: float) -> tuple[str, ...]:
        """The addresses of all shards, as soon as they are known.

        Raises `Unavailable` if they are not within `timeout` seconds, and `ConfigurationError` at once for what waiting
        does not mend. Logs every few seconds whom it waits for.
        """
        began = time.monotonic()
        logged = 0.0
        while not self.current:
            self.look_again()
            with self._state:
                self._state.wait_for(lambda: not self._looking, min(LOG_EVERY, began + timeout - time.monotonic()))
                error = self._error
            waited = time.monotonic() - began
            if isinstance(error, ConfigurationError):
                raise error
            if self.current:
                break
            problem = str(error or f"no answer yet for {self.name}")
            if waited >= timeout:
                raise Unavailable(f"gave up after {waited:.1f} s: {problem}")
            if waited - logged >= LOG_EVERY:
                logger.warning("waits for the servers, for %.0f s: %s", waited, problem)
                logged = waited
            time.sleep(max(0.0, min(self._next_look, began + timeout) - time.monotonic()))
        return self.current

    def look_again(self) -> None:
        """Begin a look for the addresses, unless one is under way or was a moment ago; returns at once."""
        if not self.name:
            return
        with self._state:
            now = time.monotonic()
            if self._looking or self._closed or now < self._next_look:
                return
            self._looking, self._next_look = True, now + LOOK_EVERY
        threading.Thread(target=self._look, name="ps-discovery", daemon=True).start()

    def close(self) -> None:
        """No more looks."""
        with self._state:
            self._closed = True

    def _look(self) -> None:
        error: ParamServerError | None = None
        found = before = self.current
        try:
            found = self._complete(look_up(self.name))
        except ParamServerError as caught:
            error = caught
        with self._state:
            if error is not None and before and str(error) != str(self._error):
                logger.warning("the servers' addresses stay as they are: %s", error)
            self._error, self.current, self._looking = error, found, False
            changed = before and found != before and not self._closed
            self._state.notify_all()
        if changed:
            logger.info("%s: the servers are at %s now", self.name, ", ".join(found))
            self._changed()

    def _complete(self, found: tuple[str, ...]) -> tuple[str, ...]:
        if self.current and len(found) != len(self.current):
            raise ConfigurationError(
                f"{self.name} has {len(found)} addresses now ({', '.join(found)}), and the job has "
                f"{len(self.current)} shards"
            )
        return found
