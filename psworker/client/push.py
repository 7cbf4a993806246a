"""The push of one step over all shards that have something to do for it.

Shard 0 gets every push, since it counts steps; others those that bring them a gradient, or ask them for values. Where a
policy may hold or drop a push, shard 0 decides and the others follow. May import placement, pieces, calls, feedback and
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pswire.errors import ParamServerError
from pswire.messages import Gradient, Outcome, Pull, Pulled, Push, Pushed, RemoteWeights, UpdateGroup
from psworker.client import partitions
from psworker.client.error_feedback import Packer
from psworker.client.placement import Placement, Whole
from psworker.client.pull import ShardedPull
from psworker.client.push_results import PushResult, push_result
from psworker.client.retrying_calls import Handle, RetryingCalls, Sent

_ANSWERS: tuple[type[Pushed | Pulled], ...] = (Pushed, Pulled)


class ShardedPush:
    """How one worker pushes. One push is open at a time.

    Args:
        calls: speaks to the shards.
        packer: what becomes of gradients before they travel.

    Attributes:
        decides: whether shard 0 decides for the others what becomes of a push.
        orders: whether the others make changes in the order of its decisions (`pswire.messages.order`).
        observed: variables that keep a moving average. What is pushed for them is no gradient, and goes as it is: what
            a packer kept back of one observation is no part of the next.
    """

    def __init__(self, calls: RetryingCalls, packer: Packer) -> None:
        self.decides = self.orders = False
        self.observed: set[str] = set()
        self._calls = calls
        self._packer = packer

    def messages(
        self, placement: Placement, sequence: int, gradients: Sequence[Whole], loss: float | None, wanted: ShardedPull
    ) -> list[Push | Pull | None]:
        """What each shard is asked for: a push, a pull where it has no gradient, None where it has nothing to do.

        Shapes, dtypes and names are checked before the first gradient is packed.

        Raises:
            ShapeMismatch: a gradient does not fit its variable.
            NotFinite: of several shards, one would refuse what is too large for 16 bits, and others would not.
        """
        parts: list[list[Gradient]] = [[] for _ in wanted.names]
        remote: list[RemoteWeights] = []
        for gradient in gradients:
            variable = placement[gradient.name]
            for piece, part in zip(variable.pieces, partitions.split_gradient(variable, gradient), strict=True):
                parts[piece.shard].append(part)
            if self.orders and variable.pieces[-1].shard:
                remote.append(RemoteWeights(gradient.name, gradient.served_at or 0))
        if self._packer.encoding or self._packer.keeps_rest:
            parts = [[self._packed(shard, gradient) for gradient in part] for shard, part in enumerate(parts)]
        shards = tuple([shard for shard, part in enumerate(parts) if shard and part])
        sender, encoding, step = self._calls.sender, self._packer.encoding, self._calls.global_step
        messages: list[Push | Pull | None] = []
        for shard, gradients_here in enumerate(parts):
            names, known_versions = wanted.names[shard], wanted.known_versions[shard]
            if gradients_here or not shard:
                messages.append(
                    Push(
                        sender,
                        sequence,
                        tuple(gradients_here),
                        loss,
                        names,
                        known_versions=known_versions,
                        encoding=encoding,
                        shards=shards,
                        remote=() if shard else tuple(remote),
                        global_step=step if shard else 0,
                    )
                )
            else:
                messages.append(
                    Pull(sender, names, known_versions=known_versions, encoding=encoding) if names else None
                )
        if encoding and len(parts) > 1:
            for message in messages:
                if isinstance(message, Push):
                    partitions.check_packed(message.gradients)
        return messages

    def start(self, messages: Sequence[Push | Pull | None], wanted: ShardedPull) -> Handle[PushResult]:
        """Sends them; the result is there when `wait` returns, or raises."""
        if self.decides:
            first = self._calls.send(messages[:1], wanted.rejoins)
            return Handle(lambda: self._decided(first, messages, wanted))
        sent = self._calls.send(messages, wanted.rejoins)
        return Handle(lambda: self._at_once(sent, wanted))

    def _packed(self, shard: int, gradient: Gradient) -> Gradient:
        return gradient if gradient.name in self.observed else self._packer.gradient(shard, gradient)

    def _at_once(self, sent: Sequence[Sent], wanted: ShardedPull) -> PushResult:
        """The result of a push of which all shards were told at the same time."""
        failed: list[int] = []
        try:
            answers = self._calls.results(sent, _ANSWERS, failed)
        except ParamServerError:
            pushes = {one.shard: one.message for one in sent if isinstance(one.message, Push)}
            missing = [shard for shard in pushes if shard in failed]
            if 0 < len(missing) < len(pushes):
                self._calls.note_half_push(missing)
                self._calls.settle(missing, pushes[missing[0]].sequence)
            raise
        return self._result(answers, wanted)

    def _decided(
        self, first: Sequence[Sent], messages: Sequence[Push | Pull | None], wanted: ShardedPull
    ) -> PushResult:
        """The result of a push of which shard 0 was told: the others do what it has decided.

        When that fails, the push is given up. Others may wait for this worker's part of it, and are told so.
        """
        calls = self._calls
        push = messages[0]
        assert isinstance(push, Push)
        try:
            (decision,) = calls.results(first, Pushed)
        except ParamServerError:
            if self.orders:
                calls.settle(push.shards, push.sequence)  # it may have been decided all the same
            raise
        failed: list[int] = []
        try:
            others = calls.results(calls.send(self._following(messages, decision), wanted.rejoins), _ANSWERS, failed)
        except ParamServerError:
            missing = [shard for shard in push.shards if shard in failed]
            if missing and decision.outcome is not Outcome.DROPPED:
                calls.note_half_push(missing)
                calls.settle(missing, push.sequence)
            raise
        parts = [answer for answer in others if isinstance(answer, Pushed)]
        late = [shard for shard, part in zip(push.shards, parts, strict=False) if part.outcome is Outcome.DROPPED]
        if late:
            calls.warn_of_half_push(late)  # these shards count it
        return self._result([decision, *others], wanted)

    def _following(self, messages: Sequence[Push | Pull | None], decision: Pushed) -> list[Push | Pull | None]:
        """What the other shards are asked for when shard 0 has decided; of a push that it dropped only values."""
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

    def _result(self, answers: Sequence[Pushed | Pulled], wanted: ShardedPull) -> PushResult:
        """What became of a push, with values that have come by it, or after it."""
        pushed = [answer for answer in answers if isinstance(answer, Pushed)]
        frontier = pushed[0].frontier
        served_at = frontier.decided if frontier else None
        return push_result(pushed, wanted.wholes(answers, served_at))


def _on_shard(group: UpdateGroup | None, shard: int) -> UpdateGroup | None:
    """The group as another shard knows it: those of its members that have a part there."""
    if group is None:
        return None
    members = tuple([replace(member, shards=()) for member in group.members if shard in member.shards])
    return UpdateGroup(group.number, members)
