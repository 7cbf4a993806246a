"""`psworker run` and `psworker local` as processes: options, output, exit codes, signals, and nothing left behind."""

import os
import re
import signal
import socket
import subprocess
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from psjob.status.status_client import StatusClient
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire.addresses import DEFAULT_ADDRESS
from pswire.specs.consistency import Synchronous
from psworker.launch import cluster
from psworker.launch.cli import main
from psworker.launch.display.plain import Display
from psworker.launch.job import Job
from tests.support.combinations import few_fast
from tests.support.commands import BOUND, SIGTERM_AT_THE_VERY_END, free_address, held_at_import
from tests.support.terminals import run_on_terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

SERVERS = "127.0.0.1:1,127.0.0.1:2"
RUN = ("psworker", "run", "--servers", SERVERS)
LOCAL = ("psworker", "local", "--progress", "off")


#: What is written to stderr for scripts that open no session.
NO_SESSION = (
    "psworker: {} has ended without opening a session, so nothing was trained with the servers: put the training in a "
    "block `with psworker.session():`"
)


def slow(*cases):
    """Cases that are run by make test-all only."""
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


# --- psworker run -----------------------------------------------------------------------------------------------------

PRINT = """
    import os, sys, neighbour
    print(__name__, __file__, sys.argv, neighbour.VALUE)
    names = "SERVERS NAME TIMEOUT KEEP_MEMORY PUSH_EVERY PULL_EVERY OVERLAP LOCAL_STEPS ENCODING COMPRESS SHARED_MEMORY"
    print(*[os.environ.get("PSWORKER_" + name) for name in names.split()], "numpy" in sys.modules,
        os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.parametrize(
    ("flags", "environment", "seen"),
    [
        (
            "--name me --threads 3 --push-every 4 --no-overlap --no-shared-memory --compress topk:.5",
            {"NAME": "you", "TIMEOUT": "7", "PULL_EVERY": "2", "OVERLAP": "1"},
            "me 7.0 1 4 2 0 0 float32 topk:0.5 0 False 3",
        ),
        *slow(
            ("", {}, "None 60.0 1 1 1 0 0 float32 none 1 False None"),
            (
                "--timeout 3 --no-keep-memory --local-steps 50 --encoding float16",
                {"NAME": "you", "KEEP_MEMORY": "1"},
                "you 3.0 0 1 1 0 50 float16 none 1 False None",
            ),
        ),
    ],
)
def test_a_script_runs_as_under_python_with_options_in_its_environment_before_numpy(commands, flags, environment, seen):
    (commands.folder / "scripts").mkdir()
    commands.script("VALUE = 42", "scripts/neighbour.py")
    script = commands.script(PRINT, "scripts/train.py")
    environment = {f"PSWORKER_{name}": value for name, value in environment.items()}
    code, out, err = commands.run(*RUN, *flags.split(), script, "--servers", "-h", "--", "x", **environment)
    assert (code, err) == (0, [NO_SESSION.format("scripts/train.py")])
    ran = "__main__ scripts/train.py ['scripts/train.py', '--servers', '-h', '--', 'x'] 42"
    assert out == [ran, f"{SERVERS} {seen}"]


RAISE = "from pswire.errors import DatasetError; raise DatasetError('no x: get it')"


@pytest.mark.parametrize(
    ("source", "code", "err", "debug"),
    [
        (RAISE, 1, ["Error: no x: get it"], []),
        *slow(
            ("import sys; sys.exit(7)", 7, [], []),
            ("import sys; sys.exit('no more')", 1, ["no more"], []),
            ("raise KeyboardInterrupt", 130, [], []),
            ("def f(:", 1, ['  File "train.py", line 1', "    def f(:", "SyntaxError: invalid syntax"], []),
            (RAISE, 1, ["pswire.errors.DatasetError: no x: get it"], ["--debug"]),
        ),
    ],
)
def test_the_end_of_a_script_becomes_an_exit_code(commands, source, code, err, debug):
    done, out, lines = commands.run("psworker", *debug, *RUN[1:], commands.script(source))
    assert (done, out) == (code, [])
    assert [line for line in lines if set(line) - set(" ^")][-len(err) or None :] == err
    assert (lines[:1] == ["Traceback (most recent call last):"]) == bool(debug)


#: A script that writes `in` and waits, and what it does at SIGTERM.
WAIT = """
    import signal, threading
    ended = threading.Event()
    {}
    try:
        print("in", flush=True)
        ended.wait(600)
    {}
"""
LEAVES = WAIT.format("", "finally: print('out', flush=True)")
HANDLES = WAIT.format("signal.signal(signal.SIGTERM, lambda *_: ended.set())", "finally: raise SystemExit(7)")
STAYS = WAIT.format("", "except SystemExit: print('still in', flush=True); ended.wait(600)")


@pytest.mark.parametrize(
    ("source", "number", "lines", "code"),
    [
        (STAYS, signal.SIGTERM, ["in", "still in"], -signal.SIGTERM),
        *slow((HANDLES, signal.SIGTERM, ["in"], 7)),
        *slow((LEAVES, signal.SIGTERM, ["in"], 143), (LEAVES, signal.SIGINT, ["in"], 130)),
    ],
)
def test_a_script_leaves_or_handles_a_signal_and_ends_at_once_at_a_second(commands, source, number, lines, code):
    command = commands.start(*RUN, commands.script(source))
    for line in lines:
        command.wait_for(line)
        command.signal(number)
    assert (command.wait(), command.out, command.err) == (code, lines + ["out"] * (source == LEAVES), [])


IN_SESSION = """
    import logging, sys, threading
    import psworker as ps
    logging.basicConfig(stream=sys.stdout)
    W = ps.Variable(0.0, name="W")
    with ps.session():
        print("in", flush=True)
        ps.GradientDescent(0.1).minimize(W * W)
        threading.Event().wait(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "until", "code", "options"),
    [(1, "in", 0, {"PSWORKER_SIGTERM_CODE": "0"}), *slow((2, "waits, shard 0", 143, {}))],  # training, and held
)
def test_a_worker_leaves_at_sigterm_and_ends_with_the_code_it_was_given(commands, workers, until, code, options):
    with ServerThread(ServerConfig(consistency=Synchronous(workers), lease=0.9)) as server:
        servers = "--servers", server.address, "--name", "w0"
        command = commands.start("psworker", "run", *servers, commands.script(IN_SESSION), **options)
        command.wait_for(until)
        assert command.end()[0] == code
        with StatusClient([server.address]) as client:
            assert [(worker.name, worker.state) for worker in client.ask(BOUND).workers] == [("w0", "left")]


HELD_BEFORE_THE_SCRIPT = """
import threading
from psworker.launch import cli

def hold(text):
    print("held", flush=True)
    threading.Event().wait(600)

cli.parse_servers = hold
cli.main()
"""


def test_sigterm_before_the_script_begins_ends_a_worker_at_once_with_that_code(commands):
    command = commands.python("-c", HELD_BEFORE_THE_SCRIPT, *RUN[1:], "--sigterm-code", "3", commands.script(""))
    command.wait_for("held")
    assert command.end() == (3, ["held"], [])


@pytest.mark.parametrize(
    ("package", "module", "arguments"),
    [
        ("psworker", "click", ["--help"]),  # the command is being imported
        *slow(("psserver", "psserver.cli.serve", ["serve"])),  # it has begun
        *slow(("psworker", "psworker.launch.cluster", ["local", "train.py"]), ("psserver", "click", ["--help"])),
    ],
)
def test_ctrl_c_before_a_command_has_done_anything_ends_it_with_130_and_no_text(commands, package, module, arguments):
    commands.script("")
    slow = held_at_import(module) + f"from {package}.__main__ import main; main()"
    command = commands.python("-c", slow, *arguments)
    command.wait_for("importing")
    assert command.end(signal.SIGINT) == (130, ["importing"], [])


#: A script that has ended, but for a thread that never does. Its output is still in the stream's buffer.
LEAVES_A_THREAD_BEHIND = """
import signal, sys, threading

def forever():
    threading.main_thread().join()
    while True:  # for one that comes just before a wait is noticed after it
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

threading.Thread(target=forever).start()
print("sigterm")
"""


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (LEAVES_A_THREAD_BEHIND, 0),
        *slow((SIGTERM_AT_THE_VERY_END + "signal.raise_signal(signal.SIGTERM)", 3)),
        *slow((LEAVES_A_THREAD_BEHIND + "sys.exit(263)", 7), (SIGTERM_AT_THE_VERY_END + "exit(7)", 7)),
    ],
)
def test_sigterm_after_the_end_of_a_script_ends_the_process_with_the_code_of_the_script(commands, source, code):
    command = commands.start(*RUN, "--sigterm-code", "3", commands.script(source))
    assert (command.wait(), command.out) == (code, ["sigterm"])
    assert command.err == ([NO_SESSION.format("train.py")] if source == LEAVES_A_THREAD_BEHIND else [])


@pytest.mark.slow
@pytest.mark.parametrize("forked_in", ["f()", *slow(["t = threading.Thread(target=f); t.start(); t.join()"])])
def test_a_child_that_a_script_forks_is_ended_by_sigterm_as_any_process(commands, forked_in):
    source = f"""
        import os, signal, threading
        def f():
            child = os.fork()
            if not child:
                signal.pause()
            os.kill(child, signal.SIGTERM)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        {forked_in}
    """
    environment = {"PYTHONWARNINGS": "ignore"}  # of forks where there are threads
    assert commands.run(*RUN, "--sigterm-code", "0", commands.script(source), **environment) == (
        0,
        ["-15"],
        [NO_SESSION.format("train.py")],
    )


def test_without_servers_a_worker_looks_for_one_at_the_default_address_of_servers(commands):
    script = commands.script("import os; print(os.environ['PSWORKER_SERVERS'], end='\\n', flush=True); os._exit(0)")
    assert commands.run("psworker", "run", script) == (0, [DEFAULT_ADDRESS], [])


@pytest.mark.slow
def test_a_server_that_is_not_there_is_given_up_with_its_address(commands):
    servers = "--servers", "127.0.0.1:1", "--timeout", "0.3"
    code, out, (err,) = commands.run("psworker", "run", *servers, commands.script(IN_SESSION))
    assert (code, out, err[:7], "127.0.0.1:1" in err) == (69, [], "Error: ", True)
    code, out, err = commands.run("psworker", "--debug", "run", *servers, commands.script(IN_SESSION))
    assert (code, out, err[0][:9], "127.0.0.1:1" in err[-1]) == (69, [], "Traceback", True)


def test_help_shows_examples_and_the_environment_variable_of_every_option_and_version_is_the_packages(commands):
    for command, count in (("run", 25), ("local", 35), ("ray", 38)):
        text = " ".join(CliRunner().invoke(main, [command, "--help"], prog_name="psworker").output.split())
        assert text.startswith(f"Usage: psworker {command} [OPTIONS] SCRIPT [ARGS]...")
        assert f" psworker {command} --" in text
        variables = re.findall(r"env var: PS(?:WORKER|SERVER)_([A-Z_]+)", text)
        options = [one.name.upper() for one in main.commands[command].params if getattr(one, "show_envvar", False)]
        assert (len(options), sorted(variables)) == (count, sorted(options))
    assert commands.run("psworker", "--version") == (0, [f"psworker, version {version('paramserver')}"], [])


# --- psworker local ---------------------------------------------------------------------------------------------------

# Every worker has a child of its own, which ignores SIGTERM, and waits for a signal.
WITH_A_CHILD = """
    import os, subprocess, sys, threading
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child'); time.sleep(600)"
    try:
        subprocess.Popen([sys.executable, "-c", child])
        print("in", os.getpid(), flush=True)
        threading.Event().wait(600)
    finally:
        print("out", flush=True)
"""
BOTH_WAIT = "worker-0 | in", "worker-1 | in", "worker-0 | child", "worker-1 | child"


@pytest.mark.slow
@pytest.mark.parametrize("shards", few_fast([1, 2]))
def test_workers_train_together_as_their_flags_say_and_their_lines_come_with_their_names(commands, shards):
    source = """
        import psworker as ps
        W = ps.Variable([0.0], name="W")
        with ps.session() as session:
            print("joined", session.worker, session._client.consistency, flush=True)
            for _ in range(4):
                ps.GradientDescent(1.0).minimize(ps.ops.sum(W))
            session.idle()
            print("step", session.global_step, flush=True)
    """
    flags = (
        f"--progress plain --workers 2 --shards {shards} --consistency sync:2,backup=0 --staleness scale --push-every 2"
    )
    code, out, err = commands.run("psworker", "local", *flags.split(), commands.script(source))
    joined = [f"worker-{number} | joined worker-{number} sync:2" for number in range(2)]
    assert (code, sorted(out)) == (0, sorted([*joined, "worker-0 | step 2", "worker-1 | step 2"]))
    assert re.fullmatch("2 steps in .* · 2 workers", err[-1])


#: Ends when two workers have joined.
JOINS = """
    import time
    import psworker as ps
    W = ps.Variable(0.0, name="W")
    with ps.session() as session:
        print("joined as", session.number, flush=True)
        ps.GradientDescent(1.0).apply_gradients([(-1.0, W)])
        while W.value < 2:
            time.sleep(0.02)
            session.pull()
"""


@pytest.mark.slow
@pytest.mark.parametrize("bind", few_fast(["127.0.0.1", "0.0.0.0:0"], fast=0))
def test_the_first_line_has_the_servers_addresses_where_further_workers_can_join(commands, bind):
    script = commands.script(JOINS)
    options = "--progress", "plain", "--workers", "1", "--shards", "2", "--bind", bind, "--insecure"
    job = commands.start("psworker", "local", *options, script)
    job.wait_for("joined as 0")
    (line,) = [line for line in job.err if line.startswith("psworker: servers at ")]
    servers = re.fullmatch(r"psworker: servers at ((127\.0\.0\.1:\d+),(127\.0\.0\.1:\d+)) \(.*\)(; .*)?", line)
    elsewhere = servers[1].replace("127.0.0.1", socket.gethostname())
    assert servers[4] == (f"; from other machines: {elsewhere}" if bind.startswith("0.0.0.0") else None)
    code, out, err = commands.run("psworker", "run", "--servers", servers[1], script)
    assert (code, out, err) == (0, ["joined as 1"], [])
    assert job.wait() == 0


@pytest.mark.slow
def test_a_local_cluster_names_an_address_of_its_servers_that_is_taken_or_impossible(commands):
    host, _, port = free_address().rpartition(":")
    bind = f"{host}:{port}"
    job = commands.start(*LOCAL, "--workers", "1", commands.script(LEAVES), PSSERVER_BIND=bind)
    job.wait_for("in")
    code, out, err = commands.run(*LOCAL, "--bind", bind, commands.script(LEAVES))
    assert (code, out) == (1, [])
    taken = f"Error: cannot listen on {bind}: Address already in use; choose another address, or a free port: --bind "
    assert f"server-0 | {taken}{host}:0" in [re.sub(" +", " ", line) for line in err]
    assert job.end(signal.SIGINT)[0] == 130
    done = CliRunner().invoke(main, ["local", "--shards", "2", "--bind", "here:65535", __file__])
    assert (done.exit_code, "--bind: 'here:65535': 2 shards need ports up to 65536" in done.output) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("columns", few_fast([60, 120], fast=0))
def test_the_live_display_has_no_line_wider_than_the_terminal_and_only_the_summary_stays(commands, columns):
    script = commands.script("""
        import time
        import numpy as np
        import psworker as ps
        W = ps.Variable(np.zeros(2), name="W")
        with ps.session() as session:
            for batch in session.batches(ps.Dataset({"x": np.ones((80, 2))}), 1, epochs=10):
                ps.GradientDescent(0.001).minimize(ps.ops.sum(ps.ops.square(W - batch.x)))
                time.sleep(0.02)
    """)
    command = [sys.executable, "-P", "-m", "psworker", "local", "--workers", "3", "--shards", "2", script]
    code, written = run_on_terminal(command, columns, commands.environment(TERM="xterm"), commands.folder)
    lines = [re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", written)]
    first, *shown = [line for line in lines if line and " | " not in line]  # a slow worker may say for whom it waits
    assert (code, first[:20]) == (0, "psworker: servers at"), written
    assert [line for line in shown if len(line) > columns] == []
    assert any(re.match(r"\d:\d\d · train.py · 3 of 3 workers live", line) for line in shown)
    assert any(re.match(r"█.* \d+ % · epoch \d+ of 10 · step \d+.* · \d:\d\d left", line) for line in shown)
    assert any(re.match(r"worker-2 +live +\d+ +\d+ +", line) for line in shown)
    assert re.match(r"800 steps in .* s", shown[-1])


@pytest.mark.slow
def test_a_worker_that_fails_stops_the_others_and_its_last_lines_are_shown(commands):
    source = """
        import os, sys, threading
        if os.environ["PSWORKER_NAME"] == "worker-1":
            print(*[f"line {number}" for number in range(30)], sep="\\n")
            sys.exit(3)
        try: threading.Event().wait(600)
        finally: print("stopped in good order")
    """
    code, out, err = commands.run(*LOCAL, commands.script(source))
    assert "worker-0 | stopped in good order" in out or not any(line.startswith("worker-0") for line in out)
    end = ["Error: worker-1 ended with exit code 3; the others were stopped", "Its last lines:"]
    assert (code, err[1:]) == (3, end + [f"  line {number}" for number in range(10, 30)])
    assert re.fullmatch(r"worker-0 \| psworker: [0-9:]+ stopped, because worker-1 has failed", err[0])


@pytest.mark.slow
def test_a_traceback_of_several_workers_appears_once_and_the_logs_have_all_of_them(commands):
    source = """
        import os, time
        print("in", flush=True)
        while not {"worker-0.log", "worker-1.log"} <= set(os.listdir("a/logs")):
            time.sleep(0.02)
        raise ValueError("no\\nluck " + os.environ["PSWORKER_NAME"])
    """
    code, _, err = commands.run(*LOCAL, "--run-dir", "a", commands.script(source))
    first = err[0][:8]
    assert (code, err[0]) == (1, f"{first} | Traceback (most recent call last):")
    assert re.fullmatch(
        r"Error: worker-\d ended with exit code 1; the others were stopped. Its error: ValueError: no", err[-1]
    )
    other = {"worker-0": "worker-1", "worker-1": "worker-0"}[first]
    (line,) = [line for line in err if line.startswith(other)]
    stopped = f"stopped, because {first} has failed"
    assert line == f"{other} | psworker: the same error as {first}" or line.endswith(stopped)
    assert sum("Traceback" in line for line in err) == 1
    assert f"{first} | luck {first}" in err
    log = (commands.folder / f"a/logs/{first}.log").read_text()
    assert f"\nValueError: no\nluck {first}\n" in log
    assert "\x1e" not in log


@pytest.mark.slow
def test_a_script_that_opens_no_session_says_so_unless_it_was_stopped_or_failed(commands):
    script = commands.script("import psworker as ps; W = ps.Variable(0.0); print('trained')")
    warning = NO_SESSION.format("train.py")
    assert commands.run(*RUN, script) == (0, ["trained"], [warning])
    lines = ["worker-0 | trained", "worker-1 | trained"]
    code, out, err = commands.run(*LOCAL, script)
    assert (code, sorted(out), err) == (0, lines, [warning])


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "options"), [("worker-1", "--name worker-1"), ("server-1", "--shard 1/2")])
def test_a_killed_process_stops_the_job_if_it_may_not_be_started_again(commands, victim, options):
    command = commands.start(*LOCAL, "--restarts", "0", "--shards", "2", commands.script(WITH_A_CHILD))
    command.wait_for(*BOTH_WAIT)
    pids = [pid for pid, line in commands.alive().items() if options in line]
    os.kill(pids[0], signal.SIGKILL)
    end = f"Error: {victim} was killed by SIGKILL; the others were stopped"
    assert (command.wait(), end in command.err) == (128 + signal.SIGKILL, True)
    others = {"worker-0", "worker-1"} - {victim}
    assert {line.split()[0] for line in command.err if f"because {victim} has failed" in line} == others
    assert ["worker-0 | out" in command.out, "worker-1 | out" in command.out] == [True, victim == "server-1"]
    assert not commands.alive()


@pytest.mark.slow
def test_a_killed_server_ends_the_job_if_there_is_no_run_folder(commands):
    command = commands.start(*LOCAL, "--workers", "1", commands.script(LEAVES))
    command.wait_for("in")
    (pid,) = [pid for pid, line in commands.alive().items() if "--shard" in line]
    os.kill(pid, signal.SIGKILL)
    error = (
        "Error: server-0 was killed by SIGKILL; the others were stopped. Its state was lost with it: with --run-dir "
    )
    assert (command.wait(), [line[: len(error)] for line in command.err][1]) == (128 + signal.SIGKILL, error)


@pytest.mark.slow
def test_each_signal_to_end_stops_everything_in_good_order_and_nothing_is_left_when_the_launcher_is_killed(commands):
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -signal.SIGKILL}
    jobs = {number: commands.start(*LOCAL, commands.script(WITH_A_CHILD)) for number in codes}
    for job in jobs.values():
        job.wait_for(*BOTH_WAIT)
    assert len(commands.alive()) == 4 * 6, "launcher, server, two workers and a child of each"
    assert {number: job.end(number)[0] for number, job in jobs.items()} == codes
    for number, job in jobs.items():
        assert number == signal.SIGKILL or {"worker-0 | out", "worker-1 | out"} < set(job.out)
    assert commands.wait_for_none()


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_workers_that_do_not_leave(commands, monkeypatch):
    monkeypatch.setattr(cluster, "WORKER_GRACE", 600.0)
    for name, value in commands.environment().items():
        monkeypatch.setenv(name, value)

    class PressesCtrlC(Display):
        def lines(self, name, stream, lines):
            if {"in", "still in"} & set(lines):
                os.kill(os.getpid(), signal.SIGINT)

    job = Job(str(commands.folder / commands.script(STAYS)), workers=1)
    outcome = cluster.Cluster(job, PressesCtrlC(job.worker_names)).run()
    assert outcome == cluster.Outcome(130)


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_job(commands):
    command = [sys.executable, "-P", "-m", *LOCAL, commands.script("while True: print('y')")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=commands.folder, env=commands.environment(), **pipes) as popen:
        assert popen.stdout.readline().endswith(b"| y\n")
        popen.stdout.close()
        assert (popen.wait(30), popen.stderr.read()) == (1, b"")
    assert not commands.alive()


@pytest.mark.slow
def test_a_server_that_cannot_start_is_explained(commands):
    code, out, err = commands.run(*LOCAL, commands.script(""), PSSERVER_LEASE="soon")
    assert (code, out) == (2, [])
    assert any(line.startswith("server-0 | Error: Invalid value for '--lease'") for line in err)
    assert "Error: server-0 ended with exit code 2 before the workers were started" in err
