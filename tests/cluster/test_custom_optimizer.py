"""A job of real processes with a custom optimizer: servers that have its file, and servers and commands without it."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.commands import free_address

pytestmark = pytest.mark.slow

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "custom_optimizer.py")

#: Ten steps, or as many as the second argument says, from w as it is; with `custom_optimizer.py` beside it.
TRAIN = """
import sys

import numpy as np
import psworker as ps
from custom_optimizer import Lion
from psworker import ops

w = ps.Variable(np.linspace(-1, 1, 1000, dtype=np.float32), name="w")
with ps.session(resume=True) as session:
    while session.global_step < int(sys.argv[1]):
        Lion(0.01, weight_decay=0.5).minimize(ops.sum(ops.square(w * w - 0.25)))
print("weights", np.asarray(w.value).tobytes().hex())
"""


def weights(lines):
    [line] = [line for line in lines if line.startswith("weights ")]
    return np.frombuffer(bytes.fromhex(line.split()[1]), np.float32)


def test_a_killed_server_replay_and_the_commands_for_checkpoints_need_the_file_and_give_the_same_bits(commands):
    (commands.folder / "custom_optimizer.py").write_text(Path(EXAMPLE).read_text(encoding="utf-8"))
    train = commands.script(TRAIN)
    alone = commands.python(train, "20")
    assert alone.wait() == 0, alone.err
    given, bind = ("--optimizers", "custom_optimizer.py"), free_address()
    serve = "--bind", bind, "--checkpoint-dir", "run", "--journal", "--keep-journal"
    server = commands.serve(*serve, *given)
    run = "psworker", "run", "--servers", bind, train
    code, _, errors = commands.run(*run, "10")
    assert code == 0, errors

    code, status, errors = commands.run("psserver", "status", bind, "--json")
    assert code == 0, errors
    optimizer = json.loads("\n".join(status))["variables"][0]["optimizer"]
    assert optimizer == {"kind": "Lion", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.5}
    server.end(signal.SIGKILL)
    missing = "no update rule for optimizer 'Lion'"
    code, _, errors = commands.run("psserver", "serve", *serve)
    assert (code, missing in errors[-1], "--optimizers FILE" in errors[-1]) == (1, True, True), errors
    server = commands.serve(*serve, PSSERVER_OPTIMIZERS="custom_optimizer.py")
    code, lines, errors = commands.run(*run, "20")
    assert code == 0, errors
    np.testing.assert_array_equal(weights(lines), weights(alone.out))
    server.end()

    for command in (("replay", "run", "--quiet"), ("checkpoint", "show", "run"), ("export", "run", "w.safetensors")):
        code, _, errors = commands.run("psserver", *command)
        assert (code, missing in errors[-1]) == (1, True), errors
        code, _, errors = commands.run("psserver", *command, *given)
        assert code == 0, errors
    np.testing.assert_array_equal(load_file(commands.folder / "w.safetensors")["w"], weights(alone.out))
    code, lines, errors = commands.run("psserver", "replay", "run", "--verify", *given)
    assert (code, "the same bits in all 1 variables and their slots" in " ".join(lines)) == (0, True), errors


def test_a_worker_of_servers_without_the_file_gets_the_name_and_the_option_and_others_train(commands):
    local = "psworker", "local", "--workers", "2", "--shards", "2", "--progress", "off"
    code, _, errors = commands.run(*local, EXAMPLE, "--epochs", "1")
    assert code == 1
    assert any("no update rule for optimizer 'Lion'" in line and "--optimizers FILE" in line for line in errors)
    code, lines, errors = commands.run(*local, "--optimizers", EXAMPLE, EXAMPLE, "--epochs", "1")
    assert code == 0, errors
    [accuracy] = [float(line.rpartition(" ")[2]) for line in lines if "test accuracy with Lion" in line][:1]
    assert accuracy > 0.88
