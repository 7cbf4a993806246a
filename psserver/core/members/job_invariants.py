"""What all workers of a job must agree on: which servers there are and in what order, where variables are, what states.

A shard that was started anew, while another went on, has lost its part of the model, and training would go on with the
rest: the two no longer belong together. Knows neither members nor values. May import messages and errors.
"""

from __future__ import annotations

from collections.abc import Iterable

from pswire.errors import AlreadyRegistered, InvalidMessage, UnknownVariable, WrongShard
from pswire.messages import Join, Register


class JobInvariants:
    """What this shard was told first, and holds everybody to.

    Args:
        shard: which of the `shards` of the job this is, from 0.
        shards: how many there are.
        identity: that of this shard's state (`Joined.state`); 0: it has none, and is never compared.

    Attributes:
        identity: what was given.
    """

    def __init__(self, shard: int, shards: int, identity: int) -> None:
        self.identity = identity
        self._shard, self._shards = shard, shards
        self._places: dict[str, int] = {}
        self._states = [0] * shards  # 0: nobody has told
        self._states[shard] = identity

    def check_join(self, message: Join) -> None:
        """Raises `WrongShard` for another list of servers, or a worker that has met another state of one of them."""
        if (message.shard, message.shards) != (self._shard, self._shards):
            raise WrongShard(
                f"worker {message.worker!r} takes this server for shard {message.shard} of {message.shards}, it is "
                f"shard {self._shard} of {self._shards}: name all servers, in the order of their shards"
            )
        self._check_states(message.states)

    def check_register(self, message: Register) -> None:
        """Looks at what a registration says of the whole job.

        Raises:
            WrongShard: the worker has met another state of a shard than the first one that registered here.
            AlreadyRegistered: it places a variable elsewhere: two workers that trained one of the same name on two
                shards would not notice.
        """
        self._check_states(message.states)
        for place in message.places:
            known = self._places.get(place.name, place.shard)
            if known != place.shard:
                raise AlreadyRegistered(
                    f"variable {place.name!r} is on shard {known}, worker {message.sender.worker!r} places it on shard "
                    f"{place.shard}: all workers must make the same variables, in the same order"
                )

    def check_placed(self, names: Iterable[str]) -> None:
        """Raises `UnknownVariable` for one that no worker has placed on any shard."""
        for name in names:
            if name not in self._places:
                raise UnknownVariable(f"no variable {name!r} has a place on the shards of this job: register it first")

    def keep(self, message: Register) -> None:
        """What a registration that takes place says of the job holds for all who come later."""
        self._places.update({place.name: place.shard for place in message.places})
        for shard, state in enumerate(message.states):
            self._states[shard] = self._states[shard] or state

    def _check_states(self, states: tuple[int, ...]) -> None:
        """Whichever shard a worker and this one know by different states was started anew, maybe this one itself."""
        if not states:
            return
        if len(states) != self._shards:
            raise InvalidMessage(f"the states of {len(states)} shards, but the job has {self._shards}: name each once")
        for shard, (met, known) in enumerate(zip(states, self._states, strict=True)):
            if met and known and met != known:
                raise WrongShard(
                    f"shard {shard} was started anew and has lost its state; start the whole job again, all servers too"
                )
