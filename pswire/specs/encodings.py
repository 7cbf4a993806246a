"""In what form gradients and weights travel, as words for the command line and as specs.

Two choices: the wire, 32 or 16 bits of each value both ways; and the compression of gradients, of which what a push
leaves out goes into the next one (`psworker.client.error_feedback`). Does nothing itself, and needs no numpy. May
import the checks and the errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from pswire.errors import ConfigurationError
from pswire.specs.field_checks import check_number

_DECIMAL = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"

#: The forms in which values of float32 can be asked for.
ENCODINGS = ("bfloat16", "float16")


@dataclass(frozen=True)
class NoCompression:
    """Gradients travel as the wire has them."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True)
class Int8:
    """Every element in 8 bits, as a multiple of a step."""

    def __str__(self) -> str:
        return "int8"


@dataclass(frozen=True)
class TopK:
    """The elements that are largest in magnitude, and where they stand.

    Attributes:
        fraction: how many, of all elements of a variable: over 0, and 1 at most.

    Raises:
        ValueError, TypeError: a fraction that cannot be.
    """

    fraction: float

    def __post_init__(self) -> None:
        """Checks the fraction."""
        check_number(self, "fraction", 0, 1, open_low=True, closed_high=True)
        object.__setattr__(self, "fraction", float(self.fraction))  # numpy's numbers are written differently

    def __str__(self) -> str:
        return f"topk:{self.fraction!r}"


Compression: TypeAlias = NoCompression | Int8 | TopK

NONE = NoCompression()


def parse_encoding(text: str) -> str:
    """What `--encoding` says: a form of `ENCODINGS`, or "float32" for none. Raises `ConfigurationError`."""
    if text not in ("float32", *ENCODINGS):
        raise ConfigurationError(f"{text!r} is no wire: write float32, {' or '.join(ENCODINGS)}")
    return text


def parse_compression(text: str) -> Compression:
    """What `--compress` says; `str` is the inverse. Raises `ConfigurationError`, which lists what can be written."""
    if text == "none":
        return NONE
    if text == "int8":
        return Int8()
    found = re.fullmatch(rf"topk:({_DECIMAL})", text)
    if found is None:
        raise ConfigurationError(f"{text!r} is no compression: write none; int8; or topk:FRACTION, such as topk:0.01")
    try:
        return TopK(float(found[1]))
    except ValueError as error:
        raise ConfigurationError(f"{text!r}: {error}") from None
