"""The messages, fields and methods that protos/ declare, with their comments and options, for `generate.py`."""

import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2 as d
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from pswire.v1 import options_pb2 as options  # noqa: E402

F = d.FieldDescriptorProto
TYPES = {F.TYPE_DOUBLE: "float", F.TYPE_BOOL: "bool", F.TYPE_STRING: "str", F.TYPE_BYTES: "bytes"}
ZEROS = {"int": "0", "float": "0.0", "bool": "False", "str": '""', "bytes": 'b""'}
#: Kinds of which no field can be left out, since the zero of its type is not allowed.
NEEDED = (options.NAME, options.POSITIVE, options.WORKER_STATE, options.JOB_STATE, options.SPEC)


class Field(NamedTuple):
    """A field of a message; `part` is the message that it has, if any."""

    proto: F
    comment: str
    part: "Message | None"

    @property
    def rule(self) -> Any:
        return self.proto.options.Extensions[options.rule]

    @property
    def name(self) -> str:
        return self.proto.name

    @property
    def attribute(self) -> str:
        return self.rule.attribute or self.name

    @property
    def repeated(self) -> bool:
        return self.proto.label == F.LABEL_REPEATED

    @property
    def type(self) -> str:
        """The annotation, of a list that of its entries."""
        if self.rule.kind == options.SPEC:
            return "TensorSpec"
        if self.proto.type == F.TYPE_ENUM:
            return self.proto.type_name.rpartition(".")[2]
        return self.part.python if self.part else TYPES.get(self.proto.type, "int")

    @property
    def annotation(self) -> str:
        if self.repeated:
            return "Sequence[float]" if self.type == "float" else f"tuple[{self.type}, ...]"
        return f"{self.type} | None" if self.proto.proto3_optional else self.type

    @property
    def default(self) -> str:
        """The default as text; "": the field cannot be left out."""
        if self.rule.value:
            return f'"{self.rule.value}"' if self.type == "str" else self.rule.value
        if self.repeated:
            return "()"
        if self.proto.proto3_optional:
            return "None"
        if self.rule.kind in NEEDED or self.rule.least > 0 or self.proto.type == F.TYPE_ENUM:
            return ""
        if self.part:
            return "" if any(not one.default for one in self.part.fields) or self.part.by_hand else f"{self.type}()"
        return ZEROS[self.type]


class Message(NamedTuple):
    """A message and its fields, in the order of their numbers."""

    proto: d.DescriptorProto
    module: str
    comment: str
    fields: list[Field]

    @property
    def shape(self) -> Any:
        return self.proto.options.Extensions[options.shape]

    @property
    def by_hand(self) -> bool:
        return self.shape.by_hand

    @property
    def python(self) -> str:
        return self.shape.python or self.proto.name.removesuffix("Request")

    @property
    def snake(self) -> str:
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", self.proto.name).lower()


class Protos:
    """All messages by name, and the methods."""

    def __init__(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            names = [str(path) for path in sorted((ROOT / "protos").glob("pswire/v1/*.proto"))]
            include = Path(protoc.__file__).parent / "_proto"
            arguments = [f"--descriptor_set_out={file.name}", "--include_source_info", "--include_imports", *names]
            if protoc.main(["protoc", f"--proto_path={ROOT / 'protos'}", f"--proto_path={include}", *arguments]):
                raise SystemExit("protoc has failed")
            files = d.FileDescriptorSet.FromString(Path(file.name).read_bytes()).file
        self.messages: dict[str, Message] = {}
        self.enums: dict[str, tuple[d.EnumDescriptorProto, str]] = {}
        self.methods: list[d.MethodDescriptorProto] = []
        for one in files:
            if one.package == "paramserver.v1":
                self._read(one)

    def _read(self, file: d.FileDescriptorProto) -> None:
        comments = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
        module = "spb" if file.name.endswith("state.proto") else "pb"
        self.enums |= {one.name: (one, comments.get((5, number), "")) for number, one in enumerate(file.enum_type)}
        for number, proto in enumerate(file.message_type):
            self.messages[proto.name] = Message(proto, module, comments.get((4, number), ""), [])
        for number, proto in enumerate(file.message_type):
            for place, field in enumerate(proto.field):
                part = self.messages.get(field.type_name.rpartition(".")[2]) if field.type == F.TYPE_MESSAGE else None
                comment = comments.get((4, number, 2, place), "")
                self.messages[proto.name].fields.append(Field(field, comment, part))
        self.methods += [one for service in file.service for one in service.method]

    def request_and_reply(self, method: d.MethodDescriptorProto) -> tuple[Message, Message]:
        return tuple([self.messages[name.rpartition(".")[2]] for name in (method.input_type, method.output_type)])

    @property
    def calls(self) -> list[d.MethodDescriptorProto]:
        return [one for one in self.methods if not one.client_streaming]

    def written(self) -> list[Message]:
        """The messages of calls, states and ticks with their parts, each after its parts."""
        found: dict[str, Message] = {}

        def add(message: Message) -> None:
            if message.proto.name not in found and not message.by_hand:
                for field in message.fields:
                    if field.part and field.rule.kind != options.SPEC:
                        add(field.part)
                found[message.proto.name] = message

        for method in self.calls:
            for message in self.request_and_reply(method):
                add(message)
        for name in ("ShardState", "Tick"):
            add(self.messages[name])
        return list(found.values())

    def text(self, comment: str) -> str:
        """A comment on one line, with the names of messages in Python."""
        line = " ".join(comment.split())
        for name, message in self.messages.items():
            line = (
                re.sub(rf"\b{name}\b(?!\.proto)", message.python, line) if name.endswith(("Request", "Reply")) else line
            )
        return line
