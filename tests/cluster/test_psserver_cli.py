"""The command `psserver` in processes of its own: what it prints, how it ends, and what its errors look like."""

import re
import signal
from contextlib import closing
from importlib import metadata

import click
import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psserver.cli import main as main_module
from psserver.cli import status
from psserver.cli.main import main
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.addresses import DEFAULT_ADDRESS
from pswire.messages import Declaration, Gradient, Join, Pull, Push, Register, Sender
from pswire.optimizers import GradientDescent
from pswire.tensors.values import TensorSpec
from psworker.transport.network_transport import NetworkTransport
from tests.support.combinations import few_fast
from tests.support.commands import BOUND, SIGTERM_AT_THE_VERY_END, held_at_import
from tests.support.servers import Client, Stream, frame_of

READY = re.compile(r"psserver: shard 0/1 listening on 127\.0\.0\.1:\d+")


@pytest.mark.parametrize("number", few_fast([signal.SIGTERM, signal.SIGINT]), ids=lambda number: number.name)
def test_a_server_says_where_it_listens_and_ends_in_good_order(number, commands):
    server = commands.serve()
    with closing(NetworkTransport([server.address])) as transport:
        sender = Sender("trainer", transport.call(0, Join(worker="trainer"), BOUND).result().incarnation)
        declaration = Declaration(TensorSpec.of("w", W), W, GradientDescent(1.0))
        transport.call(0, Register(sender=sender, declarations=(declaration,)), BOUND).result()
        for sequence in (1, 2):
            transport.call(0, Push(sender=sender, sequence=sequence, gradients=(Gradient("w", 0, W),)), BOUND).result()
    code, (line,), errors = server.end(number)
    assert (code, bool(READY.fullmatch(line))) == (0, True)
    assert errors[-1] == "psserver: shard 0/1 stopped at global step 2: 1 worker, 0 pushes or assigns repeated"


W = np.zeros(2, np.float32)

SERVE = "from psserver.cli.main import main; main(['serve', *sys.argv[1:]])"


def test_sigterm_before_it_serves_ends_it_at_once_and_in_good_order(commands):
    slow = commands.python("-c", held_at_import("numpy") + SERVE)
    slow.wait_for("importing")
    assert slow.end() == (0, ["importing"], [])


@pytest.mark.slow
@pytest.mark.parametrize(("bind", "code"), few_fast([("unix:/nowhere/at/all", 1), ("127.0.0.1:0", 0)]))
def test_sigterm_while_python_ends_does_not_change_how_it_has_ended(bind, code, commands):
    last = commands.python("-c", SIGTERM_AT_THE_VERY_END + SERVE, "--bind", bind, "--log-level", "warning")
    if not code:
        last.wait_for("listening on")
        last.signal(signal.SIGTERM)
    assert (last.wait(), last.out[-1], len(last.err)) == (code, "sigterm", 1), last.err


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_at_once(commands):
    server = commands.serve("--grace", "1000", "--lease", "1000", "--log-level", "warning")
    reads_64_kib_ahead = grpc.insecure_channel(server.address, [("grpc.http2.bdp_probe", 0)])
    client = Client(server.address, channel=reads_64_kib_ahead)
    with client.channel:
        sender = client.join("w0")
        client.register(sender, w=np.zeros(4 << 20, np.float32))
        stream = Stream(client)
        stream.send(frame_of(Pull(sender=sender, names=("w",))))
        assert stream.frame().data is None, "a call in progress: 16 MiB follow that are not read"
        health = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(), timeout=BOUND)
        assert next(health).status == health_pb2.HealthCheckResponse.SERVING
        server.signal(signal.SIGINT)
        assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        code, out, errors = server.end(signal.SIGINT)
        stream.close()
    assert (code, len(out), errors) == (-signal.SIGINT, 1, [])


@pytest.mark.slow
def test_an_error_is_one_line_and_exit_code_1_and_debug_shows_its_traceback(commands):
    with ServerThread(ServerConfig()) as server:
        bind = "serve", "--bind", server.address
        free = f"{server.address.rpartition(':')[0]}:0"
        advice = f"Address already in use; choose another address, or a free port: --bind {free}"
        assert commands.run("psserver", *bind) == (1, [], [f"Error: cannot listen on {server.address}: {advice}"])
        code, _, errors = commands.run("psserver", "--debug", *bind)
        assert (code, errors[0]) == (1, "Traceback (most recent call last):")
        assert "ConfigurationError: cannot listen on" in errors[-1]


@pytest.mark.slow
def test_a_value_that_no_server_can_have_is_one_line_too(commands):
    expected = 1, [], ["Error: the lease, in seconds, must be more than 0 and finite, got 0.0"]
    assert commands.run("psserver", "serve", "--lease", "0") == expected


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve", "--shard", "2/2"], "'--shard': '2/2': write INDEX/COUNT, with the index counted from 0"),
        (["serve", "--bind", "here"], "'--bind': 'here' is not an address"),
        (["serve", "--memory-limit", "lots"], "'--memory-limit': 'lots': write a number of bytes"),
        (["serve", "--lease", "soon"], "'--lease': 'soon' is not a valid float"),
        (["serve", "--consistency", "sync:0"], "'--consistency': 'sync:0': Synchronous: workers must be at least 1"),
        (["serve", "--staleness", "drop"], "'--staleness': 'drop' is not a valid"),
        (["status", "127.0.0.1:7070,here"], "'here' is not an address"),
        (["status", "127.0.0.1:7070", "--watch", "--every", "0"], "'--every': '0': must be a number of seconds"),
        (["status", "127.0.0.1:7070", "--timeout", "nan"], "'--timeout': 'nan': must be a number of seconds"),
        (["health", "here"], "'here' is not an address"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_code_2_and_names_the_option(arguments, complaint):
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert complaint in done.output


def test_without_an_address_the_server_at_the_default_address_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(
        main_module, "check_health", lambda address, timeout, credentials: asked.append(address) or True
    )
    monkeypatch.setattr(
        status, "show_once", lambda addresses, timeout, credentials, as_json: asked.append(addresses) or True
    )
    for command in ("status", "health"):
        assert CliRunner().invoke(main, [command], env={"PSSERVER_BIND": None}).exit_code == 0
    assert CliRunner().invoke(main, ["health"], env={"PSSERVER_BIND": "0.0.0.0:7071"}).exit_code == 0
    assert asked == [(DEFAULT_ADDRESS,), DEFAULT_ADDRESS, "127.0.0.1:7071"]


@pytest.mark.slow
def test_health_is_an_exit_code(commands):
    server = commands.serve()
    for arguments, bind in (
        ((server.address,), ""),
        ((), server.address.replace("127.0.0.1", "0.0.0.0")),
        ((server.address,), "127.0.0.1:1"),
    ):
        assert commands.run("psserver", "health", *arguments, PSSERVER_BIND=bind) == (0, ["SERVING"], [])
    assert server.end()[0] == 0
    for command in "health", "status":
        code, output, errors = commands.run("psserver", command, server.address)
        assert (code, output, len(errors)) == (1, [], 1)
        assert errors[0].startswith(f"Error: no server answers at {server.address}: Connection refused")


def test_help_shows_examples_and_every_option_with_its_default_and_its_variable(commands):
    output = CliRunner().invoke(main, ["--help"]).output
    for words in ("psserver serve\n", "psworker run train.py\n", "127.0.0.1:7070 by default", *main.commands):
        assert words in output
    for name, command in main.commands.items():
        assert f"psserver {name}" in command.help
        for option in command.params:
            if isinstance(option, click.Option):
                assert all((option.help, option.show_default, option.show_envvar)), (name, option.name)
    version = f"psserver, version {metadata.version('paramserver')}"
    assert commands.run("psserver", "--version") == (0, [version], [])


@pytest.mark.slow
def test_a_checkpoint_of_a_running_job_is_written_by_all_its_servers_and_status_shows_it(commands):
    kept = ["--checkpoint-dir", str(commands.folder / "kept")]
    servers = [commands.serve("--shard", f"{shard}/2", *kept) for shard in range(2)]
    addresses = ",".join(server.address for server in servers)
    code, (number,), errors = commands.run("psserver", "checkpoint", "save", addresses)
    assert (code, errors) == (0, [])
    code, lines, _ = commands.run("psserver", "checkpoint", "list", str(commands.folder / "kept"))
    assert any(number in line and "all 2" in line for line in lines), lines
    _, lines, _ = commands.run("psserver", "status", addresses)
    assert sum(f"{number}, " in line and " s ago" in line for line in lines) == 2, lines
    careless = commands.serve()
    code, _, errors = commands.run("psserver", "checkpoint", "save", careless.address)
    assert code == 1
    assert "--checkpoint-dir" in errors[-1]
    assert [server.end()[0] for server in (*servers, careless)] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("journal", ["--no-journal", "--journal"])
def test_a_second_server_or_program_in_the_folder_of_a_running_one_is_refused_until_that_is_killed(commands, journal):
    folder = commands.folder / "kept"
    options = "--checkpoint-dir", str(folder), journal
    first, other = (commands.serve("--shard", f"{shard}/2", *options) for shard in range(2))
    files = sorted(commands.folder.rglob("*"))
    code, out, errors = commands.run("psserver", "serve", "--bind", "127.0.0.1:0", "--shard", "0/2", *options)
    in_use = "stop that server or program, or wait for its end; each job needs a folder of its own"
    refused = f"checkpoint folder {folder}, shard 0, is in use by another process: {in_use}"
    assert (code, out, errors) == (1, [], [f"Error: {refused}"])
    program = """
        import numpy as np
        import psworker as ps
        with ps.session(checkpoint_dir="kept"):
            ps.Variable(np.zeros(1), name="W").value
    """
    embedded = commands.python(commands.script(program))
    assert (embedded.wait(), embedded.err[-1]) == (1, f"pswire.errors.StorageError: {refused}")
    assert sorted(commands.folder.rglob("*")) == sorted([*files, commands.folder / "train.py"])
    assert commands.run("psserver", "checkpoint", "save", f"{first.address},{other.address}")[0] == 0
    for command in ("list", "verify"):
        code, lines, _ = commands.run("psserver", "checkpoint", command, str(folder))
        assert (code, [line for line in lines if "lock" in line]) == (0, [])
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    again = commands.serve("--shard", "0/2", *options)
    assert [server.end()[0] for server in (again, other)] == [0, 0]
