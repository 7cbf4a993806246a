"""What the README shows is what happens."""

import re
from pathlib import Path

import psworker as ps

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_the_program_in_the_readme_trains_to_the_accuracy_of_softmax_regression(capsys):
    [program] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with ps.collection():
        exec(compile(program, "README.md", "exec"), {})
    assert abs(float(capsys.readouterr().out) - 0.904) <= 0.003
