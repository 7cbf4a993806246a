"""Job-wide invariants: server order, placement of variables, identity of each shard's state.

A shard that was restarted while another went on has lost its part of the model; the states of the two are no longer
consistent.
"""

from collections.abc import Iterable

from pswire.errors import AlreadyRegistered, InvalidMessage, UnknownVariable, WrongShard
from pswire.messages import Join, Place, Register, VariableGroup


class JobInvariants:
    """The invariants as first registered; later workers must agree. `identity` of this shard's state; 0: none."""

    def __init__(self, shard: int, shards: int, identity: int) -> None:
        self.identity = identity
        self._shard, self._shards = shard, shards
        self._places: dict[str, int] = {}
        self._groups: list[VariableGroup] = []
        self._grouped: set[str] = set()
        self._states = [0] * shards  # 0: unknown
        self._states[shard] = identity

    @property
    def groups(self) -> tuple[VariableGroup, ...]:
        """On shard 0 the variables of the job by the registration that brought them: see `pswire.placement`."""
        return tuple(self._groups)

    def state(self) -> tuple[tuple[Place, ...], tuple[int, ...]]:
        """The places of variables, and the states of all shards; 0: unknown."""
        return tuple([Place(name, shard) for name, shard in self._places.items()]), tuple(self._states)

    def restore(self, places: Iterable[Place], groups: Iterable[VariableGroup], states: Iterable[int]) -> None:
        """Continue from a `state` with these `groups`."""
        self._places = {place.name: place.shard for place in places}
        self._groups, self._states = list(groups), list(states)
        self._grouped = {name for group in self._groups for name in group.names}

    def check_join(self, message: Join) -> None:
        """Raise `WrongShard` for another list of servers, or another state of one of them."""
        if (message.shard, message.shards) != (self._shard, self._shards):
            raise WrongShard(
                f"worker {message.worker!r} takes this server for shard {message.shard} of {message.shards}, it is "
                f"shard {self._shard} of {self._shards}: name all servers, in the order of their shards"
            )
        self._check_states(message.states)

    def check_register(self, message: Register) -> None:
        """Raise `WrongShard` for another state of a shard, `AlreadyRegistered` for another place of a variable."""
        self._check_states(message.states)
        for place in message.places:
            known = self._places.get(place.name, place.shard)
            if known != place.shard:
                raise AlreadyRegistered(
                    f"variable {place.name!r} is on shard {known}, worker {message.sender.worker!r} places it on shard "
                    f"{place.shard}: all workers must create the same variables, in the same order"
                )

    @property
    def places(self) -> int:
        """The number of variables that have a place on some shard."""
        return len(self._places)

    def new_places(self, message: Register) -> int:
        """The number of variables of a registration that have no place yet."""
        return len({place.name for place in message.places} - self._places.keys())

    def check_placed(self, names: Iterable[str]) -> None:
        """Raise `UnknownVariable` for a variable that no worker has placed on any shard."""
        for name in names:
            if name not in self._places:
                raise UnknownVariable(f"no variable {name!r} has a place on the shards of this job: register it first")

    def keep(self, message: Register) -> None:
        """Keep the places, groups and states of a registration; the first ones win."""
        names = [place.name for place in message.places] or [one.spec.name for one in message.declarations]
        if new := tuple([name for name in names if name not in self._grouped]):
            self._groups.append(VariableGroup(new))
            self._grouped.update(new)
        self._places.update({place.name: place.shard for place in message.places})
        for shard, state in enumerate(message.states):
            self._states[shard] = self._states[shard] or state

    def _check_states(self, states: tuple[int, ...]) -> None:
        """Raise `WrongShard` if a shard is known with two states: it, or this one, has begun from something else."""
        if states and len(states) != self._shards:
            raise InvalidMessage(f"the states of {len(states)} shards, but the job has {self._shards}: name each once")
        for shard, (met, known) in enumerate(zip(states, self._states, strict=False)):
            if met and known and met != known:
                raise WrongShard(
                    f"shard {shard} was restarted and has lost its state, or has begun from another step of the job on "
                    "another number of shards; restart the whole job, including all servers"
                )
