"""Health, and failed calls as errors of ours."""

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pswire import errors
from pswire.network import channel
from pswire.network.channel import check_health, error_from, open_channel

HEALTH = health_pb2.HealthCheckResponse


def test_an_option_has_a_name_that_grpc_knows_since_it_passes_over_others_without_a_word():
    words = Path(cygrpc.__file__).read_bytes()
    names = dict(channel.CLIENT_OPTIONS + channel.SERVER_OPTIONS)
    assert [name for name in names if f"{name}\0".encode() not in words] == []


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
    error = type("Local", (errors.InvalidMessage,), {})("x")
    assert channel.status_of(error) == (grpc.StatusCode.INVALID_ARGUMENT, "x", (("ps-error", "InvalidMessage"),))


def refuse(request, context):
    """Fails as a server of ours, with the text of the request."""
    code, details, metadata = channel.status_of(errors.Malformed(request.decode(errors="surrogatepass")))
    context.set_trailing_metadata(metadata)
    context.abort(code, details)


METHODS = {
    "Refuse": refuse,
    "Abort": lambda request, context: context.abort(grpc.StatusCode.UNKNOWN, "something"),
    "Large": lambda request, context: bytes(5 << 20),
}


@pytest.fixture(scope="module")
def server():
    """The address and the health service of a small gRPC server with these methods."""
    server, servicer = grpc.server(ThreadPoolExecutor(2), options=channel.SERVER_OPTIONS), health.HealthServicer()
    handlers = {name: grpc.unary_unary_rpc_method_handler(handle) for name, handle in METHODS.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", servicer
    server.stop(None).wait()


def error_of(server, method, request=b""):
    """The error of a call that must fail."""
    with open_channel(server[0]) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/test.Test/{method}")(request, timeout=10.0)
    return error_from(caught.value, "host:9")


LONG = [5_000 * text for text in ("plain ", "äöü\t ", "漢字", "😀", "100 % ", "\n\n", "\ud800 ")]


@pytest.mark.parametrize("text", ["", "tab\tline\nzero\0 Ünï 😀 % ", *LONG], ids=lambda text: ascii(text[:8]))
def test_any_text_reaches_the_other_side_cut_at_2000_characters(server, text):
    error = error_of(server, "Refuse", text.encode(errors="surrogatepass"))
    assert type(error) is errors.Malformed
    readable, arrived = text.encode(errors="replace").decode() or "no details", str(error)
    assert arrived == readable or (arrived[-1] == "…" and readable.startswith(arrived[:-1]))
    assert min(400, len(readable)) <= len(arrived) <= 2_000


def test_a_server_that_fails_is_named(server):
    for method, kind, text in (
        ("Abort", errors.InternalError, "the server at host:9 failed with UNKNOWN: something"),
        ("Missing", errors.ConfigurationError, "the server at host:9 is not a parameter server, or runs a different"),
        ("Large", errors.TooLarge, ""),
    ):
        error = error_of(server, method)
        assert type(error) is kind
        assert text in str(error)


def test_health_is_what_the_server_reports_and_an_error_if_it_is_not_there_or_silent(server):
    address, servicer = server
    for status in (HEALTH.SERVING, HEALTH.NOT_SERVING, HEALTH.UNKNOWN):
        servicer.set("", status)
        assert check_health(address, 10.0) is (status == HEALTH.SERVING)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(errors.Unavailable, match=f"no server answers at {address}"):
            check_health(address, 10.0)
        taken.listen()
        with pytest.raises(errors.TimedOut):
            check_health(address, 0.2)
