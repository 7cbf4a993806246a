"""`psserver checkpoint` and `psserver export` about the files of a job of two shards."""

import json
import os

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from psserver.cli.main import main
from psserver.storage.find_start import find_start
from psserver.storage.folders import available, found, shard_folder
from psserver.storage.shard_run import Run, write_run
from pswire import messages as ms
from pswire import placement
from tests.support.job_reports import row
from tests.support.shards import state_of
from tests.unit.psserver.storage.stored_shards import write
from tests.unit.psserver.storage.test_reshard import QUEUE, VARIABLES, Job, new_shards, write_all


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch):
    monkeypatch.setattr(placement, "SPLIT_BYTES", 1000)


@pytest.fixture
def job(tmp_path):
    """A job with checkpoints 0, 3 and 7 of both shards, 9 of shard 0, and 10 and 11 from its end."""
    job = Job(new_shards(2))
    write_all(tmp_path, job, 0)
    job.push(0)
    job.call(0, ms.Take(sender=job.sender, queue=QUEUE))
    write_all(tmp_path, job, 3)
    job.push(1)
    write_all(tmp_path, job, 7)
    job.shards[0].cuts.skip(9)
    write(tmp_path, job.shards[0])
    job.push(2)
    for shard, number in zip(job.shards, (10, 11), strict=True):
        shard.cuts.skip(number)
        write(tmp_path, shard, final=True)
        write_run(tmp_path, shard.shard, 2, Run(1, 0, 0, False))
    return job


def psserver(*arguments, code=0):
    done = CliRunner().invoke(main, [*map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.output


def test_help_describes_every_command_and_option():
    for name, command in main.commands["checkpoint"].commands.items():
        assert name in psserver("checkpoint", "--help")
        argument = "[ADDRESSES]" if name == "save" else "DIR"
        usage = f"Usage: main checkpoint {name} [OPTIONS] {argument}"
        assert psserver("checkpoint", name, "--help").startswith(usage)
        assert all(option.help for option in command.params if option.param_type_name == "option")


def damage(folder, number, shard, name="variables.safetensors"):
    path = shard_folder(folder, number, shard, 2) / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    return path


def test_list_says_of_each_number_what_it_is_and_which_shards_are_there(tmp_path, job):
    path = damage(tmp_path, 3, 1, "manifest.json")
    lines = [line.split() for line in psserver("checkpoint", "list", tmp_path).splitlines()]
    assert lines[0] == ["number", "age", "size", "shards", "kind"]
    kinds = ["all 2 cut", "all 2 damaged, cut", "all 2 cut", "0 of 2 cut", "0 of 2 final", "1 of 2 final"]
    assert [" ".join(line[5:]) for line in lines[1:]] == kinds
    assert [(line[0], line[2]) for line in lines[1:]] == [(n, "s") for n in ("0", "3", "7", "9", "10", "11")]
    data = json.loads(psserver("checkpoint", "list", tmp_path, "--json"))
    assert [one["number"] for one in data] == [0, 3, 7, 9, 10, 11]
    assert [one["complete"] for one in data] == [True, False, True, False, False, False]
    assert [str(path) in reason for reason in data[1]["damaged"]] == [True]
    files = [
        shard_folder(tmp_path, 7, shard, 2) / name
        for shard in (0, 1)
        for name in ("variables.safetensors", "slots.safetensors")
    ]
    assert data[2]["nbytes"] == sum(os.path.getsize(path) for path in files)
    assert psserver("checkpoint", "list", tmp_path / "step-000000003") == (
        f"no checkpoints in {tmp_path / 'step-000000003'}\n"
    )


def test_a_checkpoint_of_a_provisional_run_is_marked_and_show_passes_it(tmp_path, job):
    """That of servers of another number which were started by mistake, and which no worker has joined."""

    def shown(*arguments):
        data = json.loads(psserver("checkpoint", *arguments, "--json"))
        return [(one["number"], one["shards"], one["provisional"]) for one in data]

    start, shard = find_start(tmp_path, 0, 1), new_shards(1)[0]
    start.restore(shard, 0.0)
    start.begin(shard, journal=False)
    assert shown("list", tmp_path)[-2:] == [(11, 2, False), (12, 1, True)]
    assert psserver("checkpoint", "list", tmp_path).splitlines()[-1].endswith(" final, cut, provisional")
    assert psserver("checkpoint", "show", tmp_path).startswith(f"checkpoint 11 in {tmp_path}: final; shards 1 of 2; ")
    text = f"checkpoint 12 in {tmp_path}: final, cut, provisional; shards 1; "
    assert psserver("checkpoint", "show", tmp_path, 12).startswith(text)
    job.shards[0].cuts.skip(12)  # the old servers go on
    write(tmp_path, job.shards[0])
    assert shown("list", tmp_path)[-2:] == [(12, 1, True), (12, 2, False)]
    assert psserver("checkpoint", "show", tmp_path).count("checkpoint 12 in") == 1
    start.confirm()
    assert shown("list", tmp_path)[-2:] == [(12, 1, False), (12, 2, False)]


def test_show_has_whole_variables_workers_queues_and_half_pushes(tmp_path, job):
    text = psserver("checkpoint", "show", tmp_path, 7)
    assert text.startswith(f"checkpoint 7 in {tmp_path}: cut; shards all 2; ")
    for part in (
        "global step 2",
        "float32[7, 40]",
        "float32[11, 30] table",
        "adam learning_rate=0.1",
        "data queue 'examples': 1 blocks of 3 were handed out",
        "w has block 0",
    ):
        assert part in text, part
    assert "pushes/s" not in text
    data = json.loads(psserver("checkpoint", "show", tmp_path, 7, "--json"))
    variables = {one["name"]: (one["shape"], one["dtype"], one["versions"]) for one in data["variables"]}
    assert variables.keys() == VARIABLES.keys()
    assert variables["large"] == ([7, 40], "float32", [2, 2])
    assert row(text, "examples") == ["examples", "1 of 2", "12", "0 of 24", "1", "░░░░░░░░░░░░ 0 %"]
    queue = data["queues"][0]
    assert (queue["size"], queue["epochs"], queue["epoch"], queue["done"], queue["blocks_out"]) == (12, 2, 1, 0, 1)
    assert (queue["name"], queue["handed_out"], [(one["worker"], one["block"]) for one in queue["out"]]) == (
        "examples",
        1,
        [("w", 0)],
    )
    assert (data["checkpoint"]["number"], data["checkpoint"]["cut"], data["half_pushes"]) == (7, True, 0)
    assert data["workers"][0]["lease_left"] is None
    half = Job(new_shards(2), "half")
    half.push(0, shards=[0])
    for shard in range(2):
        half.call(shard, ms.Leave(half.sender))
    write_all(tmp_path, half, 20)
    assert "1 half-applied" in psserver("checkpoint", "show", tmp_path)


def test_show_names_what_is_damaged_or_not_there(tmp_path, job):
    path = damage(tmp_path, 7, 1, "manifest.json")
    assert f"warning: checkpoint file {path}: it fails its checksum" in psserver("checkpoint", "show", tmp_path, 7)
    assert "there is no checkpoint 8 in" in psserver("checkpoint", "show", tmp_path, 8, code=1)


def test_verify_reads_every_file_and_its_exit_code_tells(tmp_path, job):
    lines = psserver("checkpoint", "verify", tmp_path).splitlines()
    assert len(lines) == 9
    assert all(line.startswith("intact: ") for line in lines)
    path = damage(tmp_path, 7, 1)
    lines = psserver("checkpoint", "verify", tmp_path, code=1).splitlines()
    assert [line for line in lines if not line.startswith("intact")] == [
        f"damaged: checkpoint file {path}: it fails its checksum: it is damaged; restore it from a copy, or remove the "
        "folder that it is in, to start from an older checkpoint"
    ]
    psserver("checkpoint", "verify", tmp_path, 7, code=1)
    psserver("checkpoint", "verify", tmp_path, 3)
    assert "there is no checkpoint 8" in psserver("checkpoint", "verify", tmp_path, 8, code=1)


def test_prune_keeps_common_cuts_and_the_newest_intact_one(tmp_path, job):
    for number, shard in ((10, 0), (9, 0)):
        damage(tmp_path, number, shard)
    lines = psserver("checkpoint", "prune", tmp_path, "--keep", 1).splitlines()
    expected = [shard_folder(tmp_path, number, shard, 2) for shard in (0, 1) for number in (0, 3)]
    assert lines == [f"removed: {path}" for path in expected]
    assert [available(tmp_path, shard, 2) for shard in (0, 1)] == [[7, 9, 10], [7, 11]]
    assert psserver("checkpoint", "prune", tmp_path, "--keep", 1) == ""
    assert list(found(tmp_path)) == [7, 9, 10, 11]


def expected_arrays(job, *, slots):
    values = job.values()
    arrays = {name: value for name, (value, _) in values.items()}
    if slots:
        arrays |= {f"{name}/{slot}": array for name, (_, mine) in values.items() for slot, array in mine.items()}
    return arrays


@pytest.mark.parametrize("slots", [False, True], ids=["", "slots"])
@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_export_has_whole_variables_as_late_as_possible_under_their_names(tmp_path, job, form, slots):
    output = tmp_path / f"model.{form}"
    text = psserver("export", tmp_path, output, "--format", form, *["--slots"] * slots)
    arrays = dict(np.load(output)) if form == "npz" else load_file(output)
    expected = expected_arrays(job, slots=slots)
    assert {name: state_of(one) for name, one in arrays.items()} == {n: state_of(one) for n, one in expected.items()}
    assert text == f"{output}: {len(expected)} arrays of 6 variables, at global step 3\n"


def test_export_of_one_checkpoint_has_its_moment(tmp_path, job):
    output = tmp_path / "model.safetensors"
    psserver("export", tmp_path / "step-000000003", output)
    expected = Job(new_shards(2))
    expected.push(0)
    assert state_of(sorted(load_file(output).items())) == state_of(
        sorted(expected_arrays(expected, slots=False).items())
    )


def test_export_after_a_kill_is_of_the_newest_common_cut_and_says_so(tmp_path, job):
    write_run(tmp_path, 1, 2, Run(1, 0, 11, False))
    text = psserver("export", tmp_path, tmp_path / "model.npz", "--format", "npz")
    assert "warning: what may have been acknowledged after checkpoint 7 is given up" in text
    assert "at global step 2" in text


def test_export_that_cannot_be_made_or_written_is_one_line_and_leaves_nothing(tmp_path, job):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is no checkpoint in" in psserver("export", empty, empty / "model.npz", code=1)
    for form in ("npz", "safetensors"):
        missing = tmp_path / "nowhere" / "model"
        assert "could not be written, and nothing was changed" in psserver(
            "export", tmp_path, missing, "--format", form, code=1
        )
    path = damage(tmp_path, 7, 1)
    assert f"Error: checkpoint file {path}" in psserver("export", tmp_path / "step-000000007", empty / "model", code=1)
    assert "checkpoint 9 of shard 0 of 2 only" in psserver(
        "export", tmp_path / "step-000000009", empty / "model", code=1
    )
    assert os.listdir(empty) == []
