"""The TLS files of a server, for gRPC and for HTTP: read again when they change, with a warning before they expire.

A changed set that does not fit together is logged and not used. Imports neither grpc nor the monitor.
"""

import logging
import re
import ssl
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pswire.errors import ConfigurationError
from pswire.security.private_files import read_file, read_secret, stamp

log = logging.getLogger(__name__)

#: A certificate is near its end in this time, or in the last quarter of its life if that is shorter; the warning is
#: repeated in the last quarter of the remaining time, again and again.
NEAR_END = timedelta(days=30)

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17


@dataclass(frozen=True, slots=True)
class Validity:
    """The time in which a certificate is valid."""

    begin: datetime
    end: datetime

    def stage(self, now: datetime) -> int:
        """A level from 0, the end is not near, to 4, expired."""
        near = min(NEAR_END, (self.end - self.begin) / 4)
        return sum(now >= self.end - rest for rest in (near, near / 4, near / 16, timedelta(0)))


@dataclass(frozen=True, slots=True)
class TlsContents:
    """The content of the files in PEM, a context of a server with them, and the validity that ends first."""

    certificate: bytes
    key: bytes
    ca: bytes | None
    context: ssl.SSLContext
    validity: Validity | None


class TlsFiles:
    """A certificate with its chain, its key, and a CA of clients or None. Any thread may call.

    Raises `ConfigurationError` if they cannot be used at the start.
    """

    def __init__(self, certificate: Path, key: Path, ca: Path | None = None) -> None:
        self.certificate, self._key, self._ca = certificate, key, ca
        self._lock = threading.Lock()  # guards the rest
        self._stamps = self._look()
        self._contents = self._read()
        self._stage = 0

    @property
    def contents(self) -> TlsContents:
        """The last ones that could be used."""
        return self._contents

    def reread(self) -> bool:
        """Read the files again if they have changed; whether there are other contents now. Does not raise."""
        with self._lock:
            if (now := self._look()) == self._stamps:
                return False
            self._stamps = now
            try:
                self._contents = self._read()
            except ConfigurationError as error:
                log.warning("%s; new connections get the previous certificate", error)
                return False
            self._stage = 0
        log.info("read the certificate %s again", self.certificate)
        return True

    def warn_of_end(self, seconds: float | None = None) -> None:
        """Log a warning when the certificate comes near its end, and when it has expired; `seconds` since 1970."""
        now = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
        with self._lock:
            validity = self._contents.validity
            stage = 0 if validity is None else validity.stage(now)
            if validity is None or stage <= self._stage:
                return
            self._stage = stage
        left = validity.end - now
        how = f"expires in {left.days} days" if left.days else f"expires in {left.seconds // 3600} hours"
        log.warning(
            "the certificate %s %s, on %s: renew it (psserver certs DIR --renew); the server reads it again",
            self.certificate,
            how if left > timedelta(0) else "has expired, and clients refuse it",
            f"{validity.end:%Y-%m-%d %H:%M} UTC",
        )

    def _look(self) -> tuple[tuple[int, ...], ...]:
        return tuple([stamp(path) for path in (self.certificate, self._key, self._ca) if path is not None])

    def _read(self) -> TlsContents:
        certificate = read_file(self.certificate, "the certificate")
        key = read_secret(self._key, "the private key")
        ca = None if self._ca is None else read_file(self._ca, "the CA file")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION  # handshakes without end on one connection
        try:
            context.load_cert_chain(self.certificate, self._key, password="")
            if ca is not None:
                context.load_verify_locations(cadata=ca.decode("ascii"))
        except (ssl.SSLError, ValueError, OSError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigurationError(
                f"the certificate {self.certificate}, its key {self._key} and the CA {self._ca} cannot be used "
                f"({reason}): they have to be PEM files, and the key that of the certificate and without a password"
            ) from error
        return TlsContents(certificate, key, ca, context, first_end(certificate))


def first_end(chain: bytes) -> Validity | None:
    """The validity that ends first of the certificates in a PEM file; None if it cannot be read."""
    try:
        found = [_validity(ssl.PEM_cert_to_DER_cert(one.decode("ascii"))) for one in _PEM.findall(chain)]
    except (ValueError, IndexError):
        return None
    return min(found, key=lambda one: one.end, default=None)


def _validity(certificate: bytes) -> Validity:
    """Of a certificate in DER (RFC 5280, 4.1): version, serial number, algorithm and issuer come before it."""
    _, at, _ = _element(certificate, 0)
    _, at, _ = _element(certificate, at)
    kind, _, after = _element(certificate, at)
    for _ in range(3 if kind == _VERSION else 2):
        _, _, after = _element(certificate, after)
    kind, at, _ = _element(certificate, after)
    if kind != _SEQUENCE:
        raise ValueError("no validity")
    begin, after = _time(certificate, at)
    return Validity(begin, _time(certificate, after)[0])


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the element at a place in DER, and where its content begins and ends."""
    kind, length, begin = data[at], data[at + 1], at + 2
    if length >= 0x80:  # the number of bytes of the length
        begin += length - 0x80
        length = int.from_bytes(data[at + 2 : begin])
    if begin + length > len(data):
        raise ValueError("an element that ends behind its certificate")
    return kind, begin, begin + length


def _time(data: bytes, at: int) -> tuple[datetime, int]:
    """A time, and where it ends."""
    kind, begin, end = _element(data, at)
    form = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(data[begin:end].decode("ascii"), form).replace(tzinfo=UTC), end
