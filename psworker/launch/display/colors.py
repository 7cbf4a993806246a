"""Colors that are read on light and dark backgrounds, and that color-blind people tell apart.

From the palette of Okabe and Ito, "Color Universal Design" (2008), made darker or lighter so that each has a contrast
of at least 3:1 (WCAG 2.2, 1.4.11) with white and with black. No color is the only sign of anything: states have words.
"""

BLUE, ORANGE, GREEN, PURPLE, VERMILION, GRAY = "#0079c4", "#b37400", "#009e73", "#b8609a", "#d55e00", "#808080"

#: Of names of workers and servers, in turn.
NAMES = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, GRAY)

#: By state of a worker or shard.
STATES = {"live": GREEN, "left": "dim", "starting": "dim", "lost": f"bold {VERMILION}", "silent": f"bold {VERMILION}"}

#: Of a warning, of the done part of a bar, and of what matters less.
WARNING, BAR, MINOR = f"bold {VERMILION}", BLUE, "dim"
