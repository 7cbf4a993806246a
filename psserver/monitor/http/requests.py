"""HTTP requests of anyone who reaches the port: read line by line up to a limit, without the parsers of the library.

The parsers of `http.server`, `email` and `http.cookies` take time that grows with the square of the length of a header,
before anything can be known of the caller. Here each byte is looked at a constant number of times. Standard library
only; this module knows nothing of paths, and of sockets only that bytes come from them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import BinaryIO
from urllib.parse import parse_qsl, urlsplit

#: Bytes of a request with its headers, header fields, and characters of its address, at most.
MAX_REQUEST, MAX_FIELDS, MAX_TARGET = 16 << 10, 100, 2048

#: Names in the query of an address.
MAX_NAMES = 20

_START = re.compile(r"([!-~]+) ([!-~]+) HTTP/([0-9])\.[0-9]")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may have any method.

    Attributes:
        path: that of the address, without the query.
        query: the first value of each name in the query.
        headers: the first value of each field, by its name in lower case.
        certified: the client has shown a certificate.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    certified: bool = False

    def header(self, name: str) -> str:
        """The value of a field, "" without one; `name` is in lower case."""
        return self.headers.get(name, "")

    def cookie(self, name: str) -> str:
        """The value of a cookie as it was sent, "" without one."""
        for cookie in self.header("cookie").split(";"):
            found, _, value = cookie.partition("=")
            if found.strip() == name:
                return value.strip()
        return ""


class BadRequest(Exception):
    """A request that is refused with this status, and a sentence why."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


def read_request(lines: BinaryIO, *, certified: bool = False) -> Request | None:
    """The request at the beginning of `lines`, which end after `MAX_REQUEST` bytes; None if there is no byte.

    Raises `BadRequest`, and what `lines` raises.
    """
    budget = _Budget(lines)
    start = budget.line()
    if budget.is_new:
        return None
    start = start or budget.line()  # one empty line before a request is ignored (RFC 9112, section 2.2)
    found = _START.fullmatch(start)
    if found is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "this is no request of HTTP")
    method, target, version = found.groups()
    if version != "1":
        raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this server has HTTP/1.1")
    if len(target) > MAX_TARGET:
        raise BadRequest(HTTPStatus.REQUEST_URI_TOO_LONG, f"an address has {MAX_TARGET:,} characters at most")
    headers = _headers(budget)
    path, query = _address(target)
    return Request(method, path, query, headers, certified)


class _Budget:
    """The lines of a request, without their ends."""

    def __init__(self, lines: BinaryIO) -> None:
        self._lines, self._left = lines, MAX_REQUEST

    @property
    def is_new(self) -> bool:
        """True if no byte has been read."""
        return self._left == MAX_REQUEST

    def line(self) -> str:
        """The next line. Raises `BadRequest` if it is not complete, unless nothing has come at all."""
        line = self._lines.readline(self._left)
        self._left -= len(line)
        if not line.endswith(b"\n"):
            if not self._left:
                text = f"a request has {MAX_REQUEST:,} bytes with its headers at most"
                raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
            if not self.is_new:
                raise BadRequest(HTTPStatus.BAD_REQUEST, "the request ended before its empty line")
        return line.decode("latin-1").removesuffix("\n").removesuffix("\r")


def _headers(budget: _Budget) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(MAX_FIELDS + 1):
        line = budget.line()
        if not line:
            return headers
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a line of the headers is no field of a name and a value")
        headers.setdefault(name.lower(), value.strip())
    raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has {MAX_FIELDS} header fields at most")


def _address(target: str) -> tuple[str, dict[str, str]]:
    try:
        address = urlsplit(target)
        pairs = parse_qsl(address.query, keep_blank_values=True, max_num_fields=MAX_NAMES)
    except ValueError:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the address of the request cannot be read") from None
    return address.path, dict(reversed(pairs))
