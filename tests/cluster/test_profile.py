"""`psworker profile` as a process: alone and as a worker of a server, and of programs that train too little."""

import json
import re

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
    import sys
    import numpy as np
    import psworker as ps
    from psworker import ops

    W = ps.Variable(np.zeros((4, 2), np.float32), name="W")
    data = ps.Dataset({"x": np.ones((64, 4), np.float32)})
    with ps.session() as session:
        for batch in session.batches(data, 4, epochs=int(sys.argv[1])):
            ps.Adam(0.01).minimize(ops.mean(ops.square(ops.matmul(batch.x, W) - 1)))
    print("at its end")
"""


def phases(table):
    """The share of each phase, in percent."""
    found = [re.fullmatch(r"(\S.*?) {2,}[\d.,]+ ms +([\d.]+)%", line.rstrip()) for line in table]
    return {match[1]: float(match[2]) for match in found if match}


def test_a_profile_has_the_phases_of_a_step_in_one_process_and_with_a_server(commands):
    script, options = commands.script(PROGRAM), ("--steps", "12", "--warmup", "3", "--threads", "1")
    code, out, err = commands.run("psworker", "profile", *options, "--trace", "trace.json", script, "100")
    assert (code, err) == (0, [])
    assert "at its end" not in out
    assert out[1].startswith("12 steps after 3 of warm-up: mean ")
    common = ["take data", "forward", "backward", "encode and push"]
    alone = phases(out)
    assert list(alone) == [*common, "embedded shard", "wait for servers", "apply weights", "program"]
    assert sum(alone.values()) == pytest.approx(100, abs=0.5)
    events = json.loads((commands.folder / "trace.json").read_text())["traceEvents"]
    assert sum(event["name"] == "matmul" and event["cat"] == "forward" for event in events) == 12

    server = commands.serve()
    code, out, err = commands.run("psworker", "profile", *options, "--servers", server.address, script, "100")
    assert (code, err) == (0, [])
    found = phases(out)
    assert list(found) == [*common, "wait for servers", "apply weights", "program"]
    assert found["wait for servers"] > 0
    assert server.end()[0] == 0


def test_a_program_that_ends_early_has_the_profile_of_its_steps_and_one_without_any_is_an_error(commands):
    script = commands.script(PROGRAM)
    code, out, _ = commands.run("psworker", "profile", "--steps", "100", "--warmup", "3", script, "1")
    assert (code, out[0]) == (0, "at its end")
    assert out[2].startswith("13 steps after 3 of warm-up")
    code, out, err = commands.run("psworker", "profile", script, "1")
    assert (code, out) == (1, ["at its end"])
    assert "no step was measured" in err[-1]
    failing = commands.script("raise ValueError('of the program')", "failing.py")
    code, out, err = commands.run("psworker", "profile", failing)
    assert (code, out, err[-1]) == (1, [], "ValueError: of the program")
