"""The live page of a job, of its parts: collector, paths and HTTP server, in the process of a server or its own."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from psjob.guard import Guard
from psjob.guard.actions import GuardActions
from psjob.status.job_status import JobStatus
from psserver.monitor.collector import Collector
from psserver.monitor.http.server import HttpServer
from psserver.monitor.http.site import Site
from psserver.monitor.http.tls import HttpCertificates
from psserver.monitor.http.viewers import TokenCheck
from psserver.monitor.metrics import Exposition, FreshMetrics, job_metrics
from pswire.addresses import is_local
from pswire.errors import Unavailable
from pswire.security.exposure import check_exposure

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PageOptions:
    """Where the page is served, and how.

    Attributes:
        bind: the address, `host:port`.
        certificate, key: for TLS; None: none.
        ca: that of the certificates that viewers have to show; None: none is needed.
        knows_callers: whether viewers are known by a token or certificate.
        insecure: whether other machines may reach it without TLS, or without being known.
        remedy: the options that are missing if they may not.
        warns_of_end: whether to log when the certificate comes near its end; not if a server with it does.

    Raises `ConfigurationError` if other machines would reach it without TLS or unknown, and it is not `insecure`.
    """

    bind: str
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    knows_callers: bool = True
    insecure: bool = False
    remedy: str = ""
    warns_of_end: bool = True

    def __post_init__(self) -> None:
        """Check where it listens."""
        _ = self.exposure

    @property
    def exposure(self) -> str:
        """The warning about a page that is open to other machines on purpose; "" without one."""
        texts = {"risk": "see the job"} | ({"remedy": self.remedy} if self.remedy else {})
        tls = self.certificate is not None
        return check_exposure(self.bind, tls=tls, knows_callers=self.knows_callers, insecure=self.insecure, **texts)

    def listen(self) -> HttpServer:
        """A server at the address, which does not serve yet. Raises `ConfigurationError` if it cannot."""
        if self.exposure:
            log.warning("the live page: %s", self.exposure)
        if self.certificate is None or self.key is None:
            return HttpServer(self.bind)
        certificates = HttpCertificates(self.certificate, self.key, self.ca, warns=self.warns_of_end)
        return HttpServer(self.bind, certificates.context)


def of_job(collector: Collector, accept: str) -> Exposition:
    """The metrics of the job as the monitor has seen it last. Raises as `job_metrics`, and `Unavailable`."""
    status = collector.status
    if status is None:
        raise Unavailable("the monitor has no status of the job yet")
    return job_metrics(status, findings=collector.kinds(), accept=accept)


@contextmanager
def job_page(
    server: HttpServer,
    ask: Callable[[float], JobStatus],
    check: Callable[[str], None],
    cancel: Callable[[], object] = bool,
    *,
    ready: Callable[[], str] | None = None,
    metrics: Callable[[Collector, str], Exposition] = of_job,
    guard: Guard | GuardActions | None = None,
    certificates: bool = False,
) -> Iterator[None]:
    """The live page in a block.

    Args:
        server: of `PageOptions.listen`.
        ask: the status of the job with details, within some seconds.
        check: raises `Unauthenticated`, `PermissionDenied` or `Unavailable` for the token of a viewer.
        cancel: ends a call of `ask`, at the end of the block.
        ready: why the process is not ready, "" if it is; by default all shards have to answer.
        metrics: the text of `/metrics` and its type, for the header `Accept` of a request; by default that of the job.
        guard: as in `Collector`.
        certificates: viewers have to show a certificate.
    """
    collector = Collector(ask, cancel, guard=guard)
    site = Site(
        collector.job,
        collector.samples,
        TokenCheck(check),
        ready or collector.problem,
        FreshMetrics(partial(metrics, collector)),
        port=server.port,
        loopback=is_local(server.address),
        secure=server.tls is not None,
        certificates=certificates,
    )
    with server.serving(site), collector:
        yield
