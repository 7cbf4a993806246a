"""Warnings before the certificate of a server expires, and the time in which a certificate is valid."""

import logging
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from psserver.certificates import make_certificates, renew_certificates
from psserver.config import ServerConfig
from psserver.monitor.http.tls import HttpCertificates
from psserver.rpc.server import ServerThread
from psserver.tls_files import TlsFiles, first_end

DAY = timedelta(days=1)
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def certificates(folder, days=365, begin=NOW):
    make_certificates(folder, ("ps-0",), days, now=begin)
    return folder / "server.crt", folder / "server.key"


@pytest.mark.parametrize("begin", [datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC), datetime(2049, 12, 1, tzinfo=UTC)])
def test_the_validity_is_that_of_the_certificate_that_ends_first(tmp_path, begin):
    for name, days in (("a", 90), ("b", 20)):
        certificates(tmp_path / name, days, begin)
    chain = b"".join((tmp_path / name).read_bytes() for name in ("a/server.crt", "b/server.crt", "a/ca.crt"))
    expected = x509.load_pem_x509_certificate((tmp_path / "b/server.crt").read_bytes())
    found = first_end(b"text before\n" + chain)
    assert (found.begin, found.end) == (expected.not_valid_before_utc, expected.not_valid_after_utc)


@pytest.mark.parametrize("cut", [b"", b"MIIB", b"MA==", b"MIL/////", b"MAIwAA=="])
def test_what_is_no_certificate_has_no_validity(cut):
    assert first_end(b"-----BEGIN CERTIFICATE-----\n" + cut + b"\n-----END CERTIFICATE-----") is None


def warnings_at(files, caplog, *days):
    """How many warnings there are at each of these days after the beginning."""
    counts = []
    for day in days:
        caplog.clear()
        files.warn_of_end((NOW + day * DAY).timestamp())
        files.warn_of_end((NOW + day * DAY).timestamp())
        counts.append(len(caplog.records))
    return counts


def test_warnings_come_a_month_before_the_end_and_again_closer_to_it_and_at_the_end(tmp_path, caplog):
    files = TlsFiles(*certificates(tmp_path))
    assert warnings_at(files, caplog, 0, 300, 334, 336, 340, 358, 362, 364, 366, 370) == [0, 0, 0, 1, 0, 1, 0, 1, 1, 0]
    assert "server.crt has expired, and clients refuse it, on 2031-01-01 00:00 UTC: renew it" not in caplog.text
    caplog.clear()
    TlsFiles(*certificates(tmp_path / "other")).warn_of_end((NOW + 366 * DAY).timestamp())
    assert "server.crt has expired, and clients refuse it, on 2031-01-01 00:00 UTC: renew it" in caplog.text


def test_a_certificate_of_a_day_is_near_its_end_in_its_last_hours(tmp_path, caplog):
    files = TlsFiles(*certificates(tmp_path, days=1))
    assert warnings_at(files, caplog, 0, 0.7, 0.76, 0.8, 1.1) == [0, 0, 1, 0, 1]


def test_a_renewed_certificate_has_warnings_of_its_own(tmp_path, caplog):
    files = TlsFiles(*certificates(tmp_path, days=10))
    assert warnings_at(files, caplog, 11) == [1]
    renew_certificates(tmp_path, (), 20, now=NOW + 11 * DAY)
    assert files.reread()
    assert warnings_at(files, caplog, 12, 32) == [0, 1]


def test_a_server_and_a_monitor_with_an_expired_certificate_say_so_at_the_start(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    certificate, key = certificates(tmp_path, begin=datetime.now(UTC) - 400 * DAY)
    with ServerThread(ServerConfig(tls_cert=certificate, tls_key=key)):
        pass
    assert [text for text in caplog.messages if "has expired" in text] == caplog.messages[:1]
    caplog.clear()
    shutil.copy(tmp_path / "ca.crt", tmp_path / "clients.crt")
    HttpCertificates(certificate, key, tmp_path / "clients.crt").context()
    assert len([text for text in caplog.messages if "has expired" in text]) == 1
    HttpCertificates(certificate, key, warns=False)
    assert len(caplog.messages) == 1
