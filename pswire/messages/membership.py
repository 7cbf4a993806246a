"""Messages of membership: join, renew the lease, leave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sender:
    """The worker that sends a message, and its incarnation (`Joined.incarnation`)."""

    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Join:
    """A worker starts or restarts; all its older incarnations are refused from now on.

    Attributes:
        incarnation: 0 asks shard 0 for the next one, with which the worker then joins the other shards.
        shard, shards: the place of this shard in the worker's list of servers, and the length of the list.
        process_nonce: a random number of this process, so that a Join that arrives twice counts once; 0: none.
        tensor_transport: how tensors travel to this shard, for status displays.
        states: when joining again: `Joined.state` of all shards, in order; a shard with a different state refuses.
    """

    worker: str
    incarnation: int = 0
    shard: int = 0
    shards: int = 1
    process_nonce: int = 0
    tensor_transport: str = ""
    states: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """The worker is a member.

    Attributes:
        number: 0 for the first worker of the job; kept when a worker joins again.
        lease: seconds of silence after which the worker counts as lost.
        consistency, staleness: the shard's options, as `pswire.specs.consistency` writes them; equal on all shards.
        chief: whether this worker is the chief; may change later. Only shard 0 knows.
        state: the identity of the shard's state; a server restarted without its state has a different one. 0: none.
    """

    incarnation: int
    number: int
    lease: float
    global_step: int
    consistency: str = "async"
    staleness: str = "none"
    chief: bool = False
    state: int = 0


@dataclass(frozen=True, slots=True)
class Renew:
    """A heartbeat. Every other message of a worker renews its lease too.

    Attributes:
        idle: the worker has nothing to do for now, for example no examples: other workers do not wait for its next
            push.
        tensor_transport: as in `Join`.
        settled: messages up to this sequence number have been answered or abandoned, and none is carried out any more.
            An `idle` whose `settled` is below the last message that the shard has received from the worker is outdated
            and ignored.
        half_pushes: pushes of this incarnation that this shard has not applied and others have, as far as the worker
            knows; if there are several such shards, the first one gets the count.
    """

    sender: Sender
    idle: bool = False
    tensor_transport: str = ""
    settled: int = 0
    half_pushes: int = 0


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease has been renewed.

    Attributes:
        waiting_for: while a push of the worker is held: which workers it waits for, and why.
        chief: as in `Joined`.
    """

    global_step: int
    waiting_for: str = ""
    chief: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker ends; its unfinished blocks are handed out again.

    With `failed` it has not completed its work: other workers may wait for a replacement.
    """

    sender: Sender
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """The worker is no longer a member."""
