"""psserver.testing, and the test module that docs/testing.md is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psworker as ps
from psserver.testing import serve
from pswire.errors import ConfigurationError, Unavailable, WrongShard
from pswire.messages import Status
from psworker import ops

ROOT = Path(__file__).resolve().parents[2]
SGD = ps.GradientDescent(1.0)


def test_servers_have_the_options_given_and_each_its_part_of_the_variables(monkeypatch):
    monkeypatch.setattr("pswire.placement.SPLIT_BYTES", 64)
    with serve(shards=3, consistency="bounded:7", staleness="drop:9", lease=4.0) as servers:
        with ps.session(servers.addresses, timeout=10) as session:
            x = ps.Variable(np.zeros((48, 2)), name="x")
            SGD.minimize(ops.sum(x))
            assert x.value.tolist() == [[-1, -1]] * 48
            assert len(x.versions) == 3
            transport = session._client._calls.transport
            reports = [transport.call(shard, Status(), 10).result() for shard in range(3)]
        assert [(one.consistency, one.handling, one.shards) for one in reports] == [("bounded:7", "drop:9", 3)] * 3
        assert [len(one.variables) for one in reports] == [1, 1, 1]
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"), ps.session(servers.addresses, timeout=0.2):
        pass


@pytest.mark.parametrize("shards", [1, 2])
def test_a_worker_logs_that_servers_have_scaled_down_its_gradients(shards, caplog):
    with serve(shards=shards, max_gradient_norm="2:clip") as servers, ps.session(servers.addresses, timeout=10):
        first, second = (ps.Variable(np.zeros(4), name=name) for name in ("first", "second"))
        for _ in range(2):
            SGD.minimize(ops.sum(first) + 3 * ops.sum(second), [first, second])
        changes = [variable.value[0] / -2 for variable in (first, second)]
    lines = [one for one in caplog.records if "scaled down a push" in one.message]
    assert [one.levelname for one in lines] in (["WARNING", "INFO"], ["WARNING"])
    assert "number 1: --max-gradient-norm 2:clip: the norm of its gradients was" in lines[0].message
    expected = [2 / np.sqrt(40), 6 / np.sqrt(40)] if shards == 1 else [1, 1]
    np.testing.assert_allclose(changes, expected)


def test_a_server_that_is_started_again_has_its_address_and_its_checkpoint(tmp_path):
    with serve(shards=2, checkpoint_dir=str(tmp_path), checkpoint_every="5steps") as servers:
        before = servers.addresses
        with ps.session(servers.addresses, timeout=20):
            x = ps.Variable(np.zeros(2), name="x")
            SGD.minimize(ops.sum(x))
        for shard in (1, 0):
            servers.stop(shard)
        with pytest.raises(ConfigurationError, match="shard 1 does not run: start it first"):
            servers.stop(1)
        for shard in (0, 1):
            servers.start(shard)
        with pytest.raises(ConfigurationError, match="shard 0 runs already: stop it first"):
            servers.start(0)
        assert servers.addresses == before
        with ps.collection(), ps.session(servers.addresses, timeout=20, resume=True) as session:
            assert ps.Variable(np.zeros(2), name="x").value.tolist() == [-1, -1]
            assert session.global_step == 1


def test_a_server_without_a_folder_that_is_started_again_is_empty_and_its_worker_ends_with_an_error():
    with serve() as servers, ps.session(servers.addresses, timeout=10):
        x = ps.Variable(np.zeros(2), name="x")
        SGD.minimize(ops.sum(x))
        servers.stop(0)
        servers.start(0)
        with pytest.raises(WrongShard, match="shard 0 was restarted and has lost its state"):
            SGD.minimize(ops.sum(x))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"consistency": "sinc:2"}, ConfigurationError, "sinc"),
        ({"shards": 2, "lease": 0}, ConfigurationError, "lease"),
        ({"lese": 1}, TypeError, "lese"),
        ({"checkpoint_dir": "x", "journal": True, "journal_sync": "now"}, ConfigurationError, "journal_sync='now'"),
    ],
)
def test_options_that_are_none_are_refused(options, error, message):
    with pytest.raises(error, match=message), serve(**options):
        pass


@pytest.mark.slow
def test_the_testing_page_is_a_module_of_tests_that_pass(tmp_path):
    page = (ROOT / "docs" / "testing.md").read_text()
    module = "".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    (tmp_path / "test_page.py").write_text(module)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_page.py"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    counts = re.findall(r"(\d+ passed|failed|error)", ended.stdout)
    assert counts == [f"{module.count('def test_')} passed"], ended.stdout
