"""Sphinx extension: the public names of a module, each by autodoc, and a check that the reference has all of them."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.ext.autodoc import mock
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

import psworker

with mock(["torch", "jax"]):  # which the site does not need
    import psworker.jax
    import psworker.torch

#: The modules whose public names the reference has.
INNER = [name for name in psworker.__all__ if isinstance(getattr(psworker, name), ModuleType)]
MODULES = ["psworker", "psworker.torch", "psworker.jax", "psserver.testing", *(f"psworker.{name}" for name in INNER)]


def module_of(name: str) -> ModuleType:
    """The module that programs import by this name, or have as an attribute, such as `psworker.ops`."""
    package, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(package), attribute, None) if package == "psworker" else None
    return found or importlib.import_module(name)


def public_names(module: ModuleType) -> dict[str, str]:
    """The functions and classes in `__all__`, or else those of the module, each with the module that defines it."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    homes = {name: getattr(getattr(module, name), "__module__", None) for name in names}
    if not hasattr(module, "__all__"):
        homes = {name: home for name, home in homes.items() if home == module.__name__}
    return {name: home for name, home in homes.items() if home is not None}  # a module has none


def by_module(module: ModuleType, homes: list[str]) -> dict[str, list[str]]:
    """The public names that these modules and packages define, by module; without any, all under the module itself."""
    names = public_names(module)
    if not homes:
        return {module.__name__: sorted(names, key=str.lower)}
    found: dict[str, list[str]] = {home: [] for home in homes}
    for name in sorted(names, key=lambda name: (names[name], name.lower())):
        if f"{names[name]}.".startswith(tuple(f"{home}." for home in homes)):
            found.setdefault(names[name], []).append(name)
    return found


class Public(SphinxDirective):
    """`.. public:: psworker.ops` documents the public names of a module, or only those of `:from:`.

    `:from:` lists modules that define them, or packages of such modules. With `:introduction:` the docstrings of these,
    or of the module, come first; with `:sections:` each module or package inside has a section; with `:bases:` each
    class names its own.
    """

    required_arguments = 1
    option_spec: ClassVar[dict[str, Callable[[str], object]]] = {
        "from": directives.unchanged_required,
        "introduction": directives.flag,
        "sections": directives.flag,
        "bases": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """The nodes that autodoc makes of the names."""
        if "sections" not in self.options:
            return self._nodes(self.options.get("from", "").split())
        package = module_of(self.arguments[0]).__name__
        inside = {home.removeprefix(f"{package}.").split(".")[0] for home in public_names(module_of(package)).values()}
        return [self._section(f"{package}.{name}", name.replace("_", " ").capitalize()) for name in sorted(inside)]

    def _section(self, home: str, title: str) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(title)], names=[nodes.fully_normalize_name(title)])
        section += nodes.title(text=title)
        section += self._nodes([home])
        return section

    def _nodes(self, homes: list[str]) -> list[nodes.Node]:
        module, lines = module_of(self.arguments[0]), []
        for home, names in by_module(module, homes).items():
            if "introduction" in self.options:
                lines.append(f".. automodule:: {home}\n   :no-members:\n   :no-index:\n")
            for name in names:
                is_class = isinstance(getattr(module, name), type)
                bases = "   :show-inheritance:\n" if "bases" in self.options and is_class else ""
                lines.append(f".. auto{'class' if is_class else 'function'}:: {self.arguments[0]}.{name}\n{bases}")
        return self.parse_text_to_nodes("\n".join(lines))


def check_complete(_app: Sphinx, env: BuildEnvironment) -> None:
    """Fail unless each public function and class is on a page, by one of its names."""
    documented = env.domains.python_domain.objects
    names_of: dict[object, list[str]] = {}
    for module in MODULES:
        for name in public_names(module_of(module)):
            names_of.setdefault(getattr(module_of(module), name), []).append(f"{module}.{name}")
    absent = [" or ".join(names) for names in names_of.values() if not set(names) & set(documented)]
    if absent:
        raise ExtensionError(f"docs/reference/ does not have {', '.join(absent)}: add their module to a page")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive and the check."""
    app.add_directive("public", Public)
    app.connect("env-check-consistency", check_complete)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
