"""The servers of a job, as a monitor calls them: for their status, and to check the tokens of viewers."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import grpc

from pswire.channel import error_from, open_channel
from pswire.codec import encode
from pswire.errors import ParamServerError, PermissionDenied, Unauthenticated, Unavailable
from pswire.job_status import JobStatus
from pswire.messages import Status
from pswire.security.credentials import Credentials
from pswire.status_client import StatusClient
from pswire.tensors.transport import InlineSender
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub

#: Seconds for the answer of a server about a token.
TIMEOUT = 2.0

#: A status without variables.
_SMALL = Status(first_variable=1 << 40)


class JobServers:
    """The servers at `addresses`, in the order of their shards, and the monitor's own `credentials`.

    `known_callers`: viewers without a token are refused also if the servers want none. Any thread may call.
    """

    def __init__(self, addresses: Sequence[str], credentials: Credentials, *, known_callers: bool = False) -> None:
        self._addresses, self._credentials, self._known_callers = addresses, credentials, known_callers
        self._client = StatusClient(addresses, credentials)

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
            calls = [
                self._status(stack.enter_context(open_channel(one, self._credentials, token)))
                for one in self._addresses
            ]
            for address, call in zip(self._addresses, calls, strict=True):
                try:
                    call.result()
                except grpc.RpcError as refusal:
                    error: ParamServerError = error_from(refusal, address, self._credentials)
                    if refusal.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                        raise error from None
                    problems.append(str(error))
                else:
                    return
        raise Unavailable(f"no server of the job answers: {'; '.join(problems)}")

    def _status(self, channel: grpc.Channel) -> Any:  # noqa: ANN401 - grpc has no types
        stub = ParameterServerStub(channel)  # type: ignore[no-untyped-call]
        return stub.Status.future(encode(_SMALL, InlineSender()), timeout=TIMEOUT)
