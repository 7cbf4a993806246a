"""Requests to the live page, as they come from a connection: parsed, answered by the page, and the answer sent.

The first byte chooses who may look, and in how small parts the bytes come. Tags of the parts: a line that ends with
CRLF (0) or LF (1), or bytes as they are (2).
"""

import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

from psserver.monitor.http.requests import Request
from psserver.monitor.http.server import Response, _Connection, _Handler
from psserver.monitor.http.site import Site
from psserver.monitor.http.viewers import TokenCheck
from psserver.monitor.sample_stream import SampleStream
from pswire.errors import PermissionDenied, Unauthenticated
from tests.fuzz.packets import unpack

HEAD = 1
COVERS = ["psserver.monitor.http.requests", "psserver.monitor.http.site", "psserver.monitor.http.viewers"]

#: Seconds of the processor for one input: a request that is parsed in time proportional to its length takes one or two
#: milliseconds.
MAX_SECONDS = 0.2

#: The token that may look, and the one whose role is a wrong one.
TOKEN, OTHER = "f" * 43, "0" * 43

_ENDS = (b"\r\n", b"\n", b"")
_HEADER = re.compile(r"[A-Za-z-]+: [ -~]*")


class _Socket:
    """A connection that has sent all it will, and takes its answer."""

    def __init__(self, data: bytes, most: int) -> None:
        self._data, self._most = memoryview(data), most
        self.answer = b""

    def settimeout(self, seconds: float) -> None:
        assert seconds > 0

    def recv_into(self, buffer: memoryview) -> int:
        part = self._data[: min(self._most, len(buffer))]
        buffer[: len(part)] = part
        self._data = self._data[len(part) :]
        return len(part)

    def sendall(self, part: bytes) -> None:
        self.answer += part


def _check(token: str) -> None:
    if token == OTHER:
        raise PermissionDenied("another role")
    if token != TOKEN:
        raise Unauthenticated("a token is needed")


def _site(check: TokenCheck, *, loopback: bool) -> Site:
    return Site(lambda: "{}", SampleStream(), check, str, lambda accept: (b"", "text/plain"), loopback=loopback)


_clock = itertools.count(0.0, 10.0).__next__  # so that all tokens are asked about, as if seconds had passed
_SITES = [
    _site(TokenCheck(lambda token: None, _clock), loopback=True),
    _site(TokenCheck(_check, _clock), loopback=False),
]


def run(data: bytes) -> None:
    choice = data[0] if data else 0
    site = _SITES[choice % len(_SITES)]

    def respond(request: Request) -> Response:
        response = site(request)
        if response.stream is not None:
            response.stream.close()
        return replace(response, stream=None)

    content = b"".join([part + _ENDS[tag % len(_ENDS)] for tag, part in unpack(data[1:])])
    socket = _Socket(content, 1 + choice // len(_SITES) * 64)
    _Handler(_Connection(socket), ("127.0.0.1", 1), SimpleNamespace(tls=None, respond=respond))
    if socket.answer:
        _check_answer(socket.answer, only_head=content.startswith(b"HEAD "))
    else:
        assert not content, "a request without an answer"


def _check_answer(answer: bytes, *, only_head: bool) -> None:
    """One answer, with a length that is right, and nothing in its headers that ends a line of them."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *headers = head.decode("ascii").split("\r\n")
    assert re.fullmatch(r"HTTP/1\.1 [1-5][0-9][0-9] [A-Za-z -]+", status), status
    assert all(_HEADER.fullmatch(line) for line in headers), headers
    lengths = [line.partition(": ")[2] for line in headers if line.startswith("Content-Length")]
    assert only_head or lengths in ([], [str(len(body))]), lengths
