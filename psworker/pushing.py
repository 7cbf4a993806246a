"""The push of one step: over all shards one, which is whole or not at all.

Several shards each get a part. Where a policy may drop a push, or make one update of several, shard 0 decides and the
others follow. May import placement, pieces, calls, feedback and messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pswire.errors import ParamServerError
from pswire.messages import Gradient, Outcome, Pull, Pulled, Push, Pushed
from psworker import pieces
from psworker.answers import PushResult, push_result
from psworker.calls import Calls, Handle, Sent
from psworker.feedback import Packer
from psworker.placement import Placement, Whole
from psworker.wanted import Wanted


class Pushing:
    """How one worker pushes. One push is open at a time.

    Args:
        calls: speaks to the shards.
        packer: what becomes of gradients before they travel.

    Attributes:
        decides: whether shard 0 decides for the others what becomes of a push.
        observed: variables that keep a moving average. What is pushed for them is no gradient, and goes as it is: what
            a packer kept back of one observation is no part of the next.
    """

    def __init__(self, calls: Calls, packer: Packer) -> None:
        self.decides = False
        self.observed: set[str] = set()
        self._calls = calls
        self._packer = packer

    def messages(
        self, placement: Placement, sequence: int, gradients: Sequence[Whole], loss: float | None, wanted: Wanted
    ) -> list[Push]:
        """What each shard is to be told of one step.

        Shapes, dtypes and names are checked before the first gradient is packed.

        Raises:
            ShapeMismatch: a gradient does not fit its variable.
            NotFinite: of several shards, one would refuse what is too large for 16 bits, and others would not.
        """
        parts: list[list[Gradient]] = [[] for _ in wanted.names]
        for gradient in gradients:
            variable = placement[gradient.name]
            for piece, part in zip(variable.pieces, pieces.split_gradient(variable, gradient), strict=True):
                parts[piece.shard].append(part)
        served_at = None
        if self.decides:
            served_at = min([one.served_at for one in gradients if one.served_at is not None], default=None)
        if self._packer.wire or self._packer.keeps_rest:
            parts = [[self._packed(shard, gradient) for gradient in part] for shard, part in enumerate(parts)]
        sender, wire = self._calls.sender, self._packer.wire
        pushes = [
            Push(
                sender,
                sequence,
                tuple(part),
                loss,
                wanted.names[shard],
                served_at=None if shard else served_at,
                have=wanted.have[shard],
                wire=wire,
            )
            for shard, part in enumerate(parts)
        ]
        if wire and len(pushes) > 1:
            for push in pushes:
                pieces.check_packed(push.gradients)
        return pushes

    def start(self, pushes: Sequence[Push], wanted: Wanted) -> Handle[PushResult]:
        """Sends them; the result is there when `wait` returns, or raises."""
        if self.decides:
            first = self._calls.send(pushes[:1], wanted.rejoins)
            return Handle(lambda: self._decided(first, pushes, wanted))
        sent = self._calls.send(pushes, wanted.rejoins)
        return Handle(lambda: self._result(self._calls.results(sent, Pushed), wanted))

    def _packed(self, shard: int, gradient: Gradient) -> Gradient:
        return gradient if gradient.name in self.observed else self._packer.gradient(shard, gradient)

    def _decided(self, first: Iterable[Sent], pushes: Sequence[Push], wanted: Wanted) -> PushResult:
        """The result of a push of which shard 0 was told: the others do what it has decided.

        When that fails, the push is given up. Others may wait at a shard for this worker's part of it, and get one
        without gradients instead of one that was refused.
        """
        calls = self._calls
        try:
            (decision,) = calls.results(first, Pushed)
        except ParamServerError:
            calls.rest(range(1, len(pushes)))  # it may have been decided all the same
            raise
        others = pushes[1:]
        if decision.outcome is Outcome.DROPPED:
            pulls = [
                Pull(push.sender, push.pull, have=push.have, wire=push.wire) if push.pull else None for push in others
            ]
            sent = calls.send([None, *pulls], wanted.rejoins)
            return self._result([decision], wanted, calls.results(sent, Pulled))
        sent = calls.send([None, *(replace(push, group=decision.group) for push in others)], wanted.rejoins)
        failed: list[int] = []
        try:
            followed = calls.results(sent, Pushed, failed)
        except ParamServerError:
            for shard in failed:
                nothing = replace(pushes[shard], gradients=(), pull=(), have=(), group=decision.group)
                calls.say(shard, nothing, "could not say that its part of a push does not come")
            raise
        return self._result([decision, *followed], wanted)

    def _result(self, pushed: Sequence[Pushed], wanted: Wanted, pulled: Sequence[Pulled] = ()) -> PushResult:
        """What became of a push, with values that have come by it, or after it."""
        served_at = pushed[0].global_step if self.decides else None
        return push_result(pushed, wanted.wholes([*pushed, *pulled], served_at))
