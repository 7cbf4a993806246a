"""Sphinx extension: docstrings are Markdown, with the sections of Google's style.

autodoc expects reStructuredText, in which an indented program is a quotation and a single backtick is no code. So each
docstring is wrapped into a directive that parses it as the pages are parsed; sections such as "Args:" become field
lists, which Sphinx lays out as parameters, results and errors.
"""

import re
from collections.abc import Iterator

from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

#: The field of each entry of a section.
FIELDS = {"Args": "param", "Raises": "raises", "Returns": "returns", "Yields": "yields"}
SECTION = re.compile(rf"({'|'.join(FIELDS)}|Attributes):")
#: What is no Markdown in docstrings: the sign of a product such as `i*s`, and a number at the beginning of a line.
PLAIN = re.compile(r"(?<=\w)(?=\*\w)|(?<=^\d)(?=\. )|(?<=^\d\d)(?=\. )")
ENTRY = re.compile(r"    ([\w*][\w*, ]*): +(.*)")


class Markdown(SphinxDirective):
    """Content in Markdown, in a document of reStructuredText."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The nodes of the content."""
        return self.parse_markdown("\n".join(self.content))

    def parse_markdown(self, text: str) -> list[nodes.Node]:
        """The nodes of a text."""
        document = new_document(self.get_source_info()[0], self.state.document.settings)
        MystParser().parse(text, document)
        return list(document.children)


def with_fields(lines: list[str]) -> Iterator[str]:
    """The lines of a docstring, in which the entries of each section are fields, and attributes are a list."""
    section = ""
    for line in lines:
        found, entry = SECTION.fullmatch(line), ENTRY.fullmatch(line)
        if found or (line and not line.startswith(" ")):
            section = found[1] if found else ""
        if section in ("Returns", "Yields"):
            yield f":{FIELDS[section]}:" if found else line
        elif section == "Attributes":
            yield "**Attributes**\n" if found else f"- `{entry[1]}`: {entry[2]}" if entry else line[2:]
        elif section:
            if not found:
                yield f":{FIELDS[section]} {_field_name(section, entry[1])}: {entry[2]}" if entry else line[4:]
        else:
            yield line if line.startswith("    ") else escaped(line)


def _field_name(section: str, names: str) -> str:
    """Names of parameters without spaces, since the first of two words would be taken for a type."""
    return names.replace(" ", "") if section == "Args" else names


def escaped(line: str) -> str:
    """A line of prose in which only what is meant as Markdown is Markdown."""
    parts = line.split("`")
    return "`".join(PLAIN.sub(r"\\", part) if number % 2 == 0 else part for number, part in enumerate(parts))


def wrap(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Replace the lines of a docstring by a directive that has them as its content."""
    lines[:] = [".. markdown::", "", *(f"   {line}".rstrip() for line in with_fields(lines)), ""]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive, and the event of each docstring."""
    app.add_directive("markdown", Markdown)
    app.connect("autodoc-process-docstring", wrap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
