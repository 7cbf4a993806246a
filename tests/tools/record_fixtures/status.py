"""Records reports of two shards, and what is shown of them: `tests/fixtures/status/`."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from unittest import mock

from psserver.storage import checkpoints
from pswire import messages as ms
from tests.recorded import formats
from tests.recorded.server import Server
from tests.recorded.status import TIME, displays
from tests.support.job_reports import two_shards
from tests.tools.record_fixtures import jobs


def record(write):
    """Write the reports of a made-up job, and of a real one, with details."""
    for name, reports in {"made_up": [one.report for one in two_shards()], "real": asyncio.run(_real())}.items():
        data = [formats.in_text(formats.encode(one)) for one in reports]
        write("status", f"{name}.json", data={"reports": data, "displays": displays(reports)})


async def _real():
    """The report of the job `every_kind`."""
    servers, init = [], Server.__init__

    def noted(self, *arguments, **options):
        init(self, *arguments, **options)
        servers.append(self)

    with tempfile.TemporaryDirectory() as place, mock.patch.object(checkpoints, "datetime", jobs.Moment):
        async with AsyncExitStack() as stack:
            with mock.patch.object(Server, "__init__", noted):
                await jobs.every_kind(Path(place, "job"), stack)
            report = await servers[0].ask(ms.Status(detail=True))
    return [_at_fixed_times(report)]


def _at_fixed_times(report):
    """The report without what depends on the time and the place."""
    events = tuple([replace(one, time=TIME + one.number) for one in report.detail.events])
    workers = [
        replace(one, lease_left=9.5, waited=0.25, held=0.0, error_time=TIME if one.error else 0.0, jumped_at=0)
        for one in report.workers
    ]
    storage = replace(report.storage, folder="checkpoints", age=30.0)
    traffic = ms.Traffic(2.5, 1024.0, 2048.0)
    detail = replace(report.detail, events=events)
    return replace(report, detail=detail, workers=tuple(workers), storage=storage, traffic=traffic)
