"""Connections: gRPC's options, a health check, and conversion of gRPC's errors to ours and back.

The only module that interprets gRPC status codes. It makes no protocol calls and does not retry.
"""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pswire import errors
from pswire.addresses import check_address
from pswire.errors import FAMILY, ParamServerError
from pswire.limits import MAX_MESSAGE
from pswire.security.connection_check import handshake_problem
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.security.token_channel import TokenChannel
from pswire.system.interrupts import cut_short_by_signals, deferred_signals

#: The metadata of calls with the token of a member (`pswire.messages.Joined.token`).
MEMBER_TOKEN = "ps-member-bin"

#: The metadata of calls with the shard that they are for, as a number: another one may be at an address by now.
CALLED_SHARD = "ps-shard"

_MESSAGE_SIZES = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
)

#: A server that starts late, or again, is found within 0.5 s. A connection ends when sent data has not been
#: acknowledged for 5 s (the keepalive timeout is TCP_USER_TIMEOUT too, gRFC A18), so a worker that lost its network or
#: changed its address continues within seconds: its heartbeat always sends. An idle connection is pinged after 30 s;
#: the server allows 10 s.
CLIENT_OPTIONS: tuple[tuple[str, int | str], ...] = (
    *_MESSAGE_SIZES,
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),  # by default 30 s: a restarted server may have another address
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # no back-off shared with other channels to the address
)

#: The server accepts the client's keepalive; a port in use is an error instead of being shared. A connection has a
#: limited number of calls, counted until the server has forgotten them, so resetting them does not help an attacker; a
#: worker has a few. One that has none for a minute, or takes long to set up, is closed. Calls of many connections that
#: begin at once wait, up to 8,000; then gRPC refuses some. Without probes of the bandwidth, it takes 64 KiB of a
#: message that is not read yet, instead of all of it.
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_MESSAGE_SIZES,
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", 32),
    ("grpc.http.overload_protection", 1),
    ("grpc.server.max_pending_requests", 8_000),
    ("grpc.server.max_pending_requests_hard_limit", 16_000),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 60_000),  # ends the streams of machines that lost power
    ("grpc.keepalive_timeout_ms", 20_000),
)


def open_channel(address: str, credentials: Credentials = NO_CREDENTIALS, token: str | None = None) -> grpc.Channel:
    """A channel to the server at `address`, which connects at first use; each call has the token of `credentials`.

    `token` is used in its place if it is not None, and "" is none. Raises `ConfigurationError`, also for files that
    cannot be used, and for a token that would not be encrypted.
    """
    address = check_address(address)
    if token is None:
        token = credentials.token(address)
    elif token:
        credentials.check_encrypted(address, "the token")
    if credentials.tls:
        ca, key, certificate = credentials.certificates()
        options = CLIENT_OPTIONS
        if name := credentials.tls_name or ("localhost" if address.startswith("unix:") else ""):
            options = (*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", name))
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate), options)
    else:
        channel = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
    return TokenChannel(channel, token) if token else channel


def member_metadata(token: bytes, shard: int | None = None) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata of a call to a `shard` with the token of a member; nothing without a token, b""."""
    if not token:
        return ()
    return ((MEMBER_TOKEN, token),) if shard is None else ((MEMBER_TOKEN, token), (CALLED_SHARD, str(shard)))


def check_health(address: str, timeout: float, credentials: Credentials = NO_CREDENTIALS) -> bool:
    """True if the server at `address` is serving, by the standard gRPC health service.

    Raises `Unavailable` or `TimedOut` (after `timeout` seconds), and `ConfigurationError` for an invalid address or a
    server without a health service.
    """
    with deferred_signals, open_channel(address, credentials) as channel:
        call = health_pb2_grpc.HealthStub(channel).Check.future(health_pb2.HealthCheckRequest(), timeout=timeout)
        try:
            with cut_short_by_signals(call):
                answer = call.result()
        except grpc.RpcError as error:
            raise error_from(error, address, credentials) from error
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


_ERROR_KEY = "ps-error"
_MAX_DETAILS = 2_000  # characters
_MAX_ENCODED = 6_000  # bytes: gRPC begins to refuse metadata at 8 KiB

#: Errors for statuses without the name of one of ours, most of them made by gRPC itself; others are an InternalError.
_BY_STATUS: dict[str, type[ParamServerError]] = {
    **dict.fromkeys(("CANCELLED", "ABORTED", "UNAVAILABLE"), errors.Unavailable),
    **dict.fromkeys(("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"), errors.InvalidMessage),
    "PERMISSION_DENIED": errors.PermissionDenied,
    "UNAUTHENTICATED": errors.Unauthenticated,
    "UNIMPLEMENTED": errors.ConfigurationError,
    "DEADLINE_EXCEEDED": errors.TimedOut,
    "NOT_FOUND": errors.UnknownVariable,
    "ALREADY_EXISTS": errors.AlreadyRegistered,
    "RESOURCE_EXHAUSTED": errors.TooLarge,
}


def status_of(error: ParamServerError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Status code, details (cut if too long) and trailing metadata of an error, for the other side."""
    kind = next(cls for cls in type(error).__mro__ if cls.__name__ in FAMILY)
    return getattr(grpc.StatusCode, error.status), _shorten(str(error)), ((_ERROR_KEY, kind.__name__),)


def _shorten(text: str) -> str:
    """At most `_MAX_DETAILS` characters, and `_MAX_ENCODED` bytes with %XX for everything but ASCII, as in HTTP/2."""
    text = text.encode(errors="replace").decode()
    left = _MAX_ENCODED
    for index, character in enumerate(text):
        left -= 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode())
        if left < 0 or index == _MAX_DETAILS:
            return text[: index - 1] + "…"
    return text


def error_from(rpc_error: grpc.RpcError, address: str, credentials: Credentials = NO_CREDENTIALS) -> ParamServerError:
    """The error for a failed call to `address`: of the class that the server names if that has this status.

    `Unauthenticated` if the connection failed at a handshake, whose reason gRPC does not give: this makes another one
    with these `credentials`, and takes a second at most.
    """
    code, details, metadata = (
        getattr(rpc_error, name, lambda: None)() for name in ("code", "details", "trailing_metadata")
    )
    status, details = (code or grpc.StatusCode.UNKNOWN).name, details or "no details"
    for key, name in metadata or ():
        if key == _ERROR_KEY and name in FAMILY and FAMILY[name].status == status:
            return FAMILY[name](details)
    if "Concurrent RPC limit" in details:  # by gRPC: it accepts calls again when others have ended
        return errors.Unavailable(
            f"the server at {address} is at its limit of concurrent calls (--max-calls): {details}"
        )
    if status == "UNAVAILABLE" and (problem := handshake_problem(address, details, credentials)):
        return errors.Unauthenticated(problem)
    return _BY_STATUS.get(status, errors.InternalError)(_explain(status, details, address))


def timeout_message(address: str) -> str:
    """The message for a server that has not answered within a call's deadline."""
    return f"the server at {address} did not answer in time: it is busy, stopped or cut off, or the timeout is short"


def _explain(status: str, details: str, address: str) -> str:
    match status:
        case "UNAVAILABLE":
            cause = details.rpartition(": ")[2].removesuffix("]")  # gRPC puts the system's message last, in brackets
            command = f"psserver serve --bind {address}"
            return f"no server answers at {address}: {cause}; is it running? start one with {command}"
        case "DEADLINE_EXCEEDED":
            return timeout_message(address)
        case "CANCELLED":
            return f"the call to {address} was interrupted: {details}"
        case "UNIMPLEMENTED":
            return f"the server at {address} is not a parameter server, or runs a different version: {details}"
        case _:
            return f"the server at {address} failed with {status}: {details}"
