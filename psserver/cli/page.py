"""`psserver serve --http`: the live page in the process of a server."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from psjob.guard.actions import guarding
from psjob.status.job_status import JobStatus, ShardAnswer, merge_reports
from psjob.terminal.guard_option import ACTING
from psserver.config import ServerConfig
from psserver.monitor.collector import TIMEOUT, Collector
from psserver.monitor.job_page import PageOptions, job_page
from psserver.monitor.job_servers import JobServers
from psserver.monitor.metrics import Exposition, shard_metrics
from psserver.rpc.running import RunningServer
from psserver.rpc.server import Beside
from pswire.addresses import local_address
from pswire.errors import ConfigurationError, ParamServerError
from pswire.security.credentials import Credentials


def page_beside(
    config: ServerConfig, http: str, servers: Sequence[str] | None, client_token_file: str | None, guard: str = "off"
) -> Beside:
    """The page in the process of a server, of its own shard or of all `servers` of the job; with a guard.

    Raises `ConfigurationError` if other machines would reach it without TLS, or without being known.
    """
    options = PageOptions(
        http,
        config.tls_cert,
        config.tls_key,
        config.tls_ca if config.asks_clients else None,
        knows_callers=config.token_file is not None or config.asks_clients,
        insecure=config.insecure,
        warns_of_end=False,
    )
    credentials = _credentials(config, client_token_file) if servers or guard in ACTING else Credentials()
    listening = options.listen()

    @contextmanager
    def page(server: RunningServer) -> Iterator[None]:
        def ask(timeout: float) -> JobStatus:
            try:
                answer = ShardAnswer(server.address, server.status(timeout))
            except ParamServerError as error:
                answer = ShardAnswer(server.address, problem=str(error))
            return merge_reports([answer])

        def metrics(collector: Collector, accept: str) -> Exposition:
            return shard_metrics(
                server.status(TIMEOUT, detail=False),
                server.measurements,
                events=server.event_counts,
                memory_limit=config.variables_limit,
                findings=collector.kinds(),
                accept=accept,
            )

        cancel: Callable[[], object] = bool
        if servers:
            others = JobServers(servers, credentials)
            ask, cancel = others.ask, others.close
        check, ready = server.check_observer, server.problem
        certificates = config.asks_clients
        with (
            guarding(guard, servers or [local_address(server.address)], credentials) as actions,
            job_page(
                *(listening, ask, check, cancel),
                ready=ready,
                metrics=metrics,
                guard=actions,
                certificates=certificates,
            ),
        ):
            click.echo(f"psserver: live page at {listening.url}")
            yield

    return page


def _credentials(config: ServerConfig, client_token_file: str | None) -> Credentials:
    """The credentials of this server for the others of the job, whose certificates its own CA has signed."""
    if config.tls_cert is None:
        return Credentials(token_file=client_token_file or "")
    if config.tls_ca is None:
        raise ConfigurationError(
            "--http-servers with TLS needs --tls-ca: the certificates of the others are checked by it"
        )
    return Credentials(str(config.tls_ca), str(config.tls_cert), str(config.tls_key), client_token_file or "")
