"""The live page of processes: `psserver monitor`, `psserver serve --http`, `psworker local --http`."""

import os
import re
import signal
import time

import pytest

from tests.support.combinations import few_fast
from tests.support.commands import BOUND
from tests.support.http_client import following, get_json, request, trusting

TRAIN = """
    import psworker as ps
    W = ps.Variable(0.0, name="W")
    with ps.session() as session:
        ps.GradientDescent(1.0).apply_gradients([(-1.0, W)])
        print("trains", flush=True)
        while W.value < 3:
            session.pull()
"""


def monitor_of(commands, *options, **environment):
    monitor = commands.start("psserver", "monitor", *options, "--http", "127.0.0.1:0", **environment)
    monitor.wait_for("monitor at")
    return monitor


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_monitor_prints_where_it_is_and_ends_with_the_first_signal(commands, number):
    monitor = monitor_of(commands, "127.0.0.1:9")
    assert re.fullmatch(r"psserver: monitor at http://127\.0\.0\.1:\d+/", monitor.out[0])
    status, _, reason = request(monitor.address, "/")
    assert (status, reason[:70]) == (503, b"no server of the job answers: no server answers at 127.0.0.1:9: Connec")
    assert request(monitor.address, "/healthz")[0] == 200
    assert monitor.end(number) == (0, monitor.out, [])


def wait_for_job(http, what, **headers):
    end = time.monotonic() + BOUND
    while not what(job := get_json(http, "/api/job", **headers)):
        assert time.monotonic() < end, job
        time.sleep(0.05)
    return job


@pytest.mark.slow
def test_a_killed_shard_is_a_problem_on_the_page_and_a_killed_worker_is_lost(commands):
    first = commands.serve("--shard", "0/2", "--lease", "1")
    second = commands.serve("--shard", "1/2", "--lease", "1", "--http", "127.0.0.1:0")
    servers = f"{first.address},{second.out[0].split()[-1]}"
    worker = commands.start("psworker", "run", "--servers", servers, commands.script(TRAIN))
    worker.wait_for("trains")
    monitor = monitor_of(commands, servers)
    with following(monitor.address) as samples:
        assert [one["state"] for one in next(samples)[1]["workers"]] == ["live"]
        worker.end(signal.SIGKILL)
        sample = next(one for _, one in samples if one["workers"][0]["state"] == "lost")
        wait_for_job(monitor.address, lambda job: "lost" in [one["kind"] for one in job["events"]])
        second.end(signal.SIGKILL)
        sample = next(one for _, one in samples if one["problems"])
        assert [bool(one["problem"]) for one in sample["shards"]] == [False, True]
        assert request(monitor.address, "/readyz")[0] == 503
    first.end()
    monitor.end()


@pytest.mark.slow
def test_a_server_with_a_page_prints_its_address_and_frees_it_at_the_end(commands):
    server = commands.serve("--http", "127.0.0.1:0")
    server.wait_for("live page at")
    http = server.out[1].split()[-1]
    assert request(http, "/readyz")[0] == 200
    assert server.end()[0] == 0
    with pytest.raises(ConnectionRefusedError):
        request(http)


UNSAFE = "Error: other machines can reach 0.0.0.0:0, and the server has no TLS"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param("serve --http 0.0.0.0:0", f"{UNSAFE} and no tokens", marks=pytest.mark.slow),
        pytest.param("serve --http-servers a:1", "Error: --http-servers needs --http, the", marks=pytest.mark.slow),
        pytest.param("monitor --http 0.0.0.0:0", f"{UNSAFE}: give", marks=pytest.mark.slow),
        ("monitor --http unix:/x", "Error: Invalid value for '--http': 'unix:/x': browsers need host:port, such"),
        pytest.param("monitor --http-cert x", "Error: --http-cert and --http-key belong to", marks=pytest.mark.slow),
    ],
)
def test_a_page_that_cannot_be_is_an_error_before_anything_is_served(commands, options, error):
    code, out, err = commands.run("psserver", *options.split())
    assert (code != 0, out, err[-1][: len(error)]) == (True, [], error)


# --- psworker local ---------------------------------------------------------------------------------------------------


def page_of(job):
    """The URL of the page of a local cluster, and its token."""
    end = time.monotonic() + BOUND
    while not (lines := [line for line in job.err if line.startswith("psworker: live page at ")]):
        assert time.monotonic() < end, job.err
        time.sleep(0.05)
    return re.fullmatch(r"psworker: live page at (https?://127\.0\.0\.1:\d+/)\?token=(pst_\S+)", lines[0]).groups()


@pytest.mark.slow
@pytest.mark.parametrize("end", few_fast(["done", signal.SIGINT, signal.SIGKILL], fast=0))
def test_a_local_cluster_shows_its_job_on_a_page_of_its_own_that_ends_with_it(commands, end):
    job = commands.start("psworker", "local", "--shards", "2", "--http", commands.script(TRAIN))
    job.wait_for("worker-0", "worker-1")
    http, token = page_of(job)
    assert request(http, "/api/job")[0] == 401
    found = wait_for_job(
        http, lambda job: job["latest"] and len(job["latest"]["workers"]) == 2, Authorization=f"Bearer {token}"
    )
    assert {one["name"] for one in found["latest"]["workers"]} == {"worker-0", "worker-1"}
    assert found["latest"]["problems"] == []
    assert [line for line in commands.alive().values() if token in line] == []
    if end == "done":
        servers = next(line.split()[3] for line in job.err if line.startswith("psworker: servers at "))
        code, _, _ = commands.run("psworker", "run", "--servers", servers, commands.script(TRAIN, "third.py"))
        assert (code, job.wait()) == (0, 0)
    else:
        job.end(end)
    assert commands.wait_for_none()


@pytest.mark.slow
def test_the_page_of_a_local_cluster_is_for_other_machines_with_tls_only(commands):
    script, bind = commands.script(TRAIN), ("--http", "0.0.0.0:0")
    code, out, err = commands.run("psworker", "local", *bind, script)
    assert (code, out, err[-1][: len(UNSAFE)]) == (2, [], UNSAFE)
    assert commands.run("psserver", "certs", "certs")[0] == 0
    files = ("--tls-cert", "certs/server.crt", "--tls-key", "certs/server.key", "--tls-ca", "certs/ca.crt")
    job = commands.start("psworker", "local", "--progress", "off", *files, *bind, script)
    http, token = page_of(job)
    tls, bearer = trusting(commands.folder / "certs/ca.crt"), {"Authorization": f"Bearer {token}"}
    assert request(http, "/api/job", tls=tls)[0] == 401
    found = wait_for_job(http, lambda job: job["latest"], tls=tls, **bearer)
    assert found["latest"]["problems"] == []
    assert job.end(signal.SIGINT)[0] == 130


@pytest.mark.slow
def test_a_job_goes_on_when_its_page_dies_and_says_so(commands):
    job = commands.start("psworker", "local", "--http", "127.0.0.1:0", "--progress", "plain", commands.script(TRAIN))
    job.wait_for("worker-0", "worker-1")
    page_of(job)
    (monitor,) = [pid for pid, line in commands.alive().items() if " monitor " in line]
    os.kill(monitor, signal.SIGKILL)
    end = time.monotonic() + BOUND
    while not any("monitor" in line and "the job goes on without the live page" in line for line in job.err):
        assert time.monotonic() < end, job.err
        time.sleep(0.05)
    servers = next(line.split()[3] for line in job.err if line.startswith("psworker: servers at "))
    code, _, _ = commands.run("psworker", "run", "--servers", servers, commands.script(TRAIN, "third.py"))
    assert (code, job.wait()) == (0, 0)
