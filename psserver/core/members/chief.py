"""Chief election: the choice of the worker that does what must be done once per job.

If there is no chief, the live worker that joined first becomes chief. If the chief is lost or fails, another one is
elected; one that finished has done its work and stays chief until the job goes on with other workers.
"""

from collections.abc import Collection, Mapping
from operator import attrgetter

from psserver.core.members.member import Member
from pswire.messages import Sender


class ChiefElection:
    """Elects the chief of `members`, one of those that are `live`; there is no chief unless `enabled`."""

    def __init__(self, members: Mapping[str, Member], live: Mapping[str, Member], *, enabled: bool) -> None:
        self._members, self._live, self._enabled = members, live, enabled
        self._chief: Member | None = None

    def state(self) -> Sender | None:
        """The incarnation that is the chief."""
        return None if self._chief is None else Sender(self._chief.name, self._chief.incarnation)

    def restore(self, chief: Sender | None) -> None:
        """Continue from a `state`; the chief may be an incarnation that has ended."""
        self._chief = None
        if chief is not None:
            member = self._members.get(chief.worker)
            same = member is not None and member.incarnation == chief.incarnation
            self._chief = member if same else Member(chief.worker, 0, chief.incarnation, state="left")

    def is_chief(self, name: str) -> bool:
        """Whether the worker of this name is the chief, in its current incarnation."""
        return self._chief is not None and self._chief is self._members.get(name)

    def elect(self, *, anew: bool = False) -> None:
        """Elect a chief if there is none, or `anew`, in place of one that has finished."""
        if self._enabled and (anew or self._chief is None):
            self._chief = min(self._live.values(), key=attrgetter("number"), default=None)

    def dismiss(self, gone: Collection[Member]) -> None:
        """Elect another chief if it is among these, which were lost or have failed."""
        if any(member is self._chief for member in gone):
            self._chief = None
            self.elect()

    def replace(self, old: Member, new: Member) -> None:
        """Keep a chief that joins again with a new incarnation while it is live."""
        if self._chief is old and old.state == "live":
            self._chief = new
