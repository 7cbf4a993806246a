"""TLS over real sockets: what each side reads when the other is not what it should be, and certificates that change."""

import datetime
import logging
import os
import re
import shutil
import socket
import ssl
import threading
from contextlib import closing

import numpy as np
import pytest

import psworker as ps
from psjob.status.status_client import StatusClient
from psserver.certificates import renew_certificates
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.errors import ConfigurationError, Unauthenticated, Unavailable
from pswire.messages import Status
from pswire.network.channel import check_health
from pswire.security.connection_check import handshake_problem
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.security.token_files import Role
from psworker.client.client import Client as WorkerClient
from psworker.transport.network_transport import NetworkTransport
from tests.support.commands import BOUND
from tests.support.servers import Certificates, Client, token_credentials

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def certificates(folder):
    return Certificates(folder / "job", ("ps-0",))


@pytest.fixture(scope="module")
def other(folder):
    return Certificates(folder / "other")


@pytest.fixture(scope="module")
def secure(certificates):
    """A server with TLS."""
    with ServerThread(ServerConfig(**certificates.server)) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(certificates):
    """A server with TLS that asks for certificates of clients."""
    with ServerThread(ServerConfig(**certificates.mutual)) as server:
        yield server


@pytest.fixture(scope="module")
def plain():
    """A server without TLS."""
    with ServerThread() as server:
        yield server


def problem(address, credentials):
    """What a worker reads, after one try."""
    with (
        closing(NetworkTransport([address], credentials)) as transport,
        pytest.raises(Unauthenticated) as caught,
    ):
        WorkerClient(transport, "w0", BOUND).join()
    return str(caught.value).replace(address, "ADDRESS")


def test_a_worker_and_a_status_go_through_tls_and_tensors_through_shared_memory(secure, certificates):
    credentials = certificates.client()
    assert check_health(secure.address, BOUND, credentials)
    with ps.session([secure.address], tls_ca=credentials.tls_ca) as session:
        w = ps.Variable(np.ones((100, 100), np.float32), name="w")
        ps.GradientDescent(1.0).apply_gradients([(np.ones((100, 100), np.float32), w)])
        assert w.value.sum() == 0
        with StatusClient([secure.address], credentials) as client:
            while not (status := client.ask(BOUND)).workers[0].tensor_transport:
                pass  # until its first heartbeat
        assert [one.tensor_transport for one in status.workers] == ["shared memory"]
        assert session.worker == status.workers[0].name


def test_a_wrong_ca_is_named(secure, other):
    assert problem(secure.address, other.client()) == (
        f"the certificate of the server at ADDRESS is not signed by the CA in {other.client().tls_ca} (unable to get "
        "local issuer certificate): give the CA of this server (--tls-ca)"
    )


def test_an_expired_certificate_is_to_be_renewed(folder):
    expired = Certificates(folder / "expired", now=LONG_AGO)
    with ServerThread(ServerConfig(**expired.server)) as server:
        assert problem(server.address, expired.client()) == (
            "the certificate of the server at ADDRESS has expired: renew it (psserver certs DIR --renew)"
        )


def test_a_certificate_for_another_name_says_for_which_it_is(secure, folder, certificates, monkeypatch):
    """As for another name of this machine: the loopback has many addresses, of which the certificate has one."""
    with ServerThread(ServerConfig("127.0.0.2:0", **certificates.server)) as server:
        assert problem(server.address, certificates.client()) == (
            "the certificate of the server at ADDRESS is not for 127.0.0.2, but for ps-0, localhost, 127.0.0.1, "
            "0:0:0:0:0:0:0:1: use a name that it has (also as --tls-name), or make one for this name "
            "(psserver certs DIR --hosts)"
        )


def test_a_client_without_tls_is_told_that_the_server_uses_it(secure, mutual):
    text = "the server at ADDRESS uses TLS, and the client does not: give the CA of its certificate (--tls-ca)"
    assert problem(secure.address, NO_CREDENTIALS) == text
    assert problem(mutual.address, NO_CREDENTIALS) == text


def test_a_client_with_tls_is_told_that_the_server_does_not_use_it(plain, certificates):
    assert problem(plain.address, certificates.client()) == (
        "the server at ADDRESS does not use TLS, and the client does: leave --tls-ca out, or start the server with "
        "--tls-cert and --tls-key"
    )


def test_a_client_without_a_certificate_is_told_that_the_server_wants_one(mutual, certificates):
    assert problem(mutual.address, certificates.client()) == (
        "the server at ADDRESS requires a client certificate: give one with its key (--tls-cert and --tls-key)"
    )
    assert check_health(mutual.address, BOUND, certificates.client(certificate=True))


def test_a_client_with_a_certificate_of_another_ca_is_told_that_it_is_not_accepted(mutual, certificates, other):
    stranger = other.client(certificate=True)
    credentials = Credentials(certificates.client().tls_ca, stranger.tls_cert, stranger.tls_key)
    assert problem(mutual.address, credentials) == (
        f"the server at ADDRESS does not accept the certificate in {stranger.tls_cert}: it has to be signed by the CA "
        "that the server has as --tls-ca, and valid now"
    )


def test_a_server_may_show_its_own_certificate_to_another_server(mutual, certificates):
    own = Credentials(certificates.client().tls_ca, *map(str, certificates.server.values()))
    assert check_health(mutual.address, BOUND, own)


def test_a_unix_socket_has_tls_as_well(tmp_path, certificates, other):
    with ServerThread(ServerConfig(f"unix:{tmp_path}/s", **certificates.server)) as server:
        assert check_health(server.address, BOUND, certificates.client())
        assert "is not signed by the CA" in problem(server.address, other.client())
        assert "uses TLS, and the client does not" in problem(server.address, NO_CREDENTIALS)


def test_a_token_of_the_right_role_goes_through_tls(tmp_path, certificates):
    tokens, credentials = token_credentials(tmp_path)
    with ServerThread(ServerConfig(token_file=tokens, **certificates.server)) as server:
        worker = certificates.client(token_file=credentials[Role.WORKER].token_file)
        client = Client(server.address, worker)
        with client.channel:
            assert client.join("w0").worker == "w0"
        assert problem(server.address, certificates.client()).startswith("this server requires a token")


def presented(address):
    """The serial number of the certificate that a server shows to a new connection."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as connection:
        return connection.getpeercert(binary_form=True)


@pytest.mark.slow
def test_a_renewed_certificate_is_shown_to_new_connections_while_open_ones_go_on(tmp_path, caplog):
    caplog.set_level(logging.INFO, "psserver.tls_files")
    certificates = Certificates(tmp_path / "c")
    with ServerThread(ServerConfig(**certificates.server)) as server:
        client = Client(server.address, certificates.client())
        with client.channel:
            client.unary(Status())
            before = presented(server.address)
            assert before == presented(server.address)
            assert renew_certificates(tmp_path / "c", (), 10) == ("localhost", "127.0.0.1", "::1")
            after = presented(server.address)
            assert after != before
            assert after == ssl.PEM_cert_to_DER_cert((tmp_path / "c/server.crt").read_text())
            client.unary(Status())
        assert check_health(server.address, BOUND, certificates.client())
    assert [text for text in caplog.messages if "again" in text] == [
        f"read the certificate {tmp_path}/c/server.crt again"
    ]


def test_a_changed_ca_of_clients_is_used_for_new_connections(tmp_path, other):
    certificates = Certificates(tmp_path / "c")
    with ServerThread(ServerConfig(**certificates.mutual)) as server:
        assert check_health(server.address, BOUND, certificates.client(certificate=True))
        stranger = other.client(certificate=True)
        credentials = Credentials(str(tmp_path / "server-ca.crt"), stranger.tls_cert, stranger.tls_key)
        shutil.copy(tmp_path / "c/ca.crt", tmp_path / "server-ca.crt")
        os.replace(shutil.copy(stranger.tls_ca, tmp_path / "new"), tmp_path / "c/ca.crt")
        assert check_health(server.address, BOUND, credentials)


def test_a_changed_certificate_that_cannot_be_used_is_logged_once_and_the_one_before_stays(tmp_path, caplog):
    certificates = Certificates(tmp_path / "c")
    with ServerThread(ServerConfig(**certificates.server)) as server:
        before = presented(server.address)
        (tmp_path / "c/server.key").write_text("no key")
        assert presented(server.address) == before
        assert presented(server.address) == before
    warnings = [text for text in caplog.messages if "new connections get the previous certificate" in text]
    assert len(warnings) == 1
    assert "server.key" in warnings[0]


def test_a_server_whose_files_do_not_fit_together_does_not_start(tmp_path, certificates, other, folder):
    for files, text in (
        ({"tls_cert": folder / "job/server.crt", "tls_key": folder / "other/server.key"}, "KEY_VALUES_MISMATCH"),
        ({"tls_cert": tmp_path / "nowhere", "tls_key": folder / "job/server.key"}, "nowhere cannot be read: No such"),
        ({**certificates.mutual, "tls_ca": folder / "job/server.key"}, "cannot be used"),
    ):
        with pytest.raises(ConfigurationError, match=text), ServerThread(ServerConfig(**files)):
            pass
    open_key = tmp_path / "open.key"
    shutil.copy(folder / "job/server.key", open_key)
    open_key.chmod(0o644)
    config = ServerConfig(tls_cert=folder / "job/server.crt", tls_key=open_key)
    with pytest.raises(ConfigurationError, match="can be read or changed by others"), ServerThread(config):
        pass


def test_an_insecure_server_for_other_machines_says_so_when_it_starts_and_in_the_status(caplog):
    with ServerThread(ServerConfig("0.0.0.0:0", insecure=True)) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        warning = (
            "0.0.0.0:0 is open to other machines without TLS and without tokens or client certificates (--insecure)"
        )
        assert [text for text in caplog.messages if text.startswith(warning)]
        with StatusClient([address]) as client:
            (found,) = client.ask(BOUND).problems
        assert found.startswith(f"shard 0 at {address}: {warning}")


def test_a_server_for_other_machines_is_refused_without_tls_and_callers(certificates, tmp_path):
    with pytest.raises(ConfigurationError, match="the server has no TLS and no tokens"):
        ServerConfig("0.0.0.0:0")
    tokens, _ = token_credentials(tmp_path)
    assert ServerConfig("0.0.0.0:0", token_file=tokens, **certificates.server).exposure == ""
    assert ServerConfig("0.0.0.0:0", **certificates.mutual).exposure == ""


@pytest.mark.parametrize("behaviour", ["closes", "answers nonsense", "closes after the first bytes"])
@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_just_breaks_is_no_problem_of_tls(behaviour, tls, certificates):
    """Or a worker would end where it should try again, as when its server is killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())

        def serve():
            connection, _ = listener.accept()
            with connection:
                if behaviour != "closes":
                    connection.recv(1)
                if behaviour == "answers nonsense" and not tls:
                    connection.sendall(b"nonsense")

        thread = threading.Thread(target=serve)
        thread.start()
        found = handshake_problem(address, "Socket closed", certificates.client() if tls else NO_CREDENTIALS)
        thread.join()
    assert found == ""
    assert handshake_problem(address, "Socket closed", NO_CREDENTIALS) == "", "nobody listens any more"


def test_a_server_that_is_not_there_is_unavailable_with_tls_too(certificates):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = "{}:{}".format(*listener.getsockname())
    with pytest.raises(Unavailable, match=re.escape(f"no server answers at {address}")):
        check_health(address, BOUND, certificates.client())
