"""Who takes part: names, incarnations, leases, and what each worker has done. Time is an argument.

A worker that joins again gets a higher incarnation, and whatever still speaks with an older one is a zombie. A
lease that ends makes a worker lost; it may join again.

Those whose next push others may wait for are in the race: a member from its first push of a life until it says that it
is idle, leaves, or is lost. Who waits for whom is not decided here, but by the policies.

One worker is the chief, which does what is to be done once. When it is lost, or has failed, another is; one that has
left in good order has done its work, and nobody shall do that again: until a new job begins, where nobody lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from pswire.errors import InvalidMessage, NotJoined, ParamServerError, Zombie
from pswire.messages import Join, LastPush, Sender

#: Far above what a worker can reach, and far below what the protocol can carry.
MOST_INCARNATIONS = 1 << 48

#: Earlier lives of workers whose last push is remembered.
MOST_LIVES = 1000


@dataclass(slots=True)
class Member:
    """A worker that is `live`, or has `left`, or was `lost`; `expires` is the moment when its lease ends.

    `steps` counts its pushes of this life that were applied, `dropped` those that the policy refused. `clock` is its
    step in the race, and goes on with both. `racing` says that it is in it; `through` that it was and went in good
    order: it was idle or has left, and has not pushed since. `without_work` says that it is through because the data
    queue had nothing for it. `tensor_transport` is how its tensors travel, in its own words. `half_pushes` is what it
    reports of
    pushes that some shards have applied and others not, `last_push` its last one here of which others have a part.
    """

    name: str
    number: int
    incarnation: int = 0
    life: int = 0
    state: str = "live"
    expires: float = 0.0
    steps: int = 0
    staleness: int = 0
    staleness_sum: int = 0
    loss: float | None = None
    racing: bool = False
    through: bool = False
    without_work: bool = False
    clock: int = 0
    dropped: int = 0
    tensor_transport: str = ""
    half_pushes: int = 0
    last_push: LastPush | None = None


@dataclass(frozen=True, slots=True)
class JobEnd:
    """Nobody lives `since` then, of so many `workers` that ever joined; `done`: one has come to the job's end."""

    since: float
    workers: int
    done: bool


class Membership:
    """The workers that ever joined, by name, in the order of their first joining.

    Args:
        lease: seconds of silence after which a worker is lost.
        has_chief: whether one of them is the chief; of several shards only the first has one.
        one_job: whether all who ever join belong to one job; if not, who joins where nobody lives begins another.

    Attributes:
        lease: what was given.
        job_end: that nobody is left; None while somebody lives, or nobody has joined yet.
    """

    def __init__(self, lease: float, *, has_chief: bool = True, one_job: bool = False) -> None:
        self.lease = lease
        self.job_end: JobEnd | None = None
        self._has_chief = has_chief
        self._one_job = one_job
        self._chief: Member | None = None
        self._members: dict[str, Member] = {}
        self._racers: dict[str, Member] = {}
        self._through: set[str] = set()
        self._done = False  # somebody has come to the job's end
        self._line = 0  # the least clock when last somebody was in the race
        self._half_pushes = 0  # of lives that are over
        self._last_pushes: deque[LastPush] = deque(maxlen=MOST_LIVES)  # of lives that are over

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def get(self, name: str) -> Member | None:
        """The member of this name, whether it lives or not."""
        return self._members.get(name)

    def lives(self, name: str) -> bool:
        """Whether there is a live member of this name."""
        return name in self._members and self._members[name].state == "live"

    def check_join(self, message: Join) -> None:
        """Raises `Zombie` for an incarnation that another has overtaken, `InvalidMessage` for one that cannot be."""
        known = self._members.get(message.worker)
        if max(message.incarnation, known.incarnation if known else 0) >= MOST_INCARNATIONS:
            raise InvalidMessage(
                f"incarnation {message.incarnation} of worker {message.worker!r}: nobody lives so often"
            )
        if known is not None and message.incarnation and message.incarnation < known.incarnation:
            raise Zombie(_overtaken(message.worker, message.incarnation, known.incarnation))
        if not message.worker:
            raise InvalidMessage("a worker needs a name to join")

    def join(self, message: Join, now: float) -> tuple[Member, bool]:
        """Makes it live, with the incarnation that it names, or the next one for 0; and whether this life is new.

        A new life has no steps yet; one that joins again (a retry, or after its lease had ended) goes on. A new life
        where nobody lives begins a new job, and is its chief, and who was through with the last one is of no account;
        but if all are of one job, not when that is done.
        """
        self.job_end = None
        known = self._members.get(message.worker)
        if known is not None and _same_life(known, message):
            known.state = "live"
            self.renew(known, now, message.tensor_transport)
            self._find_chief()
            return known, False
        if not self._anybody_lives() and not (self._one_job and self._done):
            self._chief = None
            if not self._one_job:
                self.work(list(self._through))
        number, last = (len(self._members), 0) if known is None else (known.number, known.incarnation)
        incarnation = message.incarnation or last + 1
        member = Member(message.worker, number, incarnation, message.life, tensor_transport=message.tensor_transport)
        self.renew(member, now)
        if known is not None:
            self._stop(known)
            self._half_pushes += known.half_pushes
            if known.last_push is not None:
                self._last_pushes.append(known.last_push)
            if self._chief is known and known.state == "live":
                self._chief = member
        self._through.discard(message.worker)
        self._members[message.worker] = member
        self._find_chief()
        return member, True

    def check(self, sender: Sender) -> Member:
        """The live member that speaks.

        Raises:
            NotJoined: it never joined, has left, or its lease has ended.
            Zombie: another incarnation has joined since.
        """
        member = self._members.get(sender.worker)
        if member is None:
            raise NotJoined(f"worker {sender.worker!r} has not joined this shard: join first")
        if sender.incarnation < member.incarnation:
            raise Zombie(_overtaken(sender.worker, sender.incarnation, member.incarnation))
        if sender.incarnation > member.incarnation:
            raise NotJoined(
                f"worker {sender.worker!r} speaks as incarnation {sender.incarnation}, this shard knows it as "
                f"{member.incarnation}: join again"
            )
        if member.state != "live":
            why = "has left" if member.state == "left" else f"was silent for more than its lease of {self.lease:g} s"
            raise NotJoined(f"worker {sender.worker!r} {why}: join again")
        return member

    def refusal(self, sender: Sender) -> ParamServerError:
        """What `check` raises for a sender that is no live member."""
        try:
            self.check(sender)
        except ParamServerError as error:
            return error
        raise AssertionError(f"{sender} is a live member")

    def renew(self, member: Member, now: float, tensor_transport: str = "") -> None:
        """The lease runs from now; and `tensor_transport`, if it is named, is that of the member by now."""
        member.expires = now + self.lease
        member.tensor_transport = tensor_transport or member.tensor_transport

    def leave(self, member: Member, now: float, *, failed: bool = False, trained: bool = True) -> None:
        """It goes, in good order unless it has failed.

        That is the job's end if it was `trained`: who comes and goes before that is a visitor.
        """
        self._done |= trained and not failed
        member.state = "left"
        if failed:
            self._stop(member)
            if not member.without_work:
                self.work([member.name])
            self._dismiss([member])
        else:
            self.rest(member)
        self._end_of_job(now)

    def expire(self, now: float) -> list[Member]:
        """Those whose lease has ended; they are lost from now on."""
        lost = [member for member in self if member.state == "live" and member.expires < now]
        for member in lost:
            member.state = "lost"
            self._stop(member)
        if lost:
            self._dismiss(lost)
            self._end_of_job(now)
        return lost

    def _end_of_job(self, now: float) -> None:
        if not self._anybody_lives():
            self.job_end = JobEnd(now, len(self._members), self._done)

    def _anybody_lives(self) -> bool:
        return any(member.state == "live" for member in self)

    # --- the chief ------------------------------------------------------------------------------------------------

    @property
    def chief(self) -> str:
        """The chief's name; "" if there is none, for nobody lives who could be it."""
        return "" if self._chief is None else self._chief.name

    def is_chief(self, name: str) -> bool:
        """Whether the worker of this name is the chief, in its life of now."""
        return self._chief is not None and self._chief is self._members.get(name)

    def _dismiss(self, gone: Iterable[Member]) -> None:
        """The chief is another if it is among these, which have not done their work."""
        if any(member is self._chief for member in gone):
            self._chief = None
            self._find_chief()

    def _find_chief(self) -> None:
        """If there is none, it is the one that has joined first of those that live."""
        if self._has_chief and self._chief is None:
            self._chief = next((member for member in self if member.state == "live"), None)

    # --- half pushes ----------------------------------------------------------------------------------------------

    @property
    def half_pushes(self) -> int:
        """Pushes that some shards have applied and others not, as far as workers have reported them."""
        return self._half_pushes + sum(member.half_pushes for member in self)

    def last_pushes(self, most: int) -> tuple[LastPush, ...]:
        """The last push of each life of which other shards have a part; of very many the newest lives."""
        now = [member.last_push for member in self if member.last_push is not None]
        return (*islice(self._last_pushes, max(0, len(self._last_pushes) + len(now) - most), None), *now[-most:])

    # --- the race -------------------------------------------------------------------------------------------------

    @property
    def racers(self) -> Mapping[str, Member]:
        """Those in the race, by name, in the order in which they entered it."""
        return self._racers

    @property
    def least_clock(self) -> int:
        """That of the slowest in the race; while nobody is in it, where the last one left it. It never goes back."""
        return min([member.clock for member in self._racers.values()], default=self._line)

    @property
    def ending(self) -> bool:
        """Whether some member is through: others may then wait in vain for as many as there were."""
        return bool(self._through)

    def enter(self, member: Member) -> None:
        """It has pushed: it is in the race, not behind the slowest. One that was in it in this life keeps its lead."""
        if not member.racing:
            member.clock = max(member.clock, self.least_clock)
            member.racing, member.through, member.without_work = True, False, False
            self._racers[member.name] = member
            self._through.discard(member.name)

    def rest(self, member: Member, *, without_work: bool = False) -> None:
        """It is idle: nobody waits for it, until it pushes again.

        One that never was in the race is not through with it, but when it is `without_work`: there were no examples
        for it.
        """
        if member.racing or member.clock or without_work:
            member.through = True
            member.without_work |= without_work
            self._through.add(member.name)
        self._stop(member)

    def work(self, names: Iterable[str]) -> None:
        """These have examples to work on: they are not through."""
        for name in self._through.intersection(names):
            self._members[name].through = self._members[name].without_work = False
            self._through.discard(name)

    def _stop(self, member: Member) -> None:
        if member.racing:
            self._line = self.least_clock
            member.racing = False
            del self._racers[member.name]


def _same_life(member: Member, message: Join) -> bool:
    if message.incarnation:
        return message.incarnation == member.incarnation
    return message.life != 0 and message.life == member.life


def _overtaken(worker: str, incarnation: int, current: int) -> str:
    return (
        f"worker {worker!r} speaks as incarnation {incarnation}, but incarnation {current} has joined since: "
        "this one must end (do two workers have the same name?)"
    )
