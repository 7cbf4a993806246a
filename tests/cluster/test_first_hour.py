"""The tutorial, docs/first-hour.md: all of its commands, section by section, with fewer epochs."""

import os
import re
import runpy
import shlex
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from psworker.data import datasets
from tests.support.commands import Command, environment, wait_until
from tests.support.machines import Machine, connect, reason_for_none

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
#: Its blocks of Python begin with the name of their file.
FILES = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
EPOCH = 550  # steps


def lines(section, epochs=None):
    """The commands of a section as words, with this number of epochs."""
    found = re.findall(r"^\$ (.*)", SECTIONS[section], re.MULTILINE)
    return [shlex.split(re.sub(r"--epochs \d+", f"--epochs {epochs}", line)) for line in found]


@pytest.fixture
def folder(commands):
    """The folder in which the reader works."""
    for name, text in FILES.items():
        commands.script(text, name)
    return commands.folder


def started(commands, words):
    """The process of a command."""
    return commands.python(*words[1:]) if words[0] == "python" else commands.start(*words)


def ran(commands, words):
    """The output of a command that must succeed, without and with standard error."""
    command = started(commands, words)
    assert command.wait() == 0, command.err
    return "\n".join(command.out), "\n".join(command.out + command.err)


def processes(job):
    """The process of each worker by its number, once three of them have printed it."""

    def printed():
        found = re.findall(r"worker number (\d), process (\d+)", "\n".join(job.out))
        return found if len(found) == 3 else None

    return {int(number): int(process) for number, process in wait_until(printed, lambda: job.out + job.err)}


def steps(text):
    """The steps of a job, as its last line has them."""
    [found] = re.findall(r"^([\d,]+) steps in ", text, re.MULTILINE)
    return int(found.replace(",", ""))


def test_all_blocks_of_python_are_files_and_all_commands_belong_to_sections():
    assert list(FILES) == ["train.py", "predict.py"]
    assert PAGE.count("```python") == 2
    assert PAGE.partition("\n## ")[0].count("```") == 0
    assert "```sh" not in PAGE, "commands are those of its transcripts"


@pytest.mark.slow
def test_the_program_trains_in_one_process_and_its_model_predicts(tmp_path, monkeypatch, capsys):
    mnist = datasets.mnist()
    few = mnist._replace(train=mnist.train[:2000], test=mnist.test[:500])
    monkeypatch.setattr(datasets, "mnist", lambda: few)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])
    for name, text in FILES.items():
        Path(name).write_text(text)
    runpy.run_path("train.py", run_name="__main__")
    out = capsys.readouterr().out
    assert re.findall(r"epoch (\d): mean cost \d\.\d{4}", out) == ["1", "2", "3"]
    assert float(out.split()[-1]) > 0.75


@pytest.mark.slow
def test_train_in_one_process_and_predict_elsewhere(commands, folder):
    [train] = lines("Train in one process")
    [predict] = lines("Save, and predict elsewhere")
    out, _ = ran(commands, train)
    for line in out.splitlines()[1:4]:  # but for the last digits, which depend on the processor
        assert line[:-2] in SECTIONS["Train in one process"]
    assert abs(float(out.split()[-1]) - 0.9596) < 0.005
    out, _ = ran(commands, predict)
    assert re.findall(r"a (\d): recognized as (\d)", out) == [(digit, digit) for digit in "72104"]


@pytest.mark.slow
def test_train_with_a_local_cluster(commands, folder):
    [local] = lines("Train with a local cluster")
    _, text = ran(commands, local)
    assert steps(text) == 3 * EPOCH
    assert "epoch 3: mean cost 0.1" in text
    assert (folder / "model.safetensors").exists()


@pytest.mark.slow
def test_watch_the_staleness_and_kill_a_worker(commands, folder):
    local, status = lines("Watch the staleness", epochs=6)
    [kill] = lines("Kill a worker")
    assert kill[:2] == ["kill", "-9"]
    job = started(commands, local)
    found = processes(job)
    job.wait_for("epoch 1:")
    [address] = re.findall(r"servers at (\S+)", "\n".join(job.err))
    assert "psworker: live page at http://127.0.0.1:" in "\n".join(job.err)
    out, _ = ran(commands, [*status[:2], address])
    rows = re.findall(r"^worker-\d.* live +([\d,]+) +\d+ +([\d.]+)", out, re.MULTILINE)
    stale = sorted((float(mean), int(made.replace(",", ""))) for made, mean in rows)
    assert len(stale) == 3
    assert stale[2][0] > 2 * stale[1][0], "the slow one is the most stale"
    assert stale[2][1] < stale[1][1] / 2, "and made the fewest steps"
    os.kill(found[2], signal.SIGKILL)
    assert job.wait() == 0
    text = "\n".join(job.out + job.err)
    assert "was killed by SIGKILL; restart 1 of 5 in" in text
    assert steps(text) == 6 * EPOCH


@pytest.mark.slow
def test_bounded_staleness_and_synchronous_training(commands, folder):
    bounded, synchronous, backup = lines("Bounded staleness and synchronous training", epochs=1)
    texts = [ran(commands, words)[1] for words in (bounded, synchronous, backup)]
    assert steps(texts[0]) == EPOCH
    assert steps(texts[1]) >= EPOCH // 3
    assert all("staleness 0.0" in text.splitlines()[-1] for text in texts[1:])
    assert "dropped" not in texts[1].splitlines()[-1]
    assert re.search(r"\d+ dropped", texts[2].splitlines()[-1])


@pytest.mark.slow
def test_stop_and_resume(commands, folder):
    first, again, runs = lines("Stop, and resume", epochs=4)
    job = started(commands, first)
    job.wait_for("epoch 1:")
    job.end(signal.SIGINT)
    _, text = ran(commands, again)
    assert 0 < steps(text) < 3 * EPOCH
    assert "epoch 4: mean cost" in text
    out, _ = ran(commands, runs)
    assert re.search(rf"^runs/first .* {4 * EPOCH:,} .* completed \(2 lives\)", out, re.MULTILINE), out


@pytest.mark.slow
def test_a_second_machine(commands, folder):
    if reason := reason_for_none():
        pytest.skip(reason)
    certificates, token, local, guest = lines("A second machine", epochs=6)
    for words in (certificates, token):
        ran(commands, words)
    laptop = folder / "laptop"
    laptop.mkdir()
    for name in ("train.py", "certs/ca.crt", "guest.token"):
        copied = laptop / Path(name).name
        copied.write_bytes((folder / name).read_bytes())
        copied.chmod(0o600)
    hosts = folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.78.0.1 ps-0\n10.78.0.2 laptop\n")
    env = environment()
    with ExitStack() as stack:
        machines = []
        for name in ("ps-0", "laptop"):
            machine = Machine(name, "sleep", "infinity", hosts=hosts, console=folder / f"{name}.console", env=env)
            stack.callback(machine.kill)
            machines.append(machine)
        connect({"10.78.0.1": machines[0], "10.78.0.2": machines[1]})

        def on(machine, words, where):
            within = machine.within("--all", f"--wd={where}")
            path = folder / f"{machine.name}-{words[0]}-{words[1]}"
            return Command(path, "-P", "-m", *words, env=env, within=within)

        job = on(machines[0], local, folder)
        job.wait_for("worker number 1")
        joined = on(machines[1], guest, laptop)
        joined.wait_for("worker number 2")
        assert joined.wait() == 0, joined.err
        assert job.wait() == 0, job.err
        assert steps("\n".join(job.err)) == 6 * EPOCH
