"""The choice of a display, by the options and the terminal."""

import sys
from collections.abc import Sequence

from rich.console import Console

from psworker.launch.display.json_lines import JsonDisplay
from psworker.launch.display.live import LiveDisplay
from psworker.launch.display.plain import Display


def make_display(
    mode: str, names: Sequence[str], *, title: str = "", log_format: str = "text", quiet: bool = False
) -> Display:
    """The display for `mode`: live, plain, off, or auto: live when stderr is a capable terminal, else plain.

    JSON lines for the log format "json"; with `quiet` nothing but what processes print, and problems.
    """
    if mode == "auto":
        capable = sys.stderr is not None and sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal
        mode = "live" if capable else "plain"
    progress = mode != "off" and not quiet
    if log_format == "json":
        return JsonDisplay(names, progress=progress, quiet=quiet)
    return LiveDisplay(names, title) if progress and mode == "live" else Display(names, progress=progress, quiet=quiet)
