"""Addresses, health, and failed calls as errors of ours."""

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pswire import channel, errors
from pswire.channel import check_address, check_health, error_from, open_channel

HEALTH = health_pb2.HealthCheckResponse
VALID = "127.0.0.1:0 0.0.0.0:65535 ps-0.svc.cluster.local:5000 my_host:1 [2001:db8::7:1]:80 [::]:0 unix:/run/ps/0.sock"
INVALID = """localhost :5000 localhost: localhost:http localhost:-1 localhost:65536 localhost:5000:5001 localhost:٣
::1:5000 [::1] [::1:5000 [localhost]:5000 [1.2.3.4]:5000 http://localhost:5000 dns:///localhost:5000 a:1,b:2 -rf:1
*:5000 unix: unix:relative.sock unix://run/ps.sock"""
ODD = ["", " ", "localhost:" + "9" * 5_000, "local host:5000", "unix:/a\0b", "unix:/" + 107 * "x"]


def test_an_address_is_taken_as_it_is_and_without_blanks_around_it():
    for address in VALID.split():
        assert check_address(address) == check_address(f" {address}\n") == address


@pytest.mark.parametrize("text", [*INVALID.split(), *ODD], ids=lambda text: ascii(text[:24]))
def test_what_is_no_address_is_a_configuration_error_that_shows_it(text):
    for check in (check_address, open_channel):
        with pytest.raises(errors.ConfigurationError, match=r"address|unix:") as caught:
            check(text)
        assert repr(text) in str(caught.value)


def test_an_option_has_a_name_that_grpc_knows_since_it_passes_over_others_without_a_word():
    with open(cygrpc.__file__, "rb") as library:
        words = library.read()
    names = dict(channel.CLIENT_OPTIONS + channel.SERVER_OPTIONS)
    assert [name for name in names if f"{name}\0".encode() not in words] == []


# --- errors ---------------------------------------------------------------------------------------------------------


UNKNOWN_HOST = "errors resolving x:9: [field:lookup error:address lookup failed for x:9: Domain name not found]"
REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: Connection refused (111)"
TO_DO = "; is it running? start one with psserver serve --bind host:9"


@pytest.mark.parametrize(
    ("code", "details", "name", "kind", "text"),
    [
        ("UNAVAILABLE", REFUSED, "", "Unavailable", f"no server answers at host:9: Connection refused (111){TO_DO}"),
        ("UNAVAILABLE", UNKNOWN_HOST, "", "Unavailable", f"no server answers at host:9: Domain name not found{TO_DO}"),
        ("DEADLINE_EXCEEDED", "late", "", "TimedOut", channel.timeout_message("host:9")),
        ("FAILED_PRECONDITION", "too old", "Zombie", "Zombie", "too old"),
        ("RESOURCE_EXHAUSTED", "Concurrent RPC limit exceeded!", "", "Unavailable", "limit of concurrent calls"),
        ("NOT_FOUND", "no W", "Unheard", "UnknownVariable", "no W"),  # no name of ours
        ("NOT_FOUND", "no W", "NotFinite", "UnknownVariable", "no W"),  # the name of one with another status
        ("NOT_FOUND", "no W", "object", "UnknownVariable", "no W"),
        ("NOT_FOUND", "no W", b"Zombie", "UnknownVariable", "no W"),
    ],
)
def test_a_failed_call_is_an_error_with_what_to_do_of_the_class_that_the_server_names(code, details, name, kind, text):
    failed, metadata = grpc.RpcError(details), (("other", "x"), ("ps-error", name))
    failed.code, failed.details = lambda: getattr(grpc.StatusCode, code), lambda: details
    failed.trailing_metadata = lambda: metadata
    error = error_from(failed, "host:9")
    assert type(error).__name__ == kind
    assert text in str(error)


def test_a_subclass_from_elsewhere_travels_as_the_class_of_the_family_that_it_is():
    class Local(errors.InvalidMessage):
        pass

    assert channel.status_of(Local("x")) == (grpc.StatusCode.INVALID_ARGUMENT, "x", (("ps-error", "InvalidMessage"),))


LONG = ("plain ", "äöü\t ", "漢字", "😀", "100 % ", "\n\n", "\ud800 ")
TEXTS = ["", "tab\tline\nzero\0 Ünï 😀 % ", *(5_000 * text for text in LONG)]


def refuse(request, context):
    """Fails as a server of ours, with the text whose number is the request."""
    code, details, metadata = channel.status_of(errors.Malformed(TEXTS[int(request)]))
    context.set_trailing_metadata(metadata)
    context.abort(code, details)


METHODS = {
    "Refuse": refuse,
    "Abort": lambda request, context: context.abort(grpc.StatusCode.UNKNOWN, "something"),
    "Large": lambda request, context: bytes(5 << 20),
}
HEALTH_SERVICER = health.HealthServicer()


@pytest.fixture(scope="module")
def address():
    """A small gRPC server with these methods and a health service."""
    server = grpc.server(ThreadPoolExecutor(2), options=channel.SERVER_OPTIONS)
    handlers = {name: grpc.unary_unary_rpc_method_handler(handle) for name, handle in METHODS.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    health_pb2_grpc.add_HealthServicer_to_server(HEALTH_SERVICER, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def error_of(address, method, request=b""):
    """What a call that must fail means."""
    with open_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/test.Test/{method}")(request, timeout=10.0)
    return error_from(caught.value, address)


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_any_text_reaches_the_other_side_cut_at_2000_characters(address, number):
    error = error_of(address, "Refuse", str(number).encode())
    assert type(error) is errors.Malformed
    readable, arrived = TEXTS[number].encode(errors="replace").decode() or "no details", str(error)
    assert arrived == readable or (arrived[-1] == "…" and readable.startswith(arrived[:-1]))
    assert min(400, len(readable)) <= len(arrived) <= 2_000


@pytest.mark.parametrize(
    ("method", "kind", "text"),
    [
        ("Abort", errors.InternalError, "the server at {} failed with UNKNOWN: something"),
        ("Missing", errors.ConfigurationError, "the server at {} is not a parameter server, or runs a different"),
        ("Large", errors.TooLarge, ""),
    ],
)
def test_a_server_that_fails_is_named(address, method, kind, text):
    error = error_of(address, method)
    assert type(error) is kind
    assert text.format(address) in str(error)


def test_health_is_what_the_server_reports(address):
    for status in (HEALTH.SERVING, HEALTH.NOT_SERVING, HEALTH.UNKNOWN):
        HEALTH_SERVICER.set("", status)
        assert check_health(address, 10.0) is (status == HEALTH.SERVING)


def test_health_of_a_server_that_is_not_there_or_silent_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.Unavailable, match=f"no server answers at {address}"):
            check_health(address, 10.0)
        taken.listen()
        with pytest.raises(errors.TimedOut):
            check_health(address, 0.2)
