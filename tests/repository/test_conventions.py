"""Conventions of the repository that import contracts cannot express."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import psworker
from psworker.autodiff import ops

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pswire", "psserver", "psworker")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if "v1" not in path.parts]


def test_importing_psworker_loads_neither_grpc_nor_a_server():
    program = """if True:
        import sys
        from psworker import *
        print([m for m in ("grpc", "google.protobuf", "psserver") if m in sys.modules], callable(session))
    """
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout.strip() == "[] True"


HEALTH = """
import sys
from psserver.cli.main import main
from pswire.errors import Unavailable

try:
    main(["--debug", "health", "unix:/nowhere"], standalone_mode=False)
except Unavailable:
    print([module for module in ("numpy", "psserver.core", "psserver.rpc.server", "rich") if module in sys.modules])
"""


def test_the_health_check_loads_neither_numpy_nor_a_server():
    checked = subprocess.run([sys.executable, "-c", HEALTH], capture_output=True, text=True, timeout=60, check=True)
    assert checked.stdout.strip() == "[]"


def test_the_command_psworker_handles_sigterm_before_numpy_is_loaded():
    program = "import sys, psworker.launch.cli; print([m for m in ('numpy', 'grpc', 'rich') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout.strip() == "[]"


def test_lazily_imported_names_of_psworker_are_those_that_type_checkers_see():
    checked = next(node for node in ast.parse(Path(psworker.__file__).read_text()).body if isinstance(node, ast.If))
    imports = [(node.module, alias.name, alias.asname or alias.name) for node in checked.body for alias in node.names]
    assert sorted(name for _, _, name in imports) == sorted(psworker.__all__)
    assert set(psworker.__all__) <= set(dir(psworker))
    for module, original, name in imports:
        seen_by_type_checkers: dict[str, object] = {}
        exec(f"from {module} import {original}", seen_by_type_checkers)
        assert getattr(psworker, name) is seen_by_type_checkers[original]
    with pytest.raises(AttributeError, match="'psworker' has no attribute 'nowhere'"):
        psworker.nowhere  # noqa: B018


@pytest.mark.parametrize("module", [psworker, ops], ids=lambda module: module.__name__)
def test_every_name_in_all_exists_once(module):
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_an_example_has_150_lines_at_most():
    too_long = [path.name for path in (ROOT / "examples").glob("*.py") if path.read_text().count("\n") > 150]
    assert too_long == []


def test_every_module_has_a_docstring():
    without = [str(path.relative_to(ROOT)) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert without == []


def test_docs_models_lists_every_op_once():
    table = (ROOT / "docs" / "models.md").read_text().split("## All ops")[1].split("Layers:")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(ops.__all__)


def test_environment_variables_are_read_in_config_only():
    readers = [
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if path.name != "config.py" and any(word in path.read_text() for word in ("os.environ.get", "os.getenv"))
    ]
    assert readers == []
