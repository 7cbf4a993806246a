"""Addresses at which a server may listen: on this machine, or beyond it with TLS and callers that it can tell apart."""

from pswire.addresses import is_local
from pswire.errors import ConfigurationError

_FILES = (
    "give it --tls-cert and --tls-key, and --token-file or --client-certificates required (psserver certs and psserver "
    "token make the files)"
)


def check_exposure(
    bind: str,
    *,
    tls: bool,
    knows_callers: bool,
    insecure: bool,
    remedy: str = _FILES,
    risk: str = "read and change the job",
) -> str:
    """The warning about a server that listens on `bind`; "" if there is nothing to warn of.

    `knows_callers` is whether it has tokens, or asks clients for certificates. Raises `ConfigurationError`, with the
    `remedy`, if other machines reach it, it has not both, and it is not `insecure` on purpose. The `risk` is what they
    can do.
    """
    if is_local(bind) or (tls and knows_callers):
        return ""
    missing = ["TLS"] * (not tls) + ["tokens or client certificates"] * (not knows_callers)
    if insecure:
        without = " and without ".join(missing)
        return f"{bind} is open to other machines without {without} (--insecure): they can {risk}"
    lacks = " and no ".join(missing)
    raise ConfigurationError(
        f"other machines can reach {bind}, and the server has no {lacks}: {remedy}; or listen on this machine alone, "
        "as on 127.0.0.1:7070; or, in a network that you trust, use --insecure"
    )
