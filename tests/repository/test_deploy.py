"""The files in deploy/ agree with docs/deploy.md, the command-line options and the packages."""

import re
from pathlib import Path

from psserver.cli.main import main as psserver
from psworker.launch.cli import main as psworker

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "deploy/compose.yaml").read_text()
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
PAGE = (ROOT / "docs/deploy.md").read_text()


def documented():
    """The default of each variable in the table of the page; a row may list several variables."""
    table = PAGE.partition("| variable | default |")[2].partition("\n\n")[0]
    defaults = {}
    for row in table.splitlines()[2:]:
        names, values = row.split("|")[1:3]
        names = re.findall(r"`([A-Z_]+)`", names)
        values = [value.strip().strip("`") for value in values.split(",")]
        assert len(names) == len(values), row
        defaults |= zip(names, values, strict=True)
    return defaults


def test_the_page_lists_every_variable_of_the_compose_file_with_its_default():
    words = {"": "none", "0": "all"}
    used = {name: words.get(default, default) for name, default in re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE)}
    assert documented() == used


def test_environment_variables_of_the_commands_are_those_of_existing_options():
    known = {
        option.envvar or f"PSSERVER_{name}_{option.name}".upper().replace("-", "_")
        for group in (psserver, psworker)
        for name, command in group.commands.items()
        for option in command.params
    }
    used = set(re.findall(r"\b((?:PSSERVER|PSWORKER)_[A-Z_]+)\b", COMPOSE + DOCKERFILE))
    assert used
    assert used <= known


def test_the_image_contains_all_packages_and_runs_as_its_own_user():
    packages = re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert {"pswire", "psserver", "psworker"} <= set(packages)
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (\w+)$", last_stage, re.MULTILINE) == ["paramserver"]
