"""Certificates that `psserver certs` makes: names, validity, keys, and what is not overwritten."""

import datetime
import importlib
import ipaddress
import sys

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from psserver import certificates
from psserver.certificates import check_hosts, make_certificates, renew_certificates
from pswire.errors import ConfigurationError

NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def load(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.fixture
def folder(tmp_path):
    make_certificates(tmp_path / "certs", ("ps-0", "10.0.0.5"), 30, now=NOW)
    return tmp_path / "certs"


@pytest.mark.parametrize("name", ["ps-0", "localhost"])
def test_a_server_is_verified_by_another_implementation_under_each_of_its_names(folder, name):
    policy = PolicyBuilder().store(Store([load(folder / "ca.crt")]))
    verifier = policy.time(NOW.replace(tzinfo=None)).build_server_verifier(x509.DNSName(name))
    assert len(verifier.verify(load(folder / "server.crt"), [])) == 2
    address = x509.IPAddress(ipaddress.ip_address("10.0.0.5"))
    assert policy.time(NOW.replace(tzinfo=None)).build_server_verifier(address).verify(load(folder / "server.crt"), [])
    later = policy.time((NOW + 31 * DAY).replace(tzinfo=None)).build_server_verifier(x509.DNSName(name))
    with pytest.raises(x509.verification.VerificationError):
        later.verify(load(folder / "server.crt"), [])
    stranger = policy.time(NOW.replace(tzinfo=None)).build_server_verifier(x509.DNSName("ps-1"))
    with pytest.raises(x509.verification.VerificationError):
        stranger.verify(load(folder / "server.crt"), [])
    with pytest.raises(x509.verification.VerificationError):
        policy.build_server_verifier(x509.DNSName(name)).verify(load(folder / "client.crt"), [])


def test_certificates_are_valid_as_long_as_they_were_asked_to_be_and_not_longer_than_their_ca(folder):
    assert load(folder / "server.crt").not_valid_after_utc == NOW + 30 * DAY
    assert load(folder / "ca.crt").not_valid_after_utc == NOW + 3650 * DAY
    assert load(folder / "server.crt").not_valid_before_utc < NOW, "clocks of other machines may be behind"
    renew_certificates(folder, (), 30, now=NOW + 3640 * DAY)
    assert load(folder / "server.crt").not_valid_after_utc == NOW + 3650 * DAY
    with pytest.raises(ConfigurationError, match="has expired: make a new one with --force"):
        renew_certificates(folder, (), 30, now=NOW + 3650 * DAY)


def test_renewal_keeps_keys_and_names_or_takes_new_names(folder):
    before = {name: (folder / name).read_bytes() for name in ("ca.crt", "ca.key", "server.key", "client.key")}
    assert renew_certificates(folder, (), 10, now=NOW) == ("ps-0", "10.0.0.5", "localhost", "127.0.0.1", "::1")
    assert renew_certificates(folder, ("ps-9",), 10, now=NOW) == ("ps-9", "localhost", "127.0.0.1", "::1")
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_files_that_are_there_stay_unless_they_are_to_be_replaced(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigurationError, match=r"has ca\.crt, ca\.key, server\.crt, .* already: use --renew"):
        make_certificates(folder, (), 30)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    make_certificates(folder, (), 30, force=True)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())


@pytest.mark.parametrize("host", ["", "a b", "-a", "http://a", "a/b", "1.2.3.4.5:7070", "ü.example"])
def test_what_is_no_host_is_refused_before_a_file_is_made(host, tmp_path):
    with pytest.raises(ConfigurationError, match="is no host name or IP address"):
        make_certificates(tmp_path / "certs", ("ps-0", host), 30)
    assert not (tmp_path / "certs").exists()
    assert check_hosts(["[::1]", "*.example", "localhost"]) == ("::1", "*.example", "localhost", "127.0.0.1")


def test_a_file_that_is_none_of_these_is_named(folder):
    for name in ("ca.crt", "ca.key"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(b"nonsense")
        with pytest.raises(ConfigurationError, match=f"{name} is no "):
            renew_certificates(folder, (), 30)
        (folder / name).write_bytes(whole)
    (folder / "server.key").unlink()
    with pytest.raises(ConfigurationError, match=r"server\.key cannot be read: No such file"):
        renew_certificates(folder, (), 30)


def test_without_the_package_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigurationError, match=r"-m pip install 'cryptography>="):
        importlib.reload(certificates)
    monkeypatch.undo()
    importlib.reload(certificates)
