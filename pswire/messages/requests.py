"""All requests and answers, and what is not sent: ticks and replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, get_args

from pswire.errors import ParamServerError
from pswire.messages.cuts import Cut, CutReport, Restore, Restored
from pswire.messages.data_queue import Take, Taken
from pswire.messages.membership import (
    Barrier,
    Emptied,
    Intervene,
    Intervened,
    Join,
    Joined,
    Leave,
    Left,
    Passed,
    Renew,
    Renewed,
    Reset,
    Stop,
    Stopped,
)
from pswire.messages.minimization import (
    ClaimPortion,
    Evaluate,
    Evaluated,
    PortionClaimed,
    PortionTaken,
    TakePortion,
)
from pswire.messages.status import Status, StatusReport
from pswire.messages.variables import Assign, Assigned, Pull, Pulled, Push, Pushed, Register, Registered, Tune, Tuned
from pswire.messages.vectors import Compute, Computed


@dataclass(frozen=True, slots=True)
class Tick:
    """What time has brought about, as data (`Shard.due`): a server's message to its own shard, never sent to another.

    `lost` are the workers whose lease has expired, `overdue` the requests for blocks, by worker and data queue, that
    have waited for long, and `stalled` the workers that have held others up for too long. `takers` and `evaluators` are
    the workers whose TakePortion and whose Evaluate have waited for long. `gives_up`: workers that have not come to the
    job are awaited no longer. So a shard that is given the same messages again needs no clock.
    """

    lost: tuple[str, ...] = ()
    overdue: tuple[tuple[str, str], ...] = ()
    stalled: tuple[str, ...] = ()
    takers: tuple[str, ...] = ()
    evaluators: tuple[str, ...] = ()
    gives_up: bool = False


Request: TypeAlias = (
    Join
    | Renew
    | Leave
    | Barrier
    | Stop
    | Reset
    | Intervene
    | Register
    | Pull
    | Push
    | Assign
    | Tune
    | Compute
    | Take
    | Evaluate
    | TakePortion
    | ClaimPortion
    | Cut
    | Restore
    | Status
)
Message: TypeAlias = Request | Tick
Answer: TypeAlias = (
    Joined
    | Renewed
    | Left
    | Passed
    | Stopped
    | Emptied
    | Intervened
    | Registered
    | Pulled
    | Pushed
    | Assigned
    | Tuned
    | Computed
    | Taken
    | Evaluated
    | PortionTaken
    | PortionClaimed
    | CutReport
    | Restored
    | StatusReport
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the message with this ticket; or the error that ends its call."""

    ticket: int
    answer: Answer | ParamServerError


#: The class of each request's answer: `Request` and `Answer` list them in the same order.
ANSWERS: dict[type[Request], type[Answer]] = dict(zip(get_args(Request), get_args(Answer), strict=True))
