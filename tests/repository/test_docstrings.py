"""Code in public docstrings, which the reference shows, and in code spans of pages: its names exist.

Blocks of code on pages are run (tests/integration/test_pages.py); in a docstring they are parts of programs.
"""

import ast
import inspect
import re
import textwrap

import psworker as ps
import psworker.ray  # pages name it; programs import it as a module
from tests.repository.test_docs import PAGES
from tests.support.combinations import together

#: What programs in docstrings and pages call these.
OBJECTS = {
    name: getattr(ps, name) for name in ("callbacks", "datasets", "errors", "initializers", "nn", "ops", "schedules")
}
OBJECTS |= {"ps": ps, "psworker": ps, "session": ps.Session}
#: Attributes that only instances have, and a module that needs an extra.
INSTANCE = {"session.number", "session.worker", "psworker.jax", "psworker.torch"}
USE = re.compile(rf"(?<![\w./`-])({'|'.join(OBJECTS)})\.([a-zA-Z_]\w*)")


def documented():
    """Each public module, function, class and method with a docstring, by its name."""
    for module in {ps, *(OBJECTS[name] for name in OBJECTS if inspect.ismodule(OBJECTS[name]))}:
        yield module.__name__, module
        for name in module.__all__ if hasattr(module, "__all__") else vars(module):
            value = getattr(module, name)
            if not hasattr(module, "__all__") and getattr(value, "__module__", "") != module.__name__:
                continue  # an import
            if inspect.isfunction(value) or inspect.isclass(value):
                yield f"{module.__name__}.{name}", value
            if inspect.isclass(value):
                methods = {key: method for key, method in vars(value).items() if inspect.isfunction(method)}
                yield from ((f"{module.__name__}.{name}.{key}", method) for key, method in methods.items())


def programs(docstring):
    """The indented blocks that use one of our names; others are formulas."""
    blocks = re.findall(r"(?:^|\n\n)((?:    .*\n?|\n)+)", inspect.cleandoc(docstring))
    return [textwrap.dedent(block).strip("\n") for block in blocks if USE.search(block)]


DOCSTRINGS = {name: value.__doc__ for name, value in documented() if value.__doc__}


def unknown_names(code):
    """Uses of names that do not exist."""
    uses = {(found[1], found[2]) for found in USE.finditer(code)}
    missing = {f"{name}.{attribute}" for name, attribute in uses if not hasattr(OBJECTS[name], attribute)}
    return missing - INSTANCE


def test_programs_in_public_docstrings_are_valid_python_and_their_names_of_ours_exist():
    found = {name: programs(docstring) for name, docstring in DOCSTRINGS.items()}
    assert sum(map(len, found.values())) > 30
    for name, blocks in found.items():
        for block in blocks:
            ast.parse(block, name)
            assert unknown_names(block) == set(), name


@together("page", PAGES, ids=lambda page: page.name)
def test_code_spans_on_a_page_name_only_what_exists(page):
    text = re.sub("```.*?```", "", page.read_text(), flags=re.DOTALL)
    if page.parent.name == "coming-from":  # whose first columns have the names of other libraries
        text = re.sub(r"^\|[^|\n]*\|", "|", text, flags=re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", text)
    assert set().union(*map(unknown_names, spans)) == set()


def test_docstrings_have_no_markdown_but_code_and_lists():
    """The site cannot resolve links and headings, and the reference has no emphasis."""
    assert len(DOCSTRINGS) > 250
    markdown = re.compile(r"\]\([^)]*\)|^#.*|(?<![\w*])\*\w[^*]*\w\*(?![\w*])", re.MULTILINE)
    for name, docstring in DOCSTRINGS.items():
        prose = re.sub(r"`[^`]*`|^    .*$", "", inspect.cleandoc(docstring), flags=re.MULTILINE)
        assert markdown.findall(prose) == [], name
