"""Access control: which role may call which method, and the caller of each call, by its token.

A call is checked before its request is read, and ends when its token is removed. Without a token file, whoever reaches
the server has all roles. Health checks, and reflection, need no role. The role of a call is an option of its method in
the `.proto` (`pswire.messages.CALLS`).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from pswire.errors import ConfigurationError, PermissionDenied, Unauthenticated
from pswire.messages import CALLS
from pswire.security.private_files import stamp
from pswire.security.token_files import Role, TokenEntry, read_tokens

log = logging.getLogger(__name__)

#: Seconds between two looks whether the token file has changed.
RECHECK = 1.0

#: Roles in the order of what they may do: each may do what those before it may.
_RANKS = [Role.OBSERVER, Role.WORKER, Role.ADMIN]

#: The roles that may call a method (`CALLS`); what a Transfer carries are calls of workers. What belongs
#: to a member of the job needs membership as well.
ROLES: dict[str, frozenset[Role]] = {
    call.name: frozenset(_RANKS[_RANKS.index(Role(call.role)) :]) for call in CALLS
} | {"Transfer": frozenset({Role.WORKER, Role.ADMIN})}
_ADMINS = frozenset({Role.ADMIN})


_UNKNOWN = (
    "unknown token: it is of another job, or was removed; whoever runs the server makes one with psserver token add"
)


@dataclass(slots=True)
class Caller:
    """A caller: the name of the token, for logs, and its role; no longer `valid` when the token was removed.

    All calls with one header value share one object, so its end reaches all of them.
    """

    name: str
    role: Role
    valid: bool = True
    _calls: set[asyncio.Task[Any]] = field(default_factory=set, repr=False)

    @property
    def is_admin(self) -> bool:
        """True if it may make the calls of members."""
        return self.role is Role.ADMIN

    @contextmanager
    def while_valid(self) -> Iterator[None]:
        """A call of the current task: raises `Unauthenticated` when the token is removed, whatever the block waits for.

        To the block that is as the cancellation of a call by its caller.
        """
        task = asyncio.current_task()
        assert task is not None, "gRPC runs each call in a task of its own"
        self._calls.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self.valid:
                raise
            task.uncancel()
            raise Unauthenticated(_UNKNOWN) from None
        finally:
            self._calls.discard(task)

    def end(self) -> None:
        """End all its calls: the token was removed, or has another role now."""
        self.valid = False
        for task in self._calls:
            task.cancel()

    def check(self, method: str) -> None:
        """Raise `PermissionDenied` if the role may not call `method`."""
        allowed = ROLES.get(method, _ADMINS)
        if self.role not in allowed:
            needed = " or ".join(role for role in Role if role in allowed)
            raise PermissionDenied(
                f"the token {self.name!r} has the role {self.role}, and {method} needs {needed}: use another token "
                f"(psserver token add FILE NAME --role {needed.split()[0]})"
            )


#: The caller where there is no token file.
ANYONE = Caller("", Role.ADMIN)

#: The caller of the call that this task serves.
caller: ContextVar[Caller] = ContextVar("caller", default=ANYONE)


class Access:
    """Finds callers by the token file at `path`, which is read again when it changes. Used in the event loop alone.

    A changed file that cannot be used is logged, and the previous tokens stay valid. Raises `ConfigurationError` if it
    cannot be used at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = stamp(path)
        self._tokens = read_tokens(path)
        self._known: dict[str, Caller] = {}  # by value of the header: of valid tokens only, so it has a bound
        self._next_look = time.monotonic() + RECHECK

    def caller(self, metadata: Iterable[tuple[str, Any]]) -> Caller:
        """The caller whose call has this metadata. Raises `Unauthenticated`."""
        self.look()
        for key, value in metadata:
            if key == "authorization":
                return self._known.get(value) or self._find(value)
        raise Unauthenticated(
            "this server requires a token: name a file that has one (--token-file, PSWORKER_TOKEN_FILE of workers, "
            "PSSERVER_CLIENT_TOKEN_FILE of commands); whoever runs the server makes one with psserver token add"
        )

    async def serve(
        self,
        method: str,
        serve: Callable[[Any, grpc.aio.ServicerContext], Awaitable[None]],
        frames: Any,  # noqa: ANN401 - gRPC's iterator of a stream
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Serve a call of a method by a caller of the right role, as long as its token is valid.

        Raises:
            Unauthenticated: there is no valid token, before the request is read; or it was removed.
            PermissionDenied: the role may not call the method.
        """
        found = self.caller(context.invocation_metadata() or ())
        found.check(method)
        caller.set(found)
        with found.while_valid():
            await serve(frames, context)

    def look(self) -> None:
        """Read the file again if it has changed, `RECHECK` seconds after the last look; at each call and each tick."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + RECHECK
        now = stamp(self._path)
        if now == self._stamp:
            return
        self._stamp = now
        try:
            self._tokens = read_tokens(self._path)
        except ConfigurationError as error:
            log.warning("%s; the previous tokens stay valid", error)
        else:
            for value, known in list(self._known.items()):
                entry = self._entry(value)
                if entry is None or entry.role is not known.role:
                    known.end()
                    del self._known[value]
                else:
                    known.name = entry.name
            log.info("read %s again: %d tokens", self._path, len(self._tokens.tokens))

    def _find(self, value: str) -> Caller:
        entry = self._entry(value)
        if entry is None:
            raise Unauthenticated(_UNKNOWN)
        return self._known.setdefault(value, Caller(entry.name, entry.role))

    def _entry(self, value: str) -> TokenEntry | None:
        """The entry of the token in a header, None if the file has none."""
        scheme, _, token = value.partition(" ")
        return self._tokens.find(token) if scheme.lower() == "bearer" else None
