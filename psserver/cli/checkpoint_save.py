"""`psserver checkpoint save`: one checkpoint of a running job, now."""

import time
from collections.abc import Sequence

import click

from pswire.errors import StorageError, TimedOut
from pswire.messages import Cut, CutReport
from pswire.network.shard_stubs import ShardStubs
from pswire.security.credentials import NO_CREDENTIALS, Credentials

#: Seconds between two questions whether it is written, and between two lines about what it waits for.
PAUSE, NOTE_EVERY = 0.1, 2.0


def save(addresses: Sequence[str], timeout: float, credentials: Credentials = NO_CREDENTIALS) -> int:
    """Begin a checkpoint on all servers of a job, in the order of their shards; its number, when all have written it.

    Raises:
        TimedOut: not within `timeout` seconds.
        StorageError: a server could not write it, or has no --checkpoint-dir.
        Unavailable: a server cannot be reached.
    """
    with ShardStubs(addresses, credentials) as servers:
        return _save(servers, timeout)


def _save(servers: ShardStubs, timeout: float) -> int:
    until, noted = time.monotonic() + timeout, time.monotonic()
    shards = {address: shard for shard, address in enumerate(servers.addresses.find(timeout))}
    number, waiting = 0, dict.fromkeys(shards, "it was not asked yet")
    while waiting:
        if time.monotonic() > until:
            where = "; ".join(f"{address}: {reason}" for address, reason in waiting.items())
            raise TimedOut(f"no complete checkpoint within {timeout:g} s: {where}")
        for address in list(waiting):
            report = _ask(servers, shards[address], number, until - time.monotonic())
            number = number or report.number
            if not number:  # shard 0 is busy with another one
                waiting[address] = report.waiting_for
                break
            if report.problem:
                raise StorageError(f"the server at {address} reports: {report.problem}")
            if report.written:
                del waiting[address]
            elif report.gone:  # that server was started again since: its part was in memory
                number, waiting = 0, dict.fromkeys(shards, f"another checkpoint begins: {address} has lost {number}")
                break
            else:
                waiting[address] = f"it waits for {report.waiting_for}" if report.waiting_for else "it is writing"
        if waiting:
            if time.monotonic() - noted >= NOTE_EVERY:
                noted = time.monotonic()
                click.echo("; ".join(f"{address}: {reason}" for address, reason in waiting.items()), err=True)
            time.sleep(PAUSE)
    return number


def _ask(servers: ShardStubs, shard: int, number: int, timeout: float) -> CutReport:
    answer = servers.call(shard, Cut(number), CutReport, max(timeout, PAUSE))
    if not answer.storage:
        raise StorageError(
            f"the server at {servers.addresses.current[shard]} keeps no checkpoints: start it with --checkpoint-dir"
        )
    return answer
