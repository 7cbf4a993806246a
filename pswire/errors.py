"""The errors of worker and server, as one tree.

A message states what happened, to which variable or address, and what to do. `FAMILY` has each class by its name, which
travels beside its status. `pswire.network.channel` converts gRPC errors.
"""

from typing import ClassVar


class ParamServerError(Exception):
    """The base class of all errors.

    Attributes:
        status: the name of the gRPC status code.
        fault: the side that must change something: "sender", "receiver", "network" or "user".
        retry: whether the same message may succeed later: where the network is at fault.
    """

    status: ClassVar[str] = "UNKNOWN"
    fault: ClassVar[str] = "receiver"
    retry: ClassVar[bool] = False

    def __init_subclass__(cls, status: str = "", fault: str = "") -> None:
        """Takes the attributes as keywords; without them, those of the base."""
        super().__init_subclass__()
        cls.status, cls.fault = status or cls.status, fault or cls.fault
        cls.retry = cls.fault == "network"


class Malformed(ParamServerError, status="INVALID_ARGUMENT", fault="sender"):
    """Bytes that are not a valid message; raised by the codec, which raises nothing else."""


class InvalidMessage(ParamServerError, status="INVALID_ARGUMENT", fault="sender"):
    """A well-formed message that does not fit the shard's state."""


class ShapeMismatch(InvalidMessage):
    """A value or gradient whose shape or dtype is not the variable's."""


class DtypeMismatch(ShapeMismatch):
    """A gradient that has the variable's shape, and a dtype that is not cast to the variable's, such as integers."""


class NotFinite(InvalidMessage):
    """A value or gradient with NaN or infinity, or whose update would have them."""


class UpdateFailed(NotFinite):
    """An update by a custom optimizer that raised an exception; as where its result is not finite, nothing changed."""


class UnknownVariable(ParamServerError, status="NOT_FOUND", fault="sender"):
    """A name that is not registered."""


class AlreadyRegistered(ParamServerError, status="ALREADY_EXISTS", fault="sender"):
    """A registration that differs from the first one in shape, dtype, optimizer or data queue."""


class NoOptimizer(ParamServerError, status="FAILED_PRECONDITION", fault="sender"):
    """A gradient for a variable that no optimizer was registered for."""


class NotJoined(ParamServerError, status="FAILED_PRECONDITION", fault="sender"):
    """A worker that never joined, or whose lease has ended: join (again) first."""


class Zombie(ParamServerError, status="FAILED_PRECONDITION", fault="sender"):
    """An older incarnation of a worker that has joined again since."""


class SessionOver(ParamServerError, status="FAILED_PRECONDITION", fault="sender"):
    """The job of a worker's session is over: others have begun the job of a later session of the program."""


class SessionNotBegun(ParamServerError, status="FAILED_PRECONDITION", fault="sender"):
    """The job of a worker's session has not begun: others are still in an earlier session's job, or are awaited."""


class OutOfOrder(ParamServerError, status="FAILED_PRECONDITION", fault="sender"):
    """A message that is older than the last settled one, or was abandoned."""


class StateLost(ParamServerError, status="FAILED_PRECONDITION", fault="sender"):
    """The shards went back to a checkpoint, or have to: what came after it was given up."""


class GenerationLost(ParamServerError, status="FAILED_PRECONDITION", fault="receiver"):
    """A generation whose values the servers have lost: repeat the block of `session.generation()`."""


class WrongShard(ParamServerError, status="FAILED_PRECONDITION", fault="sender"):
    """A worker with other servers than its job: in another order, or restarted without their state."""


class TooLarge(ParamServerError, status="RESOURCE_EXHAUSTED", fault="sender"):
    """A message or value that exceeds a limit of the receiver."""


class InternalError(ParamServerError, status="INTERNAL", fault="receiver"):
    """A fault of the receiver's own code: please report it."""


class Unavailable(ParamServerError, status="UNAVAILABLE", fault="network"):
    """No server at the address, or the connection broke."""


class TimedOut(ParamServerError, status="DEADLINE_EXCEEDED", fault="network"):
    """No answer within the deadline."""


class ConfigurationError(ParamServerError, status="INVALID_ARGUMENT", fault="user"):
    """An invalid flag, environment variable or argument."""


class Unauthenticated(ParamServerError, status="UNAUTHENTICATED", fault="user"):
    """A caller without a valid token, with another worker's token, or with a certificate that is not accepted."""


class PermissionDenied(ParamServerError, status="PERMISSION_DENIED", fault="user"):
    """A token whose role does not allow the call."""


class StorageError(ParamServerError, status="DATA_LOSS", fault="receiver"):
    """A file of a checkpoint or journal that cannot be read or written, or belongs to another job or shard."""


class DamagedFile(StorageError):
    """A file of a checkpoint or journal that is missing, cut or altered."""


class DatasetError(ParamServerError, status="NOT_FOUND", fault="user"):
    """A data file that is missing, cut or altered; or invalid columns or rows of a dataset."""


class ModelFileError(ParamServerError, status="DATA_LOSS", fault="user"):
    """A model file that is missing, cut, altered or cannot be written, or whose names are not the program's."""


#: All error classes by name.
FAMILY: dict[str, type[ParamServerError]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, ParamServerError)
}


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(FAMILY)
