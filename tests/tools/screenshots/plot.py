"""Pictures of `psworker plot`: cost by step and staleness by time, of a run with a slowed and a killed worker."""

import re
import subprocess
import sys
from pathlib import Path

from tests.tools.screenshots.training import LEASE, DeepMnist, wait_until

#: The steps after which a worker is slowed, and one killed, and after which the run ends: before the program evaluates
#: its model, which would take the slowed worker a minute.
SLOWED, KILLED, LAST = 300, 600, 980


def take(images: Path, folder: Path) -> None:
    """Writes plot-cost.png and plot-staleness.png."""
    runs = folder / "runs" / "deep_mnist"
    with DeepMnist(folder, "--run-dir", str(runs), "--checkpoint-every", "20s") as run:
        run.wait_for_step(SLOWED)
        run.slow()
        run.wait_for_step(KILLED)
        run.kill()
        events = runs / "events.jsonl"
        wait_until(lambda: re.search('"kind": "lost"', events.read_text()) is not None, "lost worker", 4 * LEASE)
        run.wait_for_step(LAST)
    for name, options in {
        "plot-cost.png": ("--workers", "--log"),
        "plot-staleness.png": ("--by", "time", "--value", "staleness", "--workers", "--smooth", "0.6"),
    }.items():
        command = (
            sys.executable,
            "-m",
            "psworker",
            "plot",
            "runs/deep_mnist",
            *options,
            "--output",
            str(images / name),
        )
        subprocess.run(command, cwd=folder, check=True)
