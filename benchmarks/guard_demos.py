"""The failures that the convergence guard knows, each without and with its remedy, on MNIST with real processes.

    python benchmarks/guard_demos.py [--runs 3] [--plots docs/images] [NAME ...]

Each job is `psworker local` with `benchmarks/_guard_job.py`: digits by a network of three hidden layers of 100 units,
batches of 50, steps of 20 ms. The table has the test accuracy of each run over 3,000 images, "failed" for a job that
ended with an error, and what the guard has said first, with the second of its line.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import _report

JOB = Path(__file__).with_name("_guard_job.py")
COMMAND = (sys.executable, "-m", "psworker", "local", "--progress", "off", "--threads", "1")
_LINE = re.compile(r"^psworker: guard: (.*) \(docs/guard\.md, (\w+)\)$")
_ACTION = re.compile(r"^psworker: guard: (all shards went back.*?),")


@dataclass(frozen=True)
class Job:
    """A label of the table and the legend, options of `psworker local` and of the job, and variables of servers."""

    label: str
    options: Sequence[str] = ()
    job: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    run_dir: bool = False


@dataclass(frozen=True)
class Run:
    """One run: the accuracy, None without one; the guard's lines, with seconds; the curve of the cost over steps."""

    accuracy: float | None
    findings: list[tuple[float, str, str]]
    actions: list[str]
    curve: list[tuple[int, float]]


def _workers(count: int) -> tuple[str, ...]:
    return "--workers", str(count)


_EDGE = ("--learning-rate", "0.25", "--steps", "2500")
_MOMENTUM = ("--learning-rate", "0.02", "--momentum", "0.9", "--steps", "2000")
_SCALE = (
    "--fault",
    "scale",
    "--scale",
    "30",
    "--fault-at",
    *_report.size(("150", "--steps", "1500"), ("15", "--steps", "30")),
)
_SHARDED = ("--sharded", "--steps", "3000", "--pause", "0.025")
_ADAM = ("--adam", "--learning-rate", "0.03", "--pause", "0.03", "--steps", "3000")
_ALONE = ("--pause", "0.01", "--steps", "1500")
_LABELS = ("--pause", "0.025", "--fault-at", "1", "--steps", "4000")
_NARROW = ("--learning-rate", "0.0005", "--steps", "3000", "--pause", "0.005")

#: Each failure: the jobs that fail, that train, and with the remedies.
DEMOS = {
    "staleness": (
        Job("4 workers, rate 0.25", _workers(4), _EDGE),
        Job("8 workers, rate 0.25", _workers(8), (*_EDGE[:2], "--steps", "4000")),
        Job("8 workers, rate 0.25 / 8", _workers(8), ("--learning-rate", "0.03125", "--steps", "2500")),
        Job("8 workers, --staleness scale", (*_workers(8), "--staleness", "scale"), _EDGE),
        Job(
            "8 workers, --consistency sync:8", (*_workers(8), "--consistency", "sync:8"), ("--steps", "320", *_EDGE[:2])
        ),
    ),
    "adam": (
        Job("1 worker, Adam, rate 0.03", _workers(1), (*_ADAM[:-1], "1500")),
        Job("6 workers, Adam, rate 0.03", _workers(6), _ADAM),
        Job("6 workers, Adam, rate 0.03 / 6", _workers(6), ("--adam", "--learning-rate", "0.005", *_ADAM[3:])),
    ),
    "rate": (
        Job("1 worker, rate 2", _workers(1), ("--learning-rate", "2", *_ALONE)),
        Job("1 worker, rate 2 / 4", _workers(1), ("--learning-rate", "0.5", *_ALONE)),
        Job("1 worker, Adam, rate 0.3", _workers(1), ("--adam", "--learning-rate", "0.3", *_ALONE)),
        Job("1 worker, Adam, rate 0.3 / 16", _workers(1), ("--adam", "--learning-rate", "0.01875", *_ALONE)),
    ),
    "momentum": (
        Job("1 worker, momentum 0.9", _workers(1), _MOMENTUM),
        Job("8 workers, momentum 0.9", _workers(8), _MOMENTUM),
        Job("8 workers, momentum 0.2", _workers(8), (*_MOMENTUM[:2], "--momentum", "0.2", *_MOMENTUM[4:])),
        Job("8 workers, rate 0.02 / 8", _workers(8), ("--learning-rate", "0.0025", *_MOMENTUM[2:])),
    ),
    "worker": (
        Job("without a remedy", _workers(3), _SCALE),
        Job(
            "--max-gradient-norm 10:reject",
            _workers(3),
            _SCALE,
            {"PSSERVER_MAX_GRADIENT_NORM": "10:reject"},
        ),
        Job(
            "--guard rollback",
            (*_workers(3), "--guard", "rollback", "--restarts", "5", "--checkpoint-every", "50steps"),
            _SCALE,
            run_dir=True,
        ),
    ),
    "data": (
        Job("the reader of 1 of 3 hangs", _workers(3), ("--fault", "hang", *_SHARDED)),
        Job("all 3 read", _workers(3), _SHARDED),
    ),
    "labels": (
        Job("labels of 1 of 3 are random", _workers(3), ("--fault", "labels", *_LABELS)),
        Job("all labels are right", _workers(3), _LABELS),
    ),
    "rounding": (
        Job("float16, rate 0.0005", _workers(2), ("--dtype", "float16", *_NARROW)),
        Job("float32, rate 0.0005", _workers(2), _NARROW),
        Job("float16, rate 0.05", _workers(2), ("--dtype", "float16", "--learning-rate", "0.05", *_NARROW[2:])),
    ),
}


def run(job: Job, seed: int) -> Run:
    """Run a job to its end."""
    with tempfile.TemporaryDirectory() as folder:
        options = [*job.options, *(["--run-dir", f"{folder}/run"] if job.run_dir else [])]
        command = [*COMMAND, *options, str(JOB), *job.job, "--seed", str(seed)]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | job.environment
        accuracy, findings, actions, curve = None, [], [], []
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            began = None
            for line in process.stdout or ():
                text = line.rstrip()
                if " | COST " in text:
                    began = began or time.monotonic()
                    step, cost = text.split()[-2:]
                    curve.append((int(step), float(cost)))
                elif " | RESULT " in text:
                    accuracy = json.loads(text.partition("RESULT ")[2])["accuracy"]
                elif found := _LINE.match(text):
                    findings.append((time.monotonic() - (began or time.monotonic()), found[2], found[1]))
                elif found := _ACTION.match(text):
                    actions.append(found[1])
        return Run(accuracy, findings, actions, curve)


def plot(name: str, results: dict[str, list[Run]], folder: Path) -> None:
    """The cost of the first run of each job over global steps, with the guard's first finding."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), dpi=110)
    for number, (label, runs) in enumerate(results.items()):
        color = f"C{number}"
        curve = [(step, cost) for step, cost in runs[0].curve if cost < 1e3]
        axes.plot(*zip(*curve, strict=True), color=color, label=_legend(label, runs), linewidth=1.4)
    axes.set(xlabel="updates by all workers", ylabel="cost of the chief's batches", yscale="log")
    axes.axhline(2.302585, color="gray", linewidth=0.8, linestyle=":")
    axes.text(0, 2.4, " guessing", color="gray", fontsize=8)
    axes.legend(fontsize=8, loc="best")
    axes.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"guard-{name}.png")
    plt.close(figure)


def _legend(label: str, runs: Sequence[Run]) -> str:
    found = runs[0].findings
    said = f"; guard: {found[0][1]} after {found[0][0]:.0f} s" if found else ""
    return f"{label}: {_accuracy(runs[0])}{said}"


def _accuracy(one: Run) -> str:
    return "failed" if one.accuracy is None else f"{one.accuracy:.1%}"


def main() -> None:
    """Run the demonstrations, print the tables, draw the plots."""
    parser = argparse.ArgumentParser()
    names = _report.size(list(DEMOS), ["worker"])
    parser.add_argument("names", nargs="*", type=_report.one_of(DEMOS), default=names, metavar="NAME")
    parser.add_argument("--runs", type=int, default=1, help="of each job, with other seeds")
    parser.add_argument("--plots", type=Path, help="a folder for guard-NAME.png")
    options = parser.parse_args()
    _report.describe_machine()
    for name in options.names:
        results: dict[str, list[Run]] = {}
        print(f"\n{name}")
        for job in _report.size(DEMOS[name], DEMOS[name][:1]):
            runs = results[job.label] = [run(job, seed) for seed in range(options.runs)]
            kinds = [found[0][1] if (found := one.findings) else "-" for one in runs]
            seconds = [f"{one.findings[0][0]:.0f} s" for one in runs if one.findings]
            print(
                f"  {job.label:32} {', '.join(map(_accuracy, runs)):24} guard: {', '.join(kinds)} {' '.join(seconds)}"
            )
            known = [one.accuracy for one in runs if one.accuracy is not None]
            median = sorted(known)[len(known) // 2] if known else 0.0
            print(f"RESULT guard-{name} {job.label.replace(' ', '-')} {median:.3f} accuracy", flush=True)
            for line in dict.fromkeys([one.findings[0][2] for one in runs[:1] if one.findings] + runs[0].actions):
                print(f"      {line}")
        if options.plots:
            plot(name, results, options.plots)


if __name__ == "__main__":
    main()
