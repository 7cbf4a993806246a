"""Addresses, health, and failed calls as errors of ours."""

import socket
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
    timeout_message,
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

HEALTH = health_pb2.HealthCheckResponse
VALID = "127.0.0.1:0 0.0.0.0:65535 ps-0.svc.cluster.local:5000 my_host:1 [2001:db8::7:1]:80 [::]:0 unix:/run/ps/0.sock"


@pytest.mark.parametrize("address", VALID.split())
def test_an_address_is_taken_as_it_is_and_without_blanks_around_it(address):
    assert check_address(address) == address
    assert check_address(f" {address}\n") == address


INVALID = """localhost :5000 localhost: localhost:http localhost:-1 localhost:65536 localhost:5000:5001 localhost:٣
::1:5000 [::1] [::1:5000 [localhost]:5000 [1.2.3.4]:5000 http://localhost:5000 dns:///localhost:5000 a:1,b:2 -rf:1
*:5000 unix: unix:relative.sock unix://run/ps.sock"""
ODD = ["", " ", "localhost:" + "9" * 5_000, "local host:5000", "unix:/a\0b", "unix:/" + 107 * "x"]


@pytest.mark.parametrize("text", [*INVALID.split(), *ODD], ids=lambda text: ascii(text[:24]))
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


# --- errors ---------------------------------------------------------------------------------------------------------


class Failed(grpc.RpcError):
    """What gRPC raises, without a server."""

    def __init__(self, code, details="", metadata=()):
        super().__init__(details)
        self.code, self.details, self.trailing_metadata = lambda: code, lambda: details, lambda: metadata


UNKNOWN_HOST = "errors resolving x:9: [field:lookup error:address lookup failed for x:9: Domain name not found]"
REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Connection refused (111)"
TO_DO = "; is it running? start one with psserver serve --bind host:9"


@pytest.mark.parametrize(
    ("code", "details", "metadata", "kind", "text"),
    [
        ("UNAVAILABLE", REFUSED, "", Unavailable, f"no server answers at host:9: Connection refused (111){TO_DO}"),
        ("UNAVAILABLE", UNKNOWN_HOST, "", Unavailable, f"no server answers at host:9: Domain name not found{TO_DO}"),
        ("DEADLINE_EXCEEDED", "late", "", TimedOut, f"{timeout_message('host:9')}"),
        ("FAILED_PRECONDITION", "too old", "Zombie", Zombie, "too old"),
        ("RESOURCE_EXHAUSTED", "Concurrent RPC limit exceeded!", "", Unavailable, "at its limit of concurrent calls"),
    ],
)
def test_a_failed_call_is_an_error_with_what_to_do(code, details, metadata, kind, text):
    error = error_from(Failed(getattr(grpc.StatusCode, code), details, (("ps-error", metadata),)), "host:9")
    assert type(error) is kind
    assert text in str(error)


@pytest.mark.parametrize("name", ["Unheard", "NotFinite", "object", "", "OSError", b"Zombie"])
def test_a_name_that_is_none_or_does_not_fit_the_status_is_ignored(name):
    error = error_from(Failed(grpc.StatusCode.NOT_FOUND, "no W", (("other", "x"), ("ps-error", name))), "host:9")
    assert type(error) is UnknownVariable
    assert "no W" in str(error)


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


LONG = ["plain ", "äöü\t ", "漢字", "😀", "100 % ", "\n\n", "\ud800 "]


@pytest.mark.parametrize("text", ["", "tab\tline\nzero\0 Ünï 😀 % ", *(5_000 * text for text in LONG)], ids=range(9))
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


def aborted(request, context):
    context.abort(grpc.StatusCode.UNKNOWN, "something")


@pytest.mark.parametrize(
    ("handle", "kind", "text"),
    [
        (aborted, InternalError, "the server at {} failed with UNKNOWN: something"),
        (None, ConfigurationError, "the server at {} is not a parameter server, or runs a different version"),
        (lambda request, context: bytes(5 << 20), TooLarge, ""),
    ],
    ids=["without a name", "another kind of server", "over gRPC's limit"],
)
def test_a_server_that_fails_is_named(handle, kind, text):
    with serving(handle) as address:
        error = answer_of(address)
    assert type(error) is kind
    assert text.format(address) in str(error)


# --- health ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [HEALTH.SERVING, HEALTH.NOT_SERVING, HEALTH.UNKNOWN])
def test_health_is_what_the_server_reports(status):
    with serving(status=status) as address:
        assert check_health(address, 10.0) is (status == HEALTH.SERVING)


def test_health_of_a_server_that_is_not_there_or_silent_or_has_no_health_service_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"no server answers at {address}"):
            check_health(address, 10.0)
        taken.listen()
        with pytest.raises(TimedOut):
            check_health(address, 0.2)
    with serving() as address, pytest.raises(ConfigurationError, match="is not a parameter server"):
        check_health(address, 10.0)
