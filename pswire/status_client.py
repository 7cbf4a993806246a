"""Asks the shards of a job for their status, all at once; a silent shard does not delay the others."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import grpc

from pswire.channel import error_from, open_channel
from pswire.codec import decode, encode
from pswire.errors import Malformed
from pswire.job_status import JobStatus, ShardAnswer, merge_reports
from pswire.messages import Status, StatusReport
from pswire.security.credentials import NO_CREDENTIALS, Credentials
from pswire.tensors.transport import InlineReceiver, InlineSender
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub


class StatusClient(ExitStack):
    """Connections to the servers of a job. A context manager, whose end cancels calls under way."""

    def __init__(self, addresses: Sequence[str], credentials: Credentials = NO_CREDENTIALS) -> None:
        super().__init__()
        self._addresses, self._credentials = addresses, credentials
        channels = [self.enter_context(open_channel(address, credentials)) for address in addresses]
        self._stubs = [ParameterServerStub(channel) for channel in channels]  # type: ignore[no-untyped-call]

    def ask(self, timeout: float, *, detail: bool = False) -> JobStatus:
        """The status of the job, from all shards that answer within `timeout` seconds. Does not raise.

        `detail`: their reports have it.
        """
        request = encode(Status(detail=detail), InlineSender())
        calls = [stub.Status.future(request, timeout=timeout) for stub in self._stubs]
        answers = zip(self._addresses, calls, strict=True)
        return merge_reports([_answer(address, call, self._credentials) for address, call in answers])


def _answer(address: str, call: Any, credentials: Credentials) -> ShardAnswer:  # noqa: ANN401 - grpc has no types
    try:
        report = decode(call.result(), InlineReceiver())
    except grpc.RpcError as error:
        problem = str(error_from(error, address, credentials))
        return ShardAnswer(address, problem=problem if address in problem else f"{address}: {problem}")
    except Malformed as error:
        return ShardAnswer(address, problem=f"the answer of {address} is not a status; is it another version? {error}")
    assert isinstance(report, StatusReport)
    return ShardAnswer(address, report)
