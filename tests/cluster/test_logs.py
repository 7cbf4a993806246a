"""Logs of real servers and workers: which lines there are by default, that each names its process, and no secrets."""

import json
import re

import pytest

TRAINS = """
    import logging, sys
    import numpy as np
    import psworker as ps
    W = ps.Variable(np.zeros(2), name="W")
    with ps.session() as session:
        for batch in session.batches(ps.Dataset({"x": np.ones((100, 2))}), 1, epochs=2):
            ps.GradientDescent(0.001).minimize(ps.ops.sum(ps.ops.square(W - batch.x)))
    assert session.global_step == 200
"""


@pytest.mark.slow
def test_a_server_logs_joins_epochs_and_ends_and_no_line_per_step_and_a_worker_nothing(commands):
    server = commands.serve()
    code, out, err = commands.run(
        "psworker", "run", "--servers", server.address, "--name", "w", commands.script(TRAINS)
    )
    assert (code, out, err) == (0, [], [])
    assert server.end()[0] == 0
    lines = [re.sub(r"^[0-9-]{10} [0-9:.]{12} ", "", line) for line in server.err]
    assert len(lines) < 10, "one more for each trouble of a loaded machine"
    events = [line for line in lines if "event_log" in line]
    at = "INFO shard 0 step {} psserver.runtime.event_log: {}"
    assert events[0] == at.format(0, "worker 'w' joined (number 0, incarnation 1)")
    for epoch in (1, 2):
        begin = at.format(100 * epoch, f"epoch {epoch} of queue 'batches-1' is done: mean cost ")
        assert re.fullmatch(re.escape(begin) + r"[\d.]+ over 100 examples", events[epoch])
    assert events[3:] == [at.format(200, "worker 'w' finished after 200 steps")]
    assert [line.rpartition(": ")[0] for line in lines[-2:]] == [
        "INFO shard 0 step 200 psserver.rpc.server: stopping",
        "psserver: shard 0/1 stopped at global step 200",
    ]


@pytest.mark.slow
def test_with_json_every_line_of_a_cluster_is_an_object_with_time_level_process_and_step(commands):
    source = TRAINS + "    sys.stderr.write('of the program\\n')\n    logging.getLogger('mine').warning('its own')\n"
    options = "--log-format", "json", "--log-level", "info", "--workers", "2", "--shards", "2"
    code, out, err = commands.run("psworker", "local", *options, commands.script(source.replace("== 200", "<= 200")))
    lines = [json.loads(line) for line in err]
    assert (code, out) == (0, [])
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]) for line in lines)
    assert {"psworker.launch", "stderr", "psserver.runtime.event_log"} <= {line["logger"] for line in lines}
    joined = [line for line in lines if line.get("event") == "joined"]
    assert {(line["shard"], re.search(r"'(.*?)'", line["text"])[1]) for line in joined} == {
        (shard, f"worker-{number}") for shard in (0, 1) for number in (0, 1)
    }
    epochs = [line["step"] for line in lines if line.get("event") == "epoch"]
    assert (len(epochs), epochs[-1]) == (2, 200)
    assert {(line["worker"], line["text"]) for line in lines if line["logger"] == "stderr"} == {
        (f"worker-{number}", text) for number in (0, 1) for text in ("of the program", "its own")
    }
    assert [line["shard"] for line in lines if "stopped at global step 200" in line["text"]] != []
    assert len(lines) < 60


@pytest.mark.slow
def test_no_log_has_a_token_at_the_most_verbose_level(commands, tmp_path):
    (home := tmp_path / "temporary").mkdir()
    source = (
        TRAINS.replace("== 200", "<= 200")
        + f"""
    import pathlib, shutil
    shutil.copytree({str(home)!r}, "copy-" + session.worker)
    """
    )
    options = "--run-dir", "run", "--log-level", "debug", "--log-format", "json"
    code, out, err = commands.run("psworker", "local", *options, commands.script(source), TMPDIR=str(home))
    assert code == 0, err
    files = [path for path in tmp_path.glob("copy-*/**/*") if path.is_file()]
    secrets = {word for path in files for word in re.findall(rb"[A-Za-z0-9_-]{40,}", path.read_bytes())}
    assert len(secrets) >= 2, files
    logs = [path.read_bytes() for path in (tmp_path / "run" / "logs").iterdir()]
    text = b"".join([*logs, "\n".join([*out, *err]).encode()])
    assert b'"level": "debug"' in text
    assert [secret for secret in secrets if secret in text] == []


@pytest.mark.slow
def test_an_error_that_ends_a_server_is_an_object_too(commands):
    bind = ("--bind", "unix:/nowhere/at/all", "--log-format", "json")
    code, out, err = commands.run("psserver", "serve", *bind)
    [line] = [json.loads(line) for line in err]
    assert (code, out, line["level"], line["logger"]) == (1, [], "error", "psserver.cli.main")
    assert line["text"].startswith("cannot listen on unix:/nowhere/at/all")
