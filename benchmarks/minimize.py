"""Batch optimization: softmax regression on MNIST in float64 by L-BFGS, with shards and workers.

    python benchmarks/minimize.py --peers DIR            # all parts; DIR/scipy/bin/python has scipy
    python benchmarks/minimize.py same backups bytes     # some of them

`same`: loss, weights and evaluations for several numbers of workers and shards, and of scipy's L-BFGS-B, with 5,000
images. `whole`: the same with all 60,000 for one number of each. `bytes`: what goes through the coordinator in a step,
and the time of a direction.

`backups`: seconds with four workers, of which none, the chief or another one takes ten times as long for a portion,
with backups and without: these are switched off in the server's process, by `_without_backups.py`. Once with portions
that compute: the slow worker sleeps nine times the processor time of each, and where four workers have two cores, the
others have more of them meanwhile. Once with small portions that wait for 20 ms, or 200 in the slow worker: no worker
waits for a processor, as if each had a machine. Then 3.1 workers are left of four: 1.29 is the least that is possible.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import _report
import numpy as np

from psworker import datasets

FOLDER = Path(__file__).parent
JOB, BYTES, WITHOUT = (FOLDER / f"_{name}.py" for name in ("minimize_job", "minimize_bytes", "without_backups"))
L2 = 1e-2
LAYOUTS = _report.size(tuple(itertools.product((1, 2, 4), (1, 2, 3))), ((2, 2),))  # workers, shards
IMAGES = _report.size(60_000, 500)
PARAMETERS = _report.size((10**4, 10**5, 10**6, 10**7), (10**4,))
ROUNDS = _report.size(3, 1)


@contextlib.contextmanager
def servers(shards: int, *, backups: bool = True) -> Iterator[str]:
    """The addresses of server processes that end with the block."""
    run = ["-m", "psserver"] if backups else [str(WITHOUT)]
    with contextlib.ExitStack() as stack:
        addresses = []
        for shard in range(shards):
            command = [sys.executable, *run, "serve", "--bind", "127.0.0.1:0", "--shard", f"{shard}/{shards}"]
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
            stack.callback(process.terminate)
            assert process.stdout is not None
            addresses.append(process.stdout.readline().split()[-1])
        yield ",".join(addresses)


def job(addresses: str, workers: int, script: Path, *arguments: str) -> dict[str, Any]:
    """What the chief, which is the first worker, prints at the end; its time begins when all workers are ready."""
    run = [sys.executable, "-m", "psworker", "run", "--servers", addresses, "--threads", "1"]
    processes: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        begin = Path(folder) / "begin"
        try:
            for number in range(workers):
                command = [*run, "--name", f"w{number}", str(script), *arguments, "--begin", str(begin)]
                processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                assert processes[-1].stdout is not None
                assert processes[-1].stdout.readline() == "ready\n"
            begin.touch()
            output, _ = processes[0].communicate(timeout=600)
            found: dict[str, Any] = json.loads(output.splitlines()[-1])
            return found
        finally:
            for process in processes:
                process.kill()
                process.wait()


def same(options: Any) -> None:
    """Nine layouts, 5,000 images."""
    compare(options, "minimize", LAYOUTS, examples=min(IMAGES, 5_000), gradient=_report.size(1e-9, 1e-2))


def whole(options: Any) -> None:
    """One layout, all images."""
    compare(options, "minimize-whole", [(2, 2)], examples=IMAGES, gradient=_report.size(1e-7, 1e-2))


def compare(options: Any, work: str, layouts: Sequence[tuple[int, int]], examples: int, gradient: float) -> None:
    """Loss, weights and evaluations for each layout, and of scipy."""
    losses, evaluations, weights = [], [], []
    problem = "--examples", str(examples), "--gradient", str(gradient)
    with tempfile.TemporaryDirectory() as folder:
        save = str(Path(folder) / "weights.npz")
        for workers, shards in layouts:
            with servers(shards) as addresses:
                found = job(addresses, workers, JOB, *problem, "--save", save)
            with np.load(save) as file:
                weights.append(np.concatenate([file["W"].ravel(), file["b"]]))
            losses.append(found["loss"])
            evaluations.append(found["evaluations"])
            print(
                f"  {workers} workers, {shards} shards: loss {losses[-1]!r}, {evaluations[-1]} evaluations", flush=True
            )
        train = datasets.mnist().train[:examples]
        data = Path(folder) / "data.npz"
        np.savez(data, image=train.image.astype(np.float64), label=train.label)
        script, arguments = FOLDER / "peers" / "minimize_scipy.py", (str(data), str(L2), str(gradient))
        theirs = _report.run_peer(options.peers, "scipy", script, *arguments) if options.peers else []
    loss_spread = max(losses) / min(losses) - 1
    weights_spread = max(np.abs(one - weights[0]).max() for one in weights) / np.abs(weights[0]).max()
    print(f"RESULT {work}-same-loss paramserver {loss_spread:.2g} relative")
    print(f"RESULT {work}-same-weights paramserver {weights_spread:.2g} relative")
    print(f"RESULT {work}-evaluations paramserver {max(evaluations)} evaluations", flush=True)
    for theirs_of, system, figure, unit in theirs:
        print(f"RESULT {theirs_of.replace('minimize', work)} {system} {figure!r} {unit}")
        if theirs_of == "minimize-loss":
            print(f"RESULT {work}-difference paramserver {max(losses) / figure - 1:.2g} relative")
        if theirs_of == "minimize-evaluations":
            print(f"paramserver: {max(evaluations) / figure:.2f} times the evaluations of {system}")


def backups(options: Any) -> None:
    """Seconds of 25 iterations with 20,000 images, and of 10 with 2,000 and portions that wait."""
    ways = ("equal", "", True), ("slow-worker", "w3", True), ("slow-worker-without-backups", "w3", False)
    ways += ("slow-chief", "w0", True), ("slow-chief-without-backups", "w0", False)
    works = {
        "minimize-slow-computing": ("--examples", "20000", "--iterations", "25"),
        "minimize-slow-waiting": ("--examples", "2048", "--iterations", "10", "--wait", "0.02"),
    }
    if _report.SMALLEST:
        ways, works = ways[:1], {"minimize-slow-waiting": ("--examples", "64", "--iterations", "2", "--wait", "0.001")}
    for work, arguments in works.items():
        figures = _report.Figures(work, "s", digits=2)
        for _ in range(ROUNDS):
            for name, slow, has_backups in ways:
                with servers(1, backups=has_backups) as addresses:
                    found = job(addresses, 4, JOB, *arguments, "--slow", slow)
                figures.add(f"paramserver-{name}", found["seconds"])
        figures.report([(f"paramserver-{name}", "paramserver-equal") for name, *_ in ways[1:]], more_is_better=False)


def through_coordinator(options: Any) -> None:
    """Bytes and time by the size of the model."""
    for parameters in PARAMETERS:
        local = [sys.executable, "-m", "psworker", "local", "--workers", "1", "--shards", "2", "--progress", "off"]
        done = subprocess.run(
            [*local, str(BYTES), str(parameters)], capture_output=True, text=True, timeout=170, check=True
        )
        found = json.loads(next(line for line in done.stdout.splitlines() if '"bytes"' in line).partition("| ")[2])
        print(f"RESULT minimize-bytes-{parameters} paramserver {found['bytes']:.0f} bytes/step")
        print(f"RESULT minimize-direction-{parameters} paramserver {found['seconds'] * 1e3:.1f} ms", flush=True)


PARTS = {"same": same, "whole": whole, "backups": backups, "bytes": through_coordinator}


def main() -> None:
    """Runs the parts."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = _report.arguments(__doc__.splitlines()[0])
    parts = _report.one_of(PARTS)
    parser.add_argument("parts", nargs="*", type=parts, metavar="PART", help=f"{', '.join(PARTS)} [all]")
    options = parser.parse_args()
    _report.describe_machine()
    print(f"load: {os.getloadavg()[0]:.1f}")
    for part in options.parts or _report.size([*PARTS], ["same", "backups", "bytes"]):
        began = time.monotonic()
        PARTS[part](options)
        print(f"{part} took {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
