"""Colors that are read on light and dark backgrounds, and that color-blind people tell apart, as styles of `rich`.

Terminals of 256 colors and more get colors after the palette of Okabe and Ito, "Color Universal Design" (2008), made
darker or lighter so that each has a contrast of at least 3:1 (WCAG 2.2, 1.4.11) with white and with black. Others get
those of their own theme. No color is the only sign of anything: states have words.
"""

from rich.console import Console
from rich.theme import Theme

from psjob.status.shard_table import STATE_STYLES

#: Of names of workers and servers, in turn: blue, green, purple, gray. Vermilion is for what is wrong.
NAMES = ("#0079c4", "#009e73", "#b8609a", "#808080")
VERMILION = "#d55e00"
_NAMES_OF_THEME = ("cyan", "magenta", "green", "blue")


def name_style(number: int) -> str:
    """The style of the name of the worker or server of this number."""
    return f"name.{number % len(NAMES)}"


def state_style(text: str) -> str:
    """The style of a state of a worker or shard, "" for another text."""
    return f"state.{text}" if text in STATE_STYLES else ""


def themed(console: Console) -> Console:
    """The console, with a theme that has these styles, and `warning`, `bar` and `minor`."""
    rich_colors = console.color_system in ("256", "truecolor", "windows")
    names, red = (NAMES, VERMILION) if rich_colors else (_NAMES_OF_THEME, "red")
    styles = {f"name.{number}": color for number, color in enumerate(names)}
    styles |= {f"state.{text}": style.replace("red", red) for text, style in STATE_STYLES.items()}
    styles |= {"state.live": names[1]} if rich_colors else {}
    styles |= {"warning": f"bold {red}", "bar": names[0], "minor": "dim"}
    console.push_theme(Theme(styles, inherit=True))
    return console
