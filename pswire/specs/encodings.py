"""Encodings of gradients and weights: 32 or 16 bits for each value both ways, and the compression of gradients.

Specs alone, without numpy. `pswire.tensors.compression` has the arithmetic; the part of a gradient that compression
leaves out is added to the next push (`psworker.client.error_feedback`).
"""

from dataclasses import dataclass
from typing import ClassVar

from pswire.errors import ConfigurationError
from pswire.specs.spec import DECIMAL, PositiveShare, TextSpec, parse

#: The encodings of float32 other than itself.
ENCODINGS = ("bfloat16", "float16")


class Compression(TextSpec):
    """A lossy compression of gradients."""


@dataclass(frozen=True)
class NoCompression(Compression):
    """Gradients travel as encoded."""

    form: ClassVar[str] = "none"


@dataclass(frozen=True)
class Int8(Compression):
    """Every element in 8 bits, as a multiple of a step."""

    form: ClassVar[str] = "int8"


@dataclass(frozen=True)
class TopK(Compression):
    """The elements that are largest in magnitude, and their indices.

    `fraction` is their share of all elements of a variable, above 0 and at most 1; otherwise `ValueError` or
    `TypeError`.
    """

    form: ClassVar[str] = "topk:FRACTION, such as topk:0.01"
    pattern: ClassVar[str] = f"topk:(?P<fraction>-?{DECIMAL})"
    text: ClassVar[str] = "topk:{fraction!r}"
    fraction: PositiveShare


NONE = NoCompression()


def parse_encoding(text: str) -> str:
    """The value of `--encoding`: one of `ENCODINGS`, or "float32" for none. Raises `ConfigurationError`."""
    if text not in ("float32", *ENCODINGS):
        raise ConfigurationError(f"{text!r} is not an encoding: use float32, {' or '.join(ENCODINGS)}")
    return text


def parse_compression(text: str) -> Compression:
    """The value of `--compress`. Raises `ConfigurationError`, which lists all forms."""
    return parse(text, (NoCompression, Int8, TopK), "compression")
