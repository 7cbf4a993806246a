"""`psserver monitor`: the live page of a job in a process of its own, its signals, and the line it prints."""

import signal
import threading
from collections.abc import Sequence
from contextlib import suppress

import click

from psjob.guard.actions import guarding
from psserver.monitor.job_page import PageOptions, job_page
from psserver.monitor.job_servers import JobServers
from pswire.addresses import is_local
from pswire.security.credentials import Credentials


def monitor_until_signal(
    addresses: Sequence[str], options: PageOptions, credentials: Credentials, guard: str = "off"
) -> None:
    """Serve the page of a job in a process of its own, until Ctrl-C or SIGTERM; `guard` is the value of `--guard`.

    Raises `ConfigurationError` if the address, or a file, cannot be used.
    """
    known_callers = not is_local(options.bind) and not options.insecure
    servers = JobServers(addresses, credentials, known_callers=known_callers)
    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    http = options.listen()
    with (
        suppress(KeyboardInterrupt),
        guarding(guard, addresses, credentials) as actions,
        job_page(http, servers.ask, servers.check, servers.close, guard=actions),
    ):
        click.echo(f"psserver: monitor at {http.url}")
        ends.wait()
