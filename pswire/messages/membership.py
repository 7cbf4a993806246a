"""What a worker says to become a member, to stay one and to leave, and what it hears: part of `pswire.messages`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sender:
    """Who speaks: a worker's name, and which life of it (`Joined.incarnation`)."""

    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Join:
    """A worker starts, or starts again. All its older incarnations are zombies from now on.

    Shard 0 counts the incarnations (`incarnation` 0 asks for the next one); the worker then joins the other shards
    with the one it got. `shard` of `shards` is the place that this shard has in the worker's list of servers. `life` is
    a number that the worker drew for this life, so that a Join that arrives twice counts once; 0 is none.
    `tensor_transport`
    says how its tensors travel to this shard, in words, for who looks at the job. Who joins again says with `states`
    which those of all shards were, in their order (`Joined.state`): a shard that has another by now refuses.
    """

    worker: str
    incarnation: int = 0
    shard: int = 0
    shards: int = 1
    life: int = 0
    tensor_transport: str = ""
    states: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """`number` is 0 for the first worker that ever joined; a worker that joins again keeps its number.

    `lease` is in seconds: a worker that says nothing for so long is taken for dead. `consistency` is what the shard was
    started with, as `pswire.specs.consistency` writes it; all shards of a job must have the same. `chief` says whether
    this
    worker is the one that does what is to be done once; that may be another later, and shard 0 alone knows it. `state`
    is the identity of the shard's state: a server that was started anew, with no state, has another. 0 is none.
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
    """A heartbeat: I live. Every other message of a worker renews its lease too.

    With `idle` it says that it has nothing to do for now, such as no examples: nobody shall wait for its next push.
    With `settled` its messages up to this sequence number have been answered or are given up: none of them is carried
    out any more. An idle whose `settled` is below what the shard has had from the worker is out of date, and not taken.
    `half_pushes` counts the pushes of this life that this shard has not applied and others have, as the worker knows;
    of several such shards the first is told. `tensor_transport` is as in `Join`.
    """

    sender: Sender
    idle: bool = False
    tensor_transport: str = ""
    settled: int = 0
    half_pushes: int = 0


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease runs from now. While a push of the worker is held, `waiting_for` says for whom, and why.

    `chief` is as in `Joined`.
    """

    global_step: int
    waiting_for: str = ""
    chief: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker ends; what it had taken and not finished is handed out again.

    With `failed` it has not come to its end: others may wait for one that takes its place.
    """

    sender: Sender
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """The worker is no longer a member."""
