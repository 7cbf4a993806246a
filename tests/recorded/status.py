"""What is shown of recorded reports of two shards: JSON, tables, metrics and the live page, at fixed times."""

import re

from rich.console import Console

from psjob.status.job_status import ShardAnswer, merge_reports
from psjob.status.job_view import JobView
from psserver.cli.status import tables, to_json
from psserver.measurements import Measurements
from psserver.monitor.metrics import job_metrics, shard_metrics
from psserver.monitor.samples import make_sample
from pswire import messages as ms
from tests.recorded.commands import same_display
from tests.recorded.descriptions import as_json, digest

#: Names of metrics with values of this process and this version.
_OF_PROCESS = re.compile(
    r"^(# (HELP|TYPE) )?(process|python|paramserver_(build_info|process|checkpoint_timestamp))_?\w*[ {]"
)

TIME = 1_767_225_600.0


def displays(reports, widths=(160, 70)):
    """All displays of the reports of one job, by name; and one of them while a shard is silent."""
    job = merge_reports([ShardAnswer(f"host-{one.shard}:7070", one) for one in reports])
    silent = ShardAnswer(f"host-{len(reports)}:7070", problem="no server answers: Connection refused")
    partly = merge_reports([ShardAnswer("host-0:7070", reports[0]), silent])
    data = as_json(to_json(job, TIME))
    few = data | {"shards": [digest(one) for one in data["shards"]]}
    found = {"status --json": few if len(reports) > 1 else digest(data)}
    found["status --json, one silent"] = digest(as_json(to_json(partly, TIME)))
    for width in widths if len(reports) > 1 else widths[:1]:
        found[f"status, {width} columns"] = _text(job, width)
    found["status, one silent"] = _text(partly, widths[0])[:12]
    for report in reports:
        text, _ = shard_metrics(report, _measured(), events={"joined": 2}, memory_limit=1 << 20, findings=["momentum"])
        found[f"metrics of shard {report.shard}"] = _metrics(text)
    found["metrics of the job"] = _metrics(job_metrics(job, findings=["worker"])[0])
    view = JobView().follow(job, 10.0).follow(job, 12.0)
    found["a sample of the live page"] = digest(as_json(make_sample(view, TIME)))
    return found


def _text(job, width):
    console = Console(width=width, color_system=None)
    with same_display(), console.capture() as capture:
        console.print(tables(job))
    return [line.rstrip() for line in capture.get().splitlines()]


def _metrics(text):
    """The samples, without those of this process, zeros and histograms."""
    lines = [line for line in text.decode().splitlines() if not _OF_PROCESS.match(line)]
    return [line for line in lines if not line.startswith("#") and not line.endswith(" 0.0") and "_bucket" not in line]


def _measured():
    """Measurements with something in each kind."""
    measured = Measurements()
    for seconds, staleness in ((0.0004, 0), (0.002, 2), (20.0, 40)):
        measured.answered(ms.Pushed(outcome=ms.Outcome.APPLIED, staleness=staleness, global_step=1), seconds)
    measured.received.add(1, 2, 3)
    measured.waits["policy"].begin()
    measured.waits["policy"].end(0.5)
    return measured
