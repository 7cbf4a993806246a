"""How a worker's messages reach the shards: one contract, `network` (gRPC) and `embedded` (the shard in this process).

A transport delivers; it does not retry, number or split messages: that is the client's. May import messages.
"""

from __future__ import annotations

from typing import Protocol

from pswire.messages import Answer, Request


class Transport(Protocol):
    """Calls to a fixed list of shards."""

    @property
    def shards(self) -> int:
        """How many shards there are; they have the numbers 0 to `shards` - 1."""

    def call(self, shard: int, message: Request, timeout: float) -> Answer:
        """Sends `message` to a shard and waits for the answer, `timeout` seconds at most. Any thread may call.

        The message's arrays are borrowed until the call returns; the answer's arrays belong to the caller, who may
        find them read-only.

        Raises:
            ParamServerError: the shard's own, or `Unavailable` or `TimedOut`; then it is not known whether the
                shard took the message.
        """

    def close(self) -> None:
        """Ends every connection; calls that still wait fail."""
