"""A push that is sent while its gradients are computed. Sends by the transport alone, without retries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pswire import messages as ms
from pswire.tensors.values import Array
from psworker.transport import BegunCall
from psworker.versions import VersionedArray


class BegunPush:
    """A push whose headers have been sent to all shards, and whose gradients follow as they are there.

    No shard applies its part before `finish`, which only the same push completes. `gradients` are those of the
    `messages`: their arrays are the memory from which they are sent. `begin` begins the call to a shard.

    Attributes:
        finished: whether a push has completed it.
        reason: why it was taken back; "": it was not.
    """

    def __init__(
        self,
        messages: Mapping[int, ms.Push | ms.Pull],
        gradients: Sequence[VersionedArray],
        begin: Callable[[int, ms.Push], BegunCall | None],
    ) -> None:
        self.finished, self.reason = False, ""
        self._messages = messages
        self._arrays = {one.name: one.array for one in gradients if isinstance(one.array, np.ndarray)}
        self._there: set[str] = set()  # gradients that were sent
        #: By shard, the gradients with elements that are not sent yet, in order; the last one is held back.
        self._names: dict[int, list[str]] = {}
        self._calls: dict[int, BegunCall] = {}
        for shard, message in messages.items():
            if not isinstance(message, ms.Push) or not any(_nbytes(one) for one in message.gradients):
                continue
            call = begin(shard, message)
            if call is None:
                self.take_back(f"shard {shard} has no direct connection")
                return
            self._calls[shard], self._names[shard] = call, [one.name for one in message.gradients if _nbytes(one)]

    def send(self, name: str, array: Array) -> None:
        """Sends a gradient, which is copied. A second one of a variable takes the push back."""
        if name in self._there:
            self.take_back(f"the gradient of {name!r} was computed twice")
        if not self._calls:
            return
        np.copyto(self._arrays[name], array)
        self._there.add(name)
        for shard, call in self._calls.items():
            names = self._names[shard]
            call.send(next((count for count, one in enumerate(names) if one not in self._there), len(names)))

    def take_back(self, reason: str = "nothing was pushed") -> None:
        """Has no shard apply its part; without effect once it is finished, or taken back."""
        if self._calls:
            self.reason = reason
        while self._calls:
            self._calls.popitem()[1].take_back()

    def finish(self, messages: Mapping[int, ms.Push | ms.Pull]) -> dict[int, BegunCall]:
        """The calls to complete for these messages, by shard; {} if they are others, and it is taken back."""
        if self._calls and (difference := self._difference(messages)):
            self.take_back(difference)
        self.finished = bool(self._calls)
        calls, self._calls = self._calls, {}
        return calls

    def _difference(self, messages: Mapping[int, ms.Push | ms.Pull]) -> str:
        """How messages differ from those that were begun; "": not at all."""
        if not all(call.is_active() for call in self._calls.values()):
            return "a server has refused it, or it took too long"
        if [*map(_without_gradients, messages.values())] != [*map(_without_gradients, self._messages.values())]:
            return "the loss, the weights or the progress are others"
        for shard, message in messages.items():
            begun, now = _gradients(self._messages[shard]), _gradients(message)
            for name in begun.keys() | now.keys():
                if name not in begun or name not in now or not _is_same(begun[name], now[name]):
                    return f"the gradient of {name!r} is not that of the backward pass"
        return ""


def _nbytes(gradient: ms.Gradient) -> int:
    return gradient.array.nbytes


def _without_gradients(message: ms.Push | ms.Pull) -> ms.Push | ms.Pull:
    return replace(message, gradients=()) if isinstance(message, ms.Push) else message


def _gradients(message: ms.Push | ms.Pull) -> dict[str, ms.Gradient]:
    return {one.name: one for one in message.gradients} if isinstance(message, ms.Push) else {}


def _is_same(one: ms.Gradient, other: ms.Gradient) -> bool:
    """True if they are of the same weights and have the same bits."""
    array, others = one.array, other.array
    if one.version != other.version or not isinstance(array, np.ndarray) or not isinstance(others, np.ndarray):
        return False
    bits = f"u{array.itemsize}"
    return np.array_equal(array.view(bits), others.view(bits))
