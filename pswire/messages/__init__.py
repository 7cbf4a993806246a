"""Messages between workers and shards: frozen dataclasses. Read this file first, then the module you need.

    membership    Join gives a worker its incarnation; Renew is its heartbeat; Leave ends it
    variables     Register declares variables and returns their values; Push, Pull, Assign, Tune
    order         the order of changes over several shards
    data_queue    Take hands out blocks of examples
    status        Status reports a shard's state

Requests that change the shard carry a `Sender`, and those that must not happen twice a sequence number. `ANSWERS` has
the answer's class for each request. Pure: `pswire.codec` turns messages into bytes. `sizes` counts the bytes of arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pswire.errors import ParamServerError
from pswire.messages.data_queue import Block as Block
from pswire.messages.data_queue import EpochReport as EpochReport
from pswire.messages.data_queue import Finished as Finished
from pswire.messages.data_queue import QueueSpec as QueueSpec
from pswire.messages.data_queue import Take as Take
from pswire.messages.data_queue import Taken as Taken
from pswire.messages.membership import Join as Join
from pswire.messages.membership import Joined as Joined
from pswire.messages.membership import Leave as Leave
from pswire.messages.membership import Left as Left
from pswire.messages.membership import Renew as Renew
from pswire.messages.membership import Renewed as Renewed
from pswire.messages.membership import Sender as Sender
from pswire.messages.order import ChangeId as ChangeId
from pswire.messages.order import Frontier as Frontier
from pswire.messages.order import RemoteWeights as RemoteWeights
from pswire.messages.order import UpdateGroup as UpdateGroup
from pswire.messages.status import Change as Change
from pswire.messages.status import LastPush as LastPush
from pswire.messages.status import Staleness as Staleness
from pswire.messages.status import Status as Status
from pswire.messages.status import StatusReport as StatusReport
from pswire.messages.status import Traffic as Traffic
from pswire.messages.status import VariableStatus as VariableStatus
from pswire.messages.status import WorkerStatus as WorkerStatus
from pswire.messages.variables import Assign as Assign
from pswire.messages.variables import Assigned as Assigned
from pswire.messages.variables import Assignment as Assignment
from pswire.messages.variables import Choice as Choice
from pswire.messages.variables import Declaration as Declaration
from pswire.messages.variables import Gradient as Gradient
from pswire.messages.variables import Outcome as Outcome
from pswire.messages.variables import Place as Place
from pswire.messages.variables import Pull as Pull
from pswire.messages.variables import Pulled as Pulled
from pswire.messages.variables import Push as Push
from pswire.messages.variables import Pushed as Pushed
from pswire.messages.variables import Register as Register
from pswire.messages.variables import Registered as Registered
from pswire.messages.variables import Tune as Tune
from pswire.messages.variables import Tuned as Tuned
from pswire.messages.variables import Value as Value


@dataclass(frozen=True, slots=True)
class Tick:
    """A clock tick that the server sends to its own shard; never sent over the network."""


Request: TypeAlias = Join | Renew | Leave | Register | Pull | Push | Assign | Tune | Take | Status
Message: TypeAlias = Request | Tick
Answer: TypeAlias = Joined | Renewed | Left | Registered | Pulled | Pushed | Assigned | Tuned | Taken | StatusReport


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the message with this ticket; or the error that ends its call."""

    ticket: int
    answer: Answer | ParamServerError


#: The class of each request's answer.
ANSWERS: dict[type[Request], type[Answer]] = {
    Join: Joined,
    Renew: Renewed,
    Leave: Left,
    Register: Registered,
    Pull: Pulled,
    Push: Pushed,
    Assign: Assigned,
    Tune: Tuned,
    Take: Taken,
    Status: StatusReport,
}
