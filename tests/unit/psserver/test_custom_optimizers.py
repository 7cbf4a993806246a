"""`--optimizers`: what is loaded from a file or an installed package, and what is refused."""

import sys
import textwrap

import pytest

from psserver.custom_optimizers import load_optimizers
from pswire.errors import ConfigurationError
from pswire.optimizers import UpdateSpec

GOOD = """
from __future__ import annotations

from dataclasses import dataclass

import psworker as ps


class Helper:
    pass


@dataclass(frozen=True)
class Mine(ps.CustomOptimizer):
    slots = ("seen",)
    share: float = 0.5

    def update(self, value, gradient, slots, step):
        return value - step.learning_rate * gradient, {"seen": slots["seen"] + 1}


@dataclass(frozen=True)
class Needs(ps.CustomOptimizer):
    count: int

    def update(self, value, gradient, slots, step):
        return value, {}
"""


def test_the_classes_of_a_file_are_known_by_their_names(tmp_path):
    (tmp_path / "mine.py").write_text(GOOD)
    loaded = load_optimizers(str(tmp_path / "mine.py"))
    assert {cls.__name__ for cls in loaded} == {"Mine", "Needs"}
    assert set(loaded) == {UpdateSpec.kinds["Mine"], UpdateSpec.kinds["Needs"]}
    assert (loaded[0](0.5, 1).share, load_optimizers("")) == (1.0, [])


@pytest.mark.parametrize("value", ["mine_rules", "mine_rules:Mine"])
def test_an_installed_package_is_found_by_its_entry_point(tmp_path, monkeypatch, value):
    (tmp_path / "mine_rules.py").write_text(GOOD)
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[paramserver.optimizers]\nmy-rules = {value}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_rules", raising=False)
    names = {cls.__name__ for cls in load_optimizers("my-rules")}
    assert names == ({"Mine"} if ":" in value else {"Mine", "Needs"})
    with pytest.raises(
        ConfigurationError, match=r"nor an entry point of paramserver[.]optimizers, which are: .*my-rules"
    ):
        load_optimizers("mine-rules")


BEGIN = "from dataclasses import dataclass\nimport psworker as ps\n"
CLASS = BEGIN + "@dataclass(frozen=True)\nclass Mine(ps.CustomOptimizer):\n"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("x = 1", "there is no optimizer: write a class of psworker.CustomOptimizer"),
        ("import there_is_none", r"cannot be imported: ModuleNotFoundError: .*there_is_none.* \(.*mine.py, line 1\)"),
        ("def f(:", r"cannot be imported: SyntaxError: .*mine.py, line 1"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        (CLASS.replace("Mine", "Adam") + "    pass", "class Adam has the name of a built-in optimizer"),
        (CLASS.replace("@dataclass(frozen=True)", "") + "    pass", r"class Mine: write @dataclass\(frozen=True\)"),
        (CLASS + "    pass", "class Mine: Mine.update raised NotImplementedError: it has no method `update`"),
        (CLASS + "    slots = 'm'", r'class Mine: slots must be a tuple of names, such as \("momentum",\), got'),
        (CLASS + "    mode: str = 'a'", "class Mine: Mine: annotate the field mode as float, int or bool"),
        (CLASS + "    def update(self, value): pass", "class Mine: Mine.update raised TypeError: "),
        (CLASS + "    def update(self, value, *rest): value -= 1", "Mine.update raised TypeError: "),
        (
            CLASS + "    def update(self, value, *rest): return value, {'m': value}",
            r"the slots \['m'\], and it has \[\]",
        ),
        (CLASS + "    def update(self, value, *rest): return value[:1], {}", "array of shape .1,. for one of .6,."),
        (
            CLASS + "    def update(self, value, *rest): return value * 1j, {}",
            "Mine.update raised TypeError: Cannot cast",
        ),
        (
            CLASS + "    def update(self, value, gradient, *rest): gradient += 1",
            "Mine.update raised ValueError: .*read",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_the_server_listens(tmp_path, source, error):
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(source))
    with pytest.raises(ConfigurationError, match=f"^--optimizers {path}.*{error}"):
        load_optimizers(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.py: there is no such file"):
        load_optimizers(str(tmp_path / "none.py"))
