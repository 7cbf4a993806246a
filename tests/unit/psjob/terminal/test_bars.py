"""Bars and sparklines: their widths for all numbers, their ends, and what their cells stand for."""

import math
from unicodedata import name

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psjob.terminal.bars import bar, sparkline

WIDTHS = st.integers(0, 60)


@given(fraction=st.floats(), width=WIDTHS, unicode=st.booleans())
def test_a_bar_has_its_width_and_is_full_or_empty_only_at_the_ends(fraction, width, unicode):
    done, left = bar(fraction, width, unicode=unicode)
    assert len(done + left) == width
    if width > 1:
        assert (not done) == (not fraction > 0), "as of NaN"
        assert (set(done) == {"█" if unicode else "#"} and not left) == (fraction >= 1)


#: Eighths of a cell, by the name of its character.
EIGHTHS = {"SEVEN EIGHTHS": 7, "THREE QUARTERS": 6, "FIVE EIGHTHS": 5, "HALF": 4, "THREE EIGHTHS": 3}
EIGHTHS |= {"ONE QUARTER": 2, "ONE EIGHTH": 1}


def eighths(cell):
    words = name(cell).removeprefix("LEFT ").removeprefix("LOWER ").removesuffix(" BLOCK")
    return 8 if words == "FULL" else EIGHTHS[words]


@given(fraction=st.floats(0.01, 0.99), width=st.integers(5, 60))
def test_the_cells_of_a_bar_are_the_nearest_eighth_of_its_fraction(fraction, width):
    done, _ = bar(fraction, width)
    most = width * 8
    nearest = min(max(1, fraction * most), most - 1)  # neither empty nor full
    assert abs(sum(map(eighths, done)) - nearest) <= 0.5 + 1e-9


def test_bars():
    assert bar(0.43, 10) == ("████▎", "░░░░░")
    assert bar(0.43, 10, unicode=False) == ("####", "------")
    assert bar(0.999, 4) == ("███▉", "")
    assert (bar(7.0, 3), bar(-1.0, 3), bar(math.nan, 3)) == (("███", ""), ("", "░░░"), ("", "░░░"))


@given(values=st.lists(st.floats(width=32)), width=WIDTHS, unicode=st.booleans())
def test_a_sparkline_has_its_width_whatever_the_values(values, width, unicode):
    assert len(sparkline(values, width, unicode=unicode)) == width


@given(values=st.lists(st.integers(-100, 100), min_size=2, max_size=20))
def test_the_height_of_a_cell_is_the_nearest_of_eight_between_the_least_and_the_largest_value(values):
    heights = [eighths(cell) for cell in sparkline(values, len(values))]
    low, high = min(values), max(values)
    for value, height in zip(values, heights, strict=True):
        exact = 7 * (value - low) / (high - low) if high > low else 0.0
        assert abs(height - 1 - exact) <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 3, "   "),
        ([5.0], 3, "  ▁"),
        ([1, 1, 1, 1], 4, "▁▁▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([7, 7, 0, 0, 3.5, 3.5], 3, "█▁▅"),
        ([0, 0, 0, 10, 10], 2, "▁█"),
        ([1.0, math.nan, 2.0, math.inf], 4, "▁!█!"),
    ],
)
def test_sparklines(values, width, line):
    assert sparkline(values, width) == line
