"""Asks the shards of a job for their status, all at once; a silent shard does not delay the others."""

import time
from typing import Any

import grpc

from psjob.status.job_status import JobStatus, ShardAnswer, merge_reports
from pswire.codec import decode, encode
from pswire.errors import Malformed
from pswire.messages import Status, StatusReport
from pswire.network.channel import error_from
from pswire.network.shard_stubs import ShardStubs
from pswire.security.credentials import Credentials
from pswire.system.interrupts import cut_short_by_signals, deferred_signals
from pswire.tensors.transport import InlineReceiver, InlineSender


class StatusClient(ShardStubs):
    """Asks the servers of a job for its status; looks for shards that do not answer at other addresses.

    A context manager, whose end cancels calls under way.
    """

    def ask(self, timeout: float, *, detail: bool = False) -> JobStatus:
        """The status of the job, from all shards that answer within `timeout` seconds. Does not raise.

        `detail`: their reports have it. With a name instead of addresses, half of the time is for finding shards of
        which the address is not known.
        """
        began, name = time.monotonic(), self.addresses.name
        addresses = self.addresses.look(timeout / 2)
        if not addresses:
            return merge_reports([ShardAnswer(name, problem=self.addresses.problem)])
        request = encode(Status(detail=detail), InlineSender())
        left = timeout - (time.monotonic() - began)
        with deferred_signals:
            calls = [self.at(one).Status.future(request, timeout=left) if one else None for one in addresses]
            with cut_short_by_signals(*filter(None, calls)):
                pairs = enumerate(zip(addresses, calls, strict=True))
                answers = [self._answer(shard, address, call) for shard, (address, call) in pairs]
        return merge_reports(answers)

    def _answer(self, shard: int, address: str, call: Any) -> ShardAnswer:  # noqa: ANN401 - grpc has no types
        """What a call has given; one to no address is None. A shard that has not answered is looked for again."""
        if call is None:
            return ShardAnswer(self.addresses.name, problem=f"shard {shard}: {self.addresses.problem}")
        answer = _answer(address, call, self.credentials)
        if answer.report is None:
            self.addresses.look_again(shard)
        return answer


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
