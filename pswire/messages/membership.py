"""Membership and the job: joining, heartbeats, leaving; barriers, stopping all workers, emptying a shard."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sender:
    """The worker that sends a message, and its incarnation (`Joined.incarnation`)."""

    worker: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Job:
    """The training from the first worker's Join to the last one's Leave; a server has one job at a time.

    Attributes:
        number: counts the jobs of the servers from 1, on all shards alike; 0: none.
        name: for people, and to go on with it; "": no worker has begun it. All jobs of a program have the same.
        session: counts the sessions of the program from 1, each of which is a job; 0: it is not numbered.
    """

    number: int = 0
    name: str = ""
    session: int = 0

    def __str__(self) -> str:
        of_program = f", session {self.session}" if self.session > 1 else ""
        return f"job {self.number} ({self.name}{of_program})" if self.name else f"job {self.number}"


@dataclass(frozen=True, slots=True)
class Join:
    """A worker starts or restarts; all its older incarnations are refused from now on.

    Attributes:
        incarnation: 0 asks shard 0 for the next one, with which the worker then joins the other shards.
        shard, shards: the place of this shard in the worker's list of servers, and the length of the list.
        process_nonce: a random number of this process, so that a Join that arrives twice counts once; 0: none.
        tensor_transport: how tensors travel to this shard, for status displays.
        states: when joining again: `Joined.state` of all shards, in order; a shard with a different state refuses.
        timeline: when joining again: `Joined.timeline`; a shard with another one refuses with `StateLost`. 0: none.
        steps: when joining again: pushes of this incarnation that this shard has acknowledged as applied.
        settled: as in `Renew`: after state was lost, messages from before are refused if they arrive late.
        job: to shard 0, with number 0: the running job, of this name if it has one; if none is running, a new one.
            With a session, that of the program. To other shards, and when joining again: `Joined.job`.
        resume: go on with the job that the shard has, also if it is over.
        program: for the name of a new job that is given none.
        cut: as in `Renew`.
        proofs: `Joined.proof` of the shards in `states`.
        name_key: while a worker of this name is live, a new incarnation needs the same key; b"": none.
        workers: that the launcher has started, which are awaited before the program's next session begins; 0: unknown.
    """

    worker: str
    incarnation: int = 0
    shard: int = 0
    shards: int = 1
    process_nonce: int = 0
    tensor_transport: str = ""
    states: tuple[int, ...] = ()
    timeline: int = 0
    steps: int = 0
    settled: int = 0
    job: Job = Job()
    resume: bool = False
    program: str = ""
    cut: int = 0
    proofs: tuple[bytes, ...] = ()
    name_key: bytes = field(default=b"", repr=False)
    workers: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """The worker is a member.

    Attributes:
        number: 0 for the first worker of the job; kept when a worker joins again.
        lease: seconds of silence after which the worker counts as lost.
        consistency, staleness: the shard's options, as `pswire.specs.consistency` writes them; equal on all shards.
        chief: whether this worker is the chief; may change later. Only shard 0 knows.
        state: the identity of the shard's state; a server restarted without its state has a different one. 0: none.
        timeline: 1 more each time that acknowledged changes were given up (`Restore`).
        cut: the number of the shard's last cut (`Cut`).
        steps: pushes of this incarnation that the shard has applied.
        note: a sentence for the worker's log, if the job before this one, or an interruption of it, is of interest.
        stopped: why the job was stopped (`Stop`); "": it was not.
        token: proves to all shards of the job who sends a message; a transport sends it with each. b"": not needed.
        proof: by this shard, of its `state`, for other shards; b"": not needed.
    """

    incarnation: int
    number: int
    lease: float
    global_step: int
    consistency: str = "async"
    staleness: str = "none"
    chief: bool = False
    state: int = 0
    timeline: int = 0
    cut: int = 0
    steps: int = 0
    job: Job = Job()
    note: str = ""
    stopped: str = ""
    token: bytes = field(default=b"", repr=False)
    proof: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Renew:
    """A heartbeat. Every other message of a worker renews its lease too.

    Attributes:
        idle: the worker has nothing to do for now, such as no examples: others do not wait for its next push.
        settled: messages up to this sequence number have been answered or abandoned, and none is carried out any more.
            An `idle` is outdated, and ignored, if the shard has received a later message from the worker.
        half_pushes: pushes of this incarnation that this shard has not applied and others have, as far as the worker
            knows; if there are several such shards, the first one gets the count.
        cut: the number of the last cut of which the worker knows, and which no open call of it precedes (`Cut`).
        written_by_all: the newest cut that all shards have written, as far as the worker knows; 0: it knows of none.
        timeline: that of these numbers, as in `Take`: one from before all shards went back is refused.
    """

    sender: Sender
    idle: bool = False
    tensor_transport: str = ""
    settled: int = 0
    half_pushes: int = 0
    cut: int = 0
    written_by_all: int = 0
    timeline: int = 0


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease has been renewed. `waiting_for` is as in `WorkerStatus`; `chief`, `cut` and `stopped` as in `Joined`.

    Attributes:
        written: the newest cuts that the shard has written, ascending, 16 at most.
        push_held: of shard 0, where it decides about pushes: a push of the worker is held. It is decided after the
            snapshot of `cut`, so its parts on other shards come after the cut as well.
    """

    global_step: int
    waiting_for: str = ""
    chief: bool = False
    cut: int = 0
    written: tuple[int, ...] = ()
    stopped: str = ""
    push_held: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """A worker ends; its unfinished blocks are handed out again. `failed`: others may wait for its replacement.

    `done` is `Left.done` of the shards before this one, which gets no push, by which it would know, if it has no
    variables.
    """

    sender: Sender
    failed: bool = False
    done: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    """The worker is no longer a member. `done`: a worker has finished the job, after its first update."""

    done: bool = False


# --- the job ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Barrier:
    """Waits until every live worker waits at the barrier; to shard 0. Others do not wait for this worker's pushes.

    Attributes:
        number: counts the barriers of this incarnation from 1, so that a retry waits for the same one.
    """

    sender: Sender
    number: int


@dataclass(frozen=True, slots=True)
class Passed:
    """All live workers have waited at the barrier, and passed at this global step; a retry gets the present one."""

    global_step: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the training of all workers: data queues hand out no more blocks; to shard 0. The first reason counts."""

    sender: Sender
    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """All workers learn of it with their next heartbeat or block. `reason` is the one that counts."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reset:
    """Ends the job of a shard and discards its variables. Needs no membership; to every shard.

    Attributes:
        number: that of the empty job which takes its place. Nothing is done unless it is above the present one's.
        force: also while workers are live; their calls are refused from then on.
    """

    number: int
    force: bool = False


@dataclass(frozen=True, slots=True)
class Emptied:
    """The shard has this job, without workers and variables."""

    job: Job


@dataclass(frozen=True, slots=True)
class Intervene:
    """Changes a running job from outside, as an operator or a guard does. Needs no membership; to every shard.

    Attributes:
        by: who asks, for logs and the list of changes.
        reason: why, for logs and for the workers that it concerns.
        stop: ends the training of all workers, as `Stop` does; on shard 0 only, other shards ignore it.
        quarantine: workers whose pushes are dropped from now on, in this and later incarnations.
        release: workers whose pushes are applied again.
        scale_learning_rate: multiplies the learning rates of all variables that have one; 1: they stay as they are.
            A request that is repeated multiplies them again.
    """

    by: str
    reason: str
    stop: bool = False
    quarantine: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    scale_learning_rate: float = 1.0


@dataclass(frozen=True, slots=True)
class Intervened:
    """Later pushes follow it. `quarantined`: all workers that are, by now."""

    global_step: int
    quarantined: tuple[str, ...] = ()
