"""Asks the shards of a job for their status, all at once; one that does not answer keeps none of the others waiting.

May import pswire and grpc.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import grpc

from psserver.cli.job_status import ShardAnswer
from pswire.channel import error_from, open_channel
from pswire.codec import decode, encode
from pswire.errors import Malformed
from pswire.messages import Status, StatusReport
from pswire.tensors.inline import InlineReceiver, InlineSender
from pswire.v1.paramserver_pb2_grpc import ParameterServerStub


class Shards:
    """Connections to some servers, kept from one question to the next. A context manager."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._open = ExitStack()
        self._stubs = [
            ParameterServerStub(self._open.enter_context(open_channel(address)))  # type: ignore[no-untyped-call]
            for address in addresses
        ]

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Closes the connections; what is still being asked is broken off."""
        self._open.close()

    def ask(self, timeout: float) -> list[ShardAnswer]:
        """What each says within `timeout` seconds, in the order of the addresses. Raises nothing of its own."""
        calls = [stub.Status.future(encode(Status(), InlineSender()), timeout=timeout) for stub in self._stubs]
        return [_answer(address, call) for address, call in zip(self._addresses, calls, strict=True)]


def _answer(address: str, call: Any) -> ShardAnswer:  # noqa: ANN401 - grpc has no types
    try:
        report = decode(call.result(), InlineReceiver())
    except grpc.RpcError as error:
        return ShardAnswer(address, problem=str(error_from(error, address)))
    except Malformed as error:
        return ShardAnswer(address, problem=f"what {address} says is no status; is it of another version? {error}")
    assert isinstance(report, StatusReport)
    return ShardAnswer(address, report)
