"""Bars and sparklines of characters, for terminals. Pure functions of numbers; every result has the width asked for."""

import math
from collections.abc import Sequence

#: By eighths: parts of a cell from the left, and from below; and what stands for them without Unicode.
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█")
_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-=+*#@"


def bar(fraction: float, width: int, *, unicode: bool = True) -> tuple[str, str]:
    """The done and the remaining part of a bar of `width` cells, to the nearest eighth of one.

    A fraction outside 0 to 1 is the nearest of them; NaN is 0. Only 1 is a full bar, and only 0 an empty one.
    """
    fraction = min(max(0.0, 0.0 if math.isnan(fraction) else fraction), 1.0)
    if not unicode:
        cells = _units(fraction, width)
        return "#" * cells, "-" * (width - cells)
    whole, rest = divmod(_units(fraction, 8 * width), 8)
    done = "█" * whole + _EIGHTHS[rest]
    return done, "░" * (width - len(done))


def _units(fraction: float, most: int) -> int:
    """The nearest number of units, which is 0 or the most only for the fractions 0 and 1."""
    return (
        round(fraction * most) if fraction in (0.0, 1.0) or most < 2 else min(max(1, round(fraction * most)), most - 1)
    )


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """The course of values in `width` cells, from the lowest of them at the bottom to the highest at the top.

    Of more values than cells each cell has the mean of its share; of fewer the cells on the left are blank. Equal
    values are a line at the bottom. NaN and infinity are "!".
    """
    levels = _LEVELS if unicode else _ASCII_LEVELS
    cells = _shares(values, width)
    known = [one for one in cells if math.isfinite(one)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    line = ["!" if not math.isfinite(one) else levels[round((one - low) * scale)] for one in cells]
    return "".join(line).rjust(width)


def _shares(values: Sequence[float], width: int) -> list[float]:
    """The values, or the means of `width` shares of them, which differ in length by one at most."""
    count = len(values)
    if count <= width:
        return list(values)
    shares = [values[cell * count // width : (cell + 1) * count // width] for cell in range(width)]
    return [sum(share) / len(share) for share in shares]
