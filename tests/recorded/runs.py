"""What commands print about recorded folders of runs, and the curves of their plots."""

from contextlib import chdir
from pathlib import Path

from psworker.runs.curves import AXES, run_curves, tags
from psworker.runs.run_data import read_run_data
from tests.recorded.commands import psworker, same_display
from tests.recorded.descriptions import as_json, digest, rounded

NAMES = ("finished", "resumed")


def outputs(folder):
    """All of a folder with these runs, read there."""
    with chdir(folder), same_display():
        found = {
            "runs": psworker("runs", "."),
            "runs --json": psworker("runs", ".", "--json"),
            "runs killed": psworker("runs", "killed"),
            "runs --compare": psworker("runs", "--compare", *NAMES),
            "runs --compare --json": digest(psworker("runs", "--compare", "--json", *NAMES)),
        }
        for name in NAMES:
            found[f"runs {name}"] = psworker("runs", name)
            found[f"runs {name} --json"] = digest(psworker("runs", name, "--json"))
            data = read_run_data(Path(name))
            found[f"tags of {name}"] = tags(data)
            for by, value in [*((by, "cost") for by in AXES), ("step", "accuracy")]:
                found[f"plot {name} --by {by} --value {value}"] = _plain(run_curves(data, by, value))
    return rounded(as_json(found))


def _plain(curves):
    """The curves with five digits."""
    workers = {name: [_points(one) for one in lives] for name, lives in curves.workers.items()}
    marks = [[_short(mark.x), mark.kind, mark.worker] for mark in curves.marks]
    return {"job": _points(curves.job), "workers": workers, "marks": marks}


def _points(curve):
    return [[_short(x), _short(y)] for x, y in zip(*curve, strict=True)]


def _short(value):
    return float(f"{value:.5g}")
