"""Cuts, which are states of all shards at one moment, and what is restored from them."""

from __future__ import annotations

from dataclasses import dataclass

from pswire.messages.membership import Sender


@dataclass(frozen=True, slots=True)
class Cut:
    """Begins a cut, or asks about one: the state of all shards in which each push is on all of its shards, or on none.

    Each change carries the number of the last cut that its worker knew of when it began (`Push.cut`). A shard that
    sees a higher number takes its snapshot before it goes on; a change of a lower number that arrives later belongs to
    the cut all the same.

    Attributes:
        number: of the cut that is asked about, which begins here if it has not; 0 begins a new one.
        holder: keeps the cut in memory, for `Pull.of_cut`, until this worker releases it or is gone; None: nobody.
        release: the holder needs the cut no more.
    """

    number: int = 0
    holder: Sender | None = None
    release: bool = False


@dataclass(frozen=True, slots=True)
class CutReport:
    """A cut on this shard.

    Attributes:
        number: 0 if none could begin, because another one is not over: ask again.
        complete: no change that belongs to it can arrive any more.
        waiting_for: the workers that have not shown its number, or why none could begin.
        written: it is on disk.
        held: its values can be pulled.
        problem: why it could not be written.
        storage: the server keeps checkpoints.
        gone: this shard has no part of it: it was started again since, or another cut was not over. Begin another one.
    """

    number: int
    complete: bool = False
    waiting_for: str = ""
    written: bool = False
    held: bool = False
    problem: str = ""
    storage: bool = False
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Restore:
    """Goes back to the cut of this number, as timeline `timeline`, if that is above the shard's; (0, 0) only asks.

    Needs no membership: all members of the shard have to join again.
    """

    timeline: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """The timeline that the shard follows, and the cut that it began with.

    Attributes:
        lost: the shard has begun from an older state than it had acknowledged, and waits for a `Restore`.
        cuts: the numbers of those that it could go back to, ascending.
    """

    timeline: int
    cut: int
    lost: bool = False
    cuts: tuple[int, ...] = ()
