"""The addresses of a job's shards, which are looked up again when one of them cannot be reached.

Shared by the transport of workers and by what asks for a job's status.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pswire.errors import ConfigurationError, ParamServerError, Unavailable
from pswire.network.discovery import check_servers, in_order, is_name, look_up, tls_name
from pswire.network.shard_numbers import ask_for_shards
from pswire.security.credentials import NO_CREDENTIALS, Credentials

logger = logging.getLogger(__name__)

#: Seconds between two looks, at least; before the first log line of a wait; for an answer of the DNS, and of a server;
#: between two log lines of one wait, or of one reason why addresses stay as they are, at most.
LOOK_EVERY, LOG_EVERY, ANSWER, REPEAT_EVERY = 1.0, 5.0, 2.0, 60.0


class ShardAddresses:
    """The addresses of the shards, in their order. Any thread may call.

    Args:
        servers: as `pswire.network.discovery.parse_servers` returns them. Addresses stay as they are; those behind a
            name are found by `find`, and again after `look_again`. Behind a name without an order, each server is
            asked which shard it has.
        credentials: for connections to the servers.
        changed: called after an address that was known has changed, in another thread.

    Attributes:
        name: the name used instead of addresses; "" without one.
        credentials: those given, with the host name of certificates that belongs to the name.
        current: the addresses, as far as they are known: "" for a missing one, () while not even their number is known.

    Raises `ConfigurationError` for invalid servers.
    """

    def __init__(
        self,
        servers: Sequence[str],
        credentials: Credentials = NO_CREDENTIALS,
        changed: Callable[[], object] = bool,
    ) -> None:
        checked = check_servers(servers)
        self.name = checked[0] if is_name(checked[0]) else ""
        self.credentials = replace(credentials, tls_name=credentials.tls_name or tls_name(self.name))
        self.current: tuple[str, ...] = () if self.name else checked
        self._changed = changed
        self._state = threading.Condition()
        self._looking = self._closed = False
        self._next_look = 0.0
        self._doubted: set[int] = set()
        self._error: ParamServerError | None = None
        self._logged: tuple[object, float] | None = None  # why addresses stay, and when that was logged last

    @property
    def complete(self) -> bool:
        """True if the addresses of all shards are known."""
        return bool(self.current) and all(self.current)

    @property
    def problem(self) -> str:
        """Why not all addresses are known, or why the last look has found nothing new."""
        return str(self._error or f"no answer yet for {self.name}")

    def find(self, timeout: float) -> tuple[str, ...]:
        """The addresses of all shards, as soon as they are known.

        Raises `Unavailable` if they are not within `timeout` seconds, and at once what waiting does not mend:
        `ConfigurationError`, `WrongShard`, `Unauthenticated`, and the like. Logs every few seconds whom it waits for.
        """
        began, next_line = time.monotonic(), LOG_EVERY
        while not self.complete:
            self.look(min(LOG_EVERY, began + timeout - time.monotonic()))
            waited = time.monotonic() - began
            if self.complete:
                break
            if self._error is not None and not self._error.retry:
                raise self._error
            if waited >= timeout:
                raise Unavailable(f"gave up after {waited:.1f} s: {self.problem}")
            if waited >= next_line:
                logger.warning("waits for the servers, for %.0f s: %s", waited, self.problem)
                next_line = waited + min(waited, REPEAT_EVERY)
            time.sleep(max(0.0, min(self._next_look, began + timeout) - time.monotonic()))
        return self.current

    def look(self, timeout: float) -> tuple[str, ...]:
        """The addresses that are known after one look, if some are missing, or after `timeout` seconds."""
        if not self.complete:
            self.look_again()
            with self._state:
                self._state.wait_for(lambda: not self._looking, max(0.0, timeout))
        return self.current

    def look_again(self, shard: int | None = None) -> None:
        """Begin a look, unless one is under way or was a moment ago; returns at once.

        A `shard` that cannot be reached at its address is looked for elsewhere, until it is found.
        """
        if not self.name:
            return
        with self._state:
            now = time.monotonic()
            if shard is not None:
                self._doubted.add(shard)
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
            found, error = self._found()
        except ParamServerError as caught:
            error = caught
        with self._state:
            if before and all(before):
                self._log_problem(error)
            self._error, self.current, self._looking = error, found, False
            self._state.notify_all()
            if not before or found == before or self._closed:
                return
        logger.info("%s: the servers are at %s now", self.name, ", ".join(found))
        self._changed()

    def _log_problem(self, error: ParamServerError | None) -> None:
        """Log why known addresses stay as they are: when it is another error or of other shards, and each minute."""
        if error is None:
            self._logged = None
            return
        reason, now = (type(error), frozenset(self._doubted)), time.monotonic()
        if self._logged is None or self._logged[0] != reason or now - self._logged[1] >= REPEAT_EVERY:
            logger.warning("the servers' addresses stay as they are: %s", error)
            self._logged = reason, now

    def _found(self) -> tuple[tuple[str, ...], ParamServerError | None]:
        """The addresses, in order, and why some are missing."""
        addresses = look_up(self.name, ANSWER)
        if in_order(self.name):
            self._check_number(len(addresses), addresses)
            return addresses, None
        trusted = {one: shard for shard, one in enumerate(self.current) if one and shard not in self._doubted}
        asked = ask_for_shards([one for one in addresses if one not in trusted], self.credentials, ANSWER)
        shards = asked.shards or len(self.current)
        if not shards:
            raise Unavailable(f"none of the servers at {self.name} answers: {asked.silent()}")
        self._check_number(shards, tuple(asked.addresses.values()))
        found = list(self.current) or [""] * shards
        for shard, address in asked.addresses.items():
            if shard in trusted.values():
                self._doubted.add(shard)  # two have it: the next look asks both
            else:
                found[shard] = address
                self._doubted.discard(shard)
        missing = {shard for shard in range(shards) if not found[shard]} | self._doubted
        return tuple(found), self._missing(missing, shards, asked.silent()) if missing else None

    def _missing(self, missing: set[int], shards: int, silent: str) -> Unavailable:
        there = _listed(set(range(shards)) - missing)
        return Unavailable(
            f"found {there} of {shards} at {self.name}, waits for {_listed(missing)}: start its server, or see whether "
            f"its address is behind this name{'; ' * bool(silent)}{silent}"
        )

    def _check_number(self, shards: int, addresses: Sequence[str]) -> None:
        """Raise `ConfigurationError` for another number of shards than before."""
        if self.current and shards != len(self.current):
            raise ConfigurationError(
                f"{self.name} has {shards} shards now ({', '.join(addresses)}), and the job has {len(self.current)}"
            )


def _listed(shards: set[int]) -> str:
    return f"shard{'s' * (len(shards) != 1)} {', '.join(map(str, sorted(shards))) or 'none'}"
