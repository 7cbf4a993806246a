"""Membership: names, incarnations and leases of the workers of a job. Time is an argument.

A worker that joins again gets a higher incarnation; messages of an older one are refused. A lease that expires makes a
worker lost; it may join again. Of those that have left or were lost, the newest are remembered, with what deduplication
needs; forgotten incarnations are refused.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import chain, islice
from operator import attrgetter

from psserver.core.members.chief import ChiefElection
from psserver.core.members.deduplication import HalfPushes
from psserver.core.members.member import Member, Progress
from pswire.errors import InvalidMessage, NotJoined, ParamServerError, Unavailable, Zombie
from pswire.messages import Assigned, Computed, Join, MembershipState, MemberState, Pushed, Sender, Tuned

#: Incarnations of a worker in one timeline, at most. Each timeline begins above those before it: shard 0 numbers them,
#: and the state to which it went back may know fewer of them than those of other shards.
INCARNATIONS = 1_000_000

#: Members that are remembered after they have left or were lost: as many as may be live, so that all of them may come
#: back from an interruption.
MAX_GONE = 10_000


@dataclass(frozen=True, slots=True)
class JobEnd:
    """No worker has been live `since` this time; `workers` have joined; `done`: one has finished the job."""

    since: float
    workers: int
    done: bool


class Membership:
    """The workers that are live, and those that have left or were lost last, by name.

    They belong to one job (`psserver.core.job.jobs`), which may go on after its workers have finished, unless it is
    the only one of the server (`one_job`). Only shard 0 `has_chief`. `job_end` is set while no worker is live, and None
    before the first one has joined. `joined` counts the workers that ever joined. Incarnations of new workers are above
    `last_incarnation`. At most `max_workers` are live; None: any number.
    """

    def __init__(
        self,
        lease: float,
        *,
        has_chief: bool = True,
        one_job: bool = False,
        last_incarnation: int = 0,
        max_workers: int | None = None,
    ) -> None:
        self.lease = lease
        self._last_incarnation = last_incarnation
        self.job_end: JobEnd | None = None
        self._one_job, self._max_workers = one_job, max_workers
        self.joined = 0
        self._members: dict[str, Member] = {}  # the live ones, and those in `_gone`
        self._live: dict[str, Member] = {}
        self._gone: dict[str, Member] = {}  # in the order in which they left or were lost
        self._highest = last_incarnation  # incarnation that any worker ever had
        self._forgotten = 0  # the highest incarnation of those that are forgotten; 0: none is
        self._forgotten_lost = False  # whether one of them was lost
        self.done = False  # a worker has finished the job
        self.chief = ChiefElection(self._members, self._live, enabled=has_chief)
        self.progress = Progress()
        self.half_pushes = HalfPushes(self._members)

    def state(self) -> MembershipState:
        """All members, those that are gone first, in the order in which that happened."""
        training, finished, stalled, last_clock = self.progress.state()
        half_pushes, last_pushes = self.half_pushes.state()
        return MembershipState(
            members=tuple([_member_state(member) for member in self]),
            training=training,
            finished=finished,
            last_clock=last_clock,
            chief=self.chief.state(),
            done=self.done,
            half_pushes=half_pushes,
            last_pushes=last_pushes,
            last_incarnation=self._last_incarnation,
            stalled=stalled,
            joined=self.joined,
            forgotten=self._forgotten,
            forgotten_lost=self._forgotten_lost,
            forgotten_finished=self.progress.forgotten_finished,
        )

    def restore(self, state: MembershipState, now: float) -> None:
        """Continue from a `state`; leases begin `now`."""
        for one in state.members:
            member = _member(one)
            self._members[one.name] = member
            (self._live if member.state == "live" else self._gone)[one.name] = member
        known = self._members
        self.joined = max(state.joined, len(known))  # 0 in the states of earlier versions
        self._forgotten, self._forgotten_lost = state.forgotten, state.forgotten_lost
        self._highest = max([state.last_incarnation, state.forgotten, *[one.incarnation for one in state.members]])
        self.progress.forgotten_finished = state.forgotten_finished
        names = state.training, state.finished, state.stalled
        training, finished, stalled = [[known[name] for name in some] for some in names]
        self.progress.restore(training, finished, stalled, state.last_clock)
        self.half_pushes.restore(state.half_pushes, state.last_pushes)
        self.chief.restore(state.chief)
        self.done, self._last_incarnation = state.done, state.last_incarnation
        self.resume(now)

    def resume(self, now: float) -> None:
        """Begin all leases anew, and the time since the last worker has left."""
        for member in self:
            self.renew(member, now)
        if self._members:
            self.note_job_end(now)

    def __iter__(self) -> Iterator[Member]:
        return chain(self._gone.values(), self._live.values())

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def get(self, name: str) -> Member | None:
        """The member of this name, live or not."""
        return self._members.get(name)

    @property
    def live(self) -> list[Member]:
        """The live members, in the order of their first joining."""
        return sorted(self._live.values(), key=attrgetter("number"))

    @property
    def live_count(self) -> int:
        """The number of live members."""
        return len(self._live)

    @property
    def some_were_lost(self) -> bool:
        """Whether a worker was lost and did not come back, as far as it is remembered."""
        return self._forgotten_lost or any(member.state == "lost" for member in self._gone.values())

    def newest(self, most: int) -> list[Member]:
        """The live members that joined last, and those that have left or were lost last, in the order of joining."""
        members = self.live[-most:]
        if (others := most - len(members)) > 0:
            members += islice(reversed(self._gone.values()), others)
        return sorted(members, key=attrgetter("number"))

    @property
    def job_state(self) -> str:
        """As in `JobReport`. A job of which no worker has finished is interrupted if some were lost."""
        if not self.joined:
            return "empty"
        if self.job_end is None:
            return "running"
        if self.job_end.done:
            return "done"
        return "interrupted" if self.some_were_lost else "ended"

    @property
    def last_incarnation(self) -> int:
        """The highest incarnation that any worker ever had."""
        return self._highest

    def last_possible_incarnation(self, timeline: int) -> int:
        """The highest incarnation that shard 0 may have given in this timeline, apart from those of many workers."""
        return max(self._highest, timeline * INCARNATIONS)

    def is_live(self, sender: Sender) -> bool:
        """Whether this incarnation of the worker is a live member."""
        member = self._members.get(sender.worker)
        return member is not None and member.state == "live" and member.incarnation == sender.incarnation

    def check_join(self, message: Join) -> None:
        """Check the name and the incarnation.

        Raises:
            Zombie: a newer incarnation has replaced this one.
            Unavailable: another process has this name, until its lease ends.
            InvalidMessage: a worker without a name.
        """
        known = self._members.get(message.worker)
        if known is not None and message.incarnation and message.incarnation < known.incarnation:
            raise Zombie(_replaced(message.worker, message.incarnation, known.incarnation))
        if known is None and 0 < message.incarnation <= self._forgotten:
            raise _forgotten(message.worker, message.incarnation)
        if not message.worker:
            raise InvalidMessage("a worker needs a name to join")
        if self._max_workers is not None and message.worker not in self._live and len(self._live) >= self._max_workers:
            raise Unavailable(
                f"worker {message.worker!r} cannot join: {len(self._live):,} workers are live, and there may be no "
                "more; it can when one leaves, or with a larger --max-workers on all servers"
            )
        if known is None or known.state != "live" or message.incarnation or known.is_of(message):
            return
        if not message.name_key or message.name_key != known.name_key:
            raise Unavailable(
                f"a worker {message.worker!r} is live: another process has this name, or was killed and its lease of "
                f"{self.lease:g} s has not ended; give each worker a name of its own, or wait"
            )

    def join(self, message: Join, now: float, timeline: int = 0) -> tuple[Member, bool]:
        """Make a worker live; returns it, and whether this is a new incarnation.

        It gets the incarnation that it names, or for 0 the next one of this `timeline`. An incarnation that joins again
        (a retry, or after its lease expired) continues unchanged. A new incarnation that joins while no worker is live
        becomes chief, and workers that have finished no longer count: the job goes on. With `one_job` that does not
        happen once the job is done.
        """
        self.job_end = None
        known = self._members.get(message.worker)
        if known is not None and known.is_of(message):
            known.state, known.must_join = "live", False
            self._gone.pop(known.name, None)
            self._live[known.name] = known
            self.renew(known, now, message.tensor_transport)
            self.chief.elect()
            return known, False
        goes_on = not self._live and not (self._one_job and self.done)
        if goes_on and not self._one_job:
            self.progress.resume_all()
        number, last = (self.joined, 0) if known is None else (known.number, known.incarnation)
        last = max(last, (timeline - 1) * INCARNATIONS, self._last_incarnation)
        if self.joined > MAX_GONE // 2:  # some shard may have forgotten workers: above all that it may refuse
            last = max(last, self._highest)
        member = Member(message.worker, number, message.incarnation or last + 1, message.process_nonce)
        member.name_key = message.name_key
        member.quarantined = "" if known is None else known.quarantined
        self._highest = max(self._highest, member.incarnation)
        self.joined += known is None
        self.renew(member, now, message.tensor_transport)
        if known is not None:
            self.progress.stop(known)
            self.progress.resume([known.name])
            self.half_pushes.end_incarnation(known)
            self.chief.replace(known, member)
        self._gone.pop(member.name, None)
        self._members[member.name] = self._live[member.name] = member
        self.chief.elect(anew=goes_on)
        return member, True

    def check(self, sender: Sender) -> Member:
        """The live member that sends. Raises `NotJoined`, or `Zombie` if another incarnation has joined since."""
        member = self._members.get(sender.worker)
        if member is not None and member.state == "live" and member.incarnation == sender.incarnation:
            if not member.must_join:
                return member
            raise NotJoined(f"worker {sender.worker!r} has to join again: this shard went back to an older state")
        raise self.refusal(sender)

    def record(self, member: Member, sequence: int, answer: Pushed | Assigned | Tuned | Computed) -> None:
        """Settle a message with an answer, which has no values: a retry gets fresh ones."""
        member.settled, member.answer = sequence, answer

    def settle(self, sender: Sender, sequence: int) -> None:
        """From now on refuse messages of this incarnation up to `sequence` that have not arrived."""
        member = self._members.get(sender.worker)
        if member is not None and member.incarnation == sender.incarnation and sequence > member.settled:
            member.settled, member.answer = sequence, None

    def refusal(self, sender: Sender) -> ParamServerError:
        """The error of `check` for a sender that is no live member."""
        name, member = sender.worker, self._members.get(sender.worker)
        if member is None:
            if sender.incarnation <= self._forgotten:
                return _forgotten(name, sender.incarnation)
            return NotJoined(f"worker {name!r} has not joined this shard: join first")
        if sender.incarnation < member.incarnation:
            return Zombie(_replaced(name, sender.incarnation, member.incarnation))
        if sender.incarnation > member.incarnation:
            return NotJoined(
                f"worker {name!r} sends as incarnation {sender.incarnation}, but this shard knows it as "
                f"{member.incarnation}: join again"
            )
        assert member.state != "live", f"{sender} is a live member"
        why = "has left" if member.state == "left" else f"was silent for more than its lease of {self.lease:g} s"
        return NotJoined(f"worker {name!r} {why}: join again")

    def renew(self, member: Member, now: float, tensor_transport: str = "") -> None:
        """Restart the lease, and record the tensor transport if given."""
        member.expires = now + self.lease
        member.tensor_transport = tensor_transport or member.tensor_transport

    def leave(self, member: Member, now: float, *, failed: bool = False, done: bool = False) -> None:
        """End a membership; `done`: a worker has finished the job, this one or another."""
        self.done |= done
        self._end(member, "left")
        if failed:
            self.progress.stop(member)
            if not member.out_of_data:
                self.progress.resume([member.name])
            self.chief.dismiss([member])
        else:
            self.progress.finish(member)
        self.note_job_end(now)

    def expired(self, now: float) -> tuple[str, ...]:
        """The live members whose lease has expired."""
        gone = [member for member in self._live.values() if member.expires < now]
        return tuple([member.name for member in sorted(gone, key=attrgetter("number"))])

    def expire(self, names: Iterable[str], now: float) -> list[Member]:
        """Mark those of these members that are live as lost; returns them."""
        lost = [self._live[name] for name in names if name in self._live]
        for member in lost:
            self._end(member, "lost")
            self.progress.stop(member)
        if lost:
            self.chief.dismiss(lost)
            self.note_job_end(now)
        return lost

    def forget(self) -> list[Member]:
        """Forget the members that have been gone for longest, beyond `MAX_GONE`; returns them."""
        forgotten = list(islice(self._gone.values(), max(0, len(self._gone) - MAX_GONE)))
        for member in forgotten:
            del self._gone[member.name], self._members[member.name]
            self._forgotten = max(self._forgotten, member.incarnation)
            self._forgotten_lost |= member.state == "lost"
            self.progress.forget(member)
            self.half_pushes.end_incarnation(member)
        return forgotten

    def _end(self, member: Member, state: str) -> None:
        member.state = state
        del self._live[member.name]
        self._gone[member.name] = member

    def note_job_end(self, now: float) -> None:
        """Set `job_end` to this time if no worker is live."""
        if not self._live:
            self.job_end = JobEnd(now, self.joined, self.done)


#: The fields that a member and its state have in common.
_ANSWERS = ("pushed", "assigned", "tuned", "computed")
_COMMON = tuple([one.name for one in fields(MemberState) if one.name not in _ANSWERS])


def _member_state(member: Member) -> MemberState:
    answer = member.answer
    return MemberState(
        **{name: getattr(member, name) for name in _COMMON},
        pushed=answer if isinstance(answer, Pushed) else None,
        assigned=answer if isinstance(answer, Assigned) else None,
        tuned=answer if isinstance(answer, Tuned) else None,
        computed=answer if isinstance(answer, Computed) else None,
    )


def _member(state: MemberState) -> Member:
    answer = state.pushed or state.assigned or state.tuned or state.computed
    return Member(**{name: getattr(state, name) for name in _COMMON}, answer=answer)


def _forgotten(worker: str, incarnation: int) -> Zombie:
    return Zombie(
        f"worker {worker!r} sends as incarnation {incarnation}, which has left or was lost so long ago that this shard "
        "has forgotten it: this process must end"
    )


def _replaced(worker: str, incarnation: int, current: int) -> str:
    return (
        f"worker {worker!r} sends as incarnation {incarnation}, but incarnation {current} has joined since: "
        "this process must end (do two workers have the same name?)"
    )
