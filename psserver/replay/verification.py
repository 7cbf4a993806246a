"""Verification of a journal: replayed from its oldest checkpoint, it gives the bits of every later one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import run
from psserver.replay.journal_replay import Entry, JournalReplay
from psserver.storage import checkpoints
from psserver.storage.folders import available
from pswire.messages import MemberState, ShardState
from pswire.tensors.values import bytes_of

#: Fields of the state that are compared, besides variables and members.
_FIELDS = (
    "global_step",
    "last_step",
    "applied",
    "dropped",
    "repeated",
    "lost_pushes",
    "queues",
    "epochs",
    "stalenesses",
)
_VARIABLE_FIELDS = ("spec", "version", "updates", "declared", "optimizer", "initial", "part", "stage")
_MEMBER_FIELDS = ("number", "incarnation", "state", "steps", "staleness_sum", "clock", "dropped", "loss")


class Compared(NamedTuple):
    """A checkpoint that the replay has reached; `difference` names the first one, "" if there is none."""

    number: int
    global_step: int
    variables: int
    difference: str


def verify(folder: Path, replay: JournalReplay, note: Callable[[], object] = lambda: None) -> Iterator[Compared]:
    """Replay all records, and compare the shard with each later checkpoint; ends with the first that differs.

    `note` is called after each record. Raises `DamagedFile` for a damaged journal or checkpoint, or `StorageError`.
    """
    shard = replay.shard
    at = shard.shard, shard.shards
    later = [number for number in available(folder, *at) if number > replay.number]

    def compare(number: int) -> Compared:
        later.remove(number)
        return _compare(folder, number, replay.shard)

    for entry in replay.entries():
        if isinstance(entry, Entry):
            run(replay.step(entry).tasks)
            note()
        elif entry.number in later:
            yield (compared := compare(entry.number))
            if compared.difference:
                return
    for number in [number for number in later if number > replay.last_segment]:  # final, at the end of the journal
        yield (compared := compare(number))
        if compared.difference:
            return


def _compare(folder: Path, number: int, shard: Shard) -> Compared:
    checkpoint = checkpoints.read(folder, number, shard.shard, shard.shards)
    state = shard.state()
    difference = _difference(state, shard, checkpoint)
    return Compared(number, checkpoint.state.global_step, len(checkpoint.state.variables), difference)


def _difference(state: ShardState, shard: Shard, checkpoint: checkpoints.Checkpoint) -> str:
    """The first difference of a replayed shard from a checkpoint: variables first."""
    mine, theirs = [{one.spec.name: one for one in each.variables} for each in (state, checkpoint.state)]
    if list(mine) != list(theirs):
        return f"variables: replayed {', '.join(mine) or 'none'}, checkpoint {', '.join(theirs) or 'none'}"
    arrays = shard.arrays()
    for name, variable in theirs.items():
        for field in _VARIABLE_FIELDS:
            if (found := getattr(mine[name], field)) != (expected := getattr(variable, field)):
                return f"{field} of variable {name!r}: replayed {found}, checkpoint {expected}"
        stored = checkpoint.arrays[name]
        pairs = [(f"value of variable {name!r}", arrays[name].value, stored.value)]
        for slot, array in stored.slots.items():
            pairs.append((f"slot {slot!r} of variable {name!r}", arrays[name].slots[slot], array))
        for what, found_array, expected_array in pairs:
            found, expected = [crc32c(bytes_of(array)) for array in (found_array, expected_array)]
            if found != expected:
                return f"{what}: CRC32C replayed {found:08x}, checkpoint {expected:08x}"
    for field in _FIELDS:
        if (found := getattr(state, field)) != (expected := getattr(checkpoint.state, field)):
            return f"{field}: replayed {found}, checkpoint {expected}"
    return _member_difference(_members(state), _members(checkpoint.state))


def _members(state: ShardState) -> dict[str, MemberState]:
    return {one.name: one for one in state.members.members}


def _member_difference(mine: dict[str, MemberState], theirs: dict[str, MemberState]) -> str:
    if list(mine) != list(theirs):
        return f"workers: replayed {', '.join(mine) or 'none'}, checkpoint {', '.join(theirs) or 'none'}"
    for name, member in theirs.items():
        for field in _MEMBER_FIELDS:
            found, expected = getattr(mine[name], field), getattr(member, field)
            if found != expected and not found != found != expected != expected:  # a loss may be NaN
                return f"{field} of worker {name!r}: replayed {found}, checkpoint {expected}"
    return ""
