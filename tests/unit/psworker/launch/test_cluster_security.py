"""Security of local clusters: which options belong together, and what servers and workers of a cluster get."""

import os
import tempfile

import pytest

from pswire.errors import ConfigurationError
from pswire.security.credentials import Credentials
from pswire.security.token_files import Role, add_token, read_tokens
from psworker.launch.cluster_security import ClusterSecurity
from psworker.launch.job import Job

TLS = {"tls_cert": "server.crt", "tls_key": "server.key", "tls_ca": "ca.crt"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"paramserver-{os.getuid()}"


def test_servers_want_the_tokens_that_were_made_for_them_and_workers_show_theirs():
    security = ClusterSecurity()
    with security.tokens() as tokens:
        assert security.server_options(tokens)["token_file"] == str(tokens.servers)
        worker, admin = (security.credentials(tokens, role) for role in (Role.WORKER, Role.ADMIN))
        found = read_tokens(tokens.servers)
        assert [found.find(one.token("127.0.0.1:1")).role for one in (worker, admin)] == [Role.WORKER, Role.ADMIN]
        assert not worker.tls


def test_an_insecure_cluster_has_no_tokens_unless_a_file_is_given(tmp_path, home):
    with ClusterSecurity(insecure=True).tokens() as tokens:
        assert tokens is None
        assert not home.exists()
    add_token(tmp_path / "tokens", "guest", Role.WORKER)
    with ClusterSecurity(insecure=True, token_file=str(tmp_path / "tokens")).tokens() as tokens:
        assert read_tokens(tokens.servers).tokens[0].name == "guest"
    with pytest.raises(ConfigurationError, match="cannot be read"), ClusterSecurity(token_file="/nowhere").tokens():
        pass


def test_workers_show_the_certificate_of_the_servers_where_these_ask_for_one():
    assert ClusterSecurity(**TLS).credentials(None, Role.WORKER) == Credentials("ca.crt")
    mutual = ClusterSecurity(**TLS, client_certificates="required")
    assert mutual.credentials(None, Role.WORKER) == Credentials("ca.crt", "server.crt", "server.key")
    options = mutual.server_options(None)
    assert options == {**TLS, "client_certificates": "required", "token_file": "", "insecure": "0"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tls_cert": "a", "tls_key": "b"}, "--tls-cert needs --tls-ca: workers of this machine check the servers"),
        ({"tls_cert": "a", "tls_ca": "b"}, "--tls-cert needs --tls-key"),
        ({"client_certificates": "required"}, "--client-certificates required needs --tls-cert"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options, text):
    with pytest.raises(ConfigurationError, match=text):
        ClusterSecurity(**options)


def test_a_job_for_other_machines_needs_tls_or_is_insecure_on_purpose():
    everywhere = ("0.0.0.0:0",)
    with pytest.raises(ConfigurationError, match="the server has no TLS: give it"):
        Job("train.py", bind=everywhere)
    assert Job("train.py", bind=everywhere, security=ClusterSecurity(**TLS)).bind == everywhere
    assert Job("train.py", bind=everywhere, security=ClusterSecurity(insecure=True)).bind == everywhere
    with pytest.raises(ConfigurationError, match="the server has no TLS"):
        Job("train.py", bind=("127.0.0.1:0", "ps-1:0"))
