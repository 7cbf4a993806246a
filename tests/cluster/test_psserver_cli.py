"""The command `psserver` in processes of its own: what it prints, how it ends, and what its errors look like."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from contextlib import closing
from importlib import metadata

import click
import numpy as np
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psserver.cli.main import local_address, main
from pswire.channel import open_channel
from pswire.codec import decode, encode, to_frame
from pswire.messages import Declaration, Join, Push, Register, Sender, Status
from pswire.tensors.inline import InlineReceiver, InlineSender
from pswire.tensors.stream import StreamSender
from pswire.tensors.values import TensorSpec
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub
from psworker.transport.grpc_transport import GrpcTransport
from tests.early_and_late_signals import SIGTERM_AT_THE_VERY_END, held_at_import

PSSERVER = [sys.executable, "-m", "psserver"]
BOUND = 30  # seconds that any of these processes may take
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PSSERVER")}
READY = re.compile(r"psserver: shard (\d+)/(\d+) listening on (127\.0\.0\.1:\d+)\n")


class Server:
    """A `psserver serve` that is ready."""

    def __init__(self, process):
        self.process = process
        self.first_line = process.stdout.readline()
        ready = READY.fullmatch(self.first_line)
        assert ready, self.first_line + process.stderr.read()
        self.address = ready[3]

    def end(self, *signals):
        """Sends the signals; returns exit code, the rest of standard output, and standard error."""
        for number in signals:
            self.process.send_signal(number)
        rest, errors = self.process.communicate(timeout=BOUND)
        return self.process.returncode, rest, errors


@pytest.fixture
def serve():
    """A function that starts a server with arguments; whatever the test does, no child is left after it."""
    processes = []

    def start(*arguments, **environment):
        process = subprocess.Popen(
            [*PSSERVER, "serve", *arguments],
            env=ENVIRONMENT | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return Server(process)

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def run(*arguments, **environment):
    """Runs a command of psserver to its end; returns exit code, standard output and standard error."""
    done = subprocess.run(
        [*PSSERVER, *arguments],
        env=ENVIRONMENT | {"COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_server_says_where_it_listens_and_ends_in_good_order(number, serve):
    server = serve()
    with closing(GrpcTransport([server.address])) as transport:
        incarnation = transport.call(0, Join("trainer"), BOUND).result().incarnation
        for sequence in (1, 2):
            transport.call(0, Push(Sender("trainer", incarnation), sequence, ()), BOUND).result()
    code, rest, errors = server.end(number)
    assert server.first_line.startswith("psserver: shard 0/1 listening on 127.0.0.1:")
    assert (code, rest) == (0, "")
    assert errors == "psserver: shard 0/1 stopped at global step 2: 1 worker, 0 pushes or assigns repeated\n"


SERVE = "from psserver.cli.main import main; main(['serve', *sys.argv[1:]])"


def test_sigterm_before_it_serves_ends_it_at_once_and_in_good_order():
    command = [sys.executable, "-c", held_at_import("numpy") + SERVE]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as slow:
        assert slow.stdout.readline() == "importing\n"
        slow.terminate()
        assert slow.communicate(timeout=BOUND) == ("", "")
    assert slow.returncode == 0


@pytest.mark.parametrize(("bind", "code"), [("127.0.0.1:0", 0), ("192.0.2.1:1", 1)])
def test_sigterm_while_python_ends_does_not_change_how_it_has_ended(bind, code):
    command = [sys.executable, "-c", SIGTERM_AT_THE_VERY_END + SERVE, "--bind", bind]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as last:
        if not code:
            assert READY.fullmatch(last.stdout.readline())
            last.terminate()
        output, errors = last.communicate(timeout=BOUND)
    assert (last.returncode, output, len(errors.splitlines())) == (code, "sigterm\n", 1), errors


def test_a_second_ctrl_c_ends_it_at_once(serve):
    server = serve("--grace", "1000")
    pieces = queue.Queue()
    with open_channel(server.address) as channel:
        call = begin_a_transfer(ParameterServerStub(channel), pieces)
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=BOUND)
        assert next(health).status == health_pb2.HealthCheckResponse.SERVING
        server.process.send_signal(signal.SIGINT)
        assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        code, rest, errors = server.end(signal.SIGINT)
        pieces.put(None)
        call.cancel()
    assert (code, rest, errors) == (-signal.SIGINT, "", "")


def begin_a_transfer(stub, pieces):
    """Begins a Transfer that goes on until None is put in `pieces`; returns it when the server has its header."""
    joined = decode(stub.Join(encode(Join("slow"), InlineSender()), timeout=BOUND), InlineReceiver())
    W = np.zeros(1)
    message = Register(Sender("slow", joined.incarnation), (Declaration(TensorSpec.of("W", W), W),))
    taken = threading.Event()

    def frames():
        yield to_frame(message, StreamSender(few=0))  # its tensors would come in chunks
        taken.set()
        yield from iter(pieces.get, None)

    call = stub.Transfer(frames(), timeout=BOUND)
    assert taken.wait(BOUND)
    stub.Status(encode(Status(), InlineSender()), timeout=BOUND)
    return call


def test_an_error_is_one_line_and_exit_code_1_and_debug_shows_its_traceback(serve):
    address = serve().address
    advice = "Address already in use; choose another address, or port 0 for a free port"
    assert run("serve", "--bind", address) == (1, "", f"Error: cannot listen on {address}: {advice}\n")
    code, _, errors = run("--debug", "serve", "--bind", address)
    assert code == 1
    assert errors.startswith("Traceback (most recent call last):")
    assert "ConfigurationError: cannot listen on" in errors.splitlines()[-1]
    assert run("serve", "--lease", "0") == (1, "", "Error: a lease lasts more than 0 seconds, got 0\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve", "--shard", "2/2"], "'--shard': '2/2': write the shard, from 0, and how many there are"),
        (["serve", "--bind", "here"], "'--bind': 'here' is no address"),
        (["serve", "--memory-limit", "lots"], "'--memory-limit': 'lots': write a number of bytes"),
        (["serve", "--lease", "soon"], "'--lease': 'soon' is not a valid float"),
        (["status"], "Missing argument 'ADDRESSES'"),
        (["status", "127.0.0.1:5000,here"], "'here' is no address"),
        (["status", "127.0.0.1:5000", "--watch", "--every", "0"], "'--every': '0': write a number of seconds"),
        (["status", "127.0.0.1:5000", "--timeout", "nan"], "'--timeout': 'nan': write a number of seconds"),
        (["health", "here"], "'here' is no address"),
        (["health"], "Missing argument 'ADDRESS': write the server's, or set PSSERVER_SERVE_BIND"),
        (["sing"], "No such command 'sing'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_code_2_and_names_the_option(arguments, complaint):
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert complaint in done.output


@pytest.mark.slow
def test_health_is_an_exit_code(serve):
    server = serve()
    assert run("health", server.address) == (0, "SERVING\n", "")
    assert run("health", PSSERVER_SERVE_BIND=server.address.replace("127.0.0.1", "0.0.0.0")) == (0, "SERVING\n", "")
    assert run("health", server.address, PSSERVER_SERVE_BIND="127.0.0.1:1") == (0, "SERVING\n", "")
    assert server.end(signal.SIGTERM)[0] == 0
    for command in "health", "status":
        code, output, errors = run(command, server.address)
        assert (code, output) == (1, "")
        assert errors.startswith(f"Error: no server answers at {server.address}: Connection refused")
        assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("bind", "asked"),
    [
        ("0.0.0.0:7070", "127.0.0.1:7070"),
        ("[::]:7070", "[::1]:7070"),
        ("10.0.0.1:7070", "10.0.0.1:7070"),
        ("[fe80::1]:7070", "[fe80::1]:7070"),
        ("ps-0:7070", "ps-0:7070"),
        ("unix:/run/0.0.0.0:1", "unix:/run/0.0.0.0:1"),
        ("unix:/run/ps.sock", "unix:/run/ps.sock"),
    ],
)
def test_a_server_that_listens_everywhere_is_asked_by_the_loopback(bind, asked):
    assert local_address(bind) == asked


def test_help_shows_examples_and_every_option_with_its_default_and_its_variable():
    output = CliRunner().invoke(main, ["--help"]).output
    for words in ("psserver serve --bind 127.0.0.1:5000", "psworker run --servers 127.0.0.1:5000", *main.commands):
        assert words in output
    for name, command in main.commands.items():
        assert f"psserver {name}" in CliRunner().invoke(main, [name, "--help"]).output.split("Options:")[0]
        for option in command.params:
            if isinstance(option, click.Option):
                assert all((option.help, option.show_default, option.show_envvar)), (name, option.name)
    assert run("--version") == (0, f"psserver, version {metadata.version('paramserver')}\n", "")
