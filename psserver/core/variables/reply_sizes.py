"""How many bytes of values the answer to a message has, before there is one. May import the store and messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat

from psserver.core.variables.store import Store
from pswire.messages import Message, Pull, Push, Register
from pswire.messages.sizes import whole_bytes


def answer_bytes(store: Store, message: Message, *, modified: bool) -> int:
    """The most that it can be. Raises `UnknownVariable`, or `InvalidMessage` for a choice that cannot be.

    Args:
        store: the variables as they are now.
        message: what will be said.
        modified: every variable may have been modified by then. If not, what the asker has counts for nothing, but for
            variables that the message itself changes.
    """
    match message:
        case Push():
            changed = [gradient.name for gradient in message.gradients]
            return _whole(store, message.pull, () if modified else message.known_versions, changed, message.encoding)
        case Pull():
            whole = _whole(store, message.names, () if modified else message.known_versions, (), message.encoding)
            chosen = [whole_bytes(store[one.name].chosen_spec(one), message.encoding) for one in message.choices]
            return whole + sum(chosen)
        case Register(dry_run=False):
            return sum([one.spec.nbytes for one in message.declarations if not store.is_table(one)])
        case _:
            return 0


def _whole(
    store: Store, names: Sequence[str], known_versions: Sequence[int], changed: Collection[str], encoding: str
) -> int:
    total = 0
    for name, version in zip(names, known_versions or repeat(-1), strict=False):
        variable = store[name]
        if variable.version != version or name in changed:
            total += whole_bytes(variable.spec, encoding)
    return total
