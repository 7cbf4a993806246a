"""Conventions of the repository that import contracts cannot express."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import click
import grpc
import pytest

import psworker
from psjob.terminal.commands import help_sections
from psjob.terminal.options import Option
from psserver.cli.main import main as server_commands
from pswire import optimizers
from pswire.errors import FAMILY
from pswire.network.channel import error_from, status_of
from pswire.optimizers.adam import MomentsSpec
from pswire.optimizers.element_wise import ElementWise
from psworker.autodiff import ops
from psworker.autodiff.tape import Result
from psworker.launch.cli import main as worker_commands
from tests.support.combinations import together
from tests.unit.pswire.optimizers.rules_under_test import RULES_UNDER_TEST

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pswire", "psjob", "psserver", "psworker")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if "v1" not in path.parts]
MODELS_PAGE = (ROOT / "docs" / "models.md").read_text()

HEALTH = """
from psserver.cli.main import main
from pswire.errors import Unavailable
try:
    main(["--debug", "health", "unix:/nowhere"], standalone_mode=False)
except Unavailable:
    done = True
"""


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("from psworker import *\ndone = callable(session)", ("grpc", "google.protobuf", "psserver")),
        (HEALTH, ("numpy", "psserver.core", "psserver.rpc.server", "rich", "safetensors")),
        ("import psworker.launch.cli\ndone = True", ("numpy", "grpc", "rich", "safetensors")),
    ],
    ids=["import psworker", "psserver health", "psworker before SIGTERM is handled"],
)
def test_commands_that_start_fast_do_not_load_modules_they_do_not_need(program, absent):
    program += f"\nimport sys\nprint(done, [module for module in {absent} if module in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "True []"


def test_lazily_imported_names_of_psworker_are_those_that_type_checkers_see():
    checked = next(node for node in ast.parse(Path(psworker.__file__).read_text()).body if isinstance(node, ast.If))
    seen_by_type_checkers: dict[str, object] = {}
    exec(compile(ast.Module(checked.body, []), psworker.__file__, "exec"), seen_by_type_checkers)
    del seen_by_type_checkers["__builtins__"]
    assert {name: getattr(psworker, name) for name in psworker.__all__} == seen_by_type_checkers
    assert {name for name in dir(psworker) if not name.startswith("_")} == set(psworker.__all__)
    assert psworker.__version__ == version("paramserver")
    assert "__version__" in dir(psworker)
    with pytest.raises(AttributeError, match="'psworker' has no attribute 'nowhere'"):
        psworker.nowhere  # noqa: B018


def test_every_name_in_all_exists_once_and_docs_models_lists_every_op():
    for module in (psworker, ops):
        assert len(set(module.__all__)) == len(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)
    table = MODELS_PAGE.split("## All ops")[1].split("Layers:")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(ops.__all__)


def test_docs_models_lists_functions_of_jax_that_are_not_here_and_ops_that_are():
    table = MODELS_PAGE.split("### Functions of jax.numpy")[1].split("| --- | --- |\n")[1].split("\n\n")[0]
    rows = [row.split("|")[1:3] for row in table.strip().splitlines()]
    assert len(rows) > 10
    assert [name for absent, _ in rows for name in re.findall(r"`(\w+)`", absent) if name in ops.__all__] == []
    assert {name for _, here in rows for name in re.findall(r"`(\w+)[`(]", here)} - {"list"} <= set(ops.__all__)


def test_docs_models_lists_every_layer():
    layers = MODELS_PAGE.split("\nLayers:")[1].split("Initial values:")[0]
    assert sorted(re.findall(r"`nn\.(\w+)`", layers)) == sorted(psworker.nn.__all__)


def test_docs_trainer_lists_every_callback():
    named = re.findall(r"`ps\.callbacks\.(\w+)", (ROOT / "docs" / "trainer.md").read_text())
    assert set(named) == set(psworker.callbacks.__all__)


def test_every_module_has_a_docstring_one_reads_environment_variables_and_examples_have_150_lines_at_most():
    for path in SOURCES:
        text = path.read_text()
        assert re.match(r'(#.*\n|\s)*r?"""\s*[^\s"]', text), path
        assert path.name in ("config.py", "environment.py") or not re.search(r"os\.(environ\.get|getenv)", text), path
    assert [path for path in (ROOT / "examples").rglob("*.py") if path.read_text().count("\n") > 150] == []


def test_the_generated_code_is_up_to_date_and_alone_in_its_folder(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc", reason="pip install -e '.[dev]'")
    pinned, *_ = re.findall(r'"grpcio-tools==([^"]+)"', (ROOT / "pyproject.toml").read_text())
    if version("grpcio-tools") != pinned:
        pytest.skip(f"the code is generated by grpcio-tools {pinned}: pip install -e '.[dev]'")
    includes = (f"-I{ROOT / 'protos'}", f"-I{Path(protoc.__file__).parent / '_proto'}")
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    protos = [f"pswire/v1/{name}.proto" for name in ("options", "paramserver", "state")]
    assert protoc.main(["protoc", *includes, *outputs, *protos]) == 0
    fresh = {path.name: path.read_text() for path in (tmp_path / "pswire/v1").iterdir()}
    ours = {path.name: path.read_text() for path in (ROOT / "pswire/v1").iterdir() if path.is_file()}
    assert ours == fresh | {"__init__.py": ""}, "make protos"
    generator = [sys.executable, ROOT / "protos" / "generate.py", "--check"]
    assert subprocess.run(generator, capture_output=True, text=True).stderr == ""


def groups(command):
    """A group of commands, and those in it."""
    if isinstance(command, click.Group):
        yield command
        for one in command.commands.values():
            yield from groups(one)


@pytest.mark.parametrize("main", [server_commands, worker_commands], ids=["psserver", "psworker"])
def test_the_summary_of_each_command_is_a_short_sentence_that_is_not_cut(main):
    for group in groups(main):
        for name, command in group.commands.items():
            summary = command.get_short_help_str(45)
            assert summary == command.short_help, name
            assert re.fullmatch("[A-Z].*[a-z]\\.", summary), name


def contexts(command, parent=None):
    """The context of a command, and those of the commands in it."""
    context = click.Context(command, parent, command.name or "main", **command.context_settings)
    yield context
    for one in getattr(command, "commands", {}).values():
        yield from contexts(one, context)


NO_DEFAULT = click.Option(["--any"]).default
COMMANDS = [context for main in (server_commands, worker_commands) for context in contexts(main)]


@together("context", COMMANDS, ids=lambda context: context.command_path)
def test_help_shows_each_option_once_in_a_section_of_ten_at_most_and_metavars_are_not_names_of_types(context):
    command = context.command
    sections = help_sections(command, context)
    shown = [option.opts[-1] for options in sections.values() for option in options]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    assert sorted(shown) == sorted([*(one.opts[-1] for one in options), "--help"])
    assert max(map(len, sections.values())) <= 10
    if len(options) > 10:
        assert "Options" not in sections, "each option of such a command is in a section of its own subject"
    titles = re.findall(r"^(\w[\w ]*):$", command.get_help(context), re.MULTILINE)
    assert [title for title in titles if title != "Commands"] == list(sections)
    assert all(isinstance(one, Option) or one.name == "version" for one in options), "made by `option`"
    texts = [" ".join(option.get_help_record(context)) for option in options]
    assert [text for text in texts if re.search("INTEGER|RANGE|default: [(]", text)] == []


@together("context", COMMANDS, ids=lambda context: context.command_path)
def test_a_default_in_help_is_what_one_types_or_a_description_of_some_words(context):
    for options in help_sections(context.command, context).values():
        for option in options:
            shown = re.search("default: (.*?)(?:; [0-9x]|])", option.get_help_record(context)[1])
            if shown and option.is_flag:
                assert f"--{shown[1]}" in option.opts + option.secondary_opts
            elif shown and " " not in shown[1]:
                typed = option.type.convert(shown[1], option, context)
                if option.default not in (None, NO_DEFAULT):
                    assert typed == option.type.convert(option.default, option, context), option.name


def received(code, details, metadata=()):
    """The error that a worker raises when its call to host:9 fails with this status."""
    methods = {"code": lambda: code, "details": lambda: details, "trailing_metadata": lambda: metadata}
    return error_from(SimpleNamespace(**methods), "host:9")


@together("kind", FAMILY.values(), ids=lambda kind: kind.__name__)
def test_an_error_has_a_status_a_fault_and_a_docstring_and_survives_the_round_trip(kind):
    assert kind.status in {code.name for code in grpc.StatusCode} - {"OK"}
    assert kind.fault in ("sender", "receiver", "network", "user")
    assert kind.retry == (kind.fault == "network")
    assert kind.__doc__
    error = received(*status_of(kind("variable 'W': what happened, and what to do")))
    assert (type(error), str(error)) == (kind, "variable 'W': what happened, and what to do")


def test_every_other_status_is_an_error_that_names_the_address_and_only_broken_connections_and_deadlines_are_retried():
    errors = {code.name: received(code, "details") for code in grpc.StatusCode}
    assert {type(error) for error in errors.values()} <= set(FAMILY.values())
    assert [name for name, error in errors.items() if "host:9" not in str(error)] == []
    retried = {name for name, error in errors.items() if error.retry}
    assert retried == {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED"}


def test_every_optimizer_in_the_folder_is_registered_exported_and_tested():
    names = [module.name for module in pkgutil.iter_modules(optimizers.__path__, "pswire.optimizers.")]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    specs = {one for one in values if isinstance(one, type) and issubclass(one, optimizers.UpdateSpec)}
    specs -= {optimizers.UpdateSpec, optimizers.OptimizerSpec, ElementWise, MomentsSpec}
    specs -= {optimizers.CustomOptimizer, optimizers.UnknownOptimizer}
    kinds = optimizers.UpdateSpec.kinds
    assert specs == set(kinds.values())
    assert {spec.__name__ for spec in specs} <= set(optimizers.__all__)
    assert kinds.keys() == {case.spec.kind for case in RULES_UNDER_TEST}


@pytest.mark.parametrize(("kind", "spec"), sorted(optimizers.UpdateSpec.kinds.items()))
def test_an_optimizer_has_a_formula_a_source_a_class_for_programs_and_is_in_the_guide(kind, spec):
    assert spec.kind == kind
    assert "w <- " in spec.__doc__
    assert "Source: " in spec.__doc__
    if issubclass(spec, optimizers.OptimizerSpec):
        assert issubclass(getattr(psworker, spec.__name__), psworker.Optimizer)
        assert re.search(rf"`(ps\.)?{spec.__name__}", MODELS_PAGE), "docs/models.md does not describe it"
        described = spec.__doc__.partition("    Args:\n")[2]
        fields = [field.name for field in dataclasses.fields(spec)]
        assert [name for name in fields if not re.search(rf"^ {{8}}(\w+, )*{name}(, \w+)*: ", described, re.M)] == []


PUBLIC = psworker, psworker.nn, ops, psworker.callbacks, psworker.initializers, psworker.schedules


def public_signatures():
    """Of all public functions, classes and methods, by name."""
    for module in PUBLIC:
        for name in module.__all__:
            member = getattr(module, name)
            methods = vars(member) if isinstance(member, type) else {}
            parts = [(name, method) for name, method in methods.items() if name[0] != "_" or name == "__call__"]
            for path, function in [(name, member), *((f"{name}.{part}", method) for part, method in parts)]:
                with suppress(TypeError, ValueError):  # a module, a property
                    yield f"{module.__name__}.{path}", inspect.signature(function)


def test_signatures_show_names_of_types_as_help_notebooks_and_the_site_print_them():
    signatures = dict(public_signatures())
    assert len(signatures) > 200
    assert [name for name, one in signatures.items() if re.search(r"numpy\._typing| at 0x|Annotated", str(one))] == []
    adam = str(signatures["psworker.Adam"])
    assert adam.startswith("(learning_rate: float | pswire.specs.schedules.Schedule = 0.001, beta1: float = 0.9, ")
    assert str(signatures["psworker.initializers.orthogonal"]) == "(gain: float = 1.0, blocks: int = 1)"
    assert str(inspect.signature(ops.sum)).startswith("(x: 'TensorLike', /, axis: 'Axis' = None, keepdims: 'bool' = ")
    members = [(f"{module.__name__}.{name}", getattr(module, name)) for module in PUBLIC for name in module.__all__]
    undocumented = [path for path, member in members if (inspect.getdoc(member) or "partial(").startswith("partial(")]
    assert undocumented == ["psworker.initializers.Initializer"]  # a type
    of_ops = {name: signatures[f"{ops.__name__}.{name}"] for name in ops.__all__}
    assert [name for name, one in of_ops.items() if one.return_annotation in ("Result", Result)] == []


@pytest.mark.parametrize("target", ["demo", "test", "lint", "docs", "fuzz"])
def test_a_command_of_make_installs_into_the_environment_that_is_named_alone_and_says_what(target):
    shown = subprocess.run(
        ["make", "--dry-run", target, "VENV=/nonexistent"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert not [line for line in shown if ".venv" in line]
    installs = [number for number, line in enumerate(shown) if "pip install" in line and "--requirement" in line]
    assert installs
    for number in installs:
        said = next(line for line in reversed(shown[:number]) if line.startswith("echo"))
        lock = re.findall(r"locks/(\S+)\.txt", shown[number])
        assert f"locks/{lock[-1] if lock[-1] != 'build' else 'package'}.txt" in said, shown[number]


def test_the_build_context_of_the_image_has_all_that_its_file_copies():
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    context = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {name for names in copied for name in names.split()} <= context
