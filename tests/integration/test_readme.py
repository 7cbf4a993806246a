"""What the README and the guide show is what happens."""

import re
from pathlib import Path

import pytest

import psworker as ps

ROOT = Path(__file__).resolve().parents[2]


def programs(page):
    """The Python programs on a page, each with the line it begins at."""
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
