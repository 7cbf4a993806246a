"""Events of a step, as log lines for people: workers that joined or left, blocks and epochs.

A job of several hours has a few hundred events: none for single pushes or blocks.
"""

from dataclasses import dataclass

from psserver.core.members.member import Member
from pswire.messages import Block, EpochReport, Job, JobReport


@dataclass(frozen=True, slots=True)
class Event:
    """One line; a `warning` if something went wrong, even if nothing is lost by it."""

    text: str
    warning: bool = False


def joined(member: Member, *, new_incarnation: bool = True) -> Event:
    """A worker has joined with a new incarnation, or one that had left or was lost is back."""
    verb = "joined" if new_incarnation else "is back"
    return Event(f"worker {member.name!r} {verb} (number {member.number}, incarnation {member.incarnation})")


def left(member: Member, *, failed: bool) -> Event:
    """A worker leaves."""
    steps = pluralize(member.steps, "step")
    if failed:
        return Event(f"worker {member.name!r} left unfinished after {steps} (it failed or was stopped)")
    return Event(f"worker {member.name!r} finished after {steps}")


def lost(member: Member, lease: float) -> Event:
    """The lease of a worker, in seconds, has expired."""
    return Event(f"worker {member.name!r} was silent for {lease:g} s: its lease has expired", warning=True)


def stalled(member: Member) -> Event:
    """Others go on without a worker that they have waited for."""
    text = f"worker {member.name!r} has held others up for longer than --progress-timeout: they go on without its push"
    return Event(text, warning=True)


def pushes_again(member: Member) -> Event:
    """A worker that was stalled is waited for again."""
    return Event(f"worker {member.name!r}, which had held others up, pushes again")


def job_begins(job: Job, before: JobReport) -> Event:
    """A job begins, or the shard is emptied for one; an unfinished one `before` is given up."""
    text = f"{job} begins" if job.name else f"the shard is empty: the next worker begins a job after {job}"
    unfinished = before.state in ("running", "ended", "interrupted") and before.global_step > 0
    if unfinished:
        text += f"; {before.job} is given up, unfinished, after {pluralize(before.global_step, 'update')}"
    return Event(text, warning=unfinished)


def job_stopped(member: Member, reason: str) -> Event:
    """A worker has stopped the training of all."""
    return Event(f"worker {member.name!r} has stopped the job: {reason}")


def job_stopped_by(by: str, reason: str) -> Event:
    """An operator or a guard has stopped the training of all."""
    return Event(f"{by} has stopped the job: {reason}", warning=True)


def quarantined(worker: str, reason: str) -> Event:
    """Pushes of a worker are dropped from now on."""
    return Event(f"pushes of worker {worker!r} are dropped from now on, by {reason}", warning=True)


def released(worker: str, reason: str) -> Event:
    """Pushes of a worker are applied again."""
    return Event(f"pushes of worker {worker!r} are applied again, by {reason}")


def learning_rates_scaled(factor: float, reason: str) -> Event:
    """All learning rates were multiplied."""
    return Event(f"all learning rates were multiplied by {factor:.4g}, by {reason}", warning=True)


def cut_skipped(number: int, reason: str) -> Event:
    """The shard has no part of a cut."""
    return Event(f"checkpoint {number:,} was skipped here: {reason}", warning=True)


def lost_pushes(member: Member, count: int) -> Event:
    """Acknowledged pushes of a worker came after the state that was restored."""
    text = f"{pluralize(count, 'acknowledged push')} of worker {member.name!r} came after the restored checkpoint: lost"
    return Event(text, warning=True)


def block_returned(queue: str, block: Block, worker: str, unit: str = "example") -> Event:
    """A worker is gone before it finished its block, whose positions are of this unit."""
    positions = pluralize(block.stop - block.start, unit)
    text = f"{_block(queue, block)} ({positions}) will be handed out again: worker {worker!r} had it"
    return Event(text, warning=True)


def handed_out_again(queue: str, block: Block, worker: str, before: str) -> Event:
    """A returned block is handed out."""
    had_it = "again" if worker == before else f"({before!r} had it)"
    return Event(f"{_block(queue, block)} goes to worker {worker!r} {had_it}")


def epoch_done(report: EpochReport) -> Event:
    """Every example of an epoch was processed."""
    examples = pluralize(report.examples, "example")
    seen = examples if report.cost is None else f"mean cost {report.cost:.4f} over {examples}"
    return Event(f"epoch {report.epoch} of queue {report.queue!r} is done: {seen}")


def _block(queue: str, block: Block) -> str:
    return f"block {block.number:,} of epoch {block.epoch:,} of queue {queue!r}"


def pluralize(count: int, thing: str) -> str:
    """A number of things: "1 step", "1,234 steps", "2 batches"."""
    plural = "es" if thing.endswith(("ch", "sh")) else "s"
    return f"{count:,} {thing}{'' if count == 1 else plural}"
