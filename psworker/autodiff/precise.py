"""The switch for ops that have a faster way with larger rounding errors; today that is `conv2d`.

It imports nothing of the package, and nothing is shared between threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Precise(threading.local):
    on = False


_precise = _Precise()


@contextmanager
def precise() -> Iterator[None]:
    """Takes the plain way of `conv2d` always, in this thread, for a `with` block or, as `@precise()`, for a function.

    Otherwise float32 convolutions make fewer multiplications where that is faster, at some ten times the rounding error
    (docs/performance.md has the bound). Gradients of what was computed within take the plain way too, also after the
    block; those of what was computed before it do not. All other ops have one way only.
    """
    before, _precise.on = _precise.on, True
    try:
        yield
    finally:
        _precise.on = before


def is_precise() -> bool:
    """Whether ops take the plain way in this thread: within `precise`."""
    return _precise.on
