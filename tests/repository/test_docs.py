"""Commands, options, links, headings and paths that the documentation names exist."""

import re
import shlex
from pathlib import Path

import click
import pytest

from psserver.cli.main import main as psserver
from psworker.launch.cli import main as psworker

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PACKAGES = ("pswire", "psserver", "psworker")
GROUPS = {"psserver": psserver, "psworker": psworker}


def commands(text):
    """Lines of code blocks and code spans that begin with one of our commands, up to a pipe or redirection."""
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines() + re.findall(
        r"`([^`\n]+)`", re.sub("```.*?```", "", text, flags=re.DOTALL)
    )
    for line in lines:
        found = re.match(r"(?:\$ )?(?:\.venv/bin/)?((?:psserver|psworker|python|make)\b (?!-> |-m pip)[^|>&#]+)", line)
        if found:
            yield found[1]


def check_click(words, script):
    group = GROUPS[words[0]]
    if words[1].startswith("-"):
        assert words[1] in {option for parameter in group.params for option in parameter.opts} | {"--help", "-h"}
        return
    command = group.commands[words[1]]
    try:
        command.make_context(words[1], [script if word.endswith(".py") else word for word in words[2:]])
    except click.exceptions.Exit:
        pass  # --help
    except (click.MissingParameter, click.BadOptionUsage):
        pass  # a sentence names a command or an option without its value


def check_python(words):
    """The script or module exists, and its text has the options."""
    if words[1] == "-m":
        paths = [ROOT / f"{words[2].replace('.', '/')}.py", *(ROOT / words[2].replace(".", "/")).glob("*.py")]
    else:
        paths = [ROOT / words[1], *(ROOT / "benchmarks").glob("_report.py")]
    text = "".join([path.read_text() for path in paths if path.exists()])
    assert paths[0].exists() or len(paths) > 1
    for option in words[2:]:
        assert not option.startswith("--") or f'"{option}"' in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_exists_with_its_options(page, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands(page.read_text()):
        words = shlex.split(command)
        if words[0] in GROUPS:
            check_click(words, str(script))
        elif words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= set(targets), command
        elif words[0] == "python" and words[1] not in ("train.py", "benchmarks/NAME.py"):
            check_python(words)


def anchors(path):
    """The anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_on_a_page_leads_to_a_file_and_a_heading(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not link.startswith("https:") and not (target.exists() and (not anchor or anchor in anchors(target))):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_path_on_the_architecture_pages_exists(page):
    """Paths are relative to the repository; a file or folder without a path is somewhere in the packages."""
    missing = set()
    for span in re.findall(r"`([\w./<>*-]+)`", (ROOT / page).read_text()):
        if "/" not in span and not span.endswith(".py"):
            continue
        pattern = re.sub(r"<\w+>", "*", span).rstrip("/")
        packages = [] if "/" in pattern else [ROOT / name for name in PACKAGES]
        if not any(ROOT.glob(pattern)) and not any(any(folder.rglob(pattern)) for folder in packages):
            missing.add(span)
    assert not missing
