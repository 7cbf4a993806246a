"""`/metrics` by HTTP: of a server with a worker, and of a monitor, with the package and without."""

import asyncio
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread

import numpy as np

import psworker as ps
from psserver.cli.page import page_beside
from psserver.config import ServerConfig
from psserver.monitor.job_page import PageOptions, job_page
from psserver.monitor.job_servers import JobServers
from psserver.rpc.server import ServerThread, serve
from pswire.security.credentials import NO_CREDENTIALS
from psworker import ops
from tests.support.commands import BOUND, free_address
from tests.unit.psserver.monitor.full_report import samples

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def get(url, accept=""):
    """The body of an answer, and its type; for an error the status, and the body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=BOUND) as answer:
            return answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def server_with_page():
    """The addresses of a server in a thread, and of its page."""
    ready, http, there = Event(), free_address(), {}
    page = page_beside(ServerConfig(), http, None, None)

    @contextmanager
    def beside(running):
        with page(running):
            ready.set()
            yield

    async def main():
        stop = asyncio.Event()
        there["stop"] = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
        await serve(ServerConfig(), partial(there.__setitem__, "address"), stop, beside)

    thread = Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(BOUND)
        yield there["address"], f"http://{http}"
    finally:
        there["stop"]()
        thread.join(BOUND)


def test_a_server_has_the_metrics_of_its_pushes_at_the_address_of_its_page():
    with server_with_page() as (address, http), ps.session(address, "w0"):
        w = ps.Variable(np.ones((256, 256), np.float32), name="w")
        for _ in range(5):
            ps.GradientDescent(0.1).minimize(ops.sum(w))
        text, kind = get(f"{http}/metrics")
        openmetrics, other = get(f"{http}/metrics", OPENMETRICS)
    assert (kind, other[: len(OPENMETRICS)]) == ("text/plain; version=0.0.4; charset=utf-8", OPENMETRICS)
    assert openmetrics.endswith(b"# EOF\n")
    found = samples((text, kind))
    expected = {
        ("pushes_total", "applied"): 5,
        ("global_step",): 5,
        ("worker_steps_total", "w0"): 5,
        ("workers", "live"): 1,
        ("events_total", "joined"): 1,
        ("variable_updates_total", "w"): 5,
        ("variable_transfer_bytes_total", "in", "w"): 5 << 18,
        ("stored_bytes",): 1 << 18,
        ("stored_limit_bytes",): ServerConfig().variables_limit,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["transfer_bytes_total", "in", "shared_memory"] >= 5 << 18


def test_a_monitor_has_the_metrics_of_the_job_and_says_what_to_install_if_their_package_is_missing(monkeypatch):
    http = PageOptions("127.0.0.1:0").listen()
    with ServerThread() as server, ps.session(server.address, "w0"):
        servers = JobServers([server.address], NO_CREDENTIALS)
        with job_page(http, servers.ask, servers.check, servers.close):
            deadline = time.monotonic() + BOUND
            while (text := get(f"{http.url}metrics"))[0] == 503 and time.monotonic() < deadline:
                assert text[1] == "the monitor has no status of the job yet\n"
            monkeypatch.delattr("psserver.monitor.prometheus")
            monkeypatch.delitem(sys.modules, "psserver.monitor.prometheus")
            monkeypatch.setitem(sys.modules, "prometheus_client", None)
            status, reason = get(f"{http.url}metrics", OPENMETRICS)
    found = samples(text)
    assert (found["job_shard_up", server.address], found["job_shards",], found["job_workers", "live"]) == (1, 1, 1)
    assert (status, "-m pip install 'prometheus-client>=" in reason) == (501, True)
