"""Minimizations: evaluations of loss and gradient over a whole data set, in portions that workers compute.

An evaluation is the sum of the losses of all examples, and of their gradients, at the present values of the variables.
The coordinator, a worker, begins it on every shard, on shard 0 at last, so that no portion is handed out of one that
some shard does not know. Workers take portions of the data set from shard 0, and claim there what they have computed.
Each shard adds the gradient sums that workers push (`Assign.portions`), with every portion once.

A worker does this, until the minimization is over:

1. Take a portion, and compute the sums of its losses and gradients.
2. Claim it. If the claim does not count, discard the sums: another worker was first. If it counts, add the gradient to
   a sum over all claimed portions, or, if the portion is to be pushed `alone`, to a sum of its own.
3. Push the sum when a PortionTaken asks for it, one of a portion `alone` at once: to the other shards first, and to
   shard 0 when all of these have answered. So a portion that is counted on shard 0 is counted on every shard.
4. If a shard drops the sum, name its portions as `withdrawn` in the next TakePortion: they are handed out again, to be
   pushed alone. A shard that has counted all portions of a sum before answers that it is repeated, and adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pswire.limits import MAX_ENTRIES
from pswire.messages.membership import Sender


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of a minimization: its positions 0 to `examples` are cut into portions of `portion` positions.

    `number` counts the evaluations from 1. The last portion may be smaller. There are `MAX_ENTRIES` portions at most.
    """

    number: int
    examples: int
    portion: int

    def __post_init__(self) -> None:
        if min(self.number, self.examples, self.portion) < 1:
            raise ValueError(f"an evaluation has positive numbers only, got {self}")
        if self.portions > MAX_ENTRIES:
            raise ValueError(
                f"an evaluation of {self.examples:,} examples in portions of {self.portion:,} has {self.portions:,} "
                f"portions, and may have {MAX_ENTRIES:,}: make them larger"
            )

    @property
    def portions(self) -> int:
        """The number of portions."""
        return -(-self.examples // self.portion)


@dataclass(frozen=True, slots=True)
class Portion:
    """Positions `start` to `stop` of an evaluation's data set.

    `alone`: its gradient is pushed by itself, since some shards may have counted it: whoever had it before has pushed
    it to some of them only.
    """

    number: int
    start: int
    stop: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class AcceptedPoint:
    """Where a line search of a minimization ended, or where the minimization began.

    Attributes:
        iterations, evaluations: line searches that found a step, and evaluations of the loss, until then.
        loss: the mean over all examples, with what the method has added.
        gradient: the largest magnitude in the gradient.
        step: how far the line search went along its direction; 0 at the beginning.
    """

    iterations: int
    evaluations: int
    loss: float
    gradient: float
    step: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Begins an evaluation, and waits for it; from the coordinator, to every shard.

    The answer comes when all portions are counted on the shard. One that waits for long is answered with how far it is.

    Attributes:
        name: of the minimization, equal in all workers.
        evaluation: begins if its number is above that of the present one, which is given up then. None: only asks.
        end: the result as JSON, in place of an evaluation: the minimization is over, and all workers are told.
        timeline: as in `Take`.
        point: the last accepted point, for people; None before the first.
        wait: for all portions of the evaluation; otherwise the answer comes at once.
        cut: as in `Push`.
        term: as in `Compute`; not 0, unless the message only asks.
    """

    sender: Sender
    name: str
    evaluation: Evaluation | None = None
    end: str = ""
    timeline: int = 0
    point: AcceptedPoint | None = None
    wait: bool = True
    cut: int = 0
    term: int = 0


@dataclass(frozen=True, slots=True)
class Evaluated:
    """How far the present evaluation is on this shard.

    Attributes:
        number: of the present evaluation, 0: none has begun. Another one than was asked for: that was given up.
        counted: portions whose gradients are in the shard's sum; the evaluation is complete here when all are.
        loss: of shard 0, when it is complete: the sum of the losses of all portions, exactly rounded.
        waiting_for: what is missing, and which workers have it.
        end: the result, if the minimization is over.
        stopped: as in `Joined`.
        cut: as in `Pushed`.
    """

    number: int
    counted: int = 0
    loss: float | None = None
    waiting_for: str = ""
    end: str = ""
    stopped: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True)
class TakePortion:
    """Requests a portion; to shard 0. A repeated one gets the same portion.

    Attributes:
        evaluation: the number of the evaluation of which `holding` are portions; 0: none.
        holding: portions that the worker has taken and not claimed; it gets no third one while it has two.
        withdrawn: claimed portions whose sum a shard has dropped, so that the worker has discarded it.
        timeline: as in `Take`.
    """

    sender: Sender
    name: str
    evaluation: int = 0
    holding: tuple[int, ...] = ()
    withdrawn: tuple[int, ...] = ()
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class PortionTaken:
    """The next portion. None: push the sum, or stop some portions, or it is over; or else ask again.

    Attributes:
        evaluation: the number of the present evaluation; 0: none has begun. Sums and portions of others are discarded.
        push: no portion is left to hand out: push the sum of all claimed portions now.
        stop: of `holding`, those that need not be computed: other workers have, or will.
        end: the result, if the minimization is over.
        waiting_for: what this worker waits for.
        chief, stopped: as in `Joined`.
        cut: as in `Pushed`.
    """

    evaluation: int
    portion: Portion | None = None
    push: bool = False
    stop: tuple[int, ...] = ()
    end: str = ""
    waiting_for: str = ""
    chief: bool = False
    stopped: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True)
class ClaimPortion:
    """Claims a portion that the worker has computed, with the sum of its losses; to shard 0. A promise to push it.

    `loss` may be NaN or infinite. `timeline` is as in `Take`.
    """

    sender: Sender
    name: str
    evaluation: int
    portion: int
    loss: float
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class PortionClaimed:
    """Whether the claim counts: the first one of a portion does, and so does a repetition of that."""

    counted: bool


@dataclass(frozen=True, slots=True)
class CountedPortions:
    """The portions whose gradients a pushed sum has (`Assign.portions`)."""

    name: str
    evaluation: int
    numbers: tuple[int, ...]
