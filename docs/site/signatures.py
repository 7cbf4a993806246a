"""Sphinx extension: signatures with the annotations and defaults of the source, such as `TensorLike` and `Share`.

autodoc would show what these names stand for, which is long. Of an op, decorated by `@op`, it is the signature for
callers: tensors where the function itself gets arrays.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.typing import ExtensionMetadata, stringify_annotation

from pswire.tensors.values import Array

#: Annotations of a function under `@op`, and what its callers see.
OF_OPS = {"Array": "TensorLike", "Array | None": "TensorLike | None", "Result": "Tensor"}


class Source(str):
    """Text that is shown in a signature as it is."""

    __repr__ = str.__str__


def source_of_function(function: Callable[..., object]) -> dict[str, tuple[str, str]]:
    """Annotation and default of each parameter, as written, or ""; the annotation of the result under "return"."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    if not isinstance(node, ast.FunctionDef):
        return {}
    a = node.args
    by_position = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(by_position) - len(a.defaults)) + a.defaults
    pairs = [*zip(by_position, defaults, strict=True), *zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    pairs += [(star, None) for star in (a.vararg, a.kwarg) if star]
    texts = {arg.arg: (_annotation(arg.annotation), _text(default)) for arg, default in pairs}
    return {**texts, "return": (_annotation(node.returns), "")}


def source_of_fields(cls: type) -> dict[str, tuple[str, str]]:
    """Annotation of each field of a dataclass or named tuple, as written, those of its bases first; no defaults."""
    bases = [base for base in reversed(cls.__mro__) if base.__module__.split(".")[0] in ("psworker", "psjob", "pswire")]
    nodes = [ast.parse(textwrap.dedent(inspect.getsource(base))).body[0] for base in bases]
    fields = [field for node in nodes if isinstance(node, ast.ClassDef) for field in node.body]
    return {ast.unparse(f.target): (_annotation(f.annotation), "") for f in fields if isinstance(f, ast.AnnAssign)}


def _text(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


def _annotation(node: ast.expr | None) -> str:
    """The text of an annotation, without the quotes of one that is a string."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else _text(node)


def signature_of(value: Callable[..., object]) -> tuple[str, str] | None:
    """Parameters and result of a function or class, as they are shown; None for one that has no source of ours."""
    function = value.__init__ if inspect.isclass(value) else value
    function = inspect.unwrap(getattr(function, "__func__", function))
    shown = inspect.signature(value)
    if inspect.isclass(value) and (hasattr(value, "__dataclass_fields__") or issubclass(value, tuple)):
        texts = source_of_fields(value)
    elif inspect.isfunction(function):
        texts = source_of_function(function)
    else:
        return None
    is_op = hasattr(value, "__wrapped__") and texts.get("return", ("", ""))[0] == "Result"
    parameters = []
    for parameter in shown.parameters.values():
        annotation, default = texts.get(parameter.name, ("", ""))
        if is_op and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            annotation = OF_OPS.get(annotation, annotation)
        if annotation:
            parameter = parameter.replace(annotation=Source(annotation))
        parameters.append(parameter.replace(default=Source(default)) if default else parameter)
    result = "" if inspect.isclass(value) else texts.get("return", ("", ""))[0]
    if parameters and parameters[0].name == "self":
        del parameters[0]
    text = str(shown.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return text, OF_OPS.get(result, result) if is_op else result


def from_source(
    _app: Sphinx,
    what: str,
    _name: str,
    value: Callable[..., object],
    _options: object,
    signature: str | None,
    _result: str | None,
) -> tuple[str, str] | None:
    """The signature that autodoc shall show; None for its own."""
    return signature_of(value) if signature and what in ("class", "function", "method") else None


def forget_overloads(_app: Sphinx) -> None:
    """Let autodoc show the signature of `psworker.op` itself, not its overloads, which tell type checkers more."""
    analyzer = ModuleAnalyzer.for_module("psworker.autodiff.tape")
    analyzer.analyze()
    analyzer.overloads.clear()


def with_aliases(_app: Sphinx, _domain: str, _kind: str, content: addnodes.desc_content) -> None:
    """Show `Array` as the type of attributes and properties, whose source autodoc does not read."""
    long = stringify_annotation(Array, "smart").replace("~", "")
    for annotation in content.parent.findall(addnodes.desc_annotation):
        text = annotation.astext()
        for name in (long, re.sub(r"\w+\.", "", long)):
            text = text.replace(name, "Array")
        if text != annotation.astext():
            annotation.clear()
            annotation += nodes.Text(text)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the event of each signature."""
    app.connect("builder-inited", forget_overloads)
    app.connect("autodoc-process-signature", from_source)
    app.connect("object-description-transform", with_aliases)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
