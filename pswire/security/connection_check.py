"""The reason why a connection to a server failed at its handshake, in words for people, which gRPC does not give.

Another handshake is made, by the standard library; only after a failure that may have been one.
"""

import socket
import ssl
from contextlib import suppress
from typing import Any

from pswire.security.credentials import NO_CREDENTIALS, Credentials

#: Seconds for the connection, and for each answer.
TIMEOUT = 1.0

#: Parts of gRPC's details after which a handshake may have failed: the server took the connection, and then ended it.
_SIGNS = (
    "handshake",
    "Verification",
    "Socket closed",
    "Connection reset",
    "Broken pipe",
    "GOAWAY",
    "Endpoint",
)

# A code of OpenSSL (x509_vfy.h); beside it 9 is "not yet valid", and 62 and 64 are a name and an address that differ.
_EXPIRED = 10

#: Reasons of OpenSSL for an answer that is not TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


def handshake_problem(address: str, details: str, credentials: Credentials) -> str:
    """The problem of the connection to `address`, and what to do; "" if it is not the handshake.

    `details` are gRPC's of the failed call.
    """
    if not any(sign in details for sign in _SIGNS):
        return ""
    try:
        return _with_tls(address, credentials) if credentials.tls else _without_tls(address)
    except (OSError, ValueError):  # no connection, or none that lasts: gRPC's own words are right
        return ""


def _without_tls(address: str) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(address, context, _host(address, NO_CREDENTIALS))
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return ""
    return f"the server at {address} uses TLS, and the client does not: give the CA of its certificate (--tls-ca)"


def _with_tls(address: str, credentials: Credentials) -> str:
    try:
        _, answered = _shake_hands(address, _context(credentials), _host(address, credentials))
    except ssl.SSLCertVerificationError as error:
        return _verification_problem(address, credentials, error)
    except ssl.SSLError as error:
        return _no_handshake(address, error.reason or "")
    # gRPC's servers close the connection after the handshake, without a reason. Once more: it may just have stopped.
    if answered or _shake_hands(address, _context(credentials), _host(address, credentials))[1]:
        return ""
    if not credentials.tls_cert:
        return (
            f"the server at {address} requires a client certificate: give one with its key (--tls-cert and --tls-key)"
        )
    return (
        f"the server at {address} does not accept the certificate in {credentials.tls_cert}: it has to be signed by "
        "the CA that the server has as --tls-ca, and valid now"
    )


def _no_handshake(address: str, reason: str) -> str:
    """The problem of a server that answers, but not with a handshake; "" if it has closed the connection."""
    if "ALERT" in reason:
        return f"the server at {address} refused the TLS handshake ({reason}): is it a parameter server?"
    if reason in _NO_TLS:
        return (
            f"the server at {address} does not use TLS, and the client does: leave --tls-ca out, or start the server "
            "with --tls-cert and --tls-key"
        )
    return ""


def _context(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(credentials.tls_ca)
    if credentials.tls_cert:
        context.load_cert_chain(credentials.tls_cert, credentials.tls_key, password="")
    return context


def _shake_hands(address: str, context: ssl.SSLContext, name: str) -> tuple[dict[str, Any], bool]:
    """Connect; the server's certificate, and whether it keeps the connection. Raises `OSError`."""
    context.set_alpn_protocols(["h2"])
    with _connected(address) as plain, context.wrap_socket(plain, server_hostname=name) as connection:
        certificate, answered = dict(connection.getpeercert() or {}), True
        with suppress(TimeoutError):  # it may be slow
            answered = bool(connection.recv(1))
        return certificate, answered


def _connected(address: str) -> socket.socket:
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(TIMEOUT)
            connection.connect(address.removeprefix("unix:"))
        except BaseException:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), TIMEOUT)


def _host(address: str, credentials: Credentials) -> str:
    """The name that the certificate must have; gRPC takes this one for Unix sockets."""
    own = "localhost" if address.startswith("unix:") else address.rpartition(":")[0].strip("[]")
    return credentials.tls_name or own


def _verification_problem(address: str, credentials: Credentials, error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:
        case 9 | 10:
            how = "has expired" if error.verify_code == _EXPIRED else "is not valid yet, by the clock of this machine"
            return f"the certificate of the server at {address} {how}: renew it (psserver certs DIR --renew)"
        case 62 | 64:
            return (
                f"the certificate of the server at {address} is not for {_host(address, credentials)}, but for "
                f"{_names(address, credentials)}: use a name that it has (also as --tls-name), or make one for this "
                "name (psserver certs DIR --hosts)"
            )
        case _:
            return (
                f"the certificate of the server at {address} is not signed by the CA in {credentials.tls_ca} "
                f"({error.verify_message}): give the CA of this server (--tls-ca)"
            )


def _names(address: str, credentials: Credentials) -> str:
    """The names in the server's certificate."""
    context = _context(credentials)
    context.check_hostname = False
    names = _shake_hands(address, context, _host(address, credentials))[0].get("subjectAltName", ())
    assert isinstance(names, tuple)
    return ", ".join(str(name) for _, name in names) or "no name"
