"""The push of one step to all shards that take part in it, and its result.

Shard 0 gets every push, since it counts steps; another shard gets one if it holds a partition of a gradient, or a pull
if only of the values asked for. Where a policy may hold or drop a push, shard 0 decides and the others follow. May
import placement, partitions, retrying_calls, error_feedback and messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pswire.errors import InvalidMessage, NotFinite, ParamServerError
from pswire.messages import Answer, Gradient, Outcome, Pull, Pulled, Push, Pushed, RemoteWeights, UpdateGroup
from pswire.tensors.compression import Packed
from pswire.tensors.values import IndexedSlices
from psworker.client import partitions
from psworker.client.error_feedback import GradientEncoder
from psworker.client.placement import Placement
from psworker.client.pull import ShardedPull
from psworker.client.retrying_calls import RetryingCalls
from psworker.transport import Future
from psworker.versions import VersionedArray

_ANSWERS: tuple[type[Pushed | Pulled], ...] = (Pushed, Pulled)


@dataclass(slots=True)
class PushResult:
    """The result of a push.

    Attributes:
        outcome, global_step, reason: those of shard 0's answer.
        staleness: the largest of all shards.
        values: of the variables that were pulled, in their order.
    """

    outcome: Outcome
    staleness: int
    global_step: int
    values: list[VersionedArray]
    reason: str


class ShardedPush:
    """The pushes of one worker, one at a time.

    Args:
        calls: RPCs to the shards.
        encoder: of gradients.

    Attributes:
        decides: whether shard 0 decides for the others whether a push is applied.
        orders: whether the others make changes in the order of shard 0's decisions (`pswire.messages.order`).
        observed: variables that keep a moving average. Observations for them are not gradients and are not encoded: a
            residual of one observation is no part of the next.
    """

    def __init__(self, calls: RetryingCalls, encoder: GradientEncoder) -> None:
        self.decides = self.orders = False
        self.observed: set[str] = set()
        self._calls = calls
        self._encoder = encoder

    def messages(
        self,
        placement: Placement,
        sequence: int,
        gradients: Iterable[VersionedArray],
        loss: float | None,
        pull: ShardedPull,
    ) -> list[Push | Pull | None]:
        """The message for each shard: a push, a pull if it gets no gradient, None if it takes no part.

        Shapes, dtypes and names are checked before the first gradient is encoded.

        Raises:
            ShapeMismatch: a gradient does not fit its variable.
            InvalidMessage: a gradient's versions are not those of the variable's partitions.
            NotFinite: an element is too large for 16 bits, which only one of several shards would refuse.
        """
        parts: dict[int, list[Gradient]] = {}
        remote: list[RemoteWeights] = []
        for gradient in gradients:
            name, read, array, variable = gradient.name, gradient.read, gradient.array, placement[gradient.name]
            if not variable.spec.matches(array):
                variable.check(array, "gradient")  # raises
            if len(read.versions) != len(variable.partitions):
                raise InvalidMessage(
                    f"gradient for {name!r} has {len(read.versions)} versions, but the variable has "
                    f"{len(variable.partitions)} partitions: give the versions of the value it was computed with"
                )
            arrays = [array] if len(read.versions) == 1 else partitions.split_gradient(variable, array)
            for partition, version, part in zip(variable.partitions, read.versions, arrays, strict=True):
                parts.setdefault(partition.shard, []).append(Gradient(name, version, part))
            if self.orders and variable.partitions[-1].shard:
                remote.append(RemoteWeights(name, read.served_at or 0))
        encoding = self._encoder.encoding
        if encoding or self._encoder.keeps_residual:
            for shard, part_of_shard in sorted(parts.items()):
                for index, one in enumerate(part_of_shard):
                    if one.name not in self.observed:
                        part_of_shard[index] = self._encoder.encode(shard, one)
                if encoding and placement.shards > 1:
                    check_encoded(part_of_shard)
        sender, step = self._calls.sender, self._calls.global_step
        shards = tuple(sorted(parts.keys() - {0}))
        messages: list[Push | Pull | None] = []
        for shard in range(placement.shards):
            names, known = tuple(pull.names.get(shard, ())), tuple(pull.known_versions.get(shard, ()))
            mine = tuple(parts.get(shard, ()))
            if not shard:
                messages.append(Push(sender, sequence, mine, loss, names, None, known, encoding, shards, tuple(remote)))
            elif mine:
                messages.append(
                    Push(sender, sequence, mine, loss, names, None, known, encoding, shards, global_step=step)
                )
            else:
                messages.append(Pull(sender, names, known_versions=known, encoding=encoding) if names else None)
        return messages

    def start(self, messages: Sequence[Push | Pull | None], pull: ShardedPull) -> Future[PushResult]:
        """Sends the messages, or only that of shard 0 where it decides; the future's result sends the others."""
        if self.decides:
            sent = self._calls.send(messages[:1], pull.rejoins)
            return Future(partial(self._decided, sent, messages, pull))
        sent = self._calls.send(messages, pull.rejoins)
        return Future(partial(self._independent, sent, messages, pull))

    def _independent(
        self, sent: Mapping[int, Future[Answer]], messages: Sequence[Push | Pull | None], pull: ShardedPull
    ) -> PushResult:
        """The result of a push that was sent to all shards at the same time."""
        failed: list[int] = []
        try:
            answers = self._calls.results(sent, _ANSWERS, failed)
        except ParamServerError:
            pushes = {shard: message for shard, message in enumerate(messages) if isinstance(message, Push)}
            missing = [shard for shard in pushes if shard in failed]
            if 0 < len(missing) < len(pushes):
                self._calls.count_half_push(missing)
                self._calls.abandon(missing, pushes[missing[0]].sequence)
            raise
        return _result(answers, pull)

    def _decided(
        self, sent: Mapping[int, Future[Answer]], messages: Sequence[Push | Pull | None], pull: ShardedPull
    ) -> PushResult:
        """The result of a push that shard 0 decides; the others are sent its decision.

        If that fails the push is abandoned, and so reported to the other shards, which may wait for it.
        """
        calls, push = self._calls, messages[0]
        assert isinstance(push, Push)
        try:
            (decision,) = calls.results(sent, Pushed)
        except ParamServerError:
            if self.orders:
                calls.abandon(push.shards, push.sequence)  # it may have been decided all the same
            raise
        failed: list[int] = []
        try:
            others = calls.results(calls.send(self._following(messages, decision), pull.rejoins), _ANSWERS, failed)
        except ParamServerError:
            missing = [shard for shard in push.shards if shard in failed]
            if missing and decision.outcome is not Outcome.DROPPED:
                calls.count_half_push(missing)
                calls.abandon(missing, push.sequence)
            raise
        parts = [answer for answer in others if isinstance(answer, Pushed)]
        late = [shard for shard, part in zip(push.shards, parts, strict=False) if part.outcome is Outcome.DROPPED]
        if late:
            calls.warn_of_half_push(late)  # these shards count it
        return _result([decision, *others], pull)

    def _following(self, messages: Sequence[Push | Pull | None], decision: Pushed) -> list[Push | Pull | None]:
        """The messages to the other shards after shard 0's decision: of a push that it dropped only pulls."""
        following: list[Push | Pull | None] = [None]
        for shard, message in enumerate(messages[1:], 1):
            if isinstance(message, Push) and decision.outcome is Outcome.DROPPED:
                names = message.pull
                message = (
                    Pull(message.sender, names, known_versions=message.known_versions, encoding=message.encoding)
                    if names
                    else None
                )
            if isinstance(message, Push):
                group, step = _on_shard(decision.group, shard), max(0, decision.global_step - 1)
                message = replace(message, group=group, global_step=step)
            following.append(message)
        if self.orders:
            return self._calls.in_order(following)
        return following


def _result(answers: Sequence[Pushed | Pulled], pull: ShardedPull) -> PushResult:
    """The answers of all shards that took part, the first of them shard 0's, as one result."""
    first = answers[0]
    assert isinstance(first, Pushed)
    staleness = first.staleness
    for answer in answers:
        if isinstance(answer, Pushed) and answer.staleness > staleness:
            staleness = answer.staleness
    served_at = first.frontier.decided if first.frontier else None
    return PushResult(first.outcome, staleness, first.global_step, pull.joined(answers, served_at), first.reason)


def _on_shard(group: UpdateGroup | None, shard: int) -> UpdateGroup | None:
    """The group as another shard knows it: those of its members that have a partition there."""
    if group is None:
        return None
    members = tuple([replace(member, shards=()) for member in group.members if shard in member.shards])
    return UpdateGroup(group.number, members)


def check_encoded(gradients: Iterable[Gradient]) -> None:
    """Raises `NotFinite`, naming the variable, for elements that were finite until they were encoded."""
    for gradient in gradients:
        array = gradient.array
        packed: object = array.values if isinstance(array, IndexedSlices) else array
        if isinstance(packed, Packed):
            try:
                packed.check()
            except FloatingPointError:
                raise NotFinite(
                    f"gradient for {gradient.name!r} has elements that are too large for {packed.form}: nothing was "
                    "sent; clip gradients, or choose another encoding"
                ) from None
