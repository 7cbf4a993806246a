"""Viewers of the page beside each other: too many, slow ones, and what metrics and refusals look like."""

import socket
import time

import pytest

from psserver.monitor import sample_stream
from psserver.monitor.http import server as http_server
from psserver.monitor.http.server import HttpServer
from psserver.monitor.http.site import TYPES, Site, page_files
from psserver.monitor.http.viewers import TokenCheck
from psserver.monitor.sample_stream import SampleStream
from pswire.errors import ConfigurationError, PermissionDenied, Unavailable
from tests.support.commands import BOUND
from tests.support.http_client import following, request, split


@pytest.fixture(autouse=True)
def quick_end(monkeypatch):
    monkeypatch.setattr(http_server, "POLL_SECONDS", 0.01)


@pytest.fixture
def serve():
    """A function that serves a site in the test; its address."""
    blocks = []

    def begin(check=lambda token: None, samples=None, **options):
        server = HttpServer("127.0.0.1:0")
        site = Site(str, samples or SampleStream(), TokenCheck(check), str, port=server.port, **options)
        blocks.append(server.serving(site))
        blocks[-1].__enter__()
        return server.address

    yield begin
    for block in blocks:
        block.__exit__(None, None, None)


@pytest.mark.slow
def test_a_viewer_that_does_not_read_is_dropped_while_others_get_every_sample(serve, monkeypatch):
    monkeypatch.setattr(sample_stream, "MAX_VIEWERS", 2)
    samples = SampleStream()
    samples.publish({"number": 1})
    http = serve(samples=samples)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(BOUND)
        slow.connect(split(http))
        slow.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        with following(http) as fast:
            assert next(fast)[0] == 1
            assert request(http, "/api/stream")[0] == 503, "both places are taken"
            for number in range(2, 3 * sample_stream.MAX_BEHIND):
                samples.publish({"number": number, "filling": "x" * 1_000_000})
                assert next(fast)[0] == number
            monkeypatch.setattr(http_server, "ANSWER_SECONDS", 0.1)
            slow.close()
            end = time.monotonic() + BOUND
            while request(http, "/api/stream", "HEAD")[0] != 200:
                assert time.monotonic() < end
    samples.close()


def test_a_viewer_whose_connection_stays_open_unread_loses_its_place(serve, monkeypatch):
    monkeypatch.setattr(sample_stream, "MAX_VIEWERS", 1)
    monkeypatch.setattr(http_server, "ANSWER_SECONDS", 0.2)
    samples = SampleStream()
    samples.publish({"filling": "x" * 10_000_000})
    http = serve(samples=samples)
    with socket.create_connection(split(http), BOUND) as slow:
        slow.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert slow.recv(15) == b"HTTP/1.1 200 OK"
        end = time.monotonic() + BOUND
        while request(http, "/api/stream", "HEAD")[0] != 200:
            assert time.monotonic() < end
    samples.close()


def test_metrics_have_the_type_that_their_function_says_and_without_one_there_are_none(serve):
    http = serve(metrics=lambda accept: (f"# {accept}\n".encode(), "text/x; version=1"))
    status, headers, body = request(http, "/metrics", Accept="openmetrics")
    assert (status, headers["Content-Type"], body) == (200, "text/x; version=1", b"# openmetrics\n")
    assert request(serve(), "/metrics")[0] == 404

    def missing(accept):
        raise ConfigurationError("metrics need a package")

    assert request(serve(metrics=missing), "/metrics")[::2] == (501, b"metrics need a package\n")


@pytest.mark.parametrize(
    ("error", "status"), [(PermissionDenied("no role"), 403), (Unavailable("nobody answers"), 503)]
)
def test_a_refusal_has_its_reason(serve, error, status):
    def check(token):
        raise error

    http = serve(check)
    assert request(http, "/")[::2] == (status, f"{error}\n".encode())
    assert request(http, "/healthz")[0] == 200


def test_all_viewers_with_wrong_tokens_together_are_slowed(serve):
    asked = []

    def check(token):
        asked.append(token)
        raise Unavailable("x")

    http = serve(check)
    statuses = {request(http, "/", Authorization=f"Bearer {number:020}")[0] for number in range(40)}
    assert statuses == {503, 429}
    assert len(asked) < 40


def test_every_file_of_the_page_has_a_type_that_browsers_know():
    assert {"/", "/index.html"} <= page_files().keys()
    assert {file.kind for file in page_files().values()} <= set(TYPES.values())
