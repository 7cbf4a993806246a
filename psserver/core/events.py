"""What a person should hear of a step: who came and went, and what became of the examples that they had.

The shard makes notes and keeps no log; `psserver.core.array_tasks.StepResult` brings them to whoever does. A job of
hours has a few hundred: never one for each push or each block. May import membership and messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from psserver.core.members.membership import Member
from pswire.messages import Block, EpochReport


@dataclass(frozen=True, slots=True)
class Event:
    """One line; `warning` says that something went wrong, if nothing is lost by it."""

    text: str
    warning: bool = False


def joined(member: Member) -> Event:
    """A new life of a worker begins."""
    return Event(f"worker {member.name!r} joined (number {member.number}, incarnation {member.incarnation})")


def came_back(member: Member) -> Event:
    """A worker that had gone, or was taken for dead, goes on with the life it had."""
    return Event(f"worker {member.name!r} is back (number {member.number}, incarnation {member.incarnation})")


def left(member: Member, *, failed: bool) -> Event:
    """A worker has said that it goes."""
    steps = counted(member.steps, "step")
    if failed:
        return Event(f"worker {member.name!r} left before its end, after {steps} (it failed, or was stopped)")
    return Event(f"worker {member.name!r} has come to its end after {steps}")


def lost(member: Member, lease: float) -> Event:
    """A worker's lease, of so many seconds, has ended."""
    return Event(f"worker {member.name!r} was silent for {lease:g} s and is taken for dead", warning=True)


def to_be_handed_out_again(queue: str, block: Block, worker: str) -> Event:
    """A worker is gone, and has not finished what it had."""
    examples = counted(block.stop - block.start, "example")
    text = f"{_block(queue, block)} ({examples}) will be handed out again: worker {worker!r} had it"
    return Event(text, warning=True)


def handed_out_again(queue: str, block: Block, worker: str, before: str) -> Event:
    """A block that was given back, or whose worker is gone, is handed out."""
    had_it = "again" if worker == before else f"({before!r} had it)"
    return Event(f"{_block(queue, block)} goes to worker {worker!r} {had_it}")


def epoch_done(report: EpochReport) -> Event:
    """Every example of an epoch was seen."""
    examples = counted(report.examples, "example")
    seen = examples if report.cost is None else f"mean cost {report.cost:.4f} over {examples}"
    return Event(f"epoch {report.epoch} of queue {report.queue!r} is done: {seen}")


def _block(queue: str, block: Block) -> str:
    return f"block {block.number:,} of epoch {block.epoch:,} of queue {queue!r}"


def counted(count: int, thing: str) -> str:
    """So many of a thing: "1 step", "1,234 steps"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
