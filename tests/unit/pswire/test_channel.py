"""Addresses, health, and what a failed call means to who made it."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pswire.channel import (
    CLIENT_OPTIONS,
    SERVER_OPTIONS,
    check_address,
    check_health,
    error_from,
    open_channel,
    status_of,
)
from pswire.errors import (
    ConfigurationError,
    InternalError,
    InvalidMessage,
    Malformed,
    TimedOut,
    TooLarge,
    Unavailable,
    UnknownVariable,
    Zombie,
)


@pytest.mark.parametrize(
    "address",
    [
        "localhost:5000",
        "127.0.0.1:0",
        "0.0.0.0:65535",
        "ps-0.ps.training.svc.cluster.local:5000",
        "my_host:1",
        "[::1]:5000",
        "[2001:db8::7:1]:80",
        "[::]:0",
        "unix:/run/ps/shard-0.sock",
    ],
)
def test_an_address_is_taken_as_it_is_and_without_blanks_around_it(address):
    assert check_address(address) == address
    assert check_address(f" {address}\n") == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "localhost",
        ":5000",
        "localhost:",
        "localhost:http",
        "localhost:-1",
        "localhost:65536",
        "localhost:" + "9" * 5_000,
        "localhost:5000:5001",
        "localhost:٣",
        "local host:5000",
        "::1:5000",
        "[::1]",
        "[::1:5000",
        "[localhost]:5000",
        "[1.2.3.4]:5000",
        "http://localhost:5000",
        "dns:///localhost:5000",
        "a:1,b:2",
        "-rf:1",
        "*:5000",
        "unix:",
        "unix:relative.sock",
        "unix://run/ps.sock",
        "unix:/a\0b",
        "unix:/" + 107 * "x",
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_what_is_no_address_is_a_configuration_error_that_shows_it(text):
    with pytest.raises(ConfigurationError, match=r"address|unix:") as caught:
        check_address(text)
    assert repr(text) in str(caught.value)
    with pytest.raises(ConfigurationError):
        open_channel(text)


# --- options --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words_of_grpc():
    """All that gRPC's library has in it, the names of its options too."""
    with open(cygrpc.__file__, "rb") as library:
        return library.read()


@pytest.mark.parametrize("option", sorted(dict(CLIENT_OPTIONS + SERVER_OPTIONS)))
def test_an_option_has_a_name_that_grpc_knows_since_it_passes_over_others_without_a_word(words_of_grpc, option):
    assert f"{option}\0".encode() in words_of_grpc


def test_a_client_does_not_ping_more_often_than_a_server_bears():
    least = dict(SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]
    assert dict(CLIENT_OPTIONS)["grpc.keepalive_time_ms"] > least


# --- errors ---------------------------------------------------------------------------------------------------------


class Failed(grpc.RpcError):
    """What gRPC raises, without a server."""

    def __init__(self, code, details="", metadata=()):
        super().__init__(details)
        self.code, self.details, self.trailing_metadata = lambda: code, lambda: details, lambda: metadata


def test_a_server_that_is_not_there_is_unavailable_with_what_to_do():
    details = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Connection refused (111)"
    error = error_from(Failed(grpc.StatusCode.UNAVAILABLE, details), "host:9")
    assert type(error) is Unavailable
    assert str(error) == (
        "no server answers at host:9: Connection refused (111); is it running? "
        "start one with psserver serve --bind host:9"
    )


def test_a_host_that_nobody_knows_is_unavailable_with_the_systems_words():
    details = (
        "errors resolving nosuch:9: [field:hostname lookup error:address lookup failed for nosuch:9: "
        "Domain name not found]"
    )
    error = error_from(Failed(grpc.StatusCode.UNAVAILABLE, details), "nosuch:9")
    assert str(error).startswith("no server answers at nosuch:9: Domain name not found; is it running? ")


def test_a_deadline_names_the_address():
    error = error_from(Failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), "host:9")
    assert type(error) is TimedOut
    assert "the server at host:9 did not answer in time" in str(error)


def test_the_name_of_a_class_wins_over_the_status():
    error = error_from(Failed(grpc.StatusCode.FAILED_PRECONDITION, "too old", (("ps-error", "Zombie"),)), "host:9")
    assert type(error) is Zombie
    assert str(error) == "too old"


@pytest.mark.parametrize("name", ["Unheard", "NotFinite", "object", "", "OSError", b"Zombie"])
def test_a_name_that_is_none_or_does_not_fit_the_status_is_ignored(name):
    error = error_from(Failed(grpc.StatusCode.NOT_FOUND, "no W", (("other", "x"), ("ps-error", name))), "host:9")
    assert type(error) is UnknownVariable
    assert "no W" in str(error)


def test_an_rpc_error_that_says_nothing_is_an_internal_error():
    assert type(error_from(grpc.RpcError(), "host:9")) is InternalError
    assert "host:9" in str(error_from(grpc.RpcError(), "host:9"))


def test_a_subclass_from_elsewhere_travels_as_the_class_of_the_family_that_it_is():
    class Local(InvalidMessage):
        pass

    assert status_of(Local("x")) == (grpc.StatusCode.INVALID_ARGUMENT, "x", (("ps-error", "InvalidMessage"),))


@contextmanager
def serving(handle=None, status=None):
    """A small gRPC server on a free port: `handle` for every call, or a health service with `status`."""
    server = grpc.server(ThreadPoolExecutor(2), options=SERVER_OPTIONS)
    if handle is not None:
        handlers = {"Call": grpc.unary_unary_rpc_method_handler(handle)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    if status is not None:
        servicer = health.HealthServicer()
        servicer.set("", status)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def answer_of(address, timeout=10.0):
    """What a call that must fail means."""
    with open_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/test.Test/Call")(b"", timeout=timeout)
    return error_from(caught.value, address)


LONG = [
    "plain " * 2_000,
    "umlauts äöü and a tab\t " * 500,
    "漢字" * 5_000,
    "😀" * 5_000,
    "100 % " * 2_000,
    "\n" * 10_000,
    "a lone surrogate \ud800 in " * 1_000,
]


@pytest.mark.parametrize(
    "text",
    ["", "short", "trailing ", "tab\tnewline\nzero\0 Ünïcödé 😀 100 %", *LONG],
    ids=lambda text: ascii(text[:12]),
)
def test_any_text_reaches_the_other_side_cut_at_2000_characters(text):
    def refuse(request, context):
        code, details, metadata = status_of(Malformed(text))
        context.set_trailing_metadata(metadata)
        context.abort(code, details)

    with serving(refuse) as address:
        error = answer_of(address)
    assert type(error) is Malformed
    readable = text.encode(errors="replace").decode()
    if len(readable) <= 1_000:
        assert str(error) == (readable or "no details")
    else:
        assert len(str(error)) <= 2_000
        assert len(str(error)) >= 400
        assert str(error).endswith("…")
        assert readable.startswith(str(error)[:-1])


def test_a_server_that_fails_without_a_name_is_an_internal_error_with_its_address():
    def fail(request, context):
        context.abort(grpc.StatusCode.UNKNOWN, "something")

    with serving(fail) as address:
        error = answer_of(address)
        assert type(error) is InternalError
        assert str(error) == f"the server at {address} failed with UNKNOWN: something"


def test_a_server_of_another_kind_is_a_configuration_error():
    with serving() as address:
        error = answer_of(address)
    assert type(error) is ConfigurationError
    assert f"what answers at {address} is no parameter server, or one of another version" in str(error)


def test_a_message_over_the_limit_of_grpc_is_too_large():
    with serving(lambda request, context: bytes(5 << 20)) as address:
        error = answer_of(address)
    assert type(error) is TooLarge


def test_a_server_that_does_not_answer_in_time_has_timed_out():
    asked = threading.Event()
    with serving(lambda request, context: asked.wait(30) and b"") as address:
        error = answer_of(address, timeout=0.05)
        asked.set()
    assert type(error) is TimedOut


def test_a_channel_that_is_closed_breaks_off_its_calls_as_unavailable():
    began, end = threading.Event(), threading.Event()

    def wait(request, context):
        began.set()
        end.wait(30)
        return b""

    with serving(wait) as address:
        channel = open_channel(address)
        call = channel.unary_unary("/test.Test/Call").future(b"", timeout=30)
        assert began.wait(30)
        channel.close()
        error = error_from(call.exception(), address)
        end.set()
    assert type(error) is Unavailable
    assert f"the call to {address} was broken off" in str(error)


def test_a_port_that_is_taken_is_refused_to_a_second_server():
    with serving() as address:
        second = grpc.server(ThreadPoolExecutor(1), options=SERVER_OPTIONS)
        with pytest.raises(RuntimeError):
            second.add_insecure_port(address)


# --- health ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "healthy"),
    [
        (health_pb2.HealthCheckResponse.SERVING, True),
        (health_pb2.HealthCheckResponse.NOT_SERVING, False),
        (health_pb2.HealthCheckResponse.UNKNOWN, False),
    ],
)
def test_health_is_what_the_server_says(status, healthy):
    with serving(status=status) as address:
        assert check_health(address, 10.0) is healthy


def test_health_of_nobody_is_unavailable():
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"no server answers at {address}"):
            check_health(address, 10.0)


def test_health_of_who_accepts_and_says_nothing_is_a_time_out():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(TimedOut):
            check_health(f"127.0.0.1:{silent.getsockname()[1]}", 0.2)


def test_health_of_a_server_without_a_health_service_is_a_configuration_error():
    with serving() as address, pytest.raises(ConfigurationError, match="is no parameter server"):
        check_health(address, 10.0)
