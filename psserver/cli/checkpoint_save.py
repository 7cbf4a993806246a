"""`psserver checkpoint save`: one checkpoint of a running job, now."""

import time
from collections.abc import Sequence
from contextlib import ExitStack

import click

from pswire.channel import open_channel
from pswire.errors import StorageError, TimedOut
from pswire.messages import Cut, CutReport
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.unary_call import call
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub

#: Seconds between two questions whether it is written, and between two lines about what it waits for.
PAUSE, NOTE_EVERY = 0.1, 2.0


def save(addresses: Sequence[str], timeout: float, credentials: Credentials = NO_CREDENTIALS) -> int:
    """Begin a checkpoint on all servers of a job, in the order of their shards; its number, when all have written it.

    Raises:
        TimedOut: not within `timeout` seconds.
        StorageError: a server could not write it, or has no --checkpoint-dir.
        Unavailable: a server cannot be reached.
    """
    with ExitStack() as stack:
        channels = {address: stack.enter_context(open_channel(address, credentials)) for address in addresses}
        stubs = {address: ParameterServerStub(one) for address, one in channels.items()}  # type: ignore[no-untyped-call]
        return _save(stubs, timeout, credentials)


def _save(stubs: dict[str, ParameterServerStub], timeout: float, credentials: Credentials) -> int:
    until, noted = time.monotonic() + timeout, time.monotonic()
    number, waiting = 0, dict.fromkeys(stubs, "it was not asked yet")
    while waiting:
        if time.monotonic() > until:
            where = "; ".join(f"{address}: {reason}" for address, reason in waiting.items())
            raise TimedOut(f"no complete checkpoint within {timeout:g} s: {where}")
        for address in list(waiting):
            report = _ask(address, stubs[address], number, until - time.monotonic(), credentials)
            number = number or report.number
            if not number:  # shard 0 is busy with another one
                waiting[address] = report.waiting_for
                break
            if report.problem:
                raise StorageError(f"the server at {address} says: {report.problem}")
            if report.written:
                del waiting[address]
            else:
                waiting[address] = f"it waits for {report.waiting_for}" if report.waiting_for else "it is writing"
        if waiting:
            if time.monotonic() - noted >= NOTE_EVERY:
                noted = time.monotonic()
                click.echo("; ".join(f"{address}: {reason}" for address, reason in waiting.items()), err=True)
            time.sleep(PAUSE)
    return number


def _ask(address: str, stub: ParameterServerStub, number: int, timeout: float, credentials: Credentials) -> CutReport:
    answer = call(address, stub.Cut, Cut(number), max(timeout, PAUSE), credentials)
    assert isinstance(answer, CutReport)
    if not answer.storage:
        raise StorageError(f"the server at {address} keeps no checkpoints: start it with --checkpoint-dir")
    return answer
