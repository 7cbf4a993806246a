"""Who may look: the token of a request, and whether it is valid, as the servers of the job say.

A token comes as `Authorization: Bearer`, as the password of HTTP Basic, which browsers ask for, or once in the query
`/?token=...`, which begins a session: its cookie has a random id, and not the token.
"""

import base64
import binascii
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from psserver.monitor.http.requests import Request
from pswire.errors import ParamServerError, Unauthenticated, Unavailable
from pswire.security.token_files import is_token

#: Seconds for which the answer about a token holds, and for which a viewer stays while no server answers.
VALID_SECONDS, STAY_SECONDS = 5.0, 600.0

#: Tokens whose answers are known, and sessions of browsers; the oldest is forgotten, of tokens one that was refused.
MAX_KNOWN, MAX_SESSIONS = 256, 256

#: Unknown tokens that the servers are asked about in a second, and at once after a pause.
CHECKS_PER_SECOND, CHECKS_AT_ONCE = 5.0, 20.0

#: Questions about unknown tokens that wait for an answer at the same time.
MAX_OPEN = 8

#: Characters of a token or a session in a request.
_MAX_TOKEN = 200


class TooManyTokens(Exception):
    """Too many unknown tokens at the same time."""


@dataclass(slots=True)
class _Answer:
    """The last answer about a token: `refusal`, None if it was `accepted` at that time."""

    asked: float
    accepted: float
    refusal: ParamServerError | None


class TokenCheck:
    """Checks tokens of viewers by `check`, which raises `Unauthenticated`, or `Unavailable` if no server answers.

    It remembers the answers for some seconds. "" is the token of a viewer who has none. Any thread may call, and
    several call `check`: `_lock` guards the table and the count, and is free while servers are asked.
    """

    def __init__(self, check: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._check, self._clock = check, clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Answer] = OrderedDict()
        self._checks, self._refilled = CHECKS_AT_ONCE, clock()
        self._places = threading.BoundedSemaphore(MAX_OPEN)

    def check(self, token: str) -> None:
        """Raise `Unauthenticated` or `PermissionDenied` if it may not look, `Unavailable` if it cannot be checked now.

        `TooManyTokens`: it is one of many that are not known.
        """
        if token and not is_token(token):
            raise Unauthenticated("no token looks like that")
        digest = sha256(token.encode(errors="replace")).digest()
        refusal = self._remembered(digest, token)
        if refusal is not None:
            raise refusal.with_traceback(None)

    def _remembered(self, digest: bytes, token: str) -> ParamServerError | None:
        """The refusal of a token, None if it is accepted; asks the servers if the last answer holds no longer."""
        with self._lock:
            now = self._clock()
            known = self._known.get(digest)
            if known is not None and now - known.asked < VALID_SECONDS:
                return known.refusal
            if known is not None and now - known.accepted < STAY_SECONDS:
                known.asked = now  # others with this token go on meanwhile
            else:
                self._count(now)
                known = None
        try:
            refusal = self._ask(token)
        finally:
            if known is None:
                self._places.release()
        with self._lock:
            return self._note(digest, now, refusal)

    def _note(self, digest: bytes, asked: float, refusal: ParamServerError | None) -> ParamServerError | None:
        """Remember an answer to a question that was asked at that time, unless there is one to a later question."""
        before = self._known.get(digest)
        accepted = -math.inf if before is None else before.accepted
        if before is not None and before.asked > asked:
            return before.refusal
        if isinstance(refusal, Unavailable) and asked - accepted < STAY_SECONDS:
            refusal = None
        else:
            accepted = asked if refusal is None else -math.inf
        self._known[digest] = _Answer(asked, accepted, refusal)
        self._known.move_to_end(digest)
        if len(self._known) > MAX_KNOWN:
            refused = next((one for one, answer in self._known.items() if answer.refusal is not None), None)
            self._known.popitem(last=False) if refused is None else self._known.pop(refused)
        return refusal

    def _count(self, now: float) -> None:
        """Count a token that is not known, and take a place for its question. Raises `TooManyTokens`."""
        self._checks = min(CHECKS_AT_ONCE, self._checks + CHECKS_PER_SECOND * (now - self._refilled))
        self._refilled = now
        if self._checks < 1 or not self._places.acquire(blocking=False):
            raise TooManyTokens("too many unknown tokens: try again in some seconds")
        self._checks -= 1

    def _ask(self, token: str) -> ParamServerError | None:
        try:
            self._check(token)
        except ParamServerError as error:
            return error
        return None


class Sessions:
    """The tokens of browsers that have shown one, by the random id in their cookie. Any thread may call."""

    def __init__(self, cookie: str) -> None:
        self.cookie = cookie
        self._lock = threading.Lock()  # guards the table
        self._tokens: OrderedDict[str, str] = OrderedDict()

    def begin(self, token: str) -> str:
        """The id of a new session."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._tokens[name] = token
            if len(self._tokens) > MAX_SESSIONS:
                self._tokens.popitem(last=False)
        return name

    def token_of(self, request: Request) -> str:
        """The token that a request has, "" without one."""
        scheme, _, value = request.header("authorization").partition(" ")
        match scheme.lower():
            case "bearer":
                return value.strip()[:_MAX_TOKEN]
            case "basic":
                return _password(value)[:_MAX_TOKEN]
        with self._lock:
            return self._tokens.get(request.cookie(self.cookie), "")


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode(errors="replace").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
