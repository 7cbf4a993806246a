"""The end of calls: errors become gRPC statuses, and connections whose calls fail again and again are slowed down.

A refusal costs the server about as much as a call. So a refused call of such a connection is answered after a pause,
and counts meanwhile: gRPC limits the calls of a connection (`pswire.network.channel`).
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NoReturn

import grpc.aio

from psserver.measurements import Measurements
from psserver.rpc.connections import disconnect
from pswire.errors import InternalError, ParamServerError
from pswire.network.channel import status_of

#: Refusals of a connection that are answered at once, and seconds by which each further one waits longer, up to a most.
#: One refusal is forgotten each second.
FREE_REFUSALS, PAUSE, MAX_PAUSE = 5, 0.5, 10.0

#: Seconds in which gRPC notices that a connection was shut down; until then it would log an error.
SECONDS_TO_NOTICE = 0.2

#: Connections whose refusals are counted; those refused last.
MAX_CONNECTIONS = 10_000

log = logging.getLogger(__name__)


class CallErrors:
    """Runs the handlers of calls; all methods are called in the event loop. Refused calls are counted."""

    def __init__(self, measurements: Measurements | None = None) -> None:
        self._measurements = measurements or Measurements()
        self._refusals: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by connection: count, when
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all pauses."""
        self._closing.set()

    async def run(
        self,
        serve: Callable[[Any, grpc.aio.ServicerContext], Awaitable[None]],
        frames: Any,  # noqa: ANN401 - gRPC's iterator of a stream
        context: Any,  # noqa: ANN401 - gRPC's, or a direct connection
        refuse: Callable[[tuple[Any, ...]], Awaitable[None]] | None = None,
    ) -> None:
        """Serve a call; an error ends it with its status, message and name, by `refuse` if it is not gRPC's.

        The error's frames refer to all that came with the call, and are in a reference cycle with it, as the exception
        of `abort` is with gRPC's context. So its traceback and its cause's are dropped first, or that
        memory would stay until a garbage collection.
        """
        try:
            await serve(frames, context)
            return
        except ParamServerError as error:
            log.info("refused %s: %s: %.500s", context.peer(), type(error).__name__, error)
            self._measurements.refuse(error)
            refusal = status_of(error)
            error.__traceback__ = error.__context__ = None
        except grpc.aio.BaseError as error:
            raise _end_of(error) from None
        except Exception as fault:
            reference = secrets.token_hex(4)
            log.exception("internal error %s, on a call of %s", reference, context.peer())
            text = f"the server failed on this message: please report it, with entry {reference} of its log"
            self._measurements.refuse(fault)
            refusal = status_of(InternalError(text))
            fault.__traceback__ = fault.__context__ = None
        if pause := self._pause(context.peer(), asyncio.get_running_loop().time()):
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closing.wait()
        await (end_call(context, refusal) if refuse is None else refuse(refusal))

    def _pause(self, peer: str, now: float) -> float:
        """Count a refusal; the seconds to wait before it is answered."""
        if not peer.startswith(("ipv4:", "ipv6:")):  # of a Unix socket: all connections have one name
            return 0.0
        count, last = self._refusals.pop(peer, (0.0, now))
        count = max(0.0, count - (now - last)) + 1
        self._refusals[peer] = count, now
        if len(self._refusals) > MAX_CONNECTIONS:
            self._refusals.popitem(last=False)
        return min(MAX_PAUSE, PAUSE * max(0.0, count - FREE_REFUSALS))


async def end_call(context: grpc.aio.ServicerContext, refusal: tuple[Any, ...]) -> NoReturn:
    """End a call with what `status_of` returns; its caller may end it at this moment."""
    try:
        await context.abort(*refusal)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as error:  # it has ended, or a frame of its answer still waits for the peer to read
        if not context.cancelled() and disconnect(context.peer()):
            log.info("disconnected %s, which does not read its answer", context.peer())
            await asyncio.sleep(SECONDS_TO_NOTICE)
        raise _end_of(error) from None
    raise AssertionError("abort always raises")


def _end_of(error: Exception) -> BaseException:
    """The exception by which the handler of a call ends: cancellation, if the call or the server has ended.

    gRPC logs any other with its traceback, unless it knows already that the caller has gone.
    """
    ours = isinstance(error, grpc.aio.AbortError | grpc.aio.UsageError)
    return error if ours else asyncio.CancelledError()
