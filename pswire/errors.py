"""The errors of worker and server, as one tree.

    ParamServerError                status                fault     retry
    ├── Malformed                   INVALID_ARGUMENT      sender    no     bytes that are no valid message
    ├── InvalidMessage              INVALID_ARGUMENT      sender    no     a message that this shard cannot take
    │   ├── ShapeMismatch           INVALID_ARGUMENT      sender    no     shape or dtype is not the variable's
    │   └── NotFinite               INVALID_ARGUMENT      sender    no     NaN or infinity, also as a result
    ├── UnknownVariable             NOT_FOUND             sender    no     a name that is not registered
    ├── AlreadyRegistered           ALREADY_EXISTS        sender    no     the name has another registration
    ├── NoOptimizer                 FAILED_PRECONDITION   sender    no     a gradient for a variable without optimizer
    ├── NotJoined                   FAILED_PRECONDITION   sender    no     join first, or again: the lease has ended
    ├── Zombie                      FAILED_PRECONDITION   sender    no     a newer incarnation of this worker lives
    ├── OutOfOrder                  FAILED_PRECONDITION   sender    no     a sequence number lower than one seen
    ├── WrongShard                  FAILED_PRECONDITION   sender    no     another shard, or shard state, than expected
    ├── TooLarge                    RESOURCE_EXHAUSTED    sender    no     over a limit of the receiver
    ├── InternalError               INTERNAL              receiver  no     a fault of ours: please report it
    ├── Unavailable                 UNAVAILABLE           network   yes    no server, or the connection broke
    ├── TimedOut                    DEADLINE_EXCEEDED     network   yes    no answer within the deadline
    ├── ConfigurationError          INVALID_ARGUMENT      user      no     an invalid flag, variable or argument
    └── DatasetError                NOT_FOUND             user      no     a data file is missing, cut or altered

`status` is the gRPC status code's name, `fault` the side that must change something, `retry` whether the same message
may succeed later. `FAMILY` has each class by its name, which travels beside the status. A message states what happened,
to which variable or address, and what to do. Pure: `pswire.channel` converts gRPC's errors.
"""

from __future__ import annotations

from typing import ClassVar


class ParamServerError(Exception):
    """The root of the family."""

    status: ClassVar[str] = "UNKNOWN"
    fault: ClassVar[str] = "receiver"
    retry: ClassVar[bool] = False


class Malformed(ParamServerError):
    """Bytes that are not a valid message; raised by the codec, which raises nothing else."""

    status = "INVALID_ARGUMENT"
    fault = "sender"


class InvalidMessage(ParamServerError):
    """A well-formed message that does not fit the shard's state."""

    status = "INVALID_ARGUMENT"
    fault = "sender"


class ShapeMismatch(InvalidMessage):
    """A value or gradient whose shape or dtype is not the variable's."""


class NotFinite(InvalidMessage):
    """A value or gradient with NaN or infinity, or whose update would have them."""


class UnknownVariable(ParamServerError):
    """A name that is not registered."""

    status = "NOT_FOUND"
    fault = "sender"


class AlreadyRegistered(ParamServerError):
    """A registration that differs from the first one in shape, dtype, optimizer or data queue."""

    status = "ALREADY_EXISTS"
    fault = "sender"


class NoOptimizer(ParamServerError):
    """A gradient for a variable that no optimizer was registered for."""

    status = "FAILED_PRECONDITION"
    fault = "sender"


class NotJoined(ParamServerError):
    """A worker that never joined, or whose lease has ended."""

    status = "FAILED_PRECONDITION"
    fault = "sender"


class Zombie(ParamServerError):
    """An older incarnation of a worker that has joined again since."""

    status = "FAILED_PRECONDITION"
    fault = "sender"


class OutOfOrder(ParamServerError):
    """A sequence number below the last one applied."""

    status = "FAILED_PRECONDITION"
    fault = "sender"


class WrongShard(ParamServerError):
    """A worker whose servers are not those of the job: in another order, or restarted without their state."""

    status = "FAILED_PRECONDITION"
    fault = "sender"


class TooLarge(ParamServerError):
    """Something over a limit of the receiver."""

    status = "RESOURCE_EXHAUSTED"
    fault = "sender"


class InternalError(ParamServerError):
    """A fault of the receiver's own code."""

    status = "INTERNAL"
    fault = "receiver"


class Unavailable(ParamServerError):
    """No server at the address, or the connection broke."""

    status = "UNAVAILABLE"
    fault = "network"
    retry = True


class TimedOut(ParamServerError):
    """No answer within the deadline."""

    status = "DEADLINE_EXCEEDED"
    fault = "network"
    retry = True


class ConfigurationError(ParamServerError):
    """An invalid flag, environment variable or argument."""

    status = "INVALID_ARGUMENT"
    fault = "user"


class DatasetError(ParamServerError):
    """A data file that is missing, cut or altered; or invalid columns or rows of a dataset."""

    status = "NOT_FOUND"
    fault = "user"


def _tree(root: type[ParamServerError]) -> dict[str, type[ParamServerError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


#: Every class of the family by its name.
FAMILY: dict[str, type[ParamServerError]] = _tree(ParamServerError)
