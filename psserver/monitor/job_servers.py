"""The servers of a job, as a monitor calls them: for their status, and to check the tokens of viewers."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import grpc

from psjob.status.job_status import JobStatus
from psjob.status.status_client import StatusClient
from pswire.codec import encode
from pswire.errors import ParamServerError, PermissionDenied, Unauthenticated, Unavailable
from pswire.network.channel import error_from, open_channel
from pswire.network.service_stub import ServiceStub
from pswire.network.shard_numbers import BRIEF_STATUS
from pswire.security.credentials import Credentials
from pswire.tensors.transport import InlineSender

#: Seconds for the answer of a server about a token.
TIMEOUT = 2.0


class JobServers:
    """The `servers` (`pswire.network.discovery.parse_servers`), and the monitor's own `credentials`.

    `known_callers`: viewers without a token are refused also if the servers want none. Any thread may call.
    """

    def __init__(self, servers: Sequence[str], credentials: Credentials, *, known_callers: bool = False) -> None:
        self._known_callers = known_callers
        self._client = StatusClient(servers, credentials)

    def ask(self, timeout: float) -> JobStatus:
        """The status with details, from all shards that answer within `timeout` seconds. Does not raise."""
        return self._client.ask(timeout, detail=True)

    def close(self) -> None:
        """End all calls of `ask`."""
        self._client.close()

    def check(self, token: str) -> None:
        """Check the token of a viewer, "" for none, by asking for a status with it.

        Raises:
            Unauthenticated, PermissionDenied: the servers refuse it.
            Unavailable: none of them answers.
        """
        if self._known_callers and self._accepts(""):
            raise PermissionDenied(
                "the servers of this job want no tokens, so viewers of other machines cannot be told apart: give the "
                "servers a --token-file, or start the monitor with --insecure"
            )
        self._check(token)

    def _accepts(self, token: str) -> bool:
        try:
            self._check(token)
        except (Unauthenticated, PermissionDenied):
            return False
        return True

    def _check(self, token: str) -> None:
        """Ask all servers at once; the first one that knows decides."""
        problems = []
        with ExitStack() as stack:
            credentials, addresses = self._client.credentials, list(filter(None, self._client.addresses.current))
            calls = [self._status(stack.enter_context(open_channel(one, credentials, token))) for one in addresses]
            for address, call in zip(addresses, calls, strict=True):
                try:
                    call.result()
                except grpc.RpcError as refusal:
                    error: ParamServerError = error_from(refusal, address, credentials)
                    if refusal.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                        raise error from None
                    problems.append(str(error))
                else:
                    return
        known = "; ".join(problems) or self._client.addresses.problem
        raise Unavailable(f"no server of the job answers: {known}")

    def _status(self, channel: grpc.Channel) -> Any:  # noqa: ANN401 - grpc has no types
        stub = ServiceStub(channel)
        return stub.Status.future(encode(BRIEF_STATUS, InlineSender()), timeout=TIMEOUT)
