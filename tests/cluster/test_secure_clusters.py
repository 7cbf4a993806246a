"""Local clusters with tokens and TLS, without a question asked; and servers and workers that are started one by one."""

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest

STEP = """
    import psworker as ps
    W = ps.Variable(0.0, name="W")
    with ps.session() as session:
        ps.GradientDescent(1.0).apply_gradients([(-1.0, W)])
        print("joined as", session.number, flush=True)
        while W.value < {workers}:
            session.pull()
"""

STATUS = "psserver", "status", "--json"


@pytest.fixture
def home(monkeypatch, tmp_path_factory):
    """Where the tokens of local clusters are in this test."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder / f"paramserver-{os.getuid()}"


def servers_of(job):
    (line,) = [line for line in job.err if line.startswith("psworker: servers at ")]
    return line.split()[3]


@pytest.mark.slow
def test_a_local_cluster_has_tokens_of_its_own_that_other_commands_of_its_user_find_and_no_others(commands, home):
    job = commands.start(
        "psworker", "local", "--progress", "plain", "--workers", "1", commands.script(STEP.format(workers=2))
    )
    job.wait_for("joined as 0")
    servers = servers_of(job)
    code, out, _ = commands.run(*STATUS, servers)
    assert (code, [one["name"] for one in json.loads("\n".join(out))["workers"]]) == (0, ["worker-0"])
    code, _, err = commands.run(*STATUS, servers, TMPDIR="/var/tmp")  # as another user, who has another folder
    assert (code, "this server requires a token" in err[-1]) == (1, True)

    (cluster,) = home.iterdir()
    assert sorted(one.name for one in cluster.iterdir()) == [
        "addresses",
        "admin",
        "lock",
        "observer",
        "tokens",
        "worker",
    ]
    assert {one.stat().st_mode & 0o777 for one in cluster.iterdir()} == {0o600}
    assert {one.stat().st_mode & 0o777 for one in (home, cluster)} == {0o700}
    secrets = [(cluster / name).read_text().strip() for name in ("admin", "observer", "worker")]
    assert [line for line in commands.alive().values() if any(secret in line for secret in secrets)] == []

    code, out, err = commands.run(
        "psworker", "run", "--servers", servers, commands.script(STEP.format(workers=2), "b.py")
    )
    assert (code, out, err) == (0, ["joined as 1"], [])
    assert job.wait() == 0
    assert not home.exists(), "the tokens are gone with the cluster"


@pytest.mark.slow
def test_what_a_killed_launcher_has_left_is_removed_by_the_next(commands, home):
    job = commands.start("psworker", "local", "--workers", "1", commands.script(STEP.format(workers=2)))
    job.wait_for("joined as 0")
    (left,) = home.iterdir()
    job.end(signal.SIGKILL)
    assert commands.wait_for_none()
    assert left.exists()
    code, out, _ = commands.run("psworker", "local", "--workers", "1", commands.script(STEP.format(workers=1)))
    assert (code, out) == (0, ["worker-0 | joined as 0"])
    assert not home.exists()


@pytest.mark.slow
def test_a_cluster_for_other_machines_needs_tls_and_says_so_before_anything_is_started(commands):
    script = commands.script(STEP.format(workers=1))
    code, out, err = commands.run("psworker", "local", "--bind", "0.0.0.0", script)
    assert (code, out) == (2, [])
    assert "other machines can reach 0.0.0.0:0, and the server has no TLS: give it --tls-cert" in err[-1]
    code, out, err = commands.run("psserver", "serve", "--bind", "0.0.0.0:0")
    assert (code, out, len(err)) == (1, [], 1)
    assert err[0].startswith("Error: other machines can reach 0.0.0.0:0, and the server has no TLS and no tokens or ")


@pytest.mark.slow
def test_a_cluster_for_other_machines_with_tls_takes_workers_with_a_token_and_a_certificate(commands, home):
    assert commands.run("psserver", "certs", "certs", "--hosts", "ps-0")[0] == 0
    assert (
        commands.run("psserver", "token", "add", "tokens", "guest", "--role", "worker", "--output", "guest.token")[0]
        == 0
    )
    environment = {
        "PSSERVER_TLS_CERT": "certs/server.crt",
        "PSSERVER_TLS_KEY": "certs/server.key",
        "PSSERVER_TLS_CA": "certs/ca.crt",
        "PSSERVER_CLIENT_CERTIFICATES": "required",
        "PSSERVER_TOKEN_FILE": "tokens",
        "PSSERVER_BIND": "0.0.0.0",
    }
    script = commands.script(STEP.format(workers=2))
    job = commands.start("psworker", "local", "--progress", "plain", "--workers", "1", script, **environment)
    job.wait_for("joined as 0")
    servers = servers_of(job)
    files = {"PSWORKER_TLS_CA": "certs/ca.crt", "PSWORKER_TOKEN_FILE": "guest.token"}
    worker = "psworker", "run", "--servers", servers
    code, _, err = commands.run(*worker, script, **files)
    assert (code, "requires a client certificate" in err[-1]) == (1, True), err
    own = "--tls-cert", "certs/client.crt", "--tls-key", "certs/client.key"
    code, out, err = commands.run(*worker, *own, script, **files)
    assert (code, out) == (0, ["joined as 1"]), err
    assert job.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_workers_of_a_local_cluster_check_its_servers_by_the_name_in_their_certificate(commands, how):
    assert commands.run("psserver", "certs", "certs", "--hosts", "ps.internal")[0] == 0
    files = {"cert": "server.crt", "key": "server.key", "ca": "ca.crt"}
    options = [f"--tls-{name}=certs/{file}" for name, file in files.items()]
    local = ["psworker", "local", "--workers", "1", "--bind", "127.0.9.1", *options]  # which is not in the certificate
    script = commands.script(STEP.format(workers=1))
    if how == "option":
        code, out, err = commands.run(*local, "--tls-name", "ps.internal", script)
    else:
        code, out, err = commands.run(*local, script, PSWORKER_TLS_NAME="ps.internal")
    assert (code, out) == (0, ["worker-0 | joined as 0"]), err


@pytest.mark.slow
def test_servers_and_workers_with_tokens_and_tls_train_and_each_command_uses_them(commands, tmp_path):
    assert commands.run("psserver", "certs", "certs")[0] == 0
    for role in ("worker", "observer", "admin"):
        add = commands.run("psserver", "token", "add", "tokens", role, "--role", role, "--output", f"{role}.token")
        assert add == (0, [], [])
    assert commands.run("psserver", "token", "list", "tokens")[1] == [
        "worker worker",
        "observer observer",
        "admin admin",
    ]
    files = "--tls-cert", "certs/server.crt", "--tls-key", "certs/server.key", "--token-file", "tokens"
    server = commands.serve(*files, "--checkpoint-dir", "kept")
    tls, script = {"PSSERVER_TLS_CA": "certs/ca.crt"}, commands.script(STEP.format(workers=1))
    options = "--tls-ca", "certs/ca.crt", "--token-file", "worker.token"
    assert commands.run("psworker", "run", "--servers", server.address, *options, script)[:2] == (0, ["joined as 0"])
    assert commands.run("psserver", "health", server.address, **tls)[:2] == (0, ["SERVING"])
    for command, role, code in (
        (("status",), "observer", 0),
        (("jobs",), "observer", 0),
        (("checkpoint", "save"), "observer", 1),
        (("checkpoint", "save"), "admin", 0),
        (("reset",), "worker", 1),
        (("reset",), "admin", 0),
    ):
        token = {"PSSERVER_CLIENT_TOKEN_FILE": f"{role}.token"}
        ended = commands.run("psserver", *command, server.address, **tls, **token)
        assert ended[0] == code, (command, ended)
        if code:
            assert f"the token {role!r} has the role {role}" in ended[2][-1]
    code, _, err = commands.run("psserver", "status", server.address)
    assert (code, "uses TLS, and the client does not" in err[-1]) == (1, True)
    server.end(signal.SIGTERM)


@pytest.mark.slow
def test_certificates_and_tokens_are_not_overwritten_and_keys_are_private(commands, tmp_path):
    assert commands.run("psserver", "certs", "certs", "--hosts", "ps-0,10.0.0.5")[0] == 0
    ca, server = ((tmp_path / "certs" / name).read_bytes() for name in ("ca.crt", "server.crt"))
    assert {path.name: path.stat().st_mode & 0o777 for path in Path(tmp_path / "certs").glob("*.key")} == dict.fromkeys(
        ("ca.key", "server.key", "client.key"), 0o600
    )
    code, _, err = commands.run("psserver", "certs", "certs")
    assert (code, "use --renew for a new certificate of the same CA" in err[-1]) == (1, True)
    assert (tmp_path / "certs/ca.crt").read_bytes() == ca
    code, out, _ = commands.run("psserver", "certs", "certs", "--renew", "--days", "9")
    assert (code, "ps-0, 10.0.0.5, localhost, 127.0.0.1, ::1, valid for 9 days" in out[0]) == (0, True)
    assert (tmp_path / "certs/ca.crt").read_bytes() == ca
    assert (tmp_path / "certs/server.crt").read_bytes() != server
    assert commands.run("psserver", "certs", "certs", "--force")[0] == 0
    assert (tmp_path / "certs/ca.crt").read_bytes() != ca
