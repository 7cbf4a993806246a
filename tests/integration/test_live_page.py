"""The live page of real servers: its paths, who may look, TLS, and what it shows of a job."""

import base64
import ssl
import time
from contextlib import contextmanager
from http.cookies import SimpleCookie

import numpy as np
import pytest

import psworker as ps
from psserver.cli.page import page_beside
from psserver.config import ServerConfig
from psserver.monitor import collector
from psserver.monitor.http import server as http_server
from psserver.monitor.job_page import PageOptions, job_page
from psserver.monitor.job_servers import JobServers
from psserver.rpc.server import ServerThread
from pswire.errors import ConfigurationError
from pswire.security.credentials import NO_CREDENTIALS
from pswire.security.private_files import read_secret
from pswire.security.token_files import Role, add_token, new_token, remove_token
from tests.support.commands import BOUND, free_address
from tests.support.http_client import exchange, following, get_json, request, trusting
from tests.support.servers import Certificates, token_credentials


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(http_server, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(collector, "INTERVAL", 0.05)


@contextmanager
def served(**options):
    """A server with a page: the addresses of both."""
    config, address = ServerConfig(**options), free_address()
    with ServerThread(config, page_beside(config, address, None, None)) as server:
        yield server.address, address


@contextmanager
def monitored(addresses, credentials=NO_CREDENTIALS, known_callers=False, **options):
    """A page of a process that asks these servers, as `psserver monitor` does."""
    servers = JobServers(addresses, credentials, known_callers=known_callers)
    http = PageOptions("127.0.0.1:0", **options).listen()
    with job_page(http, servers.ask, servers.check, servers.close):
        yield http.address


def train(address, steps=5, **credentials):
    with ps.session(address, name="w0", progress="off", **credentials) as session:
        W = ps.Variable(np.zeros(4, np.float32), name="W")
        for _ in range(steps):
            ps.GradientDescent(0.1).apply_gradients([(np.ones(4, np.float32), W)])
        return session.number


def wait_for(found, what):
    """The first result of `found` of which `what` holds."""
    end = time.monotonic() + BOUND
    while not what(result := found()):
        assert time.monotonic() < end, result
        time.sleep(0.02)
    return result


def secret(credentials):
    return read_secret(credentials.token_file, "token").decode().strip()


@pytest.fixture(scope="module")
def page():
    """A server without tokens, and its page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector, "INTERVAL", 0.05)
        with served() as addresses:
            yield addresses


def test_the_page_shows_the_training_of_its_server(page):
    server, http = page
    with following(http) as samples:
        train(server, 5)
        sample = next(one for _, one in samples if one["step"] == 5)
    assert (sample["job"]["number"], sample["problems"], sample["shards"][0]["address"]) == (1, [], server)
    assert [(one["name"], one["steps"]) for one in sample["workers"]] == [("w0", 5)]
    job = wait_for(lambda: get_json(http, "/api/job"), lambda job: any(one["kind"] == "left" for one in job["events"]))
    assert job["latest"]["step"] == job["history"][-1]["step"] == 5
    assert [one["kind"] for one in job["events"]] == ["joined", "left"]
    assert [one["number"] for one in job["events"]] == [1, 2]
    assert job["findings"] == []


def test_a_stream_goes_on_after_the_last_sample_that_a_viewer_has_seen(page):
    _, http = page
    with following(http) as samples:
        first, _ = next(samples)
    for again in ({"Last_Event_ID": str(first)}, {"path": f"/api/stream?after={first}"}):
        with following(http, **again) as samples:
            assert next(samples)[0] == first + 1


def test_the_page_has_its_files_and_nothing_else(page):
    _, http = page
    status, headers, body = request(http, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert request(http, "/index.html")[2] == body
    outside = ["/../site.py", "/page/../../site.py", "/%2e%2e/site.py", "//etc/passwd", "/site.py"]
    for path in (*outside, "/page", "/api", "/api/"):
        assert request(http, path)[0] == 404, path
    assert exchange(http, b"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 404 ")


def test_health_and_readiness(page):
    _, http = page
    assert request(http, "/healthz")[::2] == (200, b"ok\n")
    assert request(http, "/readyz")[::2] == (200, b"ready\n")
    assert request(http, "/readyz", "HEAD")[::2] == (200, b"")
    assert request(http, "/", "POST")[0] == 405


@pytest.mark.parametrize("path", ["/", "/api/job", "/api/stream", "/healthz", "/metrics"])
def test_a_name_of_another_site_that_leads_here_is_refused(page, path):
    _, http = page
    assert request(http, path, Host="evil.example")[0] == 421
    assert exchange(http, f"GET {path} HTTP/1.1\r\n\r\n".encode()).startswith(b"HTTP/1.1 421 ")


def test_a_server_that_stops_is_not_ready_and_its_page_ends_with_it():
    config, http, stopped = ServerConfig(), free_address(), []
    page = page_beside(config, http, None, None)

    @contextmanager
    def watched(running):
        with page(running):
            yield
            stopped.append(request(http, "/readyz"))

    with ServerThread(config, watched):
        assert request(http, "/readyz")[0] == 200
    ((status, _, body),) = stopped
    assert (status, body) == (503, b"the server is stopping\n")
    with pytest.raises(ConnectionRefusedError):
        request(http)


def test_a_shard_is_written_although_what_is_served_beside_it_fails_at_its_end(tmp_path, caplog):
    @contextmanager
    def failing(running):
        yield
        raise RuntimeError("at the end")

    config = ServerConfig(checkpoint_dir=tmp_path)
    with ServerThread(config, failing) as server:
        train(server.address, 5)
    assert "at the end" in caplog.text
    with served(checkpoint_dir=tmp_path) as (_, http):
        job = wait_for(lambda: get_json(http, "/api/job"), lambda job: job["latest"] is not None)
    assert job["latest"]["step"] == 5


# --- who may look -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["beside the server", "monitor"])
def guarded(request, tmp_path):
    """The page of a server with tokens, in both kinds of processes, the token of an observer, and the token file."""
    tokens, credentials = token_credentials(tmp_path)
    token = secret(credentials[Role.WORKER])
    if request.param == "monitor":
        with (
            ServerThread(ServerConfig(token_file=tokens)) as server,
            monitored([server.address], credentials[Role.OBSERVER]) as http,
        ):
            yield http, token, tokens
    else:
        with served(token_file=tokens) as (_, http):
            yield http, token, tokens


def test_where_servers_want_tokens_the_page_wants_one_in_any_of_three_ways(guarded):
    http, token, _ = guarded
    for path in ("/", "/index.html", "/api/job", "/api/stream", "/metrics", "/nothing"):
        status, headers, body = request(http, path)
        assert (status, headers["WWW-Authenticate"].split()[0]) == (401, "Basic"), path
        assert b"open /?token=TOKEN" in body
        assert request(http, path, Authorization=f"Bearer {new_token()}")[0] == 401
    assert request(http, "/healthz")[0] == 200
    assert request(http, "/readyz")[0] in (200, 503)

    assert request(http, "/api/job", Authorization=f"Bearer {token}")[0] == 200
    assert request(http, "/api/job", Authorization=basic(token))[0] == 200
    status, headers, _ = request(http, f"/?token={token}")
    cookie = SimpleCookie(headers["Set-Cookie"])
    (morsel,) = cookie.values()
    assert (status, headers["Location"]) == (303, "/")
    assert (morsel["httponly"], morsel["samesite"], morsel["path"], morsel["secure"]) == (True, "Strict", "/", "")
    assert token not in headers["Set-Cookie"]
    assert request(http, "/", Cookie=f"{morsel.key}={morsel.value}")[0] == 200
    with following(http, Cookie=f"{morsel.key}={morsel.value}") as samples:
        assert next(samples)
    assert request(http, f"/?token={new_token()}")[0] == 401
    assert request(http, f"/api/job?token={token}")[0] == 401, "only the page itself takes it from the address"


def basic(token):
    return "Basic " + base64.b64encode(f"me:{token}".encode()).decode()


def test_a_removed_token_ends_streams_and_sessions(guarded, monkeypatch):
    http, token, tokens = guarded
    monkeypatch.setattr("psserver.monitor.http.viewers.VALID_SECONDS", 0.1)
    monkeypatch.setattr("psserver.rpc.access.RECHECK", 0.05)
    _, headers, _ = request(http, f"/?token={token}")
    session = headers["Set-Cookie"].partition(";")[0]
    with following(http, Authorization=f"Bearer {token}") as samples:
        next(samples)
        remove_token(tokens, "worker")
        for _ in samples:
            pass  # until the stream ends
    assert request(http, "/", Cookie=session)[0] == 401


def test_a_page_with_tls_uses_the_certificate_of_the_server_and_its_cookie_needs_tls(tmp_path):
    certificates, tokens = Certificates(tmp_path / "ca"), tmp_path / "tokens"
    token = add_token(tokens, "carol", Role.OBSERVER)
    config, http = ServerConfig(token_file=tokens, **certificates.server), free_address()
    context = trusting(certificates.folder / "ca.crt")
    context.check_hostname = False  # the address is another one than that of the certificate
    with ServerThread(config, page_beside(config, http, None, None)):
        status, headers, _ = request(http, f"/?token={token}", tls=context)
        assert (status, "Secure" in headers["Set-Cookie"]) == (303, True)
        latest = get_json(http, "/api/job", tls=context, Authorization=f"Bearer {token}")["latest"]
        assert latest["shards"][0]["shard"] == 0
        with pytest.raises(ssl.SSLError):
            request(http, tls=ssl.create_default_context())
        assert exchange(http, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == b"", "plaintext gets no answer"


def test_where_servers_want_certificates_the_page_wants_one_too(tmp_path):
    certificates = Certificates(tmp_path / "ca")
    config, http = ServerConfig(**certificates.mutual), free_address()
    with ServerThread(config, page_beside(config, http, None, None)):
        folder = certificates.folder
        known = trusting(folder / "ca.crt", folder / "client.crt", folder / "client.key")
        unknown = trusting(folder / "ca.crt")
        known.check_hostname = unknown.check_hostname = False
        assert request(http, "/", tls=known)[0] == 200
        assert request(http, "/", tls=unknown)[0] == 403
        assert request(http, "/healthz", tls=unknown)[0] == 200


def test_a_page_for_other_machines_needs_tls_and_known_viewers_or_insecure():
    with pytest.raises(ConfigurationError, match=r"machines can reach 0.0.0.0:0, and the server has no TLS and no"):
        page_beside(ServerConfig(), "0.0.0.0:0", None, None)
    with pytest.raises(ConfigurationError, match=r"has no TLS: give it --http-cert and --http-key; or listen on this"):
        PageOptions("0.0.0.0:0", remedy="give it --http-cert and --http-key")


def test_a_page_that_is_open_on_purpose_says_so_in_the_log(caplog):
    http = PageOptions("0.0.0.0:0", insecure=True).listen()
    with http.serving(lambda request: None):
        assert http.url.startswith("http://127.0.0.1:")
    assert "0.0.0.0:0 is open to other machines without TLS (--insecure): they can see the job" in caplog.text


def test_a_monitor_for_other_machines_lets_nobody_in_if_its_servers_want_no_tokens():
    with ServerThread() as server, monitored([server.address], known_callers=True) as http:
        status, _, body = request(http, "/", Authorization=f"Bearer {new_token()}")
    assert (status, b"--insecure" in body) == (403, True)


# --- several shards ---------------------------------------------------------------------------------------------------


def test_a_page_of_all_shards_shows_a_silent_one_as_a_problem_until_it_is_back(monkeypatch):
    first, second = ServerThread(ServerConfig(shards=2)), ServerThread(ServerConfig(shard=1, shards=2))
    with first:
        second.__enter__()
        addresses = [first.address, second.address]
        with monitored(addresses) as http:
            wait_for(lambda: request(http, "/readyz")[0], lambda status: status == 200)
            with following(http) as samples:
                assert next(samples)[1]["problems"] == []
                second.__exit__(None, None, None)
                sample = next(one for _, one in samples if one["shards"][1]["problem"])
                assert sample["shards"][0]["problem"] == ""
                # A call that was on its way was interrupted; for a later one, no server answers.
                assert all(addresses[1] in one for one in (sample["shards"][1]["problem"], sample["problems"][0]))
                status, _, reason = request(http, "/readyz")
                assert (status, addresses[1].encode() in reason) == (503, True)
                with ServerThread(ServerConfig(bind=addresses[1], shard=1, shards=2)):
                    assert next(one for _, one in samples if not one["problems"])


def test_viewers_that_are_in_stay_while_no_server_answers_and_see_the_problem(monkeypatch):
    server = ServerThread()
    with server:
        monitor = monitored([server.address])
        http = monitor.__enter__()
        assert request(http, "/api/job")[0] == 200
    try:
        monkeypatch.setattr("psserver.monitor.http.viewers.VALID_SECONDS", 0.0)
        job = wait_for(lambda: get_json(http, "/api/job"), lambda job: job["latest"]["problems"])
        assert "no server answers" in job["latest"]["problems"][0]
    finally:
        monitor.__exit__(None, None, None)


def test_the_page_beside_one_shard_can_show_all(tmp_path):
    tokens, credentials = token_credentials(tmp_path)
    other = ServerThread(ServerConfig(shard=1, shards=2, token_file=tokens))
    address, http = free_address(), free_address()
    config = ServerConfig(bind=address, shards=2, token_file=tokens)
    with other:
        page = page_beside(config, http, [address, other.address], credentials[Role.OBSERVER].token_file)
        with ServerThread(config, page):
            headers = {"Authorization": f"Bearer {secret(credentials[Role.WORKER])}"}
            job = wait_for(lambda: get_json(http, "/api/job", **headers), lambda job: job["latest"] is not None)
    assert [(one["shard"], one["problem"]) for one in job["latest"]["shards"]] == [(0, ""), (1, "")]


def test_a_page_of_one_shard_of_two_says_that_it_is_not_the_whole_job():
    with served(shards=2) as (_, http):
        job = wait_for(lambda: get_json(http, "/api/job"), lambda job: job["latest"] is not None)
    assert "this is not the whole job" in job["latest"]["problems"][0]
