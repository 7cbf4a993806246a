"""Operations with vectors of the model's shape on the shards (`pswire.specs.vectors`): request and answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pswire.messages.membership import Sender
from pswire.messages.variables import Outcome
from pswire.specs.vectors import Operation


@dataclass(frozen=True, slots=True)
class Compute:
    """Operations with vectors of variables, in order, on the part of them that a shard has: all or none, once.

    Attributes:
        sequence, cut: as in `Push`.
        names: the variables that the vectors are made of, those with a part on this shard.
        operations: a vector that is written for the first time is made; one that is read must be there.
        minimization: for which the operations are, by its coordinator. "": none.
        term: counts the coordinators of the minimization, from 1: it has one at a time, the sender with the highest
            term. A sender with a lower one than the shard knows is refused. 0: only asks.
        note: is kept as that of the minimization from now on, in the place of an earlier one; "": that stays.
    """

    sender: Sender
    sequence: int
    names: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    minimization: str = ""
    term: int = 0
    note: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Computed:
    """The results, complete when the array tasks of the step have run.

    Attributes:
        results: of each operation with a result, in order, two numbers whose sum it is, for this shard's part.
        term, note: of the minimization; 0 and "": the shard does not know it.
    """

    outcome: Outcome
    results: Sequence[float]
    global_step: int
    term: int = 0
    note: str = ""
