"""`psserver serve`: the process of a server, its signals, and the lines it prints when it is ready and when it ends.

Imported only by this command, since it imports numpy and the shard.
"""

import asyncio
import logging
import signal

import click

from psjob.terminal.logs import writes_json
from psserver.config import ServerConfig
from psserver.custom_optimizers import load_optimizers
from psserver.rpc.server import Beside, serve
from psserver.runtime.interpreter import set_up_interpreter
from pswire.messages import StatusReport
from pswire.plurals import pluralize
from pswire.system import host
from pswire.system.signals import end_at_next

log = logging.getLogger(__name__)


def serve_until_signal(config: ServerConfig, beside: Beside | None = None) -> None:
    """Serve one shard until SIGTERM or SIGINT, or the end of its job; a second SIGINT ends the process at once.

    The process should end after this: SIGTERM is ignored from then on. `beside` is what else it serves.

    Raises:
        ConfigurationError: the address cannot be bound, a package is missing, or a custom optimizer cannot be loaded.
    """
    for optimizer in load_optimizers(config.optimizers):
        log.info("loaded the custom optimizer %s", optimizer.__name__)
    if config.keep_memory:
        host.keep_memory()
    host.raise_descriptor_limit()
    set_up_interpreter()
    report = asyncio.run(_serve(config, beside))
    done = (
        f"shard {report.shard}/{report.shards} stopped at global step {report.global_step:,}: "
        f"{pluralize(len(report.workers), 'worker')}, {report.repeated:,} pushes or assigns repeated"
    )
    if writes_json():
        log.info("%s", done)
    else:
        click.echo(f"psserver: {done}", err=True)


async def _serve(config: ServerConfig, beside: Beside | None) -> StatusReport:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        end_at_next(signal.SIGINT)

    def on_ready(address: str) -> None:
        click.echo(f"psserver: shard {config.shard}/{config.shards} listening on {address}")

    loop.add_signal_handler(signal.SIGINT, end)  # and any signal wakes up the loop
    # The loop's own handler would be the default again when the loop ends, before the exit code is returned.
    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(end))
    try:
        return await serve(config, on_ready, stop, beside)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
