"""`psworker run` as a process: a script runs as under python, and its end becomes an exit code."""

import json
import re
import signal
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.specs.consistency import Synchronous
from psworker.launch.cli import main
from tests.early_and_late_signals import SIGTERM_AT_THE_VERY_END, held_at_import

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

SERVERS = "127.0.0.1:1,127.0.0.1:2"
RUN = ("psworker", "run", "--servers", SERVERS)


def test_a_script_runs_as_under_python_with_its_own_arguments(commands):
    (commands.folder / "scripts").mkdir()
    commands.script("VALUE = 42", "scripts/neighbour.py")
    script = commands.script(
        "import sys, neighbour; print(__name__, __file__, sys.argv, neighbour.VALUE)", "scripts/train.py"
    )
    code, out, err = commands.run(*RUN, script, "--servers", "mine", "-h", "--", "x")
    assert (code, err) == (0, [])
    assert out == ["__main__ scripts/train.py ['scripts/train.py', '--servers', 'mine', '-h', '--', 'x'] 42"]


def slow(*cases):
    """Cases that are run by make test-all only."""
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


PRINT = """
    import os, sys
    names = "SERVERS NAME TIMEOUT KEEP_MEMORY PUSH_EVERY PULL_EVERY OVERLAP LOCAL_STEPS ENCODING COMPRESS SHARED_MEMORY"
    print(*[os.environ.get("PSWORKER_" + name) for name in names.split()], "numpy" in sys.modules,
        os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize(
    ("flags", "environment", "seen"),
    [
        (
            "--threads 3 --push-every 4 --no-overlap --no-shared-memory --compress topk:.5",
            {"NAME": "you", "TIMEOUT": "7", "PULL_EVERY": "2", "OVERLAP": "1"},
            "you 7.0 1 4 2 0 0 float32 topk:0.5 0 False 3",
        ),
        *slow(
            ("", {}, "None 60.0 1 1 1 0 0 float32 none 1 False None"),
            (
                "--name me --timeout 3 --no-keep-memory --local-steps 50 --encoding float16",
                {"NAME": "you", "KEEP_MEMORY": "1"},
                "me 3.0 0 1 1 0 50 float16 none 1 False None",
            ),
        ),
    ],
)
def test_a_script_gets_the_options_as_its_environment_before_numpy_is_loaded(commands, flags, environment, seen):
    environment = {f"PSWORKER_{name}": value for name, value in environment.items()}
    code, out, _ = commands.run(*RUN, *flags.split(), commands.script(PRINT), **environment)
    assert (code, out) == (0, [f"{SERVERS} {seen}"])


@pytest.mark.parametrize(
    ("source", "code", "err"),
    [
        ("import sys; sys.exit(7)", 7, []),
        ("from pswire.errors import DatasetError; raise DatasetError('no x: get it')", 1, ["Error: no x: get it"]),
        *slow(
            ("import sys; sys.exit('no more')", 1, ["no more"]),
            ("raise KeyboardInterrupt", 130, []),
            ("def f(:", 1, ['  File "train.py", line 1', "    def f(:", "SyntaxError: invalid syntax"]),
        ),
    ],
)
def test_the_end_of_a_script_becomes_an_exit_code(commands, source, code, err):
    done, out, lines = commands.run(*RUN, commands.script(source))
    assert (done, out, [line for line in lines if set(line) - set(" ^")]) == (code, [], err)


@pytest.mark.slow
def test_debug_shows_the_traceback_of_our_errors(commands):
    script = commands.script("from pswire.errors import DatasetError; raise DatasetError('no x')")
    code, _, err = commands.run("psworker", "--debug", *RUN[1:], script)
    assert (code, err[0], err[-1]) == (1, "Traceback (most recent call last):", "pswire.errors.DatasetError: no x")


WAIT = """
    import threading
    try:
        print("in", flush=True)
        threading.Event().wait(600)
    finally:
        print("out", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_script_leaves_its_with_blocks_at_a_signal(commands, number, code):
    command = commands.start(*RUN, commands.script(WAIT))
    command.wait_for("in")
    assert command.end(number) == (code, ["in", "out"], [])


IN_SESSION = """
    import threading
    import psworker as ps
    W = ps.Variable(0.0, name="W")
    with ps.session():
        print("in", flush=True)
        threading.Event().wait(600)
"""


def test_a_worker_leaves_its_job_at_sigterm_and_ends_with_the_code_it_was_given(commands):
    with ServerThread() as server:
        command = commands.start(
            *("psworker", "run", "--servers", server.address, "--name", "w0", commands.script(IN_SESSION)),
            PSWORKER_SIGTERM_CODE="0",
        )
        command.wait_for("in")
        assert command.end() == (0, ["in"], [])
        _, out, _ = commands.run("psserver", "status", server.address, "--json")
    assert [(worker["name"], worker["state"]) for worker in json.loads("".join(out))["workers"]] == [("w0", "left")]


@pytest.mark.slow
def test_a_worker_whose_push_is_held_leaves_its_job_at_sigterm(commands):
    script = commands.script(
        """
        import logging, sys
        import psworker as ps
        logging.basicConfig(stream=sys.stdout)
        W = ps.Variable(1.0, name="W")
        with ps.session():
            ps.GradientDescent(0.1).minimize(W * W)
        """
    )
    with ServerThread(ServerConfig(consistency=Synchronous(2), lease=0.9)) as server:
        command = commands.start("psworker", "run", "--servers", server.address, script)
        command.wait_for("waits, shard 0")
        assert command.end()[0] == 143
    assert [(worker.state, worker.steps) for worker in server.report.workers] == [("left", 0)]


def test_a_script_that_handles_sigterm_itself_has_its_own_way(commands):
    script = commands.script(
        """
        import signal, threading
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        print("in", flush=True)
        ended.wait(600)
        raise SystemExit(7)
        """
    )
    command = commands.start(*RUN, "--sigterm-code", "0", script)
    command.wait_for("in")
    assert command.end()[0] == 7


def test_sigterm_before_the_script_begins_ends_a_worker_at_once_with_that_code(commands):
    slow = held_at_import("pswire.channel") + "from psworker.launch.cli import main; main()"
    command = commands.python("-c", slow, *RUN[1:], "--sigterm-code", "3", commands.script("print('in')"))
    command.wait_for("importing")
    assert command.end() == (3, ["importing"], [])


@pytest.mark.parametrize(("end", "code"), [("signal.raise_signal(signal.SIGTERM)", 3), *slow(("exit(7)", 7))])
def test_sigterm_while_python_ends_does_not_change_how_the_script_has_ended(commands, end, code):
    script = commands.script(SIGTERM_AT_THE_VERY_END + end)
    command = commands.start(*RUN, "--sigterm-code", "3", script)
    assert (command.wait(), command.out, command.err) == (code, ["sigterm"], [])


#: A script that has ended, but for a thread that never does. Its output is still in the stream's buffer.
LEAVES_A_THREAD_BEHIND = """
    import signal, sys, threading

    def forever():
        threading.main_thread().join()
        while True:  # for one that comes just before a wait is noticed after it
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    threading.Thread(target=forever).start()
    print("printed")
    {end}
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), *slow(("sys.exit(263)", 7), ("sys.exit('no')", 1))])
def test_sigterm_ends_threads_that_a_script_has_left_with_the_code_of_the_script(commands, end, code):
    command = commands.start(*RUN, "--sigterm-code", "3", commands.script(LEAVES_A_THREAD_BEHIND.format(end=end)))
    assert (command.wait(), command.out, command.err) == (code, ["printed"], ["no"] * (code == 1))


@pytest.mark.parametrize("forked_in", ["f()", *slow(["t = threading.Thread(target=f); t.start(); t.join()"])])
def test_a_child_that_a_script_forks_is_ended_by_sigterm_as_any_process(commands, forked_in):
    script = commands.script(
        f"""
        import os, signal, threading
        def f():
            child = os.fork()
            if not child:
                signal.pause()
            os.kill(child, signal.SIGTERM)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        {forked_in}
        """
    )
    environment = {"PYTHONWARNINGS": "ignore"}  # of forks where there are threads
    assert commands.run(*RUN, "--sigterm-code", "0", script, **environment) == (0, ["-15"], [])


def test_a_second_sigterm_ends_a_script_that_does_not_leave(commands):
    script = commands.script(
        """
        import threading
        try:
            print("in", flush=True)
            threading.Event().wait(600)
        except SystemExit:
            print("still in", flush=True)
            threading.Event().wait(600)
        """
    )
    command = commands.start(*RUN, script)
    command.wait_for("in")
    command.signal(signal.SIGTERM)
    command.wait_for("still in")
    assert command.end()[0] == -signal.SIGTERM


def test_a_server_that_is_not_there_is_given_up_with_its_address(commands):
    servers = "--servers", "127.0.0.1:1", "--timeout", "0.3"
    code, out, err = commands.run("psworker", "run", *servers, commands.script(IN_SESSION))
    assert (code, out, len(err)) == (1, [], 1)
    assert err[0].startswith("Error: ")
    assert "127.0.0.1:1" in err[0]


@pytest.mark.parametrize("command", ["run", "local"])
def test_help_shows_examples_and_the_environment_variable_of_every_option(command):
    text = " ".join(CliRunner().invoke(main, [command, "--help"], prog_name="psworker").output.split())
    assert text.startswith(f"Usage: psworker {command} [OPTIONS] SCRIPT [ARGS]...")
    assert f" psworker {command} --" in text
    listed = text.partition("Options:")[2].partition("-h, --help")[0]
    options = re.findall(r" --(?!no-)([a-z-]+)(?= [A-Z\[]| /)", listed)
    assert len(options) == {"run": 13, "local": 13}[command]
    variables = re.findall(r"env var: PS(?:WORKER|SERVER)_([A-Z_]+)", text)
    assert variables == [option.upper().replace("-", "_") for option in options]


def test_the_version_is_the_packages(commands):
    assert commands.run("psworker", "--version") == (0, [f"psworker, version {version('paramserver')}"], [])
