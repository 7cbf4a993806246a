"""A server that runs, for what else its process serves, such as the live page: its status, callers, and readiness."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from psserver.config import ServerConfig
from psserver.measurements import Measurements
from psserver.rpc.access import Access
from psserver.runtime.executor import Executor
from pswire.errors import TimedOut
from pswire.messages import Status, StatusReport

#: Seconds that the event loop has for a look at a token, or to show that it runs.
TIMEOUT = 5.0

_Result = TypeVar("_Result")


class RunningServer:
    """A server whose calls are answered at `address`. Any thread but the event loop's may call.

    Calls raise `TimedOut` if the event loop does not answer in time.
    """

    def __init__(self, config: ServerConfig, address: str, executor: Executor, access: Access | None) -> None:
        self.config, self.address = config, address
        self._executor, self._access = executor, access
        self._loop = asyncio.get_running_loop()
        self.draining = False

    @property
    def measurements(self) -> Measurements:
        """The measurements of the server."""
        return self._executor.measurements

    @property
    def event_counts(self) -> dict[str, int]:
        """Its events by kind."""
        return self._executor.events.counts.copy()

    def status(self, timeout: float, *, detail: bool = True) -> StatusReport:
        """The status of the shard, with its details or without. Raises what the shard does."""
        report = self._call(lambda: self._executor.step(Status(detail=detail)), timeout)
        assert isinstance(report, StatusReport)
        return replace(report, exposure=self.config.exposure)

    def check_observer(self, token: str) -> None:
        """Raise `Unauthenticated` or `PermissionDenied` unless this token, "" for none, allows reading the status."""
        self._call(lambda: self._check(token), TIMEOUT)

    def problem(self) -> str:
        """Why it is not ready, "" if it is: it stops, or its event loop is held up."""
        if self.draining:
            return "the server is stopping"
        try:
            self._call(lambda: asyncio.sleep(0), TIMEOUT)
        except TimedOut as error:
            return str(error)
        return ""

    async def _check(self, token: str) -> None:
        if self._access is not None:
            self._access.caller([("authorization", f"Bearer {token}")] if token else []).check("Status")

    def _call(self, begin: Callable[[], Awaitable[_Result]], timeout: float) -> _Result:
        """The result of what `begin` begins in the event loop."""

        async def run() -> _Result:
            return await begin()

        call: Future[_Result] = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return call.result(timeout)
        except TimeoutError:
            call.cancel()
            raise TimedOut(
                f"the event loop of the server at {self.address} does not answer within {timeout:g} s"
            ) from None
