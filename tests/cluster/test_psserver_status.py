"""The command `psserver status` over servers in processes of their own: one, two, one missing; once, and watched."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.messages import Declaration, Gradient, Job, Join, Leave, Push, Register, Sender
from pswire.optimizers import Momentum
from pswire.tensors.values import Part, TensorSpec
from psworker.transport.network_transport import NetworkTransport
from tests.support.combinations import few_fast
from tests.support.commands import BOUND
from tests.support.job_reports import row


@pytest.fixture
def two():
    """The addresses of two servers of one job, as `train_two` leaves them."""
    with ServerThread(ServerConfig(shards=2)) as first, ServerThread(ServerConfig(shard=1, shards=2)) as second:
        train_two(first.address, second.address)
        yield first.address, second.address


def train_two(*addresses):
    """Of the 5 rows of `table` the second server has the last two; a worker pushes once."""
    with closing(NetworkTransport(addresses)) as transport:
        joined = None
        for shard, rows in enumerate((3, 2)):
            joined = join(transport, "w0", shard, joined)
            sender = Sender("w0", joined.incarnation)
            value = np.zeros((rows, 4), np.float32)
            declaration = Declaration(TensorSpec.of("table", value), value, Momentum(0.5), part=Part(3 * shard, 5))
            transport.call(shard, Register(sender=sender, declarations=(declaration,)), BOUND).result()
            transport.call(
                shard, Push(sender=sender, sequence=1, gradients=(Gradient("table", 0, value),), loss=0.5), BOUND
            ).result()


def join(transport, name, shard, first=None):
    incarnation, job = (first.incarnation, first.job) if first else (0, Job())
    message = Join(worker=name, incarnation=incarnation, shard=shard, shards=2, tensor_transport="gRPC", job=job)
    return transport.call(shard, message, BOUND).result()


@pytest.mark.slow
def test_status_shows_the_shards_workers_and_variables_of_a_job(two, commands):
    code, output, errors = commands.run("psserver", "status", ",".join(two))
    assert (code, errors) == (0, [])
    text = "\n".join(output)
    assert output[0].startswith(
        "job 1 (job-1): running · global step 1 · 2 shards · consistency async · staleness handling none · 0 repeated"
    )
    assert not any("warning" in line or "\x1b[" in line for line in output)
    for shard, nbytes in ((0, "96 B"), (1, "64 B")):
        assert row(text, f"{shard}/2")[1:5] == [two[shard], "1", "1", nbytes]
    assert row(text, "w0 (chief)")[1:7] == ["live", "1", "0", "0.00", "0.5000", "–"]
    optimizer = "momentum learning_rate=0.5 momentum=0.9 nesterov=False"
    assert row(text, "table")[1:] == ["float32[5, 4]", "0,1", "1", "1", "160 B", "momentum", optimizer]


@pytest.mark.slow
def test_a_shard_that_hangs_or_is_gone_is_shown_as_such_and_the_others_are_shown(commands):
    first, second = servers = [commands.serve("--shard", f"{shard}/2") for shard in (0, 1)]
    addresses = [server.address for server in servers]
    train_two(*addresses)
    status = "psserver", "status", ",".join(addresses)
    gone = [f"no server answers at {address}: Connection refused" for address in addresses]
    second.signal(signal.SIGSTOP)
    try:
        code, output, errors = commands.run(*status, "--timeout", "1.5")
    finally:
        second.signal(signal.SIGCONT)
    assert (code, errors) == (1, [])
    text = "\n".join(output)
    assert output[1].startswith(f"warning: the server at {addresses[1]} did not answer in time")
    assert row(text, "0/2")[1] == addresses[0]
    assert row(text, "?")[1:3] == [addresses[1], "silent"]
    assert row(text, "w0 (chief)")[1] == "live"

    watching = commands.start(*status, "--watch", "--every", "0.05")
    watching.wait_for("1/2")
    assert second.end()[0] == 0
    watching.wait_for(f"warning: {gone[1]}")
    code, output, errors = commands.run(*status, "--json")
    assert (code, errors) == (1, [])
    job = json.loads("\n".join(output))
    (problem,) = job["problems"]
    assert problem.startswith(gone[1])
    assert job["shards"][1] == {"address": addresses[1], "problem": problem}
    assert [variable["name"] for variable in job["shards"][0]["variables"]] == ["table"]

    assert first.end()[0] == 0
    watching.wait_for(f"warning: {gone[0]}")
    watching.signal(signal.SIGINT)
    assert (watching.wait(), watching.err) == (0, [])
    code, output, errors = commands.run(*status, "--json")
    assert (code, output) == (1, [])
    assert all(line.removeprefix("Error: ").startswith(start) for line, start in zip(errors, gone, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("as_json", few_fast([True, False]))
def test_watch_shows_status_after_status_until_ctrl_c(as_json, two, commands):
    words = ('"name": "w1"', '"state": "left"') if as_json else ("w1  ", "w1          left ")
    options = ["--watch", "--every", "0.05", *["--json"] * as_json]
    watching = commands.start("psserver", "status", ",".join(two), *options)
    watching.wait_for('"global_step": 1' if as_json else "global step 1 ")
    with closing(NetworkTransport(two)) as transport:
        sender = Sender("w1", join(transport, "w1", 0).incarnation)
        watching.wait_for(words[0])
        transport.call(0, Leave(sender), BOUND).result()
        watching.wait_for(words[1])
    watching.signal(signal.SIGINT)
    assert (watching.wait(), watching.err) == (0, [])
    assert "\x1b" not in "".join(watching.out)
    if as_json:  # an object a line
        jobs = [json.loads(line, parse_constant=pytest.fail) for line in watching.out]
        assert [len(job["workers"]) for job in (jobs[0], jobs[-1])] == [1, 2]
        assert sorted(job["time"] for job in jobs) == [job["time"] for job in jobs]


@pytest.mark.slow
@pytest.mark.parametrize("no_color", ["", "1"])
def test_on_a_terminal_watch_draws_in_place_and_leaves_it_in_order(no_color, two, commands):
    terminal, theirs = os.openpty()
    arguments = [sys.executable, "-m", "psserver", "status", ",".join(two), "--watch", "--every", "0.05"]
    looks = commands.environment(TERM="xterm-256color", COLUMNS="160", LINES="40", NO_COLOR=no_color)
    pipes = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.PIPE}
    with (
        subprocess.Popen(arguments, **pipes, env=looks, start_new_session=True) as watching,
        killed_at_an_error(watching),
    ):
        os.close(theirs)
        drawn = read_until(terminal, lambda text: text.count("global step 1") >= 3)
        watching.send_signal(signal.SIGINT)
        drawn += read_until(terminal, lambda text: False)
        assert (watching.wait(BOUND), watching.stderr.read()) == (0, b"")
    os.close(terminal)
    assert "\x1b[1A" in drawn, "the cursor goes up, to draw over the last status"
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l"), "the cursor is shown again"
    assert ("\x1b[32mlive" in drawn) == (no_color == "")


@contextmanager
def killed_at_an_error(process):
    """The end of a Popen's block waits for the process, without a bound."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def read_until(terminal, seen):
    """The output of a terminal until `seen` holds, or the program has closed it."""
    text = b""
    while not seen(text.decode(errors="replace")):
        try:
            text += os.read(terminal, 1 << 16)
        except OSError:  # Linux, when the other end is closed
            break
    return text.decode(errors="replace")
