"""Programs with several sessions: each is a job of its own, in step over all workers, whatever has started them."""

import json

import pytest

from tests.support.combinations import few_fast
from tests.support.commands import free_address
from tests.support.sessions_program import FIRST_LIFE, HELD, PROGRAM, expected, results

pytestmark = pytest.mark.slow

KINDS = pytest.mark.parametrize("kind", few_fast(["sweep", "folds", "tuned", "steps"], fast=0))


@KINDS
def test_each_session_trains_in_one_process(commands, kind):
    alone = commands.python(commands.script(PROGRAM), kind, "1")
    assert alone.wait() == 0, alone.err
    assert alone.out == [expected(kind, 1)]


@KINDS
def test_each_session_trains_in_a_local_cluster(commands, kind):
    script = commands.script(PROGRAM)
    code, out, err = commands.run("psworker", "local", "--progress", "off", "--shards", "2", script, kind, "2")
    assert code == 0, err
    assert sorted(out) == [f"worker-{n} | {expected(kind, 2)}" for n in (0, 1)], err


def test_a_worker_that_starts_when_another_has_ended_the_first_session_takes_part_in_it(commands):
    late = commands.script(HELD), "/dev/null", "ended"
    code, out, err = commands.run("psworker", "local", "--progress", "off", *late)
    assert code == 0, err
    for n in (0, 1):
        assert results([line.removeprefix(f"worker-{n} | ") for line in out]) == FIRST_LIFE, err


def each_session_trains(commands, kind, addresses, *options, **environment):
    run = "psworker", "run", "--servers", ",".join(addresses), *options, "--name"
    script = commands.script(PROGRAM)
    workers = [
        commands.start(*run, f"worker-{n}", script, kind, "2", PSWORKER_WORKERS="2", **environment) for n in (0, 1)
    ]
    for worker in workers:
        assert worker.wait() == 0, worker.err
        assert worker.out == [expected(kind, 2)], worker.err


@KINDS
def test_each_session_trains_on_servers_that_stay_one_program_after_another(commands, kind):
    addresses = [free_address() for _ in range(2)]
    servers = [commands.serve("--bind", one, "--shard", f"{shard}/2") for shard, one in enumerate(addresses)]
    for _ in range(2):
        each_session_trains(commands, kind, addresses)
    assert [server.end()[0] for server in servers] == [0, 0]


@pytest.mark.parametrize("kind", few_fast(["sweep", "steps"], fast=0))
def test_each_session_trains_on_a_server_of_one_program_which_ends_after_the_last_one(commands, kind):
    address = free_address()
    server = commands.serve("--bind", address, "--linger", "3")
    each_session_trains(commands, kind, [address])
    assert server.wait() == 0
    assert sum("job" in line and "begins" in line for line in server.err) == 2, server.err


def test_all_servers_of_one_program_end_with_it_also_those_without_variables(commands):
    addresses = [free_address() for _ in range(3)]
    options = [("--bind", one, "--shard", f"{shard}/3", "--linger", "0") for shard, one in enumerate(addresses)]
    servers = [commands.serve(*some) for some in options]
    script = commands.script("""
        import psworker as ps
        from psworker import ops

        w = ps.Variable(0.0, name="w")
        with ps.session():
            ps.GradientDescent(1.0).minimize(ops.square(w - 1))
    """)
    code, _, err = commands.run("psworker", "run", "--servers", ",".join(addresses), script)
    assert code == 0, err
    for server in servers:
        assert server.wait() == 0
        assert any("the job is done, and no worker has joined for 0 s" in line for line in server.err), server.err


def test_servers_of_one_program_do_not_end_while_a_worker_waits_for_another_that_does_not_come(commands):
    addresses = [free_address() for _ in range(2)]
    how = "--linger", "4", "--lease", "6"
    servers = [commands.serve("--bind", one, "--shard", f"{n}/2", *how) for n, one in enumerate(addresses)]
    run = "psworker", "run", "--servers", ",".join(addresses), commands.script(PROGRAM), "tuned", "1"
    code, out, err = commands.run(*run, PSWORKER_WORKERS="2")
    assert (code, out) == (0, [expected("tuned", 1)]), err
    assert [server.wait() for server in servers] == [0, 0]
    assert sum("the others are awaited no longer" in line for line in servers[0].err) == 1, servers[0].err


@pytest.mark.parametrize("kind", few_fast(["folds", "tuned"], fast=0))
def test_each_session_trains_under_a_name_of_the_job_as_slurm_and_kubernetes_give_it(commands, kind):
    address = free_address()
    server = commands.serve("--bind", address, "--checkpoint-dir", "kept", "--journal", "--journal-sync", "off")
    named = {"PSWORKER_JOB": "train", "PSWORKER_TIMEOUT": "600", "PSWORKER_NAME_KEY": "0123456789abcdef"}
    each_session_trains(commands, kind, [address], **named)
    assert server.end()[0] == 0
    again = commands.serve("--bind", address, "--checkpoint-dir", "kept", "--journal", "--journal-sync", "off")
    code, out, err = commands.run("psserver", "jobs", address, "--json")
    jobs = [(one["name"], one["session"], one["state"]) for one in json.loads("\n".join(out))]
    sessions = {"folds": 3, "tuned": 2}[kind]
    assert (code, err, jobs) == (0, [], [("train", number, "done") for number in range(1, sessions + 1)])
    assert again.end()[0] == 0


#: Three sessions, in the second of which a worker is killed; with a life that is not the first the values go on.
KILLED = """
    import os, signal, sys
    import numpy as np
    import psworker as ps
    from psworker import ops

    DATA = ps.Dataset({"x": np.arange(40, dtype=np.float64)})
    doomed = "worker-1" if sys.argv[1] == "one" else "worker-0"
    first = not os.path.exists("killed")
    w = ps.Variable(np.zeros(2), name="w")
    for number in (1, 2, 3):
        with ps.session() as session:
            for step, batch in enumerate(session.batches(DATA, 2, epochs=2), 1):
                ps.GradientDescent(1.0).minimize(-ops.sum(w * len(batch)))
                if number == 2 and step == 3 and first and session.worker == doomed:
                    open("killed", "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
            session.pull()
            print(number, session.over, w.value[0], session.evaluate(lambda batch: w.value[0], DATA), flush=True)
"""


@pytest.mark.parametrize("how", ["one", "all"])
def test_a_worker_that_is_started_again_passes_what_is_over_and_joins_the_others(commands, how):
    script = commands.script(KILLED)
    options = "--workers", "2" if how == "one" else "1", "--restarts", "1", "--progress", "off"
    code, out, err = commands.run("psworker", "local", *options, script, how)
    assert code == 0, err
    results = ["1 False 80.0 80.0", "2 False 160.0 160.0", "3 False 240.0 240.0"]
    again = ["1 False 80.0 80.0", "1 True 0.0 nan", *results[1:]]
    by_worker = [[line.split(" | ")[1] for line in out if line.startswith(f"worker-{n} |")] for n in (0, 1)]
    assert by_worker == ([results, again] if how == "one" else [again, []]), err
    assert any("trains nothing in this session" in line for line in err)


def test_a_run_that_is_resumed_goes_on_in_the_session_in_which_it_was_stopped(commands):
    script = commands.script(KILLED)
    local = "psworker", "local", "--workers", "1", "--progress", "off", "--run-dir", "run", "--journal"
    code, out, err = commands.run(*local, "--restarts", "0", script, "all")
    assert (code, out) == (137, ["worker-0 | 1 False 80.0 80.0"]), err
    code, out, err = commands.run(*local, "--resume", script, "all")
    resumed = ["1 True 0.0 nan", "2 False 160.0 160.0", "3 False 240.0 240.0"]
    assert (code, out) == (0, [f"worker-0 | {line}" for line in resumed]), err
