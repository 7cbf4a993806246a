"""The one look at every element of a message: refuses NaN, infinity and rows that are not there; finds magnitudes.

Changes nothing. May import the store, the guards and `pswire`'s pure half.
"""

from __future__ import annotations

from psserver.core.variables.element_checks import check_finite
from psserver.core.variables.guarded_updates import Guards, Magnitudes
from psserver.core.variables.store import Store
from pswire.messages import Assign, Message, Pull, Push, Register


def inspect(store: Store, message: Message) -> Magnitudes:
    """As `Shard.inspect`."""
    match message:
        case Push():
            return store.check_elements(message.gradients)
        case Pull():
            store.check_rows(message.choices)
        case Assign():
            return {one.name: check_finite(one.name, one.array, "assigned value") for one in message.assignments}
        case Register():
            values = [(one.spec.name, one.value) for one in message.declarations]
            return {name: check_finite(name, value, "initial value") for name, value in values if value is not None}
    return {}


def is_guarded(guards: Guards, message: Message, magnitudes: Magnitudes) -> bool:
    """Whether what `message` itself changes is guarded, or may make updates of pushes guarded that are held."""
    return isinstance(message, Push | Assign) and guards.needed(magnitudes)
