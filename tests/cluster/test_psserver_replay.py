"""`psserver replay` on the journal of a server: what it prints, where it stops, and what it writes."""

import json
import re
import signal
from contextlib import closing

import numpy as np
import pytest
from safetensors.numpy import load_file

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.storage import checkpoints
from psserver.storage.folders import available
from pswire.messages import Declaration, Gradient, Join, Leave, Pull, Push, Register, Sender
from pswire.optimizers import Momentum
from pswire.specs.checkpoints import parse_checkpoint_every
from pswire.tensors.values import TensorSpec
from psworker.transport.network_transport import NetworkTransport
from tests.support.commands import BOUND

ME = Sender("me", 1)
LOSSES = [2.0, 1.0, 4.0, 8.0, 16.0]
AFTER = [1.0, 2.5, 4.25, 6.125, 8.0625]  # momentum of 0.5


@pytest.fixture
def serve(commands):
    return lambda folder, *options: commands.serve("--checkpoint-dir", folder, "--journal", *options)


def train(address):
    """Five pushes of -1 and 0 to W, of which the last loss is 16."""
    with closing(NetworkTransport([address])) as transport:
        zeros = np.zeros(2)
        declared = Declaration(TensorSpec.of("W", zeros), zeros, Momentum(1.0, 0.5))
        for message in (Join(worker="me"), Register(sender=ME, declarations=(declared,))):
            transport.call(0, message, BOUND).result()
        for number, loss in enumerate(LOSSES, 1):
            gradient = Gradient("W", max(number - 3, 0), np.array([-1.0, 0]))
            transport.call(0, Push(sender=ME, sequence=number, gradients=(gradient,), loss=loss), BOUND).result()
        transport.call(0, Leave(ME), BOUND).result()


@pytest.fixture
def journal(commands):
    """The folder of a server that has stopped."""
    kept = {"checkpoint_dir": commands.folder / "run", "checkpoint_every": parse_checkpoint_every("2steps")}
    with ServerThread(ServerConfig(journal=True, keep_journal=True, **kept)) as server:
        train(server.address)
    return "run"


@pytest.mark.slow
def test_it_prints_a_line_for_each_push_and_a_summary(commands, journal):
    code, out, errors = commands.run("psserver", "replay", journal, "--watch", "W")
    assert (code, errors) == (0, [])
    lines = [" ".join(line.split()) for line in out if "checkpoint" not in line.split()[1:2]]
    assert lines[:10] == [
        "shard 0/1 from checkpoint 0",
        "step worker push stale loss rate |gradient| |update|",
        "0 worker 'me' joined (number 0, incarnation 1)",
        "0 worker 'me' registered W float64[2] with Momentum(learning_rate=1.0, momentum=0.5, nesterov=False)",
        "1 me 1 0 2 1 1 1 applied; W 0 -> 1, gradient 1, update 1",
        "2 me 2 1 1 1 1 1.5 applied; W 1 -> 2.5, gradient 1, update 1.5",
        "3 me 3 2 4 1 1 1.75 applied; W 2.5 -> 4.25, gradient 1, update 1.75",
        "4 me 4 2 8 1 1 1.875 applied; W 4.25 -> 6.125, gradient 1, update 1.875",
        "5 me 5 2 16 1 1 1.9375 applied; W 6.125 -> 8.0625, gradient 1, update 1.9375",
        "5 worker 'me' finished after 5 steps",
    ]
    assert lines[10:12] == ["", "stopped at global step 5: the end of the journal"]
    assert lines[12].startswith("8 records, ")
    assert lines[14:] == ["me 5 0 0 0 0 0 2 2 1 1 1.9375", "all 5 0 0 0 0 0 2 2 1 1 1.9375"]


@pytest.mark.slow
def test_json_has_an_object_per_line_and_stops_where_the_loss_is_above_the_bound(commands, journal):
    code, out, errors = commands.run("psserver", "replay", journal, "--json", "--stop-above", "3")
    assert (code, errors) == (0, [])
    objects = [json.loads(line) for line in out]
    pushes = [one for one in objects if one["kind"] == "push"]
    assert [(one["step"], one["worker"], one["sequence"], one["loss"]) for one in pushes] == [
        (1, "me", 1, 2.0),
        (2, "me", 2, 1.0),
        (3, "me", 3, 4.0),
    ]
    summary = objects[-1]
    assert (summary["kind"], summary["step"], summary["applied"]) == ("summary", 3, 3)
    assert summary["stopped"] == "the loss of push 3 of worker 'me' is 4, above 3"


@pytest.mark.slow
def test_the_state_at_a_step_is_a_file_of_variables_or_a_checkpoint_from_which_a_server_continues(commands, journal):
    until = "psserver", "replay", journal, "--quiet", "--until", "3", "--output"
    code, out, errors = commands.run(*until, "at-3.safetensors")
    assert (code, errors, out[-1]) == (0, [], "written: at-3.safetensors")
    assert load_file(commands.folder / "at-3.safetensors")["W"].tolist() == [AFTER[2], 0]
    assert commands.run(*until, "at-3")[0] == 0
    server = commands.serve("--checkpoint-dir", "at-3")
    with closing(NetworkTransport([server.address])) as transport:
        other = Sender("other", transport.call(0, Join(worker="other"), BOUND).result().incarnation)
        pulled = transport.call(0, Pull(sender=other, names=("W",)), BOUND).result()
        assert (pulled.global_step, pulled.values[0].version, pulled.values[0].array.tolist()) == (3, 3, [AFTER[2], 0])
        push = Push(sender=other, sequence=1, gradients=(Gradient("W", 3, np.array([-1.0, 0])),), pull=("W",))
        assert transport.call(0, push, BOUND).result().values[0].array.tolist() == [AFTER[3], 0], "slots go on too"
    server.end()


@pytest.mark.slow
def test_verify_compares_every_checkpoint_and_names_the_first_that_differs(commands, journal):
    code, out, errors = commands.run("psserver", "replay", journal, "--verify")
    numbers = available(commands.folder / journal, 0, 1)
    assert (code, errors, len(out)) == (0, [], len(numbers))
    assert all("the same bits in all 1 variables and their slots" in line for line in out[:-1])
    found = checkpoints.read(commands.folder / journal, numbers[-1], 0, 1)
    found.arrays["W"].slots["momentum"][1] = 0.25
    checkpoints.write(commands.folder / journal, found.state, iter(found.arrays.items()), tuple, final=True)
    code, out, errors = commands.run("psserver", "replay", journal, "--verify")
    assert (code, errors) == (1, [])
    where = f"checkpoint {numbers[-1]}, global step 5: slot 'momentum' of variable 'W': CRC32C replayed "
    assert out[-2].startswith(where)


@pytest.mark.slow
def test_what_cannot_be_replayed_is_one_line_and_exit_code_1(commands, journal):
    def error(*arguments):
        code, _, errors = commands.run("psserver", "replay", *arguments)
        assert (code, len(errors)) == (1, 1)
        return errors[0]

    (commands.folder / "empty").mkdir()
    assert error("empty").startswith("Error: empty has no journal of shard 0 (there: none): give the --checkpoint-dir")
    assert "has no journal of shard 1 (there: journal-0-of-1)" in error(journal, "--shard", "1")
    assert "has no records from checkpoint 77 of run on (from these it has: 0" in error(journal, "--from", "77")
    assert "--watch V: shard 0 has no such variable; it has W" in error(journal, "--watch", "V", "--quiet")
    assert "--output run/new: it is within run, which is only read" in error(journal, "--output", "run/new")
    assert "--output empty/..: it is there already" in error(journal, "--output", "empty/..")
    [segment, *_] = sorted((commands.folder / journal / "journal-0-of-1").glob("segment-*"))
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    assert re.match(rf"Error: journal segment run/journal-0-of-1/{segment.name}, offset \d+: ", error(journal))


@pytest.mark.slow
def test_a_journal_that_is_not_kept_is_replayed_from_the_last_checkpoint_on_beside_its_server(commands, serve):
    server = serve("run")
    train(server.address)
    code, saved, _ = commands.run("psserver", "checkpoint", "save", server.address)
    assert code == 0, saved
    number = available(commands.folder / "run", 0, 1)[-1]
    code, out, errors = commands.run("psserver", "replay", "run")
    assert (code, errors, out[0]) == (0, [], f"shard 0/1 from checkpoint {number}")
    assert "stopped at global step 5: the end of the journal" in out
    assert server.end()[0] == 0


@pytest.mark.exhaustive
def test_the_whole_journal_of_a_server_that_was_killed_again_and_again_gives_all_checkpoints(commands, serve):
    for life in range(4):
        server = serve("run", "--keep-journal", "--checkpoint-every", "3steps")
        with closing(NetworkTransport([server.address])) as transport:
            me = Sender("me", transport.call(0, Join(worker="me", name_key=b"key"), BOUND).result().incarnation)
            if not life:
                declared = Declaration(TensorSpec.of("W", np.zeros(2)), np.zeros(2), Momentum(1.0, 0.5))
                transport.call(0, Register(sender=me, declarations=(declared,)), BOUND).result()
            for number in range(10 * life + 1, 10 * life + 11):
                gradient = Gradient("W", number - 1, np.array([-1.0, number]))
                transport.call(0, Push(sender=me, sequence=number, gradients=(gradient,)), BOUND).result()
        if life < 3:
            server.end(signal.SIGKILL)
    assert server.end()[0] == 0
    code, out, errors = commands.run("psserver", "replay", "run", "--verify")
    assert (code, errors) == (0, [])
    assert "global step 40: the same bits in all 1 variables and their slots" in out[-2]
