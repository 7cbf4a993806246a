"""Dataclasses from JSON data of files that anyone may have changed: values of the declared types, within bounds.

The files of runs (`run.json`, `events.jsonl`, `scalars/*.jsonl`) are read by it. What it lets through can be added up,
divided, compared, and printed without an error.
"""

import dataclasses
import math
import types
import typing
from typing import Any, TypeVar

#: Whole numbers below this, and floats up to that, in either direction: sums and products of a file stay finite.
MAX_WHOLE, MAX_FLOAT = 1 << 63, 1e100

_T = TypeVar("_T")


def built(kind: type[_T], data: object, where: str = "") -> _T:
    """A dataclass from JSON data, whose fields have the types that it declares. Raises `ValueError`."""
    if not isinstance(data, dict):
        raise ValueError(f"{where or 'it'} is no object")
    values = {}
    hints = typing.get_type_hints(kind)
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]  # a dataclass
        if one.name in data:
            values[one.name] = _value(hints[one.name], data[one.name], f"{where}.{one.name}".lstrip("."))
        elif one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            raise ValueError(f"it has no {where}.{one.name}".replace(" .", " "))
    return kind(**values)


def _value(kind: Any, data: object, where: str) -> Any:  # noqa: ANN401 - a type, and a value of it
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return built(typing.cast(type, kind), data, where)
    if origin is types.UnionType:
        for one in inner:
            if data is None if one is types.NoneType else _is_a(one, data):
                return float(typing.cast(float, data)) if one is float else data
    elif origin is tuple and isinstance(data, list):
        return tuple([_value(inner[0], one, f"{where}[{number}]") for number, one in enumerate(data)])
    elif origin is dict and isinstance(data, dict):
        return {key: _value(inner[1], one, f"{where}.{key}") for key, one in data.items() if _is_a(str, key)}
    elif isinstance(kind, type) and _is_a(kind, data):
        return kind(data)
    raise ValueError(f"{where} is {str(data)[:40]!r}")


def is_number(data: object) -> bool:
    """True if JSON data is a finite number within the bounds."""
    if isinstance(data, bool) or not isinstance(data, (int, float)):
        return False
    return abs(data) < MAX_WHOLE if isinstance(data, int) else math.isfinite(data) and abs(data) <= MAX_FLOAT


def is_text(data: object) -> bool:
    """True if JSON data is a text that can be written: escapes can name halves of characters."""
    try:
        return isinstance(data, str) and data.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_a(kind: type, data: object) -> bool:
    """True if JSON data is of a type; a whole number is a float too, and a boolean is none."""
    if kind is float:
        return is_number(data)
    if kind is str:
        return is_text(data)
    return type(data) is kind and (kind is bool or is_number(data))
