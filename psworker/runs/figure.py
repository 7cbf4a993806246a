"""`psworker plot`: curves of runs as a PNG or SVG file. The only module that imports matplotlib, the extra `plots`.

A picture must be read in black and white and by people who do not tell all colours apart: runs differ by line style as
well as by colour (those of Okabe and Ito), events by the shapes of their marks. No display is needed or opened.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pswire.errors import ConfigurationError
from pswire.system.extras import missing_package
from psworker.runs.curves import Curve, Mark, RunCurves, smoothed
from psworker.runs.run_data import interpolated

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter
except ModuleNotFoundError:
    raise missing_package("plots need", "plots") from None

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Black, then the colours of Okabe and Ito, in an order in which neighbours differ in lightness as well.
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
#: The shapes of marks by kind of event, and their text in the legend.
_SHAPES = {"lost": ("X", "worker lost"), "joined": ("^", "worker joined"), "restored": ("D", "server restored")}
#: Dots per inch of a PNG: a size in pixels is this many inches.
DPI = 150
#: Workers whose lines are named at their ends; more would not be read.
MOST_NAMES = 8
#: The part of the width of the axes from which on a line reaches their end: its name is beside them.
_REACHES_END = 0.95
#: Pixels between two of these names, of the height of the axes, which is some four fifths of the picture's.
_NAME_HEIGHT = 24
#: Pixels beside the axes for these names: of a letter, and of the gaps.
_NAME_WIDTH, _NAME_MARGIN = 10, 35

_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "paramserver",  # the same data give the same file
    "path.simplify": False,  # every point is in the file
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}
_AXES = {"step": "global step", "time": "seconds of training", "examples": "examples"}
_VALUES = {"steps_per_second": "steps per second", "learning_rate": "learning rate", "gradient_norm": "gradient norm"}


@dataclass(frozen=True)
class Look:
    """The look of a picture: its size in pixels, and its parts beside the curves.

    `smooth` is the weight of the moving average, 0 for none; the curve itself is then pale. `log` makes the vertical
    axis logarithmic; `workers` shows the curve of each worker.
    """

    width: int = 960
    height: int = 600
    smooth: float = 0.0
    log: bool = False
    workers: bool = False
    title: str = ""


class _PlainLogFormatter(LogFormatter):
    """Labels such as 0.3 instead of 3e-01."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def draw(runs: Sequence[RunCurves], by: str, value: str, look: Look, kind: str) -> bytes:
    """The picture of curves of a value by an axis, as a file of this kind, "png" or "svg"."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(look.width / DPI, look.height / DPI), dpi=DPI, layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(_AXES[by])
        axes.set_ylabel(_VALUES.get(value, value))
        axes.margins(x=0.01)
        if by != "time":
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x == int(x) else f"{x:g}")
        if look.log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(_PlainLogFormatter(labelOnlyBase=False))
            axes.yaxis.set_minor_formatter(_PlainLogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
        for number, run in enumerate(runs):
            _draw_run(axes, run, number, look, alone=len(runs) == 1)
        _draw_marks(axes, runs, look)
        if look.workers and len(runs) == 1 and len(runs[0].workers) <= MOST_NAMES:
            _name_workers(figure, axes, runs[0], look)
        if look.title:
            axes.set_title(look.title)
        if len(runs) > 1 or look.workers or any(run.marks for run in runs):
            figure.legend(loc="outside upper left", ncols=max(1, look.width // 300))
        file = io.BytesIO()
        metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": "paramserver"}
        figure.savefig(file, format=kind, dpi=DPI, metadata=metadata)
    return file.getvalue()


def _draw_run(axes: "Axes", run: RunCurves, number: int, look: Look, *, alone: bool) -> None:
    """The curve of a run, with its workers' curves below it; each line has an id in an SVG file."""
    color, style = COLORS[number % len(COLORS)], _STYLES[number % len(_STYLES)]
    several = look.workers and len(run.workers) > 1
    if several:
        _draw_workers(axes, run, color, look, alone=alone)
    shown = smoothed(run.job, look.smooth)
    if look.smooth and not several:
        axes.plot(*run.job, color=color, linewidth=0.7, alpha=0.3, gid=f"{run.name} unsmoothed")
    label = f"{run.name}, all workers" if several else run.name
    axes.plot(*shown, color=color, linestyle=style, linewidth=1.6, label=label, gid=run.name, zorder=3, **_dot(shown))


def _worker_color(place: int) -> str:
    """The colour of a worker of the only run, which is black."""
    return COLORS[1 + place % (len(COLORS) - 1)]


def _draw_workers(axes: "Axes", run: RunCurves, color: str, look: Look, *, alone: bool) -> None:
    """Thin lines, one for each life of a worker; of the only run each worker has a colour of its own."""
    label = None if alone else f"{run.name}, each worker"
    for place, (name, lives) in enumerate(run.workers.items()):
        own = _worker_color(place) if alone else color
        for number, life in enumerate(lives, 1):
            shown, gid = smoothed(life, look.smooth), f"{run.name} {name} life {number}"
            axes.plot(*shown, color=own, linewidth=0.8, alpha=0.7, label=label, gid=gid, **_dot(shown))
            label = None


def _name_workers(figure: Figure, axes: "Axes", run: RunCurves, look: Look) -> None:
    """The name of each worker at the end of its line: beside the picture, in a column, if the line reaches its end."""
    axes.autoscale_view()  # or the places below would be from before the lines were drawn
    ends = []
    for place, (name, lives) in enumerate(run.workers.items()):
        shown = smoothed(lives[-1], look.smooth)
        end = shown.x[-1], shown.y[-1]
        across, height = axes.transAxes.inverted().transform(axes.transData.transform(end))
        if across > _REACHES_END:
            ends.append((float(height), end, name, _worker_color(place)))
        else:
            style: dict[str, Any] = {"color": _worker_color(place), "fontsize": 8, "zorder": 5}
            style["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
            axes.plot(*end, marker="o", markersize=4, color=_worker_color(place), zorder=5)
            axes.annotate(name, end, xytext=(0, 14), textcoords="offset points", ha="center", **style)
    lowest = -1.0
    for height, end, name, color in sorted(ends):
        lowest = max(height, lowest + _NAME_HEIGHT / look.height)
        text = axes.annotate(
            name,
            end,
            xytext=(1.03, lowest),
            textcoords="axes fraction",
            color=color,
            fontsize=8,
            verticalalignment="center",
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )
        text.set_in_layout(False)  # its room is kept here: the layout does not know where it will be
    room = (_NAME_MARGIN + _NAME_WIDTH * max(len(name) for name in run.workers)) / look.width
    if (layout := figure.get_layout_engine()) is not None:
        layout.set(rect=(0, 0, 1 - min(0.4, room), 1))  # type: ignore[call-arg]  # that of "constrained"


def _dot(curve: Curve) -> dict[str, Any]:
    """A single point is no line."""
    return {"marker": "o", "markersize": 4} if len(curve.x) == 1 else {}


def _draw_marks(axes: "Axes", runs: Sequence[RunCurves], look: Look) -> None:
    """A mark on the curve of the job for each event; each kind is once in the legend."""
    for kind, (shape, text) in _SHAPES.items():
        label: str | None = text
        for number, run in enumerate(runs):
            shown = smoothed(run.job, look.smooth)
            marks = [(mark.x, height) for mark in run.marks if (height := _height(shown, mark, kind)) is not None]
            if marks:
                color = COLORS[number % len(COLORS)]
                x, y = zip(*marks, strict=True)
                options: dict[str, Any] = {"marker": shape, "color": color, "markeredgecolor": "white", "markersize": 9}
                axes.plot(x, y, linestyle="none", label=label, gid=f"{run.name} {kind}", zorder=4, **options)
                label = None


def _height(curve: Curve, mark: Mark, kind: str) -> float | None:
    """The place of a mark of this kind: on the curve, between its points, and at its beginning for an earlier event."""
    if mark.kind != kind or not curve.x:
        return None
    return interpolated(curve.x, curve.y, mark.x)


def write_picture(path: Path, data: bytes) -> None:
    """Write the file of a picture. Raises `ConfigurationError` if that is not possible."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
