"""The code on the pages: blocks of Python, and blocks of commands that need neither Docker nor other hosts, are run.

A block is run by its language: `python`, `sh`. Output and transcripts are `text` and `console`, whose commands are only
parsed (tests/repository/test_docs.py). New pages are found by themselves.
"""

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import psworker as ps
from psjob.status.status_client import StatusClient
from psserver.testing import serve
from psworker.data import datasets
from psworker.sessions import session_numbers
from tests.support.combinations import few_fast

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
#: Their blocks belong together: run by tests/integration/test_testing_page.py and tests/cluster/test_first_hour.py.
TOGETHER = {ROOT / "docs" / "testing.md", ROOT / "docs" / "first-hour.md"}
#: Of programs that are skipped without them: a module of each.
LIBRARIES = {name: name for name in ("jax", "pandas", "polars", "pyarrow", "torch")}
LIBRARIES["datasets"] = "datasets.arrow_dataset"  # `datasets` alone is a folder of the repository too
#: What pages call train.py.
TRAIN = """
import numpy as np
import psworker as ps
from psworker import ops

data = ps.Dataset({"x": np.ones((64, 2), np.float32)}, "ones")
w = ps.Variable(np.zeros(2, np.float32), name="w")
optimizer = ps.GradientDescent(0.1)
with ps.session() as session:
    for batch in session.batches(data, 8, epochs=2):
        optimizer.minimize(ops.mean(ops.square(batch.x * w - 1)))
"""


class Block(NamedTuple):
    """A block of code: its page, the number of its first line, and its text."""

    page: Path
    line: int
    text: str


def blocks(language):
    """All blocks in this language."""
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    return [
        Block(page, text.count("\n", 0, match.start(1)) + 1, match[1])
        for page, text in texts.items()
        if page not in TOGETHER
        for match in fence.finditer(text)
    ]


def name(block):
    return f"{block.page.relative_to(ROOT)}:{block.line}"


README = [block for block in blocks("python") if block.page.name == "README.md"]


READ_ONCE = cache(datasets._read_idx)


@pytest.fixture(autouse=True)
def files_of_mnist_are_read_once(monkeypatch):
    monkeypatch.setattr(datasets, "_read_idx", READ_ONCE)


def run_python(block):
    """Runs the block; errors have the line of the page."""
    exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(("epochs", "accuracy"), few_fast([(1, 0.855), (10, 0.904)], fast=0))
def test_the_program_of_the_readme_has_the_accuracy_of_softmax_regression(epochs, accuracy, capsys):
    [block] = README
    assert "epochs=10" in block.text
    run_python(block._replace(text=block.text.replace("epochs=10", f"epochs={epochs}")))
    assert abs(float(capsys.readouterr().out) - accuracy) <= 0.003


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block, marks=[pytest.mark.slow] * (place % 8 > 0 or "datasets.mnist(" in block.text), id=name(block)
        )
        for place, block in enumerate(blocks("python"))
        if block not in README
    ],
)
def test_every_block_of_python_on_a_page_runs_and_its_assertions_hold(block, tmp_path, monkeypatch):
    for library in re.findall(r"^(?:import|from) (\w+)", block.text, re.MULTILINE):
        if library in LIBRARIES:
            pytest.importorskip(LIBRARIES[library], reason=f"{library} is not installed")
    monkeypatch.chdir(tmp_path)  # where it may save its model
    monkeypatch.setattr(sys, "argv", ["train.py"])
    if re.search(r"^(async )?def test_", block.text, re.MULTILINE):  # tests of one's own, which pytest runs
        (tmp_path / "test_own.py").write_text(block.text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "test_own.py"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert ended.returncode == 0, ended.stdout
    else:
        run_python(block)


@pytest.mark.slow
def test_early_stopping_on_the_page_counts_no_epoch_from_before_a_resume(tmp_path, monkeypatch, capsys):
    [block] = [block for block in blocks("python") if "def stop_early" in block.text and "save_best" in block.text]
    mnist = datasets.mnist()
    few = mnist._replace(train=mnist.train[:100], validation=mnist.validation[:100])
    monkeypatch.setattr(datasets, "mnist", lambda: few)
    monkeypatch.chdir(tmp_path)
    overtrained = block.text.partition("    print(")[0].replace("waited == 3", "False")
    overtrained += "        if batch.epoch == 41:\n            break\n"
    with serve() as servers:
        monkeypatch.setenv("PSWORKER_SERVERS", ",".join(servers.addresses))
        with ps.collection():
            run_python(block._replace(text=overtrained))
        monkeypatch.setenv("PSWORKER_RESUME", "1")
        session_numbers.forget()  # as in another process
        with ps.collection():
            run_python(block)
        with StatusClient(servers.addresses) as client:
            job = client.ask(10).jobs[0]
    assert "has not fallen for 3 epochs" in capsys.readouterr().out
    assert job.global_step == 43 * 2, "epochs 41, 42 and 43 count, and epoch 40 does not"


def commands(block):
    """The words of each command, without comments."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def ends_by_itself(block):
    """Whether all commands are ours and work on this machine alone; a server is stopped after the block.

    Those of Ray are run by `tests/ray`.
    """
    ours = re.compile(r"(psworker(?! ray)|psserver|python examples/\S+)\b")
    lines = map(shlex.join, commands(block))
    return not re.search(r"\bHOST\b|\b10\.0\.0\.|[|&>$]", block.text) and all(map(ours.match, lines))


def run(words, folder, servers):
    """Run a command in this folder until it ends; a server until `servers` is closed."""
    first = {"python": [], "psworker": ["-m", "psworker"], "psserver": ["-m", "psserver"]}[words[0]]
    words = [re.sub(r"127\.0\.0\.1:(\d+)", rf"unix:{folder}/\1", word) for word in words]
    environment = {**os.environ, "PSWORKER_PROGRESS": "off", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *first, *words[1:]]
    if words[:2] != ["psserver", "serve"]:
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
        assert ended.returncode == 0, f"{shlex.join(words)}: {ended.stderr}"
        return
    if "--bind" not in words:
        command += ["--bind", f"unix:{folder}/7070"]
    server = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    servers.callback(stop, server)
    assert "unix:" in server.stdout.readline(), shlex.join(words)


def stop(server):
    """Stop a server, which must end without an error."""
    server.terminate()
    with server:
        assert server.wait(30) == 0


RUNNABLE = [block for block in blocks("sh") if ends_by_itself(block)]


@pytest.mark.parametrize(
    "page", few_fast(sorted({block.page for block in RUNNABLE}), fast=0, slow=3), ids=lambda page: page.name
)
def test_the_commands_of_a_page_that_need_no_container_and_no_other_host_succeed_one_after_the_other(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").write_text(TRAIN)
    for block in [block for block in RUNNABLE if block.page == page]:
        with ExitStack() as servers:
            for words in commands(block):
                run(words, tmp_path, servers)


def test_blocks_of_commands_are_valid_for_the_shell_and_begin_with_known_programs():
    known = {"docker", "docker-compose", "make", "psserver", "psworker", "python", "python3"}
    known |= {"mv", "printf", "ray", "sbatch", "tail"}
    for block in blocks("sh"):
        checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=20)
        assert (checked.returncode, checked.stderr) == (0, ""), name(block)
        for words in commands(block):
            program = next(word for word in words if "=" not in word and word != "sudo")
            assert program in known or program.startswith(".venv/bin/") or (ROOT / program).is_file(), name(block)


SOFTMAX = "examples/softmax_mnist.py"


@pytest.mark.slow
def test_the_commands_of_the_readme_that_need_no_container_train_the_example_and_show_the_job():
    section = (ROOT / "README.md").read_text().split("## Running a program")[1].split("\n## ")[0]
    lines = re.findall(r"`((?:python|psworker|psserver) [^`]+)`", section)
    interpreter = {"python": [], "psworker": ["-m", "psworker"], "psserver": ["-m", "psserver"]}
    started = [[sys.executable, *interpreter[first], *rest] for first, *rest in map(shlex.split, lines)]
    alone, local, profile, serve, worker, status = [
        next(one for one in started if word in one) for word in (SOFTMAX, "local", "profile", "serve", "run", "status")
    ]
    environment = {**os.environ, "PSWORKER_PROGRESS": "off"}
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "timeout": 100, "check": True}
    for program in (alone, local):
        assert "test accuracy: 0." in subprocess.run(program, **options).stdout
    assert re.search(r"^backward +\d", subprocess.run(profile, **options).stdout, re.MULTILINE)
    free_port = [word.replace(":7070", ":0") for word in serve]
    with subprocess.Popen(free_port, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[-1]
            worker, status = ([word.replace("127.0.0.1:7070", address) for word in each] for each in (worker, status))
            assert "test accuracy: 0." in subprocess.run(worker, **options).stdout
            assert "5,500" in subprocess.run(status, **options).stdout
        finally:
            server.terminate()
