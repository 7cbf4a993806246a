"""The push of one step over all shards that have something to do for it.

Shard 0 gets every push, since it counts steps; others those that bring them a gradient, or ask them for values. Where a
policy may hold or drop a push, shard 0 decides and the others follow. May import placement, pieces, calls, feedback and
messages.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from pswire.errors import ParamServerError
from pswire.messages import Elsewhere, Gradient, Group, Outcome, Pull, Pulled, Push, Pushed
from psworker import pieces
from psworker.answers import PushResult, push_result
from psworker.calls import Calls, Handle, Sent
from psworker.feedback import Packer
from psworker.placement import Placement, Whole
from psworker.wanted import Wanted

logger = logging.getLogger(__name__)


class Pushing:
    """How one worker pushes. One push is open at a time.

    Args:
        calls: speaks to the shards.
        packer: what becomes of gradients before they travel.

    Attributes:
        decides: whether shard 0 decides for the others what becomes of a push.
        orders: whether the others make changes in the order of its decisions (`pswire.order`).
        observed: variables that keep a moving average. What is pushed for them is no gradient, and goes as it is: what
            a packer kept back of one observation is no part of the next.
    """

    def __init__(self, calls: Calls, packer: Packer) -> None:
        self.decides = self.orders = False
        self.observed: set[str] = set()
        self._calls = calls
        self._packer = packer

    def messages(
        self, placement: Placement, sequence: int, gradients: Sequence[Whole], loss: float | None, wanted: Wanted
    ) -> list[Push | None]:
        """The push for each shard, None for one that has nothing to do for this step.

        Shapes, dtypes and names are checked before the first gradient is packed.

        Raises:
            ShapeMismatch: a gradient does not fit its variable.
            NotFinite: of several shards, one would refuse what is too large for 16 bits, and others would not.
        """
        parts: list[list[Gradient]] = [[] for _ in wanted.names]
        elsewhere: list[Elsewhere] = []
        for gradient in gradients:
            variable = placement[gradient.name]
            for piece, part in zip(variable.pieces, pieces.split_gradient(variable, gradient), strict=True):
                parts[piece.shard].append(part)
            if self.orders and variable.pieces[0].shard:
                elsewhere.append(Elsewhere(gradient.name, gradient.served_at or 0))
        if self._packer.wire or self._packer.keeps_rest:
            parts = [[self._packed(shard, gradient) for gradient in part] for shard, part in enumerate(parts)]
        shards = tuple([shard for shard, part in enumerate(parts) if shard and part])
        sender, wire, step = self._calls.sender, self._packer.wire, self._calls.global_step
        pushes = [
            Push(
                sender,
                sequence,
                tuple(part),
                None if shard and not part else loss,
                wanted.names[shard],
                have=wanted.have[shard],
                wire=wire,
                shards=shards,
                elsewhere=() if shard else tuple(elsewhere),
                global_step=step if shard else 0,
            )
            if part or wanted.names[shard] or not shard
            else None
            for shard, part in enumerate(parts)
        ]
        if wire and len(pushes) > 1:
            for push in filter(None, pushes):
                pieces.check_packed(push.gradients)
        return pushes

    def start(self, pushes: Sequence[Push | None], wanted: Wanted) -> Handle[PushResult]:
        """Sends them; the result is there when `wait` returns, or raises."""
        if self.decides:
            first = self._calls.send(pushes[:1], wanted.rejoins)
            return Handle(lambda: self._decided(first, pushes, wanted))
        sent = self._calls.send(pushes, wanted.rejoins)
        return Handle(lambda: self._at_once(sent, wanted))

    def _packed(self, shard: int, gradient: Gradient) -> Gradient:
        return gradient if gradient.name in self.observed else self._packer.gradient(shard, gradient)

    def _at_once(self, sent: Sequence[Sent], wanted: Wanted) -> PushResult:
        """The result of a push of which all shards were told at the same time."""
        failed: list[int] = []
        try:
            answers = self._calls.results(sent, Pushed, failed)
        except ParamServerError:
            if 0 < len(failed) < len(sent):
                self._calls.note_half_push(failed)
            raise
        return self._result(answers, wanted)

    def _decided(self, first: Sequence[Sent], pushes: Sequence[Push | None], wanted: Wanted) -> PushResult:
        """The result of a push of which shard 0 was told: the others do what it has decided.

        When that fails, the push is given up. Others may wait for this worker's part of it, and are told so.
        """
        calls = self._calls
        others = [push for push in pushes if push is not None][1:]
        places = [shard for shard, push in enumerate(pushes) if shard and push is not None]
        try:
            (decision,) = calls.results(first, Pushed)
        except ParamServerError:
            if others and self.orders:
                calls.settle(places, others[0].sequence)  # it may have been decided all the same
            raise
        after = calls.after() if self.orders else [()] * len(pushes)
        if decision.outcome is Outcome.DROPPED:
            pulls: list[Pull | None] = [None] * len(pushes)
            for shard, push in zip(places, others, strict=True):
                if push.pull:
                    pulls[shard] = Pull(push.sender, push.pull, have=push.have, wire=push.wire, after=after[shard])
            return self._result([decision], wanted, calls.results(calls.send(pulls, wanted.rejoins), Pulled))
        parts: list[Push | None] = [None] * len(pushes)
        step = max(0, decision.global_step - 1)
        for shard, push in zip(places, others, strict=True):
            group = _on_shard(decision.group, shard) if push.gradients else None
            parts[shard] = replace(push, group=group, after=after[shard], global_step=step)
        failed: list[int] = []
        try:
            followed = calls.results(calls.send(parts, wanted.rejoins), Pushed, failed)
        except ParamServerError:
            if self.orders:
                calls.settle(failed, others[0].sequence)
            calls.note_half_push(failed)
            raise
        late = [shard for shard, answer in zip(places, followed, strict=True) if answer.outcome is Outcome.DROPPED]
        if late:
            calls.note_half_push(late)
        return self._result([decision, *followed], wanted)

    def _result(self, pushed: Sequence[Pushed], wanted: Wanted, pulled: Sequence[Pulled] = ()) -> PushResult:
        """What became of a push, with values that have come by it, or after it."""
        frontier = pushed[0].frontier
        served_at = frontier.decided if frontier else None
        return push_result(pushed, wanted.wholes([*pushed, *pulled], served_at))


def _on_shard(group: Group | None, shard: int) -> Group | None:
    """The group as another shard knows it: those of its members that have a part there."""
    if group is None:
        return None
    members = tuple([replace(member, shards=()) for member in group.members if shard in member.shards])
    return Group(group.number, members)
