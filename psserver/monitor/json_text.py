"""JSON in one line, made in parts, so that a large object does not hold up the other threads of the process. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

#: Without NaN and infinity, which JSON does not have.
encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def encode_in_parts(data: Any, depth: int = 2) -> str:  # noqa: ANN401 - JSON data
    """As `encode`, with a call for each entry of its lists and objects, down to this depth.

    Python's encoder keeps the interpreter's lock until it is done, and the event loop of a server would wait for it.
    """
    if depth and isinstance(data, dict):
        return joined({name: encode_in_parts(value, depth - 1) for name, value in data.items()})
    if depth and isinstance(data, list):
        return array([encode_in_parts(value, depth - 1) for value in data])
    return encode(data)


def joined(values: Mapping[str, str]) -> str:
    """An object of values that are JSON already."""
    return "{" + ",".join([f"{encode(name)}:{value}" for name, value in values.items()]) + "}"


def array(values: Iterable[str]) -> str:
    """An array of values that are JSON already."""
    return "[" + ",".join(values) + "]"
