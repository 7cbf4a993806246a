"""What deploy/ can be told is what docs/deploy.md says, and what it is made of is what the rest of the house has."""

import re
from pathlib import Path

from psserver.cli.main import main as psserver
from psworker.launch.cli import main as psworker

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "deploy/compose.yaml").read_text()
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
PAGE = (ROOT / "docs/deploy.md").read_text()


def documented():
    """Defaults by variable, of the page's table; a row may have several of each."""
    table = PAGE.partition("| variable | default |")[2].partition("\n\n")[0]
    defaults = {}
    for row in table.splitlines()[2:]:
        names, values = row.split("|")[1:3]
        names = re.findall(r"`([A-Z_]+)`", names)
        values = [value.strip().strip("`") for value in values.split(",")]
        assert len(names) == len(values), row
        defaults |= zip(names, values, strict=True)
    return defaults


def test_every_variable_of_the_compose_file_is_on_the_page_with_its_default():
    said = {"": "none", "0": "all"}
    used = {name: said.get(default, default) for name, default in re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE)}
    assert documented() == used


def test_variables_of_the_two_commands_in_the_compose_file_and_the_image_are_those_of_their_options():
    known = {
        option.envvar or f"PSSERVER_{name}_{option.name}".upper().replace("-", "_")
        for group in (psserver, psworker)
        for name, command in group.commands.items()
        for option in command.params
    }
    used = set(re.findall(r"\b((?:PSSERVER|PSWORKER)_[A-Z_]+)\b", COMPOSE + DOCKERFILE))
    assert used
    assert used <= known


def test_the_image_has_all_packages_and_runs_as_a_user_of_its_own():
    packages = re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert {"pswire", "psserver", "psworker"} <= set(packages)
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (\w+)$", last_stage, re.MULTILINE) == ["paramserver"]
