"""Registration of variables, and changes of their hyperparameters."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

from psserver.core.members.job_invariants import JobInvariants
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.options import ShardOptions
from psserver.core.part import MAX_LISTED, Call, Check, Handler, Part, Position
from psserver.core.policies.update_order import UpdateOrder
from psserver.core.variables.array_tasks import StepResult
from psserver.core.variables.memory import Memory
from psserver.core.variables.store import Store
from psserver.core.variables.variable import is_behind
from pswire import messages as ms
from pswire.optimizers import UpdateSpec
from pswire.specs.consistency import Synchronous

#: Variables that a change of hyperparameters names.
MAX_NAMED = 100


class Registration(Part):
    """Answers registrations and changes of hyperparameters; has the `store`, and what all workers agree on.

    `order` is there if this shard orders changes on all shards: it tells workers how far they are decided.
    """

    def __init__(
        self, options: ShardOptions, identity: int, position: Position, members: Membership, order: UpdateOrder | None
    ) -> None:
        self._options, self._position, self._members, self._order = options, position, members, order
        self.memory = Memory(options.memory_limit)
        self.invariants = JobInvariants(options.shard, options.shards, identity)
        self.store = Store(self.memory, self.invariants, options.strength, options.aggregate)
        self._changes: list[ms.Change] = []

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {ms.Register: (self._check_register, self._register), ms.Tune: (self._check_tune, self._tune)}

    def state(self) -> dict[str, Any]:
        """As `Part.state`."""
        places, states = self.invariants.state()
        return {
            "identity": self.invariants.identity,
            "variables": tuple([variable.state() for variable in self.store]),
            "served": self.store.served.state(),
            "changes": tuple(self._changes),
            "places": places,
            "states": states,
            "groups": self.invariants.groups,
        }

    def restore(self, state: ms.ShardState, now: float) -> None:
        """As `Part.restore`; the store gets its variables with their arrays from the shard."""
        self.invariants.identity = state.identity
        self.invariants.restore(state.places, state.groups, state.states)
        self.store.served.restore(state.served)
        self._changes = list(state.changes)

    def status(self, asked: ms.Status, now: float) -> dict[str, Any]:
        """As `Part.status`."""
        first = min(asked.first_variable, len(self.store.variables))
        return {
            "variables": tuple([variable.status() for variable in islice(self.store, first, first + MAX_LISTED)]),
            "nbytes": self.store.nbytes + self.store.served.nbytes,
            "changes": tuple(self._changes),
        }

    def _check_register(self, message: ms.Register, member: Member) -> None:
        self.invariants.check_register(message)
        consistency = self._options.consistency
        if isinstance(consistency, Synchronous):
            self.store.check_held_pushes(consistency.workers, message.declarations)
        new = self.invariants.new_places(message)
        self.store.check_declarations(message.declarations, dry_run=message.dry_run, new_places=new)

    def _register(self, call: Call[ms.Register], result: StepResult) -> None:
        message, step = call.message, self._position.global_step
        if message.dry_run:
            result.reply(call.ticket, ms.Registered(global_step=step))
            return
        self.invariants.keep(message)
        result.changes.append(message)
        for optimizer, changed in self.store.declare(message.declarations, call.magnitudes, result):
            self.note_change(message.sender.worker, changed, optimizer)
        behind = tuple([name for one in message.declarations if is_behind(self.store[name := one.spec.name], one)])
        names = tuple([one.spec.name for one in message.declarations if not self.store.is_table(one)])
        pull = ms.Pull(sender=message.sender, names=names)
        values = self.store.read(pull, names, (), result, call.allocator)
        frontier = None if self._order is None else self._order.frontier()
        answer = ms.Registered(values=values, global_step=step, frontier=frontier, behind=behind)
        result.reply(call.ticket, answer)

    def _check_tune(self, message: ms.Tune, member: Member) -> None:
        self.store.check_tune(message)

    def _tune(self, call: Call[ms.Tune], result: StepResult) -> None:
        message, member = call.message, call.member
        self.note_change(member.name, message.names, self.store.tune(message))
        result.changes.append(message)
        tuned = ms.Tuned(ms.Outcome.APPLIED, self._position.global_step)
        self._members.record(member, message.sequence, tuned)
        result.reply(call.ticket, tuned)

    def note_change(self, by: str, names: Sequence[str], optimizer: UpdateSpec) -> None:
        """Keep a change of an optimizer for the status."""
        named = tuple(names[:MAX_NAMED])
        change = ms.Change(
            global_step=self._position.global_step,
            worker=by,
            names=named,
            optimizer=optimizer,
            others=len(names) - len(named),
        )
        self._changes = [*self._changes, change][-MAX_LISTED:]
