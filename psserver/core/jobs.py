"""The jobs of a shard, one after another: which one a joining worker takes part in, and reports of the earlier ones."""

from collections.abc import Iterable
from dataclasses import replace

from psserver.core.members.membership import Membership
from psserver.core.policies.policy import join_names
from pswire.errors import InvalidMessage, Unavailable, WrongShard, Zombie
from pswire.messages import Job, JobReport, Join

#: Earlier jobs whose reports are kept.
MAX_EARLIER = 99


class Jobs:
    """The `present` job, and reports of those before it, oldest first.

    Shard 0 decides which job a worker takes part in, and the other shards follow by its number. With `one_job` the
    first job is the only one.
    """

    def __init__(self, shard: int, *, one_job: bool = False) -> None:
        self.present = Job()
        self.earlier: tuple[JobReport, ...] = ()
        self._shard, self._one_job = shard, one_job

    def restore(self, present: Job, earlier: Iterable[JobReport]) -> None:
        """Continue from the jobs of a state."""
        self.present, self.earlier = present, tuple(earlier)

    def begin(self, job: Job, report: JobReport) -> None:
        """Begin a job after the present one, of which this is the report."""
        if self.present.name:
            ended = replace(report, state="ended") if report.state == "running" else report
            self.earlier = (*self.earlier, ended)[-MAX_EARLIER:]
        self.present = job

    def begun_by(self, message: Join, members: Membership, state: str) -> Job | None:
        """The job that this worker begins on this shard; None: it takes part in the present one, of this `state`.

        Without a name a worker takes part in a job that is running, or whose workers were lost before it was done, and
        otherwise begins a new one.

        Raises:
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
        number, known = present.number + 1, members.get(message.worker)
        new = Job(number, asked.name or f"{message.program or 'job'}-{number}")
        if not present.name:
            return new
        if message.incarnation or (known is not None and known.is_of(message)):
            return None
        if message.resume and asked.name not in ("", present.name):
            raise InvalidMessage(
                f"worker {message.worker!r} is to go on with job {asked.name!r}, but the servers have {present}: leave "
                "out --job to go on with that, or --resume to begin a new one"
            )
        if message.resume or self._one_job or asked.name == present.name:
            return None
        if state == "running" and asked.name:
            live = join_names([member.name for member in members.live])
            raise Unavailable(
                f"job {asked.name!r} cannot begin while the servers run {present} with {live}: it begins when that is "
                "over, or after `psserver reset --force`"
            )
        return None if state == "running" or (state == "interrupted" and not asked.name) else new

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
    if before.state == "done" or not before.global_step:
        return ""
    return f"{present} begins, and {before.job} is given up {at}, unfinished: --resume would have gone on with it"
