"""Commands, options, links, headings and paths of the documentation exist; deploy/ agrees with docs/deploy/."""

import re
import shlex
import tomllib
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import click
import pytest

import psworker as ps
from psserver.cli.main import main as psserver
from pswire.v1 import options_pb2
from pswire.v1 import paramserver_pb2 as pb
from psworker.launch.cli import main as psworker
from tests.support.combinations import together

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "datasets").rglob("*.md"))]
PACKAGES = ("pswire", "psjob", "psserver", "psworker")
GROUPS = {"psserver": psserver, "psworker": psworker}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(text):
    """Lines of code blocks and code spans that begin with one of our commands, up to a pipe or redirection."""
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    spans = re.findall(r"`([^`\n]+)`", re.sub("```.*?```", "", text, flags=re.DOTALL))
    for line in lines + spans:
        found = re.match(r"(?:\$ )?(?:\.venv/bin/)?((?:psserver|psworker|python|make)\b (?!-> |-m pip)[^|>&#]+)", line)
        if found:
            yield shlex.split(found[1])


@together("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_code_names_its_language(page):
    """By which tests/integration/test_pages.py knows what to run."""
    fences = re.findall(r"^ *```+(.*)$", page.read_text(), re.MULTILINE)
    assert set(fences[1::2]) <= {""}
    unknown = {fence for fence in fences[::2] if not fence.startswith("{")} - {
        "python",
        "sh",
        "console",
        "diff",
        "text",
        "yaml",
    }
    assert not unknown, "python and sh are run; console is a transcript with $ before its commands, text anything else"


@together("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_both_sides_of_a_merge(page):
    assert re.findall(r"^(?:<{7}|={7}|>{7})(?: .*)?$", page.read_text(), re.MULTILINE) == []


def test_the_table_of_roles_has_the_calls_that_each_role_may_make_by_the_protocol():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs/security.md").read_text(), re.MULTILINE))
    methods = {one.name: one.GetOptions() for one in pb.DESCRIPTOR.services_by_name["ParameterServer"].methods}
    for role, number in options_pb2.Role.items():
        calls = [name for name, options in methods.items() if options.Extensions[options_pb2.call].role == number]
        assert sorted(methods.keys() & re.findall(r"\b[A-Z]\w+", rows[role.lower()])) == sorted(calls), role


def check_click(words, script):
    group = GROUPS[words[0]]
    if words[1].startswith("-"):
        assert words[1] in {option for parameter in group.params for option in parameter.opts} | {"--help", "-h"}
        return
    # A page may name a command without its arguments, or an option without its value; --help exits.
    exits = click.exceptions.Exit, click.exceptions.NoArgsIsHelpError
    with suppress(*exits, click.MissingParameter, click.BadOptionUsage):
        there = {"DIR": str(Path(script).parent)}
        arguments = [script if word.endswith(".py") else there.get(word, word) for word in words[2:]]
        group.commands[words[1]].make_context(words[1], arguments)


def check_python(words):
    """The script or module exists, and its text has the options."""
    if words[1] == "-m":
        module = ROOT / words[2].replace(".", "/")
        paths = [path for path in (module.with_suffix(".py"), *module.glob("*.py")) if path.exists()]
        assert paths
    else:
        paths = [ROOT / words[1], *(ROOT / "benchmarks").glob("_report.py")]
    text = "".join([path.read_text() for path in paths])
    assert [word for word in words[2:] if word.startswith("--") and f'"{word}"' not in text] == []


@together("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_exists_with_its_options(page, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    for words in commands(page.read_text()):
        if words[0] in GROUPS:
            check_click(words, str(script))
        elif words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= TARGETS, words
        elif words[1] not in ("train.py", "predict.py", "benchmarks/NAME.py"):
            check_python(words)


def anchors(path):
    """The anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@together("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_on_a_page_leads_to_a_file_and_a_heading(page):
    for link in re.findall(r"\]\((?!https:)([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


#: The hosts that pages, docstrings and metadata may link to; a new one is added on purpose. yann.lecun.com: no https.
HOSTS = {
    "docs.ray.io",
    "creativecommons.org",
    "github.com",
    "keepachangelog.com",
    "kubectl.docs.kubernetes.io",
    "ossci-datasets.s3.amazonaws.com",
    "paramserver.readthedocs.io",
    "semver.org",
    "storage.googleapis.com",
    "ui.perfetto.dev",
    "voteview.com",
    "www.cia.gov",
    "www.senate.gov",
    "yann.lecun.com",
}


def test_addresses_in_pages_docstrings_and_metadata_are_well_formed_and_of_known_hosts():
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if "v1" not in path.parts]
    addresses = {
        address.rstrip(".,;")
        for path in [*PAGES, ROOT / "pyproject.toml", *sources]
        for address in re.findall(r"\bhttps?://[^\s)>\"'`\]]+", path.read_text(encoding="utf-8"))
    }
    parts = {address: urlsplit(address) for address in addresses}
    parts = {address: part for address, part in parts.items() if part.hostname != "127.0.0.1"}  # pages of our commands
    assert len(parts) > 10
    assert [address for address, part in parts.items() if part.netloc not in HOSTS] == []
    assert [a for a, part in parts.items() if part.scheme != "https" and part.netloc != "yann.lecun.com"] == []


def test_the_metadata_of_the_package_has_the_addresses_that_package_indexes_show():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls.keys() >= {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert urls["Changelog"] == f"{urls['Source']}/blob/main/CHANGELOG.md"


def test_every_guide_has_a_row_in_the_readme_whose_table_is_the_navigation_of_the_site():
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| \[docs/[\w/-]+\.md\]\((docs/[\w/-]+\.md)\) \|", readme, re.MULTILINE)
    guides = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(rows) == sorted(f"docs/{name}" for name in [*guides, "deploy/index.md", "coming-from/index.md"])
    assert rows[0] == "docs/first-hour.md"


@pytest.mark.parametrize("folder", ["coming-from", "deploy", "reference"])
def test_the_first_page_of_a_folder_has_a_row_for_each_of_the_others_in_the_order_of_the_navigation(folder):
    pages = {path.name for path in (ROOT / "docs" / folder).glob("*.md")} - {"index.md"}
    index = (ROOT / "docs" / folder / "index.md").read_text()
    rows = re.findall(r"^\| \[[\w -]+\]\(([\w-]+\.md)\) \|", index, re.MULTILINE)
    navigation = index.partition("```{toctree}")[2].partition("```")[0].split()[1:]
    assert set(rows) == pages
    assert [f"{name}.md" for name in navigation] == rows


def test_the_reference_has_the_modules_of_all_public_names():
    """As the site's own check does, without its generator: docs/site/public_names.py."""
    directives = re.findall(
        r"^\.\. public:: (\S+)\n((?:   :.*\n)*)",
        "\n".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md")),
        re.MULTILINE,
    )
    whole = {module for module, options in directives if ":from:" not in options}
    homes = {home for _, options in directives for line in re.findall(r":from: (.*)", options) for home in line.split()}
    public = {name: getattr(ps, name) for name in ps.__all__}
    modules = {f"psworker.{name}" for name, value in public.items() if isinstance(value, ModuleType)}
    assert whole == modules | {"psserver.testing", "psworker.jax"}
    defined = {value.__module__ for value in public.values() if not isinstance(value, ModuleType)}
    covered = {module for module in defined for home in homes if f"{module}.".startswith(f"{home}.")}
    assert defined - covered <= {"pswire.specs.initializers"}, "add the module to a page of docs/reference/"
    others = {home for home in homes if not any(f"{module}.".startswith(f"{home}.") for module in defined)}
    assert others == {"psworker.torch"}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_path_on_the_architecture_pages_exists(page):
    """Paths are relative to the repository; a file or folder without a path is somewhere in the packages."""
    for span in re.findall(r"`([\w./<>*-]+)`", (ROOT / page).read_text()):
        pattern = re.sub(r"<\w+>", "*", span).rstrip("/")
        made = span.startswith("build/")  # by `make docs`
        if ("/" in span or span.endswith(".py")) and not made:
            inside = [] if "/" in pattern else [path for name in PACKAGES for path in (ROOT / name).rglob(pattern)]
            assert inside or any(ROOT.glob(pattern)), span


# --- deploy/ ----------------------------------------------------------------------------------------------------------

COMPOSE, DOCKERFILE = [(ROOT / "deploy" / name).read_text() for name in ("compose.yaml", "Dockerfile")]


def test_the_page_lists_every_variable_of_the_compose_file_with_its_default():
    """A row of the table may list several variables."""
    table = (ROOT / "docs/deploy/docker.md").read_text().partition("| variable | default |")[2].partition("\n\n")[0]
    documented = {}
    for row in table.splitlines()[2:]:
        names, values = row.split("|")[1:3]
        documented |= zip(re.findall(r"`([A-Z_]+)`", names), [v.strip(" `") for v in values.split(",")], strict=True)
    words = {"": "none", "0": "all"}
    used = {
        name: words.get(default, default).partition("@")[0]
        for name, default in re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE)
    }
    assert documented == used


def test_environment_variables_of_the_commands_are_those_of_existing_options():
    known = set()
    for name, command in [*psserver.commands.items(), *psworker.commands.items()]:
        prefix = command.context_settings.get("auto_envvar_prefix", f"PSSERVER_{name}")
        known |= {option.envvar or f"{prefix}_{option.name}".upper().replace("-", "_") for option in command.params}
    used = set(re.findall(r"\b((?:PSSERVER|PSWORKER)_[A-Z_]+)\b", COMPOSE + DOCKERFILE))
    assert set() < used <= known


def test_servers_of_the_image_and_of_the_compose_file_have_the_direct_port_that_the_image_exposes():
    [exposed] = re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)
    for text in (DOCKERFILE, COMPOSE):
        [bind] = re.findall(r"PSSERVER_BIND(?:=|: )0\.0\.0\.0:(\d+)", text)
        [direct] = re.findall(r"PSSERVER_DIRECT_PORT(?:=|: )(\d+)", text)
        assert [bind, direct] == exposed.split()


def test_the_image_contains_all_packages_and_runs_as_its_own_user_without_privileges_on_a_read_only_root():
    assert set(PACKAGES) <= set(re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    process = COMPOSE.partition("x-process:")[2].partition("\n\n")[0]
    for line in ("cap_drop: [ALL]", 'security_opt: ["no-new-privileges:true"]', "read_only: true", 'tmpfs: ["/tmp"]'):
        assert f"\n  {line}" in process
    assert set(re.findall(r"^(?:x-server: .*|  (?:credentials|server-\d|worker):)\n    ?(<<: \S+)", COMPOSE, re.M)) == {
        "<<: *process",
        "<<: *server",
    }
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (\w+)$", last_stage, re.MULTILINE) == ["paramserver"]
