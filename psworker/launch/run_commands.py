"""The commands for the folders of runs: `psworker runs` and `psworker plot`.

Imports neither numpy nor rich nor matplotlib (`psworker.launch.cli`); `psworker.runs` does the work.
"""

import re
from pathlib import Path

import click

from psjob.terminal.commands import Command
from psjob.terminal.options import Parsed, option
from pswire.errors import ConfigurationError, ParamServerError

_folder = click.Path(path_type=Path)  # that it exists is checked when it is read


class _Command(Command):
    """Ends with an error of ours in one line; with `psworker --debug`, the context's object, with its traceback."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except ParamServerError as error:
            if ctx.obj:
                raise
            raise click.ClickException(str(error)) from None


@click.command(
    "runs", short_help="List runs, or show one.", cls=_Command, context_settings={"auto_envvar_prefix": "PSWORKER_RUNS"}
)
@option("--compare", is_flag=True, help="Compare the runs: settings that differ, and results side by side.")
@option("--cost", type=float, metavar="COST", help="With --compare: when each run has reached this cost.")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("folders", nargs=-1, type=_folder, metavar="[DIR]...")
def runs_command(folders: tuple[Path, ...], compare: bool, cost: float | None, as_json: bool) -> None:
    """List the runs below the folders DIR, by default `runs`, or show the one in DIR.

    A run is what `psworker local --run-dir` has written: its options and versions, events, results. Its outcome is
    running, completed, failed, stopped (by a signal) or interrupted, if its launcher was killed.

    \b
    psworker runs
    psworker runs runs/a
    psworker runs --compare runs/a runs/b --cost 0.4
    """  # noqa: D301
    if compare:
        if len(folders) < 2:
            raise click.UsageError("--compare needs two or more folders of runs")
        from psworker.runs.comparison import show_comparison

        show_comparison(folders, cost, as_json=as_json)
        return
    if cost is not None:
        raise click.UsageError("--cost needs --compare")
    from psworker.runs.listing import show_runs

    show_runs(folders or (Path("runs"),), as_json=as_json)


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9][0-9]{1,4})x([1-9][0-9]{1,4})", text)
    if found is None:
        raise ConfigurationError(f"a size is WIDTHxHEIGHT in pixels, such as 960x600, got {text!r}")
    width, height = int(found[1]), int(found[2])
    if not (400 <= width <= 10_000 and 300 <= height <= 10_000):
        raise ConfigurationError(f"a picture has from 400x300 to 10000x10000 pixels, got {text}")
    return width, height


@click.command(
    "plot",
    short_help="Draw the curves of runs.",
    cls=_Command,
    context_settings={"auto_envvar_prefix": "PSWORKER_PLOT"},
)
@option("--by", type=click.Choice(["step", "time", "examples"]), default="step", help="The horizontal axis.")
@option(
    "--value",
    default="cost",
    metavar="VALUE",
    help="The vertical axis: cost, staleness, steps_per_second, learning_rate, gradient_norm, dropped, or a tag of "
    "`session.summary.scalar`.",
)
@option("--workers", is_flag=True, help="Show a thin line for each worker, too.")
@option(
    "--smooth",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="S",
    help="The weight of earlier points in a moving average, such as 0.9.",
)
@option("--log", is_flag=True, help="A logarithmic vertical axis.")
@option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    show_default="VALUE-by-AXIS.png in the folder of the first run",
    help="The picture, a .png or .svg file.",
)
@option("--title", default="", metavar="TEXT", show_default=False, help="A line above the picture.")
@option("--size", type=Parsed("WIDTHxHEIGHT", _size), default="960x600", help="The size of the picture in pixels.")
@click.argument("folders", nargs=-1, required=True, type=_folder, metavar="RUN...")
def plot_command(
    folders: tuple[Path, ...],
    by: str,
    value: str,
    output: Path | None,
    size: tuple[int, int],
    **look: object,
) -> None:
    """Draw the curves of the runs in the folders RUN, and print the path of the picture.

    The curve of a run is the mean over the pushes of all workers; --value steps_per_second is the rate of the whole
    job. Events are marked: workers that were lost or joined later, and servers that were restored. Needs matplotlib
    (extra `plots`).

    \b
    psworker plot runs/a
    psworker plot runs/a runs/b --by time --smooth 0.9 --output compared.svg
    psworker plot runs/a --value staleness --workers
    """  # noqa: D301
    from psworker.runs.figure import Look
    from psworker.runs.plotting import plot

    width, height = size
    click.echo(plot(folders, by, value, Look(width, height, **look), output))  # type: ignore[arg-type]  # by name
