"""The arrays of a variable beside the state of its shard, which is plain data (`pswire.messages.ShardState`)."""

from __future__ import annotations

from dataclasses import dataclass

from pswire.tensors.values import Array


@dataclass(frozen=True, slots=True, eq=False)
class VariableArrays:
    """The value of a variable and its slots by name."""

    value: Array
    slots: dict[str, Array]
