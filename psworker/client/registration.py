"""Registration of variables over all shards; and again, after a rollback to a cut without some of them."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from pswire import messages as ms
from pswire.errors import WrongShard
from pswire.tensors.values import Array
from psworker.client.partitions import Placement
from psworker.client.push_pull import check_finite
from psworker.client.retry import Calls

#: Variables in one message, with an optimizer each: far less than a message holds, and some 20 ms of a server's time.
MAX_DECLARATIONS = 1000

logger = logging.getLogger(__name__)


class ShardedRegistration:
    """The variables that a worker has registered, and their `placement`.

    `value_of` gives the worker's present value of a variable, or None.
    """

    def __init__(self, calls: Calls) -> None:
        self.placement = Placement(calls.transport.shards)
        self.value_of: Callable[[str], Array | None] = lambda name: None
        self._calls = calls
        self._made: list[list[ms.Declaration]] = []  # without values, in order

    def register(self, declarations: Sequence[ms.Declaration]) -> list[ms.Registered]:
        """Registers variables, `MAX_DECLARATIONS` at a time; the answers of the shards, first one of shard 0.

        See `psworker.client.client.Client.register`.
        """
        placement, groups = self.placement, []
        for group in _groups(declarations):
            placement = placement.extended([declaration.spec for declaration in group])
            groups.append((placement, group))
        answers = self._send(groups)
        self.placement = placement
        if behind := sorted({name for answer in answers for name in answer.behind}):
            logger.warning(
                "%s keep the optimizer that another worker has given them, which is further on in the program: what "
                "this worker pushes follows it too",
                ", ".join(behind),
            )
        return answers

    def add(self, declarations: Sequence[ms.Declaration]) -> None:
        """Includes these in `register_again`; call it once the worker has the shards' values of them."""
        self._made += [[replace(one, value=None) for one in group] for group in _groups(declarations)]

    def register_again(self) -> None:
        """Registers the variables that the shards have lost, in the same order, with this worker's present values.

        The initial values are gone. If several workers do so, the first one's values win.
        """
        shards, seen = range(self._calls.transport.shards), set()
        known = [self._variables(shard) for shard in shards]
        for declarations in self._made:
            again = []
            for declaration in declarations:
                name = declaration.spec.name
                parts = [known[one.shard].get(name) for one in self.placement[name].partitions]
                if None in parts and name not in seen:
                    seen.add(name)
                    again.append(replace(declaration, value=self._present_value(declaration)))
                elif declaration.optimizer is not None:  # those that have it already change nothing
                    again.append(declaration)
            if again:
                self._send([(self.placement, again)])
        if seen:
            logger.warning(
                "%s has registered variables again that the checkpoint did not have, with its present values: %s",
                self._calls.membership.sender.worker,
                ", ".join(sorted(seen)),
            )

    def _variables(self, shard: int) -> dict[str, ms.VariableStatus]:
        """The variables of a shard by name, from as many answers as they need."""
        known: dict[str, ms.VariableStatus] = {}
        while True:
            report = self._calls.call(shard, ms.Status(len(known)), ms.StatusReport)
            known |= {one.spec.name: one for one in report.variables}
            if not report.variables or len(known) >= report.totals.variables:
                return known

    def _present_value(self, declaration: ms.Declaration) -> Array | None:
        if declaration.initial is not None:
            return None
        name = declaration.spec.name
        value = self.value_of(name)
        if value is None:
            raise WrongShard(f"no shard has variable {name!r} any more, and this worker has no value of it")
        return value

    def _send(self, groups: Sequence[tuple[Placement, Sequence[ms.Declaration]]]) -> list[ms.Registered]:
        """Registers groups of variables, after all shards have checked all of them."""
        calls = self._calls
        with calls.membership.cuts as cut:
            registrations = [self._messages(placement, declarations, cut) for placement, declarations in groups]
            for messages in registrations if len(groups) > 1 or calls.transport.shards > 1 else ():
                checks = {}
                for shard, message in messages.items():
                    without_values = [replace(part, value=None) for part in message.declarations]
                    checks[shard] = replace(message, declarations=tuple(without_values), dry_run=True)
                calls.results(calls.send(checks), ms.Registered)
            answers: list[ms.Registered] = []
            for messages in registrations:
                answers.append(calls.call(0, messages[0], ms.Registered))
                others = {shard: message for shard, message in messages.items() if shard and message.declarations}
                answers += calls.results(calls.send(others), ms.Registered)
            return answers

    def _messages(
        self, placement: Placement, declarations: Sequence[ms.Declaration], cut: int
    ) -> dict[int, ms.Register]:
        """The message for each shard."""
        member, shards = self._calls.membership, placement.shards
        parts: dict[int, list[ms.Declaration]] = {shard: [] for shard in range(shards)}
        for declaration in declarations:
            name, value = declaration.spec.name, declaration.value
            variable = placement[name]
            values: list[Array | None] = [None] * len(variable.partitions)
            if value is not None:
                variable.check(value, "initial value")
                if shards > 1:
                    check_finite(name, value, "initial value")
                values = [*variable.split(value)]
            for partition, array in zip(variable.partitions, values, strict=True):
                part = replace(declaration, spec=partition.spec, value=array, part=partition.part)
                parts[partition.shard].append(part)
        messages = {
            shard: ms.Register(sender=member.sender, declarations=tuple(part), states=member.states, cut=cut)
            for shard, part in parts.items()
        }
        if shards > 1:
            names = [declaration.spec.name for declaration in declarations]
            places = tuple([ms.Place(name, placement[name].partitions[0].shard) for name in names])
            messages[0] = replace(messages[0], places=places)
        return messages


def _groups(declarations: Sequence[ms.Declaration]) -> list[Sequence[ms.Declaration]]:
    """The declarations in pieces, each of which one message holds: a group of `pswire.placement`."""
    starts = range(0, max(1, len(declarations)), MAX_DECLARATIONS)
    return [declarations[start : start + MAX_DECLARATIONS] for start in starts]
