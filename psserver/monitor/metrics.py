"""The text of `/metrics`: of one shard, and of a job as its monitor sees it. Needs the extra `metrics` when it is used.

Made when it is asked for, from numbers that are there already: `psserver.measurements` and status reports.
"""

from collections.abc import Iterable, Mapping
from types import ModuleType

from psserver.measurements import Measurements
from pswire.errors import ConfigurationError
from pswire.job_status import JobStatus
from pswire.messages import StatusReport

#: The text, and its type.
Exposition = tuple[bytes, str]


def shard_metrics(
    report: StatusReport,
    measurements: Measurements,
    *,
    events: Mapping[str, int],
    memory_limit: int,
    findings: Iterable[str] = (),
    accept: str = "",
) -> Exposition:
    """The metrics of one server.

    Args:
        report: of its shard.
        measurements: of its process.
        events: their counts by kind.
        memory_limit: bytes that values and slots may take.
        findings: the kinds of the convergence guard's present findings.
        accept: the header of the request, which may ask for OpenMetrics.

    Raises:
        ConfigurationError: prometheus-client is not installed.
    """
    families = _families()
    found = families.shard_families(report, measurements, events, memory_limit, findings)
    text: Exposition = families.exposition(found, accept)
    return text


def job_metrics(job: JobStatus, *, findings: Iterable[str] = (), accept: str = "") -> Exposition:
    """The metrics of a monitor: which shards of the job answer, its progress, and findings as of `shard_metrics`.

    Raises:
        ConfigurationError: prometheus-client is not installed.
    """
    families = _families()
    text: Exposition = families.exposition(families.job_families(job, findings), accept)
    return text


def _families() -> ModuleType:
    try:
        from psserver.monitor import metric_families
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise ConfigurationError(
            "metrics need a package that is not installed: pip install 'paramserver[metrics]'"
        ) from None
    return metric_families
