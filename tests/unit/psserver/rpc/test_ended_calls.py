"""Calls whose callers are gone when their refusal is sent, or when the server stops: they end without a traceback."""

import asyncio
from functools import partial

import grpc
import grpc.aio

from psserver.rpc.access import Access
from psserver.rpc.call_errors import CallErrors
from pswire.errors import Malformed
from pswire.security.token_files import Role, add_token


class Context:
    """The context of a call whose `abort` raises an error, as gRPC does when the call has ended."""

    def __init__(self, error):
        self.error, self.aborted = error, []

    def peer(self):
        return ""

    def invocation_metadata(self):
        return ()

    def cancelled(self):
        return False

    async def abort(self, *status):
        self.aborted.append(status[0])
        raise self.error


async def refused(frames, context):
    raise Malformed("no message")


def failing(error):
    async def serve(frames, context):
        raise error

    return serve


def end_of(serve, error):
    """The exception by which a handler ends, and the statuses it has tried to send."""
    context = Context(error)
    try:
        asyncio.run(CallErrors().run(serve, None, context))
    except (grpc.aio.BaseError, asyncio.CancelledError) as raised:
        return type(raised), context.aborted
    return None, context.aborted


GONE = grpc.aio.InternalError('Failed "execute_batch"')


def test_a_call_that_ends_while_its_refusal_is_sent_is_cancelled_since_grpc_logs_other_errors():
    assert end_of(refused, GONE) == (asyncio.CancelledError, [grpc.StatusCode.INVALID_ARGUMENT])
    sent = grpc.aio.AbortError("Locally aborted.")
    assert end_of(refused, sent) == (grpc.aio.AbortError, [grpc.StatusCode.INVALID_ARGUMENT])


def test_a_call_that_ends_while_it_is_served_is_cancelled_and_a_mistake_of_ours_is_not():
    assert end_of(failing(GONE), None) == (asyncio.CancelledError, [])
    assert end_of(failing(grpc.aio.UsageError("written after its end")), None) == (grpc.aio.UsageError, [])
    assert end_of(failing(grpc.aio.AbortError("unknown service")), None) == (grpc.aio.AbortError, [])


def test_a_caller_without_a_token_that_is_gone_when_it_is_refused_is_cancelled_too(tmp_path):
    add_token(tmp_path / "tokens", "a", Role.WORKER)
    serve = partial(Access(tmp_path / "tokens").serve, "Status", refused)
    assert end_of(serve, GONE) == (asyncio.CancelledError, [grpc.StatusCode.UNAUTHENTICATED])
