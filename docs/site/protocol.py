"""Sphinx extension: the services and messages of a .proto file, each in a section, with the comments before them."""

import re
from pathlib import Path

from docutils import nodes
from markdown_docstrings import Markdown
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

#: Comments from the beginning of a line, and what follows them up to the end of its block.
BLOCK = re.compile(r"^((?://[^\n]*\n)*)((?:service|message|enum) (\w+) \{(?:\}|.*?^\}))\n", re.DOTALL | re.MULTILINE)
HEADER = re.compile(r"\A((?://[^\n]*\n)*)")


def text_of(comment: str) -> str:
    """A comment without its slashes."""
    return re.sub(r"^// ?", "", comment, flags=re.MULTILINE)


class Protocol(Markdown):
    """`.. protocol:: protos/name.proto`, a path from the root of the sources: the file's comment, then its blocks."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        """The nodes of the comment, and a section for each block."""
        path = Path(self.env.srcdir, self.arguments[0])
        self.env.note_dependency(path)
        text = path.read_text(encoding="utf-8")
        [header] = HEADER.findall(text)
        return [*self.parse_markdown(text_of(header)), *(self._section(*found) for found in BLOCK.findall(text))]

    def _section(self, comment: str, block: str, name: str) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(name)], names=[nodes.fully_normalize_name(name)])
        section += nodes.title(text=name)
        section += self.parse_markdown(text_of(comment))
        section += nodes.literal_block(block, block, language="protobuf")
        return section


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("protocol", Protocol)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
