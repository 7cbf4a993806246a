"""The limits of the HTTP server, over real sockets."""

import socket
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest

from psserver.monitor.http import server as http_server
from psserver.monitor.http.server import HttpServer, Response, is_loopback_host, sentence
from psserver.monitor.http.viewers import Sessions
from pswire.errors import ConfigurationError
from tests.support.commands import BOUND
from tests.support.http_client import exchange, read_all, request, split


@pytest.fixture(autouse=True)
def quick_end(monkeypatch):
    monkeypatch.setattr(http_server, "POLL_SECONDS", 0.01)


@contextmanager
def serving(respond=lambda request: sentence(200, f"path {request.path} {request.query}")):
    server = HttpServer("127.0.0.1:0")
    with server.serving(respond):
        yield server.address


def status_of(answer):
    return int(answer.split()[1]) if answer else None


def test_a_request_gets_an_answer_with_security_headers_and_the_connection_ends():
    with serving() as address:
        answer = exchange(address, b"GET /a/../b?x=1&x=2&y= HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\n\r\n").decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert body == "path /a/../b {'y': '', 'x': '1'}\n"
    lines = head.split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert headers["Content-Length"] == str(len(body))
    assert headers["Connection"] == "close"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "Server" not in headers


def test_one_empty_line_before_a_request_is_ignored():
    with serving() as address:
        assert exchange(address, b"\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n").endswith(b"\r\n\r\npath /a {}\n")


def test_head_gets_the_headers_of_get_and_no_body():
    with serving() as address:
        assert request(address, "/x", "HEAD")[2] == b""
        assert request(address, "/x", "HEAD")[1]["Content-Length"] == request(address, "/x")[1]["Content-Length"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "get", "X" * 50])
def test_other_methods_are_refused(method):
    with serving() as address:
        answer = exchange(address, f"{method} / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc".encode())
    assert status_of(answer) == 405
    assert b"Allow: GET, HEAD" in answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET\r\n\r\n", 400),
        (b"\r\n", 400),
        (b"\n\nGET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET / HTTP/x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400),
        (b"GET http://[x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /?" + b"a&" * 40 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n", 400),
        (b"GET / HTTP/1.1\r\nno field\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded: c\r\n\r\n", 400),
        (b"GET /" + b"x" * 3_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /" + b"x" * 20_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 20_000, 431),
    ],
)
def test_what_is_no_request_or_too_long_is_refused_and_the_server_goes_on(data, status):
    with serving() as address:
        with socket.create_connection(split(address), BOUND) as connection:
            connection.sendall(data[:16_000])
            connection.shutdown(socket.SHUT_WR) if len(data) < 16_000 else connection.sendall(data[16_000:16_500])
            assert status_of(read_all(connection)) == status
        assert request(address)[0] == 200


def filled(head, unit, tail=b"\r\n\r\n"):
    """A request of as many bytes as the server reads."""
    return head + unit * ((16_000 - len(head) - len(tail)) // len(unit)) + tail


LONG_REQUESTS = {
    "quoted cookie of backslashes": filled(b'GET / HTTP/1.1\r\nCookie: a="', b"\\\\", b'"\r\n\r\n'),
    "cookie of quotes": filled(b'GET / HTTP/1.1\r\nCookie: a="', b'\\"', b'"\r\n\r\n'),
    "cookie of many": filled(b"GET / HTTP/1.1\r\nCookie: ", b"a=b;"),
    "boundary of semicolons": filled(b'GET / HTTP/1.1\r\nContent-Type: multipart/x; a="', b";"),
    "boundary of quotes": filled(b'GET / HTTP/1.1\r\nContent-Type: multipart/x; a="', b'\\";'),
    "boundary in parts": filled(b"GET / HTTP/1.1\r\nContent-Type: multipart/x;", b" a*0*=x;"),
    "host": filled(b"GET / HTTP/1.1\r\nHost: ", b"a.:"),
    "authorization": filled(b"GET / HTTP/1.1\r\nAuthorization: Basic ", b"A "),
    "range": filled(b"GET / HTTP/1.1\r\nRange: bytes=", b"0-,"),
    "accept": filled(b"GET / HTTP/1.1\r\nAccept: ", b"a/b;q=0.1,"),
    "spaces": filled(b"GET / HTTP/1.1\r\nA: ", b" \t", b"x\r\n\r\n"),
    "query": filled(b"GET /?token=", b"%", b" HTTP/1.1\r\n\r\n"),
    "fields": filled(b"GET / HTTP/1.1\r\n", b"A: b\r\n", b"\r\n"),
}


@pytest.mark.parametrize("data", LONG_REQUESTS.values(), ids=LONG_REQUESTS)
def test_no_request_takes_the_processor_for_more_than_a_moment_before_its_caller_is_known(data):
    sessions = Sessions("psserver-1")

    def respond(request):
        assert sessions.token_of(request) == ""
        is_loopback_host(request.header("host"))
        return sentence(401, "who are you?")

    with serving(respond) as address:
        seconds = []
        for _ in range(5):
            began = time.process_time()  # of the processor, which other processes do not change
            assert exchange(address, data).startswith(b"HTTP/1.1 4")
            seconds.append(time.process_time() - began)
    assert min(seconds) < 0.015, "reading it takes time that grows with the square of its length"


def test_the_first_value_of_a_repeated_field_counts_and_names_of_fields_have_no_case():
    with serving(lambda request: sentence(200, f"{request.header('a')} {request.header('b')!r}")) as address:
        answer = exchange(address, b"GET / HTTP/1.0\nA:  1 \nHost: h\na: 2\n\n")
    assert answer.endswith(b"\r\n\r\n1 ''\n")


def test_a_request_that_does_not_end_is_given_up_although_a_byte_comes_now_and_then(monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.3)
    with serving() as address, socket.create_connection(split(address), BOUND) as connection:
        connection.settimeout(0.02)
        connection.sendall(b"GET / HTTP/1.1\r\n")
        end, answer = time.monotonic() + BOUND, b""
        while not answer:
            assert time.monotonic() < end
            connection.sendall(b"A: b\r\n")
            with suppress(TimeoutError):
                answer = connection.recv(1000)
        assert status_of(answer) == 408


def test_idle_connections_do_not_keep_others_out(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 4)
    with serving() as address, ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(split(address), BOUND)) for _ in range(12)]
        for _ in range(3):
            assert request(address)[0] == 200
        assert read_all(idle[0]) == b"", "the oldest has given way"


def test_there_are_so_many_answers_at_a_time_at_most(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    streams = [Endless() for _ in range(2)]
    waiting = iter(streams)
    with serving(lambda request: Response(200, stream=next(waiting))) as address, ExitStack() as stack:
        for _ in streams:
            connection = stack.enter_context(socket.create_connection(split(address), BOUND))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert connection.recv(100)
        with suppress(ConnectionError):  # closed before the request was read
            assert exchange(address, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n") == b""
    for one in streams:
        one.wait_for_close()


class Endless:
    """A stream without end."""

    def __init__(self, part=b"x" * 1000, pause=0.02):
        self._part, self._pause = part, pause
        self.closed = False

    def __iter__(self):
        while True:
            yield self._part
            time.sleep(self._pause)

    def close(self):
        self.closed = True

    def wait_for_close(self):
        end = time.monotonic() + BOUND
        while not self.closed:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_client_that_does_not_read_its_answer_is_disconnected(monkeypatch):
    monkeypatch.setattr(http_server, "ANSWER_SECONDS", 0.2)
    stream = Endless(b"x" * (1 << 20), 0.0)
    serves = serving(lambda request: Response(200, stream=stream))
    with serves as address, socket.create_connection(split(address), BOUND) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        stream.wait_for_close()


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_an_error_of_the_server_is_in_its_log_and_not_in_the_answer(caplog, error):
    def fail(request):
        raise error("a secret")

    with serving(fail) as address:
        status, _, body = request(address, "/path?token=hidden")
    assert (status, b"secret" in body) == (500, False)
    assert "a secret" in caplog.text
    assert "hidden" not in caplog.text


def test_the_end_of_the_server_ends_streams_and_frees_the_port():
    stream = Endless()
    with serving(lambda request: Response(200, stream=stream)) as address:
        connection = socket.create_connection(split(address), BOUND)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        connection.recv(100)
    with connection:
        stream.wait_for_close()
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(split(address))


@pytest.mark.parametrize("bind", ["unix:/tmp/x", "host", "127.0.0.1:99999"])
def test_an_address_that_browsers_cannot_use_is_refused(bind):
    with pytest.raises(ConfigurationError):
        HttpServer(bind)


def test_an_address_in_use_is_an_error_that_names_the_option():
    with serving() as address, pytest.raises(ConfigurationError, match=r"cannot serve HTTP on .* --http 127.0.0.1:0"):
        HttpServer(address)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LocalHost:8080", True),
        ("127.0.0.1:1", True),
        ("127.1.2.3", True),
        ("[::1]:80", True),
        ("[::1]", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8080", False),
        ("unix:1", False),
        ("[::2]", False),
        ("10.0.0.1:8080", False),
        ("localhost:8080@evil.example", False),
        ("", False),
    ],
)
def test_a_host_header_of_this_machine_is_one_of_its_loopback_interface(host, local):
    assert is_loopback_host(host) is local
