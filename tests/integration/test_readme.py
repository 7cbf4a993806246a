"""The programs and commands of the README and of docs/models.md run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import psworker as ps

ROOT = Path(__file__).resolve().parents[2]


def programs(page):
    """The Python programs on a page, each with the number of its first line."""
    text = (ROOT / page).read_text()
    return [
        pytest.param(page, match[1], id=f"{page}:{text[: match.start(1)].count(chr(10)) + 1}")
        for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    ]


def run(page, program):
    with ps.collection():
        exec(compile(program, page, "exec"), {"__name__": "__main__"})


def test_the_program_in_the_readme_trains_to_the_accuracy_of_softmax_regression(capsys):
    [program] = programs("README.md")
    run(*program.values)
    assert abs(float(capsys.readouterr().out) - 0.904) <= 0.003


@pytest.mark.parametrize(("page", "program"), programs("docs/models.md"))
def test_every_program_in_the_guide_runs_and_its_assertions_hold(page, program):
    run(page, program)


def commands():
    """The commands of the section "Running a program" that need no container, as argument lists."""
    section = (ROOT / "README.md").read_text().split("## Running a program")[1].split("\n## ")[0]
    lines = re.findall(r"`((?:python|psworker|psserver) [^`]+)`", section)
    interpreter = {"python": [], "psworker": ["-m", "psworker"], "psserver": ["-m", "psserver"]}
    return [[sys.executable, *interpreter[words[0]], *words[1:]] for words in map(shlex.split, lines)]


@pytest.mark.slow
def test_the_commands_of_the_readme_train_the_example_and_show_the_job():
    alone, local, serve, worker, status = commands()
    environment = {**os.environ, "PSWORKER_PROGRESS": "off"}
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "timeout": 100, "check": True}
    for program in (alone, local):
        assert "test accuracy: 0." in subprocess.run(program, **options).stdout
    free_port = [word.replace(":7070", ":0") for word in serve]
    with subprocess.Popen(free_port, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[-1]
            worker, status = ([word.replace("127.0.0.1:7070", address) for word in each] for each in (worker, status))
            assert "test accuracy: 0." in subprocess.run(worker, **options).stdout
            assert "5,500" in subprocess.run(status, **options).stdout
        finally:
            server.terminate()
