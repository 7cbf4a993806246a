"""What fields of specs and schedules may be: each check names the class and the field, what it got and what it wants.

Knows no class by name. May import nothing of ours.
"""

from __future__ import annotations

import math
import numbers

#: Counts travel as floats, which name every whole number below this one.
MOST = 1 << 53


def check_number(
    spec: object,
    name: str,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    closed_high: bool = False,
    wanted: str = "an int or a float",
    entry: object = None,
) -> None:
    """Refuses a field outside [low, high), with `open_low` and `closed_high` outside (low, high].

    NaN and infinity are outside always. `entry` is one number of a field that has several. Raises `TypeError` or
    `ValueError`.
    """
    value = getattr(spec, name) if entry is None else entry
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # numpy's numbers are welcome
        raise TypeError(f"{type(spec).__name__}: {name} must be {wanted}, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an int beyond every float
        number = math.inf
    above = low < number if open_low else low <= number
    below = number <= high if closed_high else number < high
    if not (above and below and math.isfinite(number)):
        bounds = f"{'more than' if open_low else 'at least'} {low:g} and "
        bounds += f"{'at most' if closed_high else 'below'} {high:g}" if high < math.inf else "finite"
        raise ValueError(f"{type(spec).__name__}: {name} must be {bounds}, got {value!r}")


def check_count(spec: object, name: str, low: int = 1) -> None:
    """Refuses a field that is no whole number from `low` up; 1000.0, as it comes from the wire, becomes 1000.

    Raises `TypeError` or `ValueError`.
    """
    check_number(spec, name, low, MOST)
    value = getattr(spec, name)
    if value != int(value):
        raise ValueError(f"{type(spec).__name__}: {name} must be a whole number, got {value!r}")
    object.__setattr__(spec, name, int(value))  # the one field that its owner, frozen, cannot set


def check_flag(spec: object, name: str) -> None:
    """Refuses a field that is not a boolean. Raises `TypeError`."""
    if not isinstance(getattr(spec, name), bool):
        raise TypeError(f"{type(spec).__name__}: {name} must be True or False, got {getattr(spec, name)!r}")
