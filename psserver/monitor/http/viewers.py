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
from hashlib import sha256

from psserver.monitor.http.requests import Request
from pswire.errors import ParamServerError, Unauthenticated, Unavailable
from pswire.security.token_files import is_token

#: Seconds for which the answer about a token holds, and for which a viewer stays while no server answers.
VALID_SECONDS, STAY_SECONDS = 5.0, 600.0

#: Tokens whose answers are known, and sessions of browsers; the oldest is forgotten.
MAX_KNOWN, MAX_SESSIONS = 256, 256

#: Unknown tokens that the servers are asked about in a second, and at once after a pause.
CHECKS_PER_SECOND, CHECKS_AT_ONCE = 5.0, 20.0

#: Characters of a token or a session in a request.
_MAX_TOKEN = 200


class TooManyTokens(Exception):
    """Too many unknown tokens at the same time."""


class TokenCheck:
    """Checks tokens of viewers by `check`, which raises `Unauthenticated`, or `Unavailable` if no server answers.

    It remembers the answers for some seconds. "" is the token of a viewer who has none. Any thread may call; `_lock`
    guards the table, and one call of `check` is made at a time.
    """

    def __init__(self, check: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._check, self._clock = check, clock
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, float, ParamServerError | None]] = OrderedDict()
        self._checks, self._refilled = CHECKS_AT_ONCE, clock()

    def check(self, token: str) -> None:
        """Raise `Unauthenticated` or `PermissionDenied` if it may not look, `Unavailable` if nobody can tell now.

        `TooManyTokens`: it is one of many that are not known.
        """
        if token and not is_token(token):
            raise Unauthenticated("no token looks like that")
        digest = sha256(token.encode(errors="replace")).digest()
        with self._lock:
            now = self._clock()
            asked, accepted, refusal = self._known.get(digest, (-math.inf, -math.inf, None))
            if now - asked >= VALID_SECONDS:
                if accepted < now - STAY_SECONDS:
                    self._count(now)
                refusal = self._ask(token)
                if isinstance(refusal, Unavailable) and now - accepted < STAY_SECONDS:
                    refusal = None
                elif refusal is None:
                    accepted = now
                else:
                    accepted = -math.inf
                self._known[digest] = now, accepted, refusal
                self._known.move_to_end(digest)
                if len(self._known) > MAX_KNOWN:
                    self._known.popitem(last=False)
        if refusal is not None:
            raise refusal.with_traceback(None)

    def _count(self, now: float) -> None:
        self._checks = min(CHECKS_AT_ONCE, self._checks + CHECKS_PER_SECOND * (now - self._refilled))
        self._refilled = now
        if self._checks < 1:
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
