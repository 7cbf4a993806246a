"""The jobs of a shard, one after another: which one a joining worker takes part in, and reports of the earlier ones.

A program may have several sessions, each of which is a job. They have one name and are numbered, so that the n-th
session of each worker is the same job, whatever has started the workers, and when.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from psserver.core.data.data_queues import DataQueues
from psserver.core.members.membership import Membership
from psserver.core.part import Position
from psserver.core.policies.policy import join_names
from pswire.errors import InvalidMessage, SessionNotBegun, SessionOver, Unavailable, WrongShard, Zombie
from pswire.messages import Job, JobReport, Join

#: Earlier jobs whose reports are kept.
MAX_EARLIER = 99


class Jobs:
    """The `present` job, and reports of those before it, oldest first.

    Shard 0 decides which job a worker takes part in, and the other shards follow by its number. With `one_job` the
    first job is the only one, and those of later sessions of its program. So many workers as are `awaited` take part in
    the present job before the one of the next session begins.
    """

    def __init__(self, shard: int, *, one_job: bool = False) -> None:
        self.present = Job()
        self.earlier: tuple[JobReport, ...] = ()
        self.awaited = 0
        self._shard, self._one_job = shard, one_job

    def restore(self, present: Job, earlier: Iterable[JobReport], awaited: int) -> None:
        """Continue from the jobs of a state."""
        self.present, self.earlier, self.awaited = present, tuple(earlier), awaited

    def report(self, position: Position, members: Membership, queues: DataQueues) -> JobReport:
        """How the present job stands."""
        reports = queues.reports(1)
        return JobReport(
            job=self.present,
            state=self.state_of(members, queues),
            global_step=position.global_step,
            workers=members.joined,
            epochs=queues.complete_epochs,
            cost=reports[-1].cost if reports else None,
        )

    def state_of(self, members: Membership, queues: DataQueues) -> str:
        """As in `JobReport`. Examples that were left by lost workers are still to be trained."""
        left = members.job_state == "done" and not queues.done and members.some_were_lost
        return "interrupted" if left else members.job_state

    def begin(self, job: Job, report: JobReport, members: Membership) -> None:
        """Begin a job after the present one, of which these are the report and the members.

        Those that have left it are awaited in the next session of the same program.
        """
        follows = job.session > 1 and job.name == self.present.name
        self.awaited = sum([member.state == "left" for member in members]) if follows else 0
        if self.present.name:
            ended = replace(report, state="ended") if report.state == "running" else report
            self.earlier = (*self.earlier, ended)[-MAX_EARLIER:]
        self.present = job

    def note_workers(self, message: Join) -> None:
        """Note how many workers take part in the first session of a program, as their launcher says."""
        if self.present.session == 1:
            self.awaited = max(self.awaited, message.workers)

    def awaits(self, members: Membership) -> bool:
        """Whether workers are awaited in the present job, of which these are the members."""
        return members.joined < self.awaited

    def begun_by(self, message: Join, members: Membership, state: str) -> Job | None:
        """The job that this worker begins on this shard; None: it takes part in the present one, of this `state`.

        Without a name a worker takes part in a job that is running, or whose workers were lost before it was done, and
        otherwise begins a new one. That of a later session of a program follows the one before it.

        Raises:
            SessionOver: others have begun the job of a later session.
            SessionNotBegun: the job of an earlier session is not over.
            Zombie: its job is over, and another one has begun.
            Unavailable: another job is running.
            InvalidMessage: it is to go on with a job of another name.
            WrongShard: this shard has served later jobs than shard 0.
        """
        asked, present = message.job, self.present
        if asked.number > present.number:
            return asked
        if asked.number:
            self._check_is_present(message)
            return None
        if self._shard:
            return None
        number, known, later = present.number + 1, members.get(message.worker), asked.session > 1
        new = Job(number, asked.name or f"{message.program or 'job'}-{number}", asked.session)
        if not present.name:
            return new
        if message.incarnation or (known is not None and known.is_of(message)):
            return None
        goes_on = self.awaits(members) or state in ("running", "interrupted")
        if asked.session and self._is_of_program(message, goes_on=goes_on):
            if asked.session > max(present.session, 1):
                self._check_may_follow(asked.session, members, state)
                return replace(new, name=present.name)
            if asked.session < present.session:
                raise SessionOver(f"session {asked.session} of {present.name} is over: the servers have {present} now")
            return None
        if message.resume and not later and asked.name not in ("", present.name):
            raise InvalidMessage(
                f"worker {message.worker!r} is to go on with job {asked.name!r}, but the servers have {present}: leave "
                "out --job to go on with that, or --resume to begin a new one"
            )
        if ((message.resume or self._one_job) and not later) or asked.name == present.name:
            return None
        if state == "running" and (asked.name or later):
            live = join_names([member.name for member in members.live])
            raise Unavailable(
                f"job {new.name!r} cannot begin while the servers run {present} with {live}: it begins when that is "
                "over, or after `psserver reset --force`"
            )
        return None if state == "running" or (state == "interrupted" and not (asked.name or later)) else new

    def _is_of_program(self, message: Join, *, goes_on: bool) -> bool:
        """Whether the present job is of the program of a worker, by its name; without one only if the job `goes_on`."""
        if message.job.name:
            return message.job.name == self.present.name
        goes_on |= message.resume or self._one_job
        return goes_on and re.fullmatch(rf"{re.escape(message.program or 'job')}-[0-9]+", self.present.name) is not None

    def _check_may_follow(self, session: int, members: Membership, state: str) -> None:
        """Raise `SessionNotBegun` while workers take part in the present job, or are awaited there."""
        present = self.present
        before = f"session {session} of {present.name} begins when session {max(present.session, 1)} is over, and"
        if state == "running":
            live = members.live
            takes = "takes" if len(live) == 1 else "take"
            raise SessionNotBegun(f"{before} {join_names([one.name for one in live])} {takes} part in it")
        if self.awaits(members):
            raise SessionNotBegun(
                f"{before} {members.joined} of {self.awaited} workers have come to it: the others are awaited for a "
                f"lease of {members.lease:g} s after the last one has left"
            )

    def _check_is_present(self, message: Join) -> None:
        """Raise `WrongShard` or `Zombie` unless a worker's job, which does not come after the present one, is that."""
        asked, present = message.job, self.present
        if asked.number == present.number:
            return
        if self._shard and not message.states:  # it joins for the first time: shard 0 has just decided on this job
            raise WrongShard(
                f"shard 0 has begun {asked}, but shard {self._shard} has {present}: shard 0 was restarted without its "
                "state; empty all servers by `psserver reset`, or restart all of them"
            )
        raise Zombie(
            f"{asked}, in which worker {message.worker!r} took part, is over: the servers have {present} now; this "
            "process must end"
        )


def joined_note(before: JobReport, present: Job) -> str:
    """What a worker's log says of the job that the shard had when the worker joined; "": nothing of interest.

    `before` is the report of that job, and `present` the job in which the worker takes part.
    """
    at = f"at step {before.global_step:,}"
    if before.state in ("running", "empty"):
        return ""
    if before.job == present:
        over = {"done": "was done", "ended": "had ended unfinished", "interrupted": "was interrupted"}[before.state]
        new = "" if before.state != "interrupted" else "; for a new job: `psserver reset`, or another --job"
        return f"{present} goes on {at}, where it {over}{new}"
    if before.state == "done" or not before.global_step or before.job.name == present.name:
        return ""
    return f"{present} begins, and {before.job} is given up {at}, unfinished: --resume would have gone on with it"
