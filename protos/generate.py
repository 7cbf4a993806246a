"""Writes `generated.py` in pswire/messages and pswire/codec: the messages of the protocol in Python, from protos/.

    python protos/generate.py [--check]

The files describe each message once: its fields, their comments, and what `options.proto` adds. With `--check` nothing
is written, and the exit code is 1 if the files are not those of the protos.
"""

import argparse
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from declarations import NEEDED, ROOT, F, Field, Message, Protos, d, options

#: Columns of docstrings.
WIDTH = 116


def wrap(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def docstring(protos: Protos, message: Message) -> str:
    """The comment of the message, its first sentence apart, and those of its fields."""
    summary, _, rest = re.sub(r"(?<=[.:]) (?=[A-Z])", "\0", protos.text(message.comment), count=1).partition("\0")
    paragraphs = [wrap(f'"""{summary}', "    "), *([wrap(rest, "    ")] if rest else [])]
    described = [(field.attribute, protos.text(field.comment)) for field in message.fields if field.comment]
    if described:
        texts = [textwrap.fill(f"{one}: {text}", WIDTH - 4, subsequent_indent="    ") for one, text in described]
        paragraphs.append("\n".join(["    Attributes:", *[textwrap.indent(text, "        ") for text in texts]]))
    return "\n\n".join(paragraphs) + ('"""' if len(paragraphs) == 1 and "\n" not in paragraphs[0] else '\n    """')


def write_class(protos: Protos, message: Message) -> str:
    base = f"({message.shape.base})" if message.shape.base else ""
    wide = ", kw_only=True" if len(message.fields) > 3 else ""
    lines = [f"@dataclass(frozen=True, slots=True{wide})", f"class {message.python}{base}:"]
    lines += [docstring(protos, message), ""]
    for field in message.fields:
        default = field.default
        hidden = ", repr=False" if field.proto.type == F.TYPE_BYTES and not field.repeated else ""  # secrets
        if hidden or field.rule.ignored:
            default = f"field(default={default}{hidden}{', compare=False' if field.rule.ignored else ''})"
        lines.append(f"    {field.attribute}: {field.annotation}" + (f" = {default}" if default else ""))
    return "\n".join(lines).rstrip() + "\n"


def write_enum(enum: d.EnumDescriptorProto, comment: str) -> str:
    names = [value.name.removeprefix(f"{enum.name.upper()}_") for value in enum.value if value.number]
    lines = [f"class {enum.name}(Enum):", f'    """{comment.strip()}"""', ""]
    return "\n".join([*lines, *[f'    {one} = "{one.lower()}"' for one in names]]) + "\n"


def put(field: Field) -> str:
    here, there = f"message.{field.attribute}", f"proto.{field.name}"
    if field.rule.kind == options.SPEC:
        return f"    put_spec({here}, {there})"
    if field.part:
        call = f"put_{field.part.snake}"
        if field.repeated:
            one = field.part.snake
            return f"    for {one} in {here}:\n        {call}({one}, {there}.add(), tensors)"
        if field.proto.proto3_optional:
            return (
                f"    if {here} is not None:\n        {there}.SetInParent()\n        {call}({here}, {there}, tensors)"
            )
        return f"    {call}({here}, {there}, tensors)"
    if field.repeated:
        return f"    {there}.extend({here})"
    if field.proto.proto3_optional:
        return f"    if {here} is not None:\n        {there} = {here}"
    if field.proto.type == F.TYPE_ENUM:
        return f"    {there} = _NUMBERS[{here}]"
    return f"    {there} = {here}"


def limit_of(message: Message, field: Field) -> str:
    """The most entries of a list, as Python; those of the state of a shard may have any number."""
    default = "MAX_ENTRIES" if field.type == "str" else "MAX_SHARDS"
    limit = field.rule.limit or (field.part.shape.limit or "MAX_LISTED" if field.part else default)
    return "None" if message.module == "spb" else f"limits.{limit}"


def get(message: Message, field: Field) -> str:
    """The expression of the checked value."""
    value, kind = f"proto.{field.name}", field.rule.kind
    where = f'"{message.proto.name}.{field.name}"'
    if kind == options.SPEC:
        return f"get_spec({value})"
    if field.repeated:
        return f"{get_list(message, field, value, where)} if {value} else ()"
    if field.part:
        call = f"get_{field.part.snake}({value}, tensors)"
    elif field.proto.type == F.TYPE_ENUM:
        call = f"outcome({value}, {where})"
    elif field.type == "str":
        rule = options.Kind.Name(kind).lower() if kind else "answer_text"
        call = f"check.{rule}({value}" + (")" if rule == "name" else f", {where})")
        if kind not in NEEDED:  # "" passes all other checks
            call = f"{value} and {call}"
    elif field.type == "bytes":
        call = f"check.secret({value}, {where})"
    elif field.rule.below:
        call = f'check.below({value}, proto.{field.rule.below}, {where}, "{field.rule.below}")'
    elif kind == options.ANY or field.type == "bool" or field.proto.proto3_optional:
        call = value
    else:
        call = get_number(field, value, where)
    return f'{call} if proto.HasField("{field.name}") else None' if field.proto.proto3_optional else call


def get_number(field: Field, value: str, where: str) -> str:
    rule = field.rule
    if field.type == "float":
        return f"check.amount({value}, {where}" + (f", {rule.least})" if rule.HasField("least") else ")")
    if rule.kind == options.RANDOM:
        return f"check.count({value}, {where}, check.LARGEST)"
    most = f", limits.{rule.most}" if rule.most else ""
    if rule.HasField("least"):
        return f"check.integer({value}, {where}, {int(rule.least)}{most})"
    name = "positive" if rule.kind == options.POSITIVE else "count"
    if most:
        return f"check.{name}({value}, {where}{most})"
    # inline: a message has many, and a call takes longer than the comparison
    return f"n if {int(name == 'positive')} <= (n := {value}) <= MAX_NUMBER else check.{name}(n, {where})"


def get_list(message: Message, field: Field, value: str, where: str) -> str:
    limit, rule = limit_of(message, field), field.rule
    if field.part:
        distinct = "" if rule.repeats else field.part.shape.distinct
        key = f', attrgetter("{distinct}")' if distinct else ""
        total = f', total="{field.part.shape.total}"' if field.part.shape.total else ""
        return f"check.parts({value}, get_{field.part.snake}, tensors, {where}, {limit}{key}{total})"
    if field.type in ("str", "bytes"):
        return f"check.names({value}, {where}, {limit})"
    if field.type == "float":
        return f"check.any_numbers({value}, {where}, {limit})"
    least = f", least={int(rule.least)}" if rule.HasField("least") else ""
    most = ", most=check.LARGEST" if rule.kind == options.RANDOM else ""
    return f"check.numbers({value}, {where}, {limit}{least}{most})"


def write_codec(message: Message) -> str:
    proto = f"{message.module}.{message.proto.name}"
    unused = "" if message.fields else "  # noqa: ARG001 - it has no fields"
    lines = [
        f"def put_{message.snake}(message: ms.{message.python}, proto: {proto}, tensors: TensorSender) -> None:{unused}"
    ]
    lines += [put(field) for field in message.fields] or ["    pass"]
    lines += [
        "",
        "",
        f"def get_{message.snake}(proto: {proto}, tensors: TensorReceiver) -> ms.{message.python}:{unused}",
    ]
    body = [f"    return ms.{message.python}("]
    body += [f"        {field.attribute}={get(message, field)}," for field in message.fields] + ["    )"]
    if message.shape.base:
        body = ["    try:", *[f"    {line}" for line in body], "    except ValueError as error:"]
        body.append("        raise Malformed(str(error)) from error")
    return "\n".join(lines + body) + "\n"


def write_calls(protos: Protos) -> str:
    pairs = [(method, *protos.request_and_reply(method)) for method in protos.calls]
    lines = [
        f"{name}: TypeAlias = " + " | ".join([pair[place].python for pair in pairs])
        for name, place in (("Request", 1), ("Answer", 2))
    ]
    lines += ["", "#: The methods of the service, but for Transfer.", "CALLS: tuple[Call, ...] = ("]
    for method, request, reply in pairs:
        call = method.options.Extensions[options.call]
        role, wait = options.Role.Name(call.role).lower(), options.Wait.Name(call.wait).lower()
        lines.append(
            f'    Call(name="{method.name}", request={request.python}, answer={reply.python}, role="{role}", '
            f'change={call.change}, of_timeline={call.of_timeline}, wait="{wait}"),'
        )
    return "\n".join([*lines, ")"]) + "\n"


def write_tables(protos: Protos) -> str:
    messages = [one for method in protos.calls for one in protos.request_and_reply(method)]
    lines = ["#: The protobuf of each request and answer, and its functions.", "ROWS = ("]
    for one in messages:
        lists = ", ".join(f'"{field.name}": {limit_of(one, field)}' for field in one.fields if field.repeated)
        lines.append(f"    Row(ms.{one.python}, pb.{one.proto.name}, put_{one.snake}, get_{one.snake}, {{{lists}}}),")
    return "\n".join([*lines, ")"]) + "\n"


def generated() -> dict[Path, str]:
    protos = Protos()
    written = protos.written()
    heads = {name: (ROOT / "protos" / f"{name}.head").read_text() for name in ("messages", "codec")}
    classes = [write_enum(*protos.enums["Outcome"]), *[write_class(protos, one) for one in written]]
    functions = [write_codec(one) for one in written]
    names = ["Answer", "CALLS", "Outcome", "Request", *[one.python for one in written]]
    everything = "__all__ = [" + ", ".join([f'"{one}"' for one in sorted(names)]) + "]\n"
    texts = {
        ROOT / "pswire" / "messages" / "generated.py": "\n\n".join(
            [heads["messages"], everything, *classes, write_calls(protos)]
        ),
        ROOT / "pswire" / "codec" / "generated.py": "\n\n".join([heads["codec"], *functions, write_tables(protos)]),
    }
    return {path: formatted(path, text) for path, text in texts.items()}


def formatted(path: Path, text: str) -> str:
    """The text as the linter of the project wants it."""
    for command in (["check", "--fix", "--exit-zero", "--quiet"], ["format", "--quiet"]):
        arguments = [Path(sys.executable).with_name("ruff"), *command, "--stdin-filename", path, "-"]
        text = subprocess.run(arguments, input=text, text=True, capture_output=True, check=True).stdout
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare, and say which files are outdated")
    check = parser.parse_args().check
    texts = generated()
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not what protos/ says: run make protos", file=sys.stderr)
        else:
            path.write_text(texts[path])
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
