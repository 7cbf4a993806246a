"""A real Prometheus scrapes a real server while a real worker trains, and has what the shard says."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager

import pytest

from psjob.status.status_client import StatusClient
from pswire.security.token_files import Role
from tests.observability.test_files import ALERTS, expressions
from tests.support.commands import BOUND, Command, environment, free_address
from tests.support.servers import token_credentials
from tests.unit.psserver.monitor.full_report import all_families

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Prometheus is not installed: apt-get install prometheus"
    ),
]

#: Trains, and stays in the job until a file says that it ends.
PROGRAM = """
import pathlib, sys, time
import numpy as np
import psworker as ps
from psworker import ops

data = ps.Dataset({"x": np.ones((500, 2), np.float32)}, "ones")
w = ps.Variable(np.zeros(2, np.float32), name="w")
optimizer = ps.Adam(0.1)
with ps.session() as session:
    for batch in session.batches(data, 5, epochs=3):
        optimizer.minimize(ops.mean(ops.square(batch.x * w - 1)))
        time.sleep(0.01)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""

STEPS = 300

CONFIGURATION = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs:
  - job_name: paramserver
    static_configs: [{{targets: ["{http}"]}}]
    authorization: {{credentials_file: "{token}"}}
  - job_name: stranger
    static_configs: [{{targets: ["{http}"]}}]
"""


class Prometheus:
    """Its query API."""

    def __init__(self, address):
        self._url = f"http://{address}/api/v1/"

    def get(self, path, **parameters):
        """The data of an answer; `AssertionError` with the reason if it is an error."""
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=BOUND) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def value(self, query):
        """Of the one series that a query returns; None if there is none."""
        found = self.get("query", query=query)["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def targets(self):
        """The health and the last error of each job."""
        found = self.get("targets")["activeTargets"]
        return {one["labels"]["job"]: (one["health"], one["lastError"]) for one in found}


@contextmanager
def prometheus(folder, **values):
    """A Prometheus with the configuration, which is ready."""
    (folder / "prometheus.yml").write_text(CONFIGURATION.format(**values))
    address = free_address()
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=warn"]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until(lambda: is_ready(address), folder / "prometheus.log")
            yield Prometheus(address)
        finally:
            process.terminate()
            process.wait(BOUND)


def is_ready(address):
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=BOUND) as answer:
            return answer.status == 200
    except OSError:
        return False


def until(condition, about):
    """Wait until a condition holds; `about` is called, or read, if it does not in time."""
    end = time.monotonic() + BOUND
    while not (found := condition()):
        assert time.monotonic() < end, about() if callable(about) else about.read_text()
        time.sleep(0.05)
    return found


@contextmanager
def command(path, *arguments):
    """A command of ours, which is stopped at the end."""
    with ExitStack() as stack:
        one = Command(path, "-m", *arguments, env=environment())
        stack.callback(one.popen.wait, BOUND)
        stack.callback(one.popen.terminate)
        yield one


APPLIED = 'paramserver_pushes_total{outcome="applied"}'


def of_report(report):
    """What queries must return, by the report of the shard."""
    [status], [variable] = report.workers, report.variables
    return {
        APPLIED: status.steps,
        "paramserver_global_step": report.global_step,
        f'paramserver_worker_steps_total{{worker="{status.name}"}}': status.steps,
        f'paramserver_worker_cost{{worker="{status.name}"}}': pytest.approx(status.cost, rel=1e-9),
        "paramserver_worker_staleness_updates_sum": status.staleness_sum,
        "paramserver_staleness_updates_sum": status.staleness_sum,
        'paramserver_staleness_updates_bucket{le="+Inf"}': status.steps,
        'paramserver_workers{state="live"}': 1,
        'paramserver_events_total{kind="joined"}': 1,
        "paramserver_variables": 1,
        'paramserver_variable_updates_total{variable="w"}': variable.updates,
        'paramserver_variable_bytes{variable="w"}': variable.nbytes,
        'paramserver_variable_transfer_bytes_total{direction="in"}': variable.bytes_in,
        'paramserver_variable_transfer_bytes_total{direction="out"}': variable.bytes_out,
        "paramserver_stored_bytes": report.nbytes,
        "paramserver_epoch": report.queues[0].epoch,
        "paramserver_checkpoint_number": report.storage.last,
        "paramserver_journal_size_bytes": report.storage.journal_bytes,
        "paramserver_storage_problem": 0,
    }


def test_prometheus_has_what_the_shard_says_with_the_token_of_an_observer_and_nothing_without(tmp_path):
    with ExitStack() as stack:
        tokens, credentials = token_credentials(tmp_path)
        http, observer = free_address(), credentials[Role.OBSERVER]
        options = ["--token-file", str(tokens), "--http", http, "--checkpoint-dir", str(tmp_path / "run"), "--journal"]
        options += ["--checkpoint-every", "100steps"]
        server = stack.enter_context(command(tmp_path / "server", "psserver", "serve", *options))
        server.wait_for("listening on", "live page")
        values = {"alerts": ALERTS, "http": http, "token": observer.token_file}
        metrics = stack.enter_context(prometheus(tmp_path, **values))
        client = stack.enter_context(StatusClient([server.address], observer))
        (tmp_path / "train.py").write_text(PROGRAM)
        run = ["run", "--servers", server.address, "--token-file", credentials[Role.WORKER].token_file]
        run += [str(tmp_path / "train.py"), str(tmp_path / "end")]
        worker = stack.enter_context(command(tmp_path / "worker", "psworker", *run))
        until(lambda: metrics.value(APPLIED) == STEPS, lambda: (metrics.value(APPLIED), worker.err))
        until(lambda: (metrics.value("paramserver_checkpoint_number") or 0) >= STEPS, lambda: server.err)

        assert metrics.targets()["paramserver"] == ("up", "")
        health, error = until(lambda: (found := metrics.targets()["stranger"])[0] != "unknown" and found, lambda: "")
        assert (health, "401 Unauthorized" in error) == ("down", True)

        report = client.ask(BOUND).answers[0].report
        assert report.global_step == STEPS
        expected = of_report(report)
        until(lambda: {query: metrics.value(query) for query in expected} == expected, lambda: (expected, report))
        pushes = metrics.value("paramserver_push_duration_seconds_count")
        assert pushes == STEPS + metrics.value('paramserver_pushes_total{outcome="repeated"}')
        assert metrics.value("paramserver_journal_sync_duration_seconds_count") > 0

        names = {
            name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
            for name in metrics.get("label/__name__/values")
            if name.startswith("paramserver_")
        }
        elsewhere = re.compile("paramserver_(job|minimization)_")
        of_shard = {name for name in all_families() if name.startswith("paramserver_") and not elsewhere.match(name)}
        assert names | {"paramserver_guard_findings"} == of_shard, "there may be no guard"

        for expression in expressions():
            metrics.get("query", query=expression)
        rules = metrics.get("rules")["groups"][0]["rules"]
        assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
        firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
        assert firing <= {"ParamserverShardDown"}
        found = metrics.get("query_range", query=APPLIED, start=time.time() - 60, end=time.time(), step=1)["result"]
        series = [float(value) for _, value in found[0]["values"]]
        assert series == sorted(series)
        (tmp_path / "end").touch()
        assert worker.wait() == 0, worker.err
