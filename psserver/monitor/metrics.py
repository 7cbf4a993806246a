"""The text of `/metrics`: of one shard, and of a job as its monitor sees it. Needs the extra `metrics` when it is used.

Made when it is asked for, from numbers that are there already: `psserver.measurements` and status reports.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from types import ModuleType

from psjob.status.job_status import JobStatus
from psserver.measurements import Measurements
from pswire.errors import Unavailable
from pswire.messages import StatusReport
from pswire.system.extras import missing_package

#: The text, and its type.
Exposition = tuple[bytes, str]

#: Seconds for which a text is served again: whoever asks how often, the job's status is asked for once in this time.
FRESH_SECONDS = 1.0

#: Seconds that a request waits for the text that another one makes.
PATIENCE = 10.0

#: The formats that are told apart, as headers `Accept`; "": the text format.
FORMATS = ("application/openmetrics-text; version=1.0.0", "")


class FreshMetrics:
    """What `make` returns for a header `Accept`, for each of the `FORMATS` at most once in `FRESH_SECONDS`.

    `_lock` guards what was made, and is held while it is made. Raises what `make` does, and `Unavailable` if that takes
    too long for another request.
    """

    def __init__(self, make: Callable[[str], Exposition]) -> None:
        self._make = make
        self._lock = Lock()
        self._made: dict[str, tuple[float, Exposition]] = {}

    def __call__(self, accept: str) -> Exposition:
        """The text for a request with this header; in any thread."""
        form = FORMATS["application/openmetrics-text" not in accept]
        if not self._lock.acquire(timeout=PATIENCE):
            raise Unavailable(f"the metrics are not made within {PATIENCE:g} s: try again")
        try:
            at, text = self._made.get(form, (-math.inf, (b"", "")))
            if time.monotonic() - at >= FRESH_SECONDS:
                text = self._make(form)
                self._made[form] = time.monotonic(), text
            return text
        finally:
            self._lock.release()


def shard_metrics(
    report: StatusReport,
    measurements: Measurements,
    *,
    events: Mapping[str, int],
    memory_limit: int,
    findings: Iterable[str] | None = None,
    accept: str = "",
) -> Exposition:
    """The metrics of one server.

    Args:
        report: of its shard.
        measurements: of its process.
        events: their counts by kind.
        memory_limit: bytes that values and slots may take.
        findings: the kinds of the convergence guard's present findings; None: there is no guard.
        accept: the header of the request, which may ask for OpenMetrics.

    Raises:
        ConfigurationError: prometheus-client is not installed.
    """
    families = _families()
    found = families.shard_families(report, measurements, events, memory_limit, findings)
    text: Exposition = families.exposition(found, accept)
    return text


def job_metrics(job: JobStatus, *, findings: Iterable[str] | None = None, accept: str = "") -> Exposition:
    """The metrics of a monitor: which shards of the job answer, its progress, and findings as of `shard_metrics`.

    Raises:
        ConfigurationError: prometheus-client is not installed.
    """
    families = _families()
    text: Exposition = families.exposition(families.job_families(job, findings), accept)
    return text


def _families() -> ModuleType:
    try:
        from psserver.monitor import prometheus
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise missing_package("metrics need", "metrics") from None
    return prometheus
