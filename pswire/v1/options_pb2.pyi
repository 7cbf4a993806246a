from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADMIN: _ClassVar[Role]
    WORKER: _ClassVar[Role]
    OBSERVER: _ClassVar[Role]

class Wait(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDER: _ClassVar[Wait]
    POLICY: _ClassVar[Wait]
    DATA: _ClassVar[Wait]
    BARRIER: _ClassVar[Wait]

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEFAULT: _ClassVar[Kind]
    NAME: _ClassVar[Kind]
    NAME_OR_EMPTY: _ClassVar[Kind]
    LABEL: _ClassVar[Kind]
    SENTENCE: _ClassVar[Kind]
    NOTE: _ClassVar[Kind]
    RESULT: _ClassVar[Kind]
    POSITIVE: _ClassVar[Kind]
    RANDOM: _ClassVar[Kind]
    ANY: _ClassVar[Kind]
    ENCODING: _ClassVar[Kind]
    WORKER_STATE: _ClassVar[Kind]
    JOB_STATE: _ClassVar[Kind]
    SPEC: _ClassVar[Kind]
ADMIN: Role
WORKER: Role
OBSERVER: Role
ORDER: Wait
POLICY: Wait
DATA: Wait
BARRIER: Wait
DEFAULT: Kind
NAME: Kind
NAME_OR_EMPTY: Kind
LABEL: Kind
SENTENCE: Kind
NOTE: Kind
RESULT: Kind
POSITIVE: Kind
RANDOM: Kind
ANY: Kind
ENCODING: Kind
WORKER_STATE: Kind
JOB_STATE: Kind
SPEC: Kind
CALL_FIELD_NUMBER: _ClassVar[int]
call: _descriptor.FieldDescriptor
SHAPE_FIELD_NUMBER: _ClassVar[int]
shape: _descriptor.FieldDescriptor
RULE_FIELD_NUMBER: _ClassVar[int]
rule: _descriptor.FieldDescriptor

class Call(_message.Message):
    __slots__ = ("role", "change", "of_timeline", "wait")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    OF_TIMELINE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    role: Role
    change: bool
    of_timeline: bool
    wait: Wait
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., change: _Optional[bool] = ..., of_timeline: _Optional[bool] = ..., wait: _Optional[_Union[Wait, str]] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("kind", "least", "most", "limit", "below", "repeats", "attribute", "value", "ignored")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEAST_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELD_NUMBER: _ClassVar[int]
    kind: Kind
    least: float
    most: str
    limit: str
    below: str
    repeats: bool
    attribute: str
    value: str
    ignored: bool
    def __init__(self, kind: _Optional[_Union[Kind, str]] = ..., least: _Optional[float] = ..., most: _Optional[str] = ..., limit: _Optional[str] = ..., below: _Optional[str] = ..., repeats: _Optional[bool] = ..., attribute: _Optional[str] = ..., value: _Optional[str] = ..., ignored: _Optional[bool] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("python", "by_hand", "base", "distinct", "limit", "total")
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    BY_HAND_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    python: str
    by_hand: bool
    base: str
    distinct: str
    limit: str
    total: str
    def __init__(self, python: _Optional[str] = ..., by_hand: _Optional[bool] = ..., base: _Optional[str] = ..., distinct: _Optional[str] = ..., limit: _Optional[str] = ..., total: _Optional[str] = ...) -> None: ...
