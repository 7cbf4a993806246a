"""Credentials of a client: which files belong together, and where a token may go."""

import pytest

from pswire.errors import ConfigurationError
from pswire.network.channel import open_channel
from pswire.security.credentials import Credentials
from pswire.security.exposure import check_exposure


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "alice.token"
    path.touch(0o600)
    path.write_text("pst_0123456789abcdef\n")
    return str(path)


@pytest.mark.parametrize("address", ["127.0.0.1:7070", "127.9.8.7:1", "localhost:7070", "[::1]:7070", "unix:/run/ps"])
def test_a_token_goes_unencrypted_to_this_machine(token, address):
    assert Credentials(token_file=token).token(address) == "pst_0123456789abcdef"


@pytest.mark.parametrize("address", ["ps-0:7070", "10.0.0.1:1", "127.0.0.1.example:7070", "[fe80::1]:7070"])
def test_a_token_goes_to_another_machine_by_tls_only(token, address):
    with pytest.raises(ConfigurationError, match=rf"the token in {token} would be sent to .* without encryption"):
        Credentials(token_file=token).token(address)
    with pytest.raises(ConfigurationError, match="without encryption"):
        open_channel(address, Credentials(token_file=token))
    assert Credentials(tls_ca="ca.crt", token_file=token).token(address) == "pst_0123456789abcdef"


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"tls_ca": "c", "tls_cert": "a"}, "--tls-cert needs --tls-key"),
        ({"tls_ca": "c", "tls_key": "a"}, "--tls-key needs --tls-cert"),
        ({"tls_cert": "a", "tls_key": "b"}, "--tls-cert needs --tls-ca"),
    ],
)
def test_files_that_do_not_make_credentials_are_refused(files, text):
    with pytest.raises(ConfigurationError, match=text):
        Credentials(**files)


def test_a_file_that_cannot_be_used_is_an_error_that_names_it(tmp_path, token):
    for name, option in (("the CA file", "tls_ca"), ("the token file", "token_file")):
        with pytest.raises(ConfigurationError, match=f"{name} /nowhere cannot be read: No such file"):
            open_channel("127.0.0.1:1", Credentials(**{option: "/nowhere"}))
    large = tmp_path / "large"
    large.touch(0o600)
    large.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(ConfigurationError, match="more than 1,048,576 bytes"):
        open_channel("127.0.0.1:1", Credentials(tls_ca=str(large)))


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "localhost:7070", "[::1]:0", "unix:/run/ps.sock"])
def test_a_server_for_this_machine_needs_nothing_and_warns_of_nothing(bind):
    for insecure in (False, True):
        assert check_exposure(bind, tls=False, knows_callers=False, insecure=insecure) == ""


@pytest.mark.parametrize("bind", ["0.0.0.0:7070", "[::]:0", "ps-0:7070", "192.168.1.2:7070"])
def test_a_server_for_other_machines_needs_tls_and_known_callers_or_says_that_it_is_insecure(bind):
    assert check_exposure(bind, tls=True, knows_callers=True, insecure=False) == ""
    for tls, knows, missing in (
        (False, False, "TLS and {} tokens or client certificates"),
        (True, False, "tokens or client certificates"),
        (False, True, "TLS"),
    ):
        with pytest.raises(ConfigurationError, match=f"the server has no {missing.format('no')}: "):
            check_exposure(bind, tls=tls, knows_callers=knows, insecure=False)
        warning = check_exposure(bind, tls=tls, knows_callers=knows, insecure=True)
        assert warning.startswith(f"{bind} is open to other machines without {missing.format('without')} (--insecure)")
