"""Events of a step, as log lines for people: workers that joined or left, blocks and epochs.

A job of several hours has a few hundred events: none for single pushes or blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psserver.core.members.member import Member
from pswire.messages import AcceptedPoint, Block, EpochReport, Job, JobReport
from pswire.plurals import pluralize


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a kind, about a `worker` if there is one; a `warning` if something went wrong, if only for a while.

    Kinds are "joined", "resumed", "left", "lost", "chief", "stalled", "job", "stopped", "checkpoint", "restored",
    "lost_pushes", "block", "epoch", "portion", "minimization" and "guard".
    """

    kind: str
    text: str
    warning: bool = False
    worker: str = ""


def joined(member: Member, *, new_incarnation: bool = True) -> Event:
    """A worker has joined with a new incarnation, or one that had left or was lost is back."""
    verb = "joined" if new_incarnation else "is back"
    text = f"worker {member.name!r} {verb} (number {member.number}, incarnation {member.incarnation})"
    return Event("joined" if new_incarnation else "resumed", text, worker=member.name)


def left(member: Member, *, failed: bool) -> Event:
    """A worker leaves."""
    steps = pluralize(member.steps, "step")
    if failed:
        text = f"worker {member.name!r} left unfinished after {steps} (it failed or was stopped)"
    else:
        text = f"worker {member.name!r} finished after {steps}"
    return Event("left", text, worker=member.name)


def lost(member: Member, lease: float) -> Event:
    """The lease of a worker, in seconds, has expired."""
    text = f"worker {member.name!r} was silent for {lease:g} s: its lease has expired"
    return Event("lost", text, warning=True, worker=member.name)


def chief_moved(before: str, now: str) -> Event:
    """Another worker does what is done once, since the chief is gone."""
    return Event("chief", f"worker {now!r} is the chief now, in place of {before!r}", worker=now)


def stalled(member: Member) -> Event:
    """Others go on without a worker that they have waited for."""
    text = f"worker {member.name!r} has held others up for longer than --progress-timeout: they go on without its push"
    return Event("stalled", text, warning=True, worker=member.name)


def pushes_again(member: Member) -> Event:
    """A worker that was stalled is waited for again."""
    return Event("resumed", f"worker {member.name!r}, which had held others up, pushes again", worker=member.name)


def job_begins(job: Job, before: JobReport) -> Event:
    """A job begins, or the shard is emptied for one; an unfinished one `before` is given up."""
    text = f"{job} begins" if job.name else f"the shard is empty: the next worker begins a job after {job}"
    unfinished = before.state in ("running", "ended", "interrupted") and before.global_step > 0
    if unfinished:
        text += f"; {before.job} is given up, unfinished, after {pluralize(before.global_step, 'update')}"
    return Event("job", text, warning=unfinished)


def awaited_no_longer(job: Job, joined: int, awaited: int) -> Event:
    """Workers have not come to a job for a lease after its last worker has left."""
    text = f"{joined} of {awaited} workers have come to {job}: the others are awaited no longer"
    return Event("job", text, warning=True)


def job_stopped(member: Member, reason: str) -> Event:
    """A worker has stopped the training of all."""
    return Event("stopped", f"worker {member.name!r} has stopped the job: {reason}", worker=member.name)


def job_stopped_by(by: str, reason: str) -> Event:
    """An operator or a guard has stopped the training of all."""
    return Event("stopped", f"{by} has stopped the job: {reason}", warning=True)


def quarantined(worker: str, reason: str) -> Event:
    """Pushes of a worker are dropped from now on."""
    text = f"pushes of worker {worker!r} are dropped from now on, by {reason}"
    return Event("guard", text, warning=True, worker=worker)


def released(worker: str, reason: str) -> Event:
    """Pushes of a worker are applied again."""
    return Event("guard", f"pushes of worker {worker!r} are applied again, by {reason}", worker=worker)


def learning_rates_scaled(factor: float, reason: str) -> Event:
    """All learning rates were multiplied."""
    return Event("guard", f"all learning rates were multiplied by {factor:.4g}, by {reason}", warning=True)


def cut_skipped(number: int, reason: str) -> Event:
    """The shard has no part of a cut."""
    return Event("checkpoint", f"checkpoint {number:,} was skipped here: {reason}", warning=True)


def cut_given_up(number: int, reason: str) -> Event:
    """The shard has ended a cut that was not complete."""
    return Event("checkpoint", f"checkpoint {number:,} was given up here: {reason}", warning=True)


def lost_pushes(member: Member, count: int) -> Event:
    """Acknowledged pushes of a worker came after the state that was restored."""
    text = f"{pluralize(count, 'acknowledged push')} of worker {member.name!r} came after the restored checkpoint: lost"
    return Event("lost_pushes", text, warning=True, worker=member.name)


def cut_written(number: int, late: int) -> Event:
    """The shard's part of a checkpoint is on disk."""
    return Event("checkpoint", f"checkpoint {number} was written, with {pluralize(late, 'late change')}")


def cut_failed(problem: str) -> Event:
    """The shard's part of a checkpoint could not be written."""
    return Event("checkpoint", f"{problem}; training goes on", warning=True)


def restored(shard: int, cut: int, timeline: int) -> Event:
    """A shard went back to a checkpoint."""
    return Event("restored", f"shard {shard} went back to checkpoint {cut}, timeline {timeline}", warning=True)


def started(shard: int, what: str, global_step: int) -> Event:
    """A server continues from its files."""
    return Event("restored", f"shard {shard} starts from {what}, at global step {global_step}")


def block_returned(queue: str, block: Block, worker: str, unit: str = "example") -> Event:
    """A worker is gone before it finished its block, whose positions are of this unit."""
    positions = pluralize(block.stop - block.start, unit)
    text = f"{_block(queue, block)} ({positions}) will be handed out again: worker {worker!r} had it"
    return Event("block", text, warning=True, worker=worker)


def handed_out_again(queue: str, block: Block, worker: str, before: str) -> Event:
    """A returned block is handed out."""
    had_it = "again" if worker == before else f"({before!r} had it)"
    return Event("block", f"{_block(queue, block)} goes to worker {worker!r} {had_it}", worker=worker)


def epoch_done(report: EpochReport) -> Event:
    """Every example of an epoch was processed."""
    examples = pluralize(report.examples, "example")
    seen = examples if report.cost is None else f"mean cost {report.cost:.4f} over {examples}"
    return Event("epoch", f"epoch {report.epoch} of queue {report.queue!r} is done: {seen}")


def portions_returned(name: str, worker: str, returned: Sequence[int], claimed: Sequence[int]) -> Event:
    """A worker is gone with portions in hand, or its gradients of portions that it has claimed are."""
    count = len(returned) + len(claimed)
    text = (
        f"{pluralize(count, 'portion')} of {name!r} will be handed out again: "
        f"worker {worker!r} had {'it' if count == 1 else 'them'}"
    )
    if claimed:
        text += f", and had computed {len(claimed):,} without pushing the gradients to all shards"
    return Event("portion", text, warning=True, worker=worker)


def minimization_over(name: str, point: AcceptedPoint | None, backups: int, backups_won: int) -> Event:
    """The chief has ended a minimization."""
    text = f"{name!r} is over"
    if point is not None:
        text += f" after {pluralize(point.evaluations, 'evaluation')}"
    if backups:
        text += f": {pluralize(backups, 'portion')} had a backup, which was first {pluralize(backups_won, 'time')}"
    return Event("minimization", text)


def _block(queue: str, block: Block) -> str:
    return f"block {block.number:,} of epoch {block.epoch:,} of queue {queue!r}"
