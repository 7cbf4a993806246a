"""A bounded HTTP server: one request a connection, GET and HEAD, with limits of connections, bytes and times.

A thread accepts connections, and each has a thread of its own, which waits for its socket most of the time. What a
request gets is for the caller (`Response`); this module knows nothing of paths and callers. Standard library only.
"""

import io
import logging
import re
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from psserver.monitor.http.requests import BadRequest, Request, read_request
from pswire.addresses import check_http_address, is_local, local_address
from pswire.errors import ConfigurationError

log = logging.getLogger(__name__)

#: Connections at the same time; for a further one, the oldest whose request has not arrived gives way.
MAX_CONNECTIONS = 64

#: Seconds in which a request has to arrive, the handshake of TLS included.
REQUEST_SECONDS = 5.0

#: Seconds in which a client has to take a part of its answer, such as a sample.
ANSWER_SECONDS = 10.0

#: Seconds after which a client whose machine does not acknowledge what it is sent is disconnected.
UNREACHABLE_SECONDS = 30.0

#: Seconds that the end of the server may take to be noticed.
POLL_SECONDS = 0.2

#: Nothing is loaded from elsewhere, runs inline, or is shown in a frame of another page.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

TEXT = "text/plain; charset=utf-8"


class Stream(Protocol):
    """Parts of an answer; `close` is called once it is not sent any further, also if it was never begun."""

    def __iter__(self) -> Iterator[bytes]:
        """Wait for each part."""

    def close(self) -> None:
        """The end."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; the parts of a `stream` follow the headers as they come, without end."""

    status: int
    body: bytes = b""
    kind: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    stream: Stream | None = None


def sentence(status: int, text: str, *headers: tuple[str, str]) -> Response:
    """An answer of one sentence."""
    return Response(status, f"{text}\n".encode(), headers=headers)


class HttpServer:
    """Listens at an address; `serving` serves it in threads. `tls` gives the context of each new connection.

        server = HttpServer("127.0.0.1:8080")
        with server.serving(respond): ...

    `address` has the actual port, and `url` is for browsers of this machine. Raises `ConfigurationError` if the address
    cannot be used.
    """

    def __init__(self, bind: str, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        host, port = _host_and_port(bind)
        try:
            family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._server = _Server(family, place, tls)
        except OSError as error:
            raise ConfigurationError(
                f"cannot serve HTTP on {bind}: {error.strerror or error}; choose another address, or a free port: "
                f"--http {bind.rpartition(':')[0]}:0"
            ) from error
        self.tls = tls
        self.port: int = self._server.server_address[1]
        self.address = f"{bind.rpartition(':')[0]}:{self.port}"
        self.url = f"{'http' if tls is None else 'https'}://{local_address(self.address)}/"

    @contextmanager
    def serving(self, respond: Callable[[Request], Response]) -> Iterator[None]:
        """Answer requests by `respond`, which several threads call at the same time, to the end of the block."""
        server = self._server
        server.respond = respond
        thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), name="psserver-http", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            server.disconnect()
            thread.join()


def _host_and_port(bind: str) -> tuple[str, int]:
    host, _, port = check_http_address(bind).rpartition(":")
    return host.strip("[]"), int(port)


class _Connection:
    """The socket of a client; `arrived` when its request is there."""

    def __init__(self, plain: socket.socket) -> None:
        self.socket = plain
        self.arrived = False

    def disconnect(self) -> None:
        """Have its thread find the connection closed; from any thread."""
        with suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Accepts connections; `_lock` guards the table of open connections, the oldest first."""

    daemon_threads, block_on_close = True, False
    allow_reuse_address, request_queue_size = True, MAX_CONNECTIONS
    respond: Callable[[Request], Response]

    def __init__(
        self,
        family: int,
        place: Any,  # noqa: ANN401 - of the family
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.address_family = family
        self.tls = tls
        self._lock = threading.Lock()
        self._open: dict[_Connection, None] = {}
        super().__init__(place, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        """The next connection, which sends each part of an answer at once."""
        plain, peer = super().get_request()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # the end of the streams of machines that lost power
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * int(UNREACHABLE_SECONDS))
        return _Connection(plain), peer

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401
        """Make room for the connection, if necessary by closing one without a request; False if it cannot."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                idle = next((one for one in self._open if not one.arrived), None)
                if idle is None:
                    log.info("closed a connection of %s: %d are open", client_address, len(self._open))
                    return False
                del self._open[idle]
                idle.disconnect()
            self._open[request] = None
        return True

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """The end of a connection."""
        self.close_request(request)

    def close_request(self, request: Any) -> None:  # noqa: ANN401
        """The end of a connection, also of one that was not accepted."""
        with self._lock:
            self._open.pop(request, None)
        with suppress(OSError):
            request.socket.shutdown(socket.SHUT_WR)
        request.socket.close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """A connection that ends early is no fault of the server."""
        log.debug("the connection of %s ended", client_address, exc_info=True)

    def disconnect(self) -> None:
        """End all connections."""
        with self._lock:
            for one in self._open:
                one.disconnect()


class _RequestReader(io.RawIOBase):
    """The bytes of a request, until a deadline."""

    def __init__(self, source: socket.socket, deadline: float) -> None:
        self._source, self._deadline = source, deadline

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as RawIOBase has it
        """The next bytes. Raises `TimeoutError` at the deadline, however often a byte has come."""
        self._source.settimeout(_remaining(self._deadline))
        return self._source.recv_into(buffer)


def _remaining(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _Handler(socketserver.BaseRequestHandler):
    """Reads one request, and answers it."""

    server: _Server
    request: _Connection

    def setup(self) -> None:
        """Make the connection ready, with TLS if the server has it."""
        deadline = time.monotonic() + REQUEST_SECONDS
        self.certified = False
        if self.server.tls is not None:
            self.request.socket.settimeout(REQUEST_SECONDS)
            secure = self.server.tls().wrap_socket(
                self.request.socket, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
            )
            self.request.socket = secure
            secure.do_handshake()
            self.certified = bool(secure.getpeercert())
        self._lines = io.BufferedReader(_RequestReader(self.request.socket, deadline))

    def handle(self) -> None:
        """Serve one request."""
        try:
            request = read_request(self._lines, certified=self.certified)
        except TimeoutError:
            self._send(sentence(HTTPStatus.REQUEST_TIMEOUT, f"the request has to arrive within {REQUEST_SECONDS:g} s"))
            return
        except BadRequest as error:
            self._send(sentence(error.status, str(error)))
            return
        if request is None:
            return
        self.request.arrived = True
        self._send(self._respond(request), only_head=request.method == "HEAD")

    def _respond(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            text = f"{request.method[:20]} is not served: this server is read only, and has GET and HEAD"
            return sentence(HTTPStatus.METHOD_NOT_ALLOWED, text, ("Allow", "GET, HEAD"))
        try:
            return self.server.respond(request)
        except Exception:
            log.exception("the HTTP server failed on a request for %.100s", request.path)
            return sentence(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed on this request: see its log")

    def _send(self, response: Response, *, only_head: bool = False) -> None:
        """Send an answer; a stream as long as the client takes its parts."""
        status = HTTPStatus(response.status)
        headers = {
            "Content-Type": response.kind,
            "Cache-Control": "no-store",
            "Connection": "close",
            **SECURITY_HEADERS,
            **dict(response.headers),
        }
        if response.stream is None:
            headers["Content-Length"] = str(len(response.body))
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *[f"{name}: {value}" for name, value in headers.items()]]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self.request.socket.settimeout(ANSWER_SECONDS)
        try:
            self.request.socket.sendall(head if only_head else head + response.body)
            if response.stream is not None and not only_head:
                for part in response.stream:
                    self.request.socket.sendall(part)
        finally:
            if response.stream is not None:
                response.stream.close()


_HOST_HEADER = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def is_loopback_host(header: str) -> bool:
    """True if a Host header names this machine by its loopback interface, on any port."""
    found = _HOST_HEADER.fullmatch(header)
    return found is not None and found[1] != "unix" and is_local(f"{found[1].lower()}:0")
