"""Joining all shards of a job: for the first time, for a later session, and again after a rollback."""

import logging
import math
from collections import Counter

from pswire import messages as ms
from pswire.errors import SessionNotBegun
from psworker.client.retry import Calls, Wait

logger = logging.getLogger(__name__)


def join(calls: Calls, session: int, name: str) -> list[ms.Joined]:
    """Joins every shard, shard 0 first; their answers. `session` and `name` are as in `Client.join`.

    Waits while other workers take part in the job of an earlier session, which they leave, or lose by their lease.
    """
    member = calls.membership
    member.job = ms.Job(name=member.choice.name or name, session=session)
    wait = Wait(calls.closing, math.inf, f"{member.sender.worker} waits")
    while True:
        try:
            answers = _join_all(calls, 0)
            break
        except SessionNotBegun as error:
            if wait.is_over():
                raise
            wait.pause(
                f"{error}. A program beside the workers of a job, such as an evaluation, takes part in the present one "
                "with ps.session(resume=True)"
            )
    member.note_joined(answers)
    member.timeline, member.global_step = answers[0].timeline, answers[0].global_step
    return answers


def join_again(calls: Calls, timeline: int, cut: int) -> list[ms.Joined]:
    """Joins every shard after all went back to a cut, with which `timeline` began; their answers.

    All earlier messages of the worker are abandoned. Raises `StateLost` if a shard follows another timeline.
    """
    member = calls.membership
    member.begin_timeline(timeline, cut)
    answers = _join_all(calls, member.sequence)
    member.note_joined(answers)
    # a push of which the answer did not arrive may be in the cut, and counts there when the shards go back again
    member.steps = Counter({shard: joined.steps for shard, joined in enumerate(answers)})
    member.frontier, member.global_step = ms.Frontier(0), answers[0].global_step
    return answers


def _join_all(calls: Calls, settled: int) -> list[ms.Joined]:
    member = calls.membership
    first = calls.call(0, member.join_message(0, settled), ms.Joined)
    member.sender, member.job = ms.Sender(member.sender.worker, first.incarnation), first.job
    if first.note:
        logger.warning("%s: %s", member.sender.worker, first.note)
    others = range(1, calls.transport.shards)
    answers = [first, *[calls.call(shard, member.join_message(shard, settled), ms.Joined) for shard in others]]
    for shard, joined in enumerate(answers):
        member.check_timeline(shard, joined, member.timeline or first.timeline)
    return answers


def report_tensor_transport(calls: Calls) -> None:
    """Reports how tensors travel to the shards, for status displays, if `Join` did not: only a member can ask."""
    member = calls.membership
    for shard in range(calls.transport.shards):
        if calls.transport.tensor_transport(shard) != member.reported.get(shard, ""):
            calls.call_best_effort(shard, member.renewal(shard, 0), "could not report how tensors travel")
