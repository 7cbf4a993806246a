"""Tables for people that fit the width of a terminal: columns are left out, texts folded or shortened. Imports rich."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

#: Columns of the terminal between two columns of a table.
_GAP = 2
_ANY_WIDTH = 1 << 20
#: Width without a terminal, so that lines are not wrapped for programs that read them.
_NON_TERMINAL_WIDTH = 1000
#: Where a text may be folded: after a blank, comma or slash, and within names of hosts, but not before their numbers.
_FOLD = re.compile(r"(?<=[ ,/])|(?<=[-.])(?=[A-Za-z])")


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        header: may have several lines.
        cell: the text for a row.
        rank: columns of the highest rank are left out first if the table is too wide; those of rank 0 never.
        number: whether it is aligned to the right.
        shortest: the width to which a text may be narrowed, which is then folded; None: it stays whole.
        cut: whether a text that is too wide is shortened in its middle; otherwise it is folded.
        least: its width at least, so that it does not move while numbers grow.
    """

    header: str
    cell: Callable[[Any], str]
    rank: int = 0
    number: bool = False
    shortest: int | None = None
    cut: bool = False
    least: int = 0


def make_console() -> Console:
    """Standard output; without a terminal it is wide enough that no line is wrapped."""
    console = Console()
    return console if console.is_terminal else Console(width=_NON_TERMINAL_WIDTH)


class FittedTable(NamedTuple):
    """A table without lines, for `rich`; `style` gives the style of a cell, from its column, its text and its row."""

    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str | None = None
    style: Callable[[Column, str, int], str] = lambda column, text, row: ""

    @property
    def width(self) -> int:
        """The width with all columns and whole texts."""
        return sum(width + _GAP for _, width in _fit(self.columns, self._cells(), _ANY_WIDTH)) - _GAP

    def _cells(self) -> dict[str, list[str]]:
        return {column.header: [column.cell(row) for row in self.rows] for column in self.columns}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table in the width of the console."""
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        table.title, table.title_justify, table.title_style = self.title, "left", "bold"
        cells = self._cells()
        fitted = _fit(self.columns, cells, options.max_width)
        for column, width in fitted:
            table.add_column(column.header, justify="right" if column.number else "left", no_wrap=True, width=width)
        for number in range(len(self.rows)):
            row = [(column, width, cells[column.header][number]) for column, width in fitted]
            table.add_row(
                *[_text(column, width, text, self.style(column, text, number)) for column, width, text in row]
            )
        yield table


def _fit(columns: Sequence[Column], cells: dict[str, list[str]], width: int) -> list[tuple[Column, int]]:
    """The columns that stay, and their widths."""
    whole = {one.header: max(one.least, *map(len, (*one.header.split("\n"), *cells[one.header]))) for one in columns}
    least = {one.header: min(whole[one.header], one.shortest or whole[one.header]) for one in columns}
    kept = list(columns)
    while (spare := width - sum(least[one.header] + _GAP for one in kept) + _GAP) < 0 and any(one.rank for one in kept):
        kept.remove(max(kept, key=lambda one: one.rank))
    widths = []
    for one in kept:
        more = min(max(0, spare), whole[one.header] - least[one.header])
        spare -= more
        widths.append((one, least[one.header] + more))
    return widths


def _text(column: Column, width: int, text: str, style: str) -> Text:
    """The text in this width."""
    plain = printable(text)
    return Text(shorten(plain, width) if column.cut else "\n".join(fold(plain, width)), style)


def printable(text: str) -> str:
    """The text without control characters: a worker's name must not move the cursor."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shorten(name: str, width: int) -> str:
    """A name that is too wide without its middle, so that it keeps the number at its end."""
    if len(name) <= width:
        return name
    tail = width * 2 // 3
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


def fold(text: str, width: int) -> list[str]:
    """The text in lines of this width at most, broken between words where possible."""
    lines = [""]
    for word in _words(text, width):
        if len(lines[-1]) + len(word.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += word
    return lines


def _words(text: str, width: int) -> Iterable[str]:
    for word in _FOLD.split(text):
        yield from (word[start : start + width] for start in range(0, len(word), width))
