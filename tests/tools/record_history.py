"""Records the history of a job as the guard sees it, for `tests/unit/psjob/guard/histories/`.

    python -m tests.tools.record_history OUTPUT.json SECONDS --workers 3 examples/gan_mnist.py

Runs `psworker local` with these arguments for so many seconds at most, and writes a moment a second: of workers the
fields of `WORKER_FIELDS`, of variables how many sampled elements their updates left unchanged, and an optimizer.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from psjob.guard.history import INTERVAL
from psjob.status.job_status import JobStatus
from psjob.status.status_client import StatusClient
from pswire.specs.spec import to_plain
from psworker.launch.cli import main

WORKER_FIELDS = (
    *("name", "incarnation", "state", "training", "steps", "dropped", "empty", "mean_staleness", "loss", "cost"),
    *("first_loss", "peak_cost", "gradient", "gradient_mean", "jumps", "jump", "jumped_at", "error", "error_time"),
    *("drop_reason", "waiting_for", "between_blocks", "quarantined"),
)


def plain(job: JobStatus, seconds: float) -> dict[str, object]:
    """One moment as plain data, with four significant digits."""
    workers = [[_short(getattr(worker, name)) for name in WORKER_FIELDS] for worker in job.workers]
    sampled = [[one.spec.name, one.spec.dtype, one.sampled, one.unchanged] for one in job.variables[:8]]
    optimizer = next((one.optimizer for one in job.variables if one.optimizer is not None), None)
    return {
        "seconds": round(seconds, 2),
        "step": job.global_step,
        "workers": workers,
        "variables": sampled,
        "optimizer": None if optimizer is None else to_plain(optimizer),
    }


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def record(output: Path, seconds: float, arguments: list[str]) -> None:
    """Run the job, and write what is recorded at its end."""
    moments: list[dict[str, object]] = []
    begin, ask = time.monotonic(), StatusClient.ask

    def asked(client: StatusClient, timeout: float, *, detail: bool = False) -> JobStatus:
        job, now = ask(client, timeout, detail=detail), time.monotonic() - begin
        last = moments[-1]["seconds"] if moments else -INTERVAL
        if job.workers and all(answer.report for answer in job.answers) and now - float(str(last)) >= INTERVAL:
            moments.append(plain(job, now))
        if now > seconds:
            os.kill(os.getpid(), signal.SIGTERM)
        return job

    StatusClient.ask = asked  # type: ignore[method-assign]
    try:
        main(["local", "--progress", "off", "--guard", "off", *arguments], standalone_mode=False)
    finally:
        lines = ",\n".join([json.dumps(moment) for moment in moments])
        output.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
