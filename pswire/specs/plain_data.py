"""Frozen dataclasses as plain data, and back: their kind and their fields, for those that travel.

What a field may be is checked by the class itself. May import the schedules, which are fields of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from pswire.specs.schedules import SCHEDULES, Schedule

_Built = TypeVar("_Built")


def plain_fields(base: Any, one: object) -> dict[str, Any]:  # noqa: ANN401 - any dataclass that has a `kind`
    """The kind of `base` and its fields as `one` has them, numbers as floats, a schedule as such data again."""
    return {"kind": base.kind} | {field.name: _plain(getattr(one, field.name)) for field in dataclasses.fields(base)}


def built(table: Mapping[str, type[_Built]], what: str, plain: Mapping[str, Any]) -> _Built:
    """What `plain_fields` made this of; its class is that of its kind in `table`. `what` stands in messages.

    Raises:
        ValueError: a kind is unknown, a field is missing or unknown, or a value is out of its range.
        TypeError: a value has the wrong type.
    """
    kind = plain.get("kind")
    base: Any = table.get(kind) if isinstance(kind, str) else None
    if base is None:
        raise ValueError(f"unknown {what} {kind!r}; there are {', '.join(sorted(table))}")
    wanted, given = {field.name for field in dataclasses.fields(base)}, set(plain) - {"kind"}
    if wanted != given:
        raise ValueError(f"{what} {kind}: missing {sorted(wanted - given)}, unknown {sorted(given - wanted)}")
    one: _Built = base(**{name: _value(plain[name]) for name in wanted})
    return one


def _plain(value: object) -> object:
    match value:
        case Schedule():
            return plain_fields(SCHEDULES[value.kind], value)
        case tuple():
            return [_plain(entry) for entry in value]
        case bool():
            return value
    number: Any = value
    return float(number)


def _value(plain: object) -> object:
    return built(SCHEDULES, "schedule", plain) if isinstance(plain, Mapping) else plain
