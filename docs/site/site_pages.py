"""Sphinx extension: the navigation of the site, and links from code spans to the reference.

README.md is the start page and has no directives, which GitHub would show as they are: its navigation is appended here,
and its links whose text is the path of a page get the title of the page.
"""

import re
from functools import cached_property

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import ExtensionMetadata

NAVIGATION = """

```{{toctree}}
:hidden:
:caption: {caption}

{pages}
```
"""
#: How programs and pages begin a name, and what this stands for.
PREFIXES = {name: f"psworker.{name}." for name in ("datasets", "errors", "initializers", "nn", "ops", "schedules")}
PREFIXES |= {"ps": "psworker.", "pst": "psworker.torch.", "psj": "psworker.jax.", "session": "psworker.Session."}
#: The modules of names that pages write without a prefix: classes.
CLASSES = ["psworker", "psworker.nn", "psworker.errors"]
#: The page on the protocol, whose names are messages; and their reference, with a section for each.
PROTOCOL, MESSAGES = "docs/protocol", "docs/reference/protocol"


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append tables of contents to README.md: the guides in the groups of its own tables, the reference, the rest.

    A link without a text is shown with the title of its page.
    """
    if page == "README":
        sections = re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", source[0], re.MULTILINE | re.DOTALL)
        guides = {title: re.findall(r"^\| \[.*?\]\((docs/[\w/-]+)\.md\)", text, re.M) for title, text in sections}
        data = re.findall(r"\]\((datasets/\w+/README)\.md\)", source[0])
        parts = {
            **guides,
            "Reference": ["docs/reference/index"],
            "Project": ["CONTRIBUTING", "SECURITY", "CHANGELOG", *data],
        }
        source[0] = re.sub(r"\[([\w/-]+\.md)\]\(\1\)", r"[](\1)", source[0])
        source[0] += "".join(NAVIGATION.format(caption=c, pages="\n".join(pages)) for c, pages in parts.items())


def full_names(code: str, scope: str) -> list[str]:
    """The names in the reference that a code span such as `ops.matmul` or `session.save(path)` may stand for.

    `scope` is the name whose text has the span, such as `psworker.Session.save`: other methods are named by themselves.
    """
    name = re.sub(r"\(.*\)$", "", code)
    prefix, point, rest = name.partition(".")
    if point:
        return [name, PREFIXES.get(prefix, "") + rest]
    outer = [scope.rsplit(".", count)[0] for count in range(1, scope.count(".") + 1)]
    return [f"{module}.{name}" for module in [*outer, *(CLASSES if name[:1].isupper() else [])]]


def scope_of(node: nodes.Node) -> str:
    """The name in the reference whose text has this node; for the table of all ops, one of them."""
    while node is not None:
        if isinstance(node, addnodes.desc) and node[0]["ids"]:
            return str(node[0]["ids"][0])
        if isinstance(node, nodes.section) and "all-ops" in node["ids"]:
            return "psworker.ops.*"
        node = node.parent
    return ""


def is_of_another_library(span: nodes.Node) -> bool:
    """Whether a code span is in a table to the left of a column "here": it names something of another library."""
    while not isinstance(span, nodes.entry | None):
        span = span.parent
    if span is None:
        return False
    header = next(iter(span.parent.parent.parent.findall(nodes.row)))
    return "here" in [title.astext() for title in header[span.parent.index(span) + 1 :]]


class LinkCode(SphinxPostTransform):
    """Makes each code span that names something in the reference a link to it, except in titles and links."""

    default_priority = 20

    def run(self, **_: object) -> None:
        """Change the document."""
        page = self.env.current_document.docname
        for span in list(self.document.findall(nodes.literal)):
            target = None if isinstance(span.parent, nodes.reference | nodes.title) else self.target(page, span)
            if target and not is_of_another_library(span):
                span.replace_self(make_refnode(self.app.builder, page, *target, span.deepcopy()))

    def target(self, page: str, span: nodes.literal) -> tuple[str, str] | None:
        """The page and the anchor of what the span names; None: it is not in the reference, or described right here."""
        if page == PROTOCOL:
            message = span.astext().partition(".")[0].lower()
            found = {message, f"{message}request"} & self.messages
            if found and not span.astext().islower():
                return MESSAGES, min(found)
        objects, scope = self.env.domains.python_domain.objects, scope_of(span)
        name = next((name for name in full_names(span.astext(), scope) if name in objects), scope)
        return None if name == scope else (objects[name].docname, objects[name].node_id)

    @cached_property
    def messages(self) -> set[str]:
        """The anchors of the reference of the protocol."""
        sections = self.env.get_doctree(MESSAGES).findall(nodes.section)
        return {anchor for section in sections for anchor in section["ids"]}


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the event of a page that is read, and the transform."""
    app.connect("source-read", add_navigation)
    app.add_post_transform(LinkCode)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
