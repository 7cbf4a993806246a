"""Membership: names, incarnations and leases of the workers of a job. Time is an argument.

A worker that joins again gets a higher incarnation; messages of an older one are refused. A lease that expires makes a
worker lost; it may join again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from psserver.core.members.chief import ChiefElection
from psserver.core.members.deduplication import HalfPushes
from psserver.core.members.member import Member, Progress
from psserver.core.state import MembershipState, MemberState
from pswire.errors import InvalidMessage, NotJoined, ParamServerError, Zombie
from pswire.messages import Assigned, Join, Pushed, Sender, Tuned

#: Far above the incarnations that a worker can reach, and far below the largest that the protocol can carry.
MAX_INCARNATION = 1 << 48

#: Incarnations of a worker in one timeline, at most. Each timeline begins above those before it: shard 0 numbers them,
#: and the state to which it went back may know fewer of them than those of other shards.
INCARNATIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class JobEnd:
    """No worker has been live `since` this time; `workers` have joined; `done`: one has finished the job."""

    since: float
    workers: int
    done: bool


class Membership:
    """The workers that ever joined, by name, in the order of their first joining.

    They belong to one job (`psserver.core.jobs`), which may go on after its workers have finished, unless it is
    the only one of the server (`one_job`). Only shard 0 `has_chief`. `job_end` is set while no worker is live, and None
    before the first one has joined. Incarnations of new workers are above `last_incarnation`.
    """

    def __init__(
        self, lease: float, *, has_chief: bool = True, one_job: bool = False, last_incarnation: int = 0
    ) -> None:
        self.lease = lease
        self._last_incarnation = last_incarnation
        self.job_end: JobEnd | None = None
        self._one_job = one_job
        self._members: dict[str, Member] = {}
        self._done = False  # a worker has finished the job
        self.chief = ChiefElection(self._members, enabled=has_chief)
        self.progress = Progress()
        self.half_pushes = HalfPushes(self._members)

    def state(self) -> MembershipState:
        """All members, and what depends on their order."""
        training, finished, stalled, last_clock = self.progress.state()
        half_pushes, last_pushes = self.half_pushes.state()
        return MembershipState(
            tuple([_member_state(member) for member in self]),
            training,
            finished,
            last_clock,
            self.chief.state(),
            self._done,
            half_pushes,
            last_pushes,
            self._last_incarnation,
            stalled,
        )

    def restore(self, state: MembershipState, now: float) -> None:
        """Continue from a `state`; leases begin `now`."""
        for one in state.members:
            member = _member(one)
            self._members[one.name] = member
        known = self._members
        names = state.training, state.finished, state.stalled
        training, finished, stalled = [[known[name] for name in some] for some in names]
        self.progress.restore(training, finished, stalled, state.last_clock)
        self.half_pushes.restore(state.half_pushes, state.last_pushes)
        self.chief.restore(state.chief)
        self._done, self._last_incarnation = state.done, state.last_incarnation
        self.resume(now)

    def resume(self, now: float) -> None:
        """Begin all leases anew, and the time since the last worker has left."""
        for member in self:
            self.renew(member, now)
        if self._members:
            self._check_job_end(now)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def get(self, name: str) -> Member | None:
        """The member of this name, live or not."""
        return self._members.get(name)

    @property
    def live(self) -> list[Member]:
        """The live members, in the order of their first joining."""
        return [member for member in self if member.state == "live"]

    @property
    def job_state(self) -> str:
        """As in `JobReport`. A job of which no worker has finished is interrupted if some were lost."""
        if not self._members:
            return "empty"
        if self.job_end is None:
            return "running"
        if self.job_end.done:
            return "done"
        return "interrupted" if any(member.state == "lost" for member in self) else "ended"

    @property
    def last_incarnation(self) -> int:
        """The highest incarnation that any worker ever had."""
        return max([self._last_incarnation, *[member.incarnation for member in self]])

    def is_live(self, sender: Sender) -> bool:
        """Whether this incarnation of the worker is a live member."""
        member = self._members.get(sender.worker)
        return member is not None and member.state == "live" and member.incarnation == sender.incarnation

    def check_join(self, message: Join) -> None:
        """Raise `Zombie` for an incarnation that a newer one has replaced, `InvalidMessage` for an impossible one."""
        known = self._members.get(message.worker)
        if max(message.incarnation, known.incarnation if known else 0) >= MAX_INCARNATION:
            raise InvalidMessage(
                f"incarnation {message.incarnation} of worker {message.worker!r}: this number is implausibly large"
            )
        if known is not None and message.incarnation and message.incarnation < known.incarnation:
            raise Zombie(_replaced(message.worker, message.incarnation, known.incarnation))
        if not message.worker:
            raise InvalidMessage("a worker needs a name to join")

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
            self.renew(known, now, message.tensor_transport)
            self.chief.elect()
            return known, False
        goes_on = not self.live and not (self._one_job and self._done)
        if goes_on and not self._one_job:
            self.progress.resume(list(self._members))
            self.progress.stalled.clear()
        number, last = (len(self._members), 0) if known is None else (known.number, known.incarnation)
        last = max(last, (timeline - 1) * INCARNATIONS, self._last_incarnation)
        member = Member(message.worker, number, message.incarnation or last + 1, message.process_nonce)
        self.renew(member, now, message.tensor_transport)
        if known is not None:
            self.progress.stop(known)
            self.progress.resume([known.name])
            self.half_pushes.end_incarnation(known)
            self.chief.replace(known, member)
        self._members[message.worker] = member
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

    def record(self, member: Member, sequence: int, answer: Pushed | Assigned | Tuned) -> None:
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

    def leave(self, member: Member, now: float, *, failed: bool = False, trained: bool = True) -> None:
        """End a membership; unless it `failed`, and if the job has `trained` before, this finishes the job."""
        self._done |= trained and not failed
        member.state = "left"
        if failed:
            self.progress.stop(member)
            if not member.out_of_data:
                self.progress.resume([member.name])
            self.chief.dismiss([member])
        else:
            self.progress.finish(member)
        self._check_job_end(now)

    def expired(self, now: float) -> tuple[str, ...]:
        """The live members whose lease has expired."""
        return tuple([member.name for member in self.live if member.expires < now])

    def expire(self, names: Iterable[str], now: float) -> list[Member]:
        """Mark those of these members that are live as lost; returns them."""
        lost = [member for name in names if (member := self._members[name]).state == "live"]
        for member in lost:
            member.state = "lost"
            self.progress.stop(member)
        if lost:
            self.chief.dismiss(lost)
            self._check_job_end(now)
        return lost

    def _check_job_end(self, now: float) -> None:
        if not self.live:
            self.job_end = JobEnd(now, len(self._members), self._done)


#: The fields that a member and its state have in common.
_COMMON = tuple([one.name for one in fields(MemberState) if one.name not in ("pushed", "assigned", "tuned")])


def _member_state(member: Member) -> MemberState:
    answer = member.answer
    return MemberState(
        **{name: getattr(member, name) for name in _COMMON},
        pushed=answer if isinstance(answer, Pushed) else None,
        assigned=answer if isinstance(answer, Assigned) else None,
        tuned=answer if isinstance(answer, Tuned) else None,
    )


def _member(state: MemberState) -> Member:
    answer = state.pushed or state.assigned or state.tuned
    return Member(**{name: getattr(state, name) for name in _COMMON}, answer=answer)


def _replaced(worker: str, incarnation: int, current: int) -> str:
    return (
        f"worker {worker!r} sends as incarnation {incarnation}, but incarnation {current} has joined since: "
        "this process must end (do two workers have the same name?)"
    )
