"""The process of `psserver serve`: its signals, the line that says it is ready, and the one that says how it was.

Knows no options. Imported only when a server is wanted, since it brings numpy and the shard. May import server, config,
pswire and click.
"""

from __future__ import annotations

import asyncio
import gc
import signal

import click

from psserver.config import ServerConfig
from psserver.core.events import counted
from psserver.rpc.server import serve
from pswire.messages import StatusReport
from pswire.system import malloc
from pswire.system.exit_signals import end_at_next


def serve_until_told(config: ServerConfig) -> None:
    """Serves one shard until SIGTERM or SIGINT, or until it has lingered; a second SIGINT ends the process at once.

    The process is to end after this: SIGTERM is ignored from then on.

    Raises:
        ConfigurationError: the address cannot be had, or a package is missing.
    """
    if config.keep_memory:
        malloc.keep_memory()
    _collect_seldom()
    report = asyncio.run(_serve(config))
    click.echo(_summary(report), err=True)


async def _serve(config: ServerConfig) -> StatusReport:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        end_at_next(signal.SIGINT)

    def tell(address: str) -> None:
        click.echo(f"psserver: shard {config.shard}/{config.shards} listening on {address}")

    loop.add_signal_handler(signal.SIGINT, end)  # and any signal wakes the loop up
    # Not by the loop, at whose end SIGTERM would kill again. There, and while Python ends, the outcome is settled.
    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(end))
    try:
        return await serve(config, tell, stop)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _collect_seldom() -> None:
    """Makes the garbage collector look at what is new after 20,000 objects, not 700, and never at what was imported.

    Calls leave no cycles behind, so there is next to nothing to find; looking took 5 % of the time of small pushes.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _summary(report: StatusReport) -> str:
    return (
        f"psserver: shard {report.shard}/{report.shards} stopped at global step {report.global_step:,}: "
        f"{counted(len(report.workers), 'worker')}, {report.repeated:,} pushes or assigns repeated"
    )
