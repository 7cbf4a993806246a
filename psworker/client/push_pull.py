"""Pushes and pulls over all shards: the message for each shard, and the answers joined into whole variables.

Shard 0 gets every push, since it counts steps; another shard gets a push if it holds a partition of a gradient, or a
pull if it holds only requested values. Where a policy may hold or drop a push, shard 0 decides and the others follow.
Joined arrays are new; a variable with one partition is not copied.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from pswire import messages as ms
from pswire.errors import InvalidMessage, Malformed, NotFinite, ParamServerError, StateLost
from pswire.system.interrupts import cut_short, deferred_signals
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPES, Array, IndexedSlices, not_finite
from psworker.client.error_feedback import GradientEncoder
from psworker.client.partitions import PlacedVariable, Placement
from psworker.client.retry import Calls
from psworker.transport import Future
from psworker.versions import ReadVersion, VersionedArray

#: Seconds for the parts of a push that other shards have, when a signal has cut them short.
FINISH_TIMEOUT = 2.0

_version = attrgetter("version")
_ANSWERS: tuple[type[ms.Pushed | ms.Pulled], ...] = (ms.Pushed, ms.Pulled)


@dataclass(slots=True)
class PushResult:
    """The result of a push: shard 0's answer, the largest staleness of all shards, and the values that were pulled.

    `shards` has the outcome on shard 0 and on each shard with a part; {} if nothing was sent, or all shards went back.
    It is `half_applied` if some shards have applied it, and others have dropped their part.
    """

    outcome: ms.Outcome
    staleness: int
    global_step: int
    values: list[VersionedArray]
    reason: str
    shards: Mapping[int, ms.Outcome] = field(default_factory=dict)
    half_applied: bool = False

    @property
    def dropped_by(self) -> list[int]:
        """The shards that have dropped their part."""
        return [shard for shard, outcome in self.shards.items() if outcome is ms.Outcome.DROPPED]


class ShardedPull:
    """Variables whose values are pulled, in the order of `names`; `UnknownVariable` if one is not placed.

    `names` has by shard the variables that it holds a partition of, and `known_versions` the versions that the worker
    has of these, -1 for none; empty if it has none at all. Of `known_values`, those from before the last rejoin are not
    named: a server that was restarted may have reached the same version by other updates.
    """

    def __init__(
        self, placement: Placement, names: Iterable[str], known_values: Iterable[VersionedArray] = (), rejoins: int = 0
    ) -> None:
        self.rejoins = rejoins
        self._variables: dict[str, PlacedVariable] = {}
        self._known: dict[str, VersionedArray] = {}
        for value in known_values:
            if value.read.rejoins == rejoins:
                self._known[value.name] = value
        self.names: dict[int, list[str]] = {}
        self.known_versions: dict[int, list[int]] = {}
        for name in dict.fromkeys(names):
            variable = self._variables[name] = placement[name]
            known = self._known.get(name)
            for index, partition in enumerate(variable.partitions):
                self.names.setdefault(partition.shard, []).append(name)
                if self._known:
                    version = -1 if known is None else known.read.versions[index]
                    self.known_versions.setdefault(partition.shard, []).append(version)

    def message(self, shard: int, sender: ms.Sender, encoding: str) -> ms.Pull:
        """The pull for a shard."""
        known_versions = tuple(self.known_versions.get(shard, ()))
        return ms.Pull(
            sender=sender, names=tuple(self.names.get(shard, ())), known_versions=known_versions, encoding=encoding
        )

    def joined(
        self, answers: Iterable[ms.Registered | ms.Pulled | ms.Pushed], served_at: int | None
    ) -> list[VersionedArray]:
        """The values, joined; without the tables, which a `Registered` lacks."""
        found: dict[str, list[ms.Value]] = {}
        for answer in answers:
            for value in answer.values:
                found.setdefault(value.name, []).append(value)
        values = []
        for name, variable in self._variables.items():
            if name in found:
                array = join(variable, found[name], self._known.get(name))
                read = ReadVersion(tuple(map(_version, found[name])), served_at, self.rejoins)
                values.append(VersionedArray(name, read, array))
        return values


class ShardedPush:
    """The pushes of one worker, one at a time, whose gradients are encoded by `encoder`.

    Shard 0 `decides` for the others whether a push is applied; it `orders` if they make changes in the order of its
    decisions (`pswire.messages.Frontier`). Gradients of `observed` variables, which keep a moving average, are not
    encoded.
    """

    def __init__(self, calls: Calls, encoder: GradientEncoder) -> None:
        self.decides = self.orders = False
        self.observed: set[str] = set()
        self._calls, self._member = calls, calls.membership
        self._encoder = encoder

    def messages(
        self,
        placement: Placement,
        sequence: int,
        gradients: Sequence[VersionedArray],
        loss: float | None,
        pull: ShardedPull,
        cut: int,
        progress: tuple[ms.Progress, ...] = (),
        *,
        filled: bool = True,
    ) -> dict[int, ms.Push | ms.Pull]:
        """The message for each shard that takes part: a push, or a pull if it gets no gradient.

        Everything is checked before the first gradient is encoded: otherwise one shard could apply its part while
        another refuses, and a residual could become NaN. For several shards or compression, raises `NotFinite` too,
        unless the gradients are not `filled` yet.
        """
        parts: dict[int, list[ms.Gradient]] = {}
        remote: list[ms.RemoteWeights] = []
        if filled and (placement.shards > 1 or self._encoder.keeps_residual):
            for gradient in gradients:
                check_finite(gradient.name, gradient.array)
        for gradient in gradients:
            name, read, array, variable = gradient.name, gradient.read, gradient.array, placement[gradient.name]
            spec = variable.spec
            if array.shape != spec.shape or array.dtype != DTYPES[spec.dtype]:
                variable.check(array, "gradient")
            if len(read.versions) != len(variable.partitions):
                raise InvalidMessage(
                    f"gradient for {name!r} has {len(read.versions)} versions, but the variable has "
                    f"{len(variable.partitions)} partitions: give the versions of the value it was computed with"
                )
            arrays = [array] if len(read.versions) == 1 else variable.split_gradient(array)
            for partition, version, part in zip(variable.partitions, read.versions, arrays, strict=True):
                parts.setdefault(partition.shard, []).append(ms.Gradient(name, version, part))
            if self.orders and variable.partitions[-1].shard:
                remote.append(ms.RemoteWeights(name, read.served_at or 0))
        encoding = self._encoder.encoding
        if encoding or self._encoder.keeps_residual:
            for shard, part_of_shard in sorted(parts.items()):
                for index, one in enumerate(part_of_shard):
                    if one.name not in self.observed:
                        part_of_shard[index] = self._encoder.encode(shard, one)
                if encoding and placement.shards > 1:
                    check_encoded(part_of_shard)
        sender, step = self._member.sender, self._member.global_step
        shards = tuple(sorted(parts.keys() - {0}))
        messages: dict[int, ms.Push | ms.Pull] = {}
        for shard in sorted({0, *parts, *pull.names}):
            if shard in parts or not shard:
                names, known = tuple(pull.names.get(shard, ())), tuple(pull.known_versions.get(shard, ()))
                messages[shard] = ms.Push(
                    sender=sender,
                    sequence=sequence,
                    gradients=tuple(parts.get(shard, ())),
                    loss=loss,
                    pull=names,
                    known_versions=known,
                    encoding=encoding,
                    shards=shards,
                    remote=() if shard else tuple(remote),
                    global_step=step if shard else 0,
                    cut=cut,
                    progress=() if shard else progress,
                )
            else:
                messages[shard] = pull.message(shard, sender, encoding)
        return messages

    def result(
        self, sent: Mapping[int, Future[ms.Answer]], messages: Mapping[int, ms.Push | ms.Pull], pull: ShardedPull
    ) -> PushResult:
        """The result of a push that was sent; where shard 0 decides, only to it: the others are sent its decision."""
        with deferred_signals:  # raised when all shards have their parts
            return self._decided(sent, messages, pull) if self.decides else self._answered(sent, messages, pull)

    def _answered(
        self, sent: Mapping[int, Future[ms.Answer]], messages: Mapping[int, ms.Push | ms.Pull], pull: ShardedPull
    ) -> PushResult:
        """The result of a push whose parts were all sent."""
        failed: list[int] = []
        try:
            answers = self._calls.results(sent, _ANSWERS, failed)
        except StateLost:
            raise  # no shard keeps its part
        except ParamServerError:
            pushes = {shard: message for shard, message in messages.items() if isinstance(message, ms.Push)}
            missing = [shard for shard in pushes if shard in failed]
            if 0 < len(missing) < len(pushes):
                self._end_half({shard: pushes[shard] for shard in missing}, pushes[0].sequence)
            raise
        result = _result(dict(zip(sent, answers, strict=True)), pull)
        if result.half_applied:  # as by a quarantine that has begun on some shards; none of them knows of the others
            self._member.report_half_push(result.dropped_by, result.reason)
        return result

    def _decided(
        self, sent: Mapping[int, Future[ms.Answer]], messages: Mapping[int, ms.Push | ms.Pull], pull: ShardedPull
    ) -> PushResult:
        """The result of a push after shard 0's decision; if that fails, it is abandoned."""
        calls, push = self._calls, messages[0]
        assert isinstance(push, ms.Push)
        try:
            (decision,) = calls.results(sent, ms.Pushed)
        except StateLost:
            raise
        except ParamServerError:
            if self.orders and not cut_short():
                calls.abandon(push.shards, push.sequence)  # it may have been decided all the same
            raise
        failed: list[int] = []
        following: Mapping[int, ms.Push | ms.Pull] = {}
        try:
            following = self._following(messages, decision, pull)
            others = calls.results(calls.send(following, pull.rejoins), _ANSWERS, failed)
        except StateLost:
            raise
        except ParamServerError:
            missing = [shard for shard in push.shards if shard in failed]
            if missing and decision.outcome is not ms.Outcome.DROPPED:
                self._end_half({shard: following[shard] for shard in missing}, push.sequence)
            raise
        result = _result({0: decision, **dict(zip(following, others, strict=True))}, pull)
        if decision.outcome is ms.Outcome.DROPPED:
            result.shards = dict.fromkeys((0, *push.shards), ms.Outcome.DROPPED)
        elif result.half_applied:
            self._member.report_half_push(result.dropped_by, result.reason, counted=True)
        return result

    def _end_half(self, parts: Mapping[int, ms.Push | ms.Pull], sequence: int) -> None:
        """Report a push whose `parts` other shards have; if a signal has cut these short, send them once more.

        The worker leaves in that case, and shards recognize parts that they have.
        """
        if not cut_short():
            self._member.report_half_push(list(parts), "they have not answered")
            self._calls.abandon(parts, sequence)
            return
        with suppress(ParamServerError):
            self._calls.results(self._calls.send(parts, timeout=FINISH_TIMEOUT), _ANSWERS)

    def _following(
        self, messages: Mapping[int, ms.Push | ms.Pull], decision: ms.Pushed, pull: ShardedPull
    ) -> Mapping[int, ms.Push | ms.Pull]:
        """The messages to the other shards after shard 0's decision: of a push that it dropped only pulls.

        A push decided before shard 0's snapshot is in the cut on all shards: their messages carry shard 0's cut number.
        """
        following: dict[int, ms.Push | ms.Pull] = {}
        for shard, message in messages.items():
            if isinstance(message, ms.Pull):
                following[shard] = message
            elif shard and decision.outcome is not ms.Outcome.DROPPED:
                step = max(0, decision.global_step - 1)
                following[shard] = replace(message, group=decision.group, global_step=step, cut=decision.cut)
            elif shard and shard in pull.names:
                following[shard] = pull.message(shard, message.sender, message.encoding)
        return self._member.in_order(following) if self.orders else following


def _result(answers: Mapping[int, ms.Pushed | ms.Pulled], pull: ShardedPull) -> PushResult:
    """The answers of all shards that took part, the first of them shard 0's, as one result."""
    first = answers[0]
    assert isinstance(first, ms.Pushed)
    staleness, outcomes, reason, dropped = first.staleness, {}, "", 0
    for shard, answer in answers.items():
        if isinstance(answer, ms.Pushed):
            staleness = max(staleness, answer.staleness)
            outcomes[shard] = answer.outcome
            dropped += answer.outcome is ms.Outcome.DROPPED
            if answer.reason and (not reason or answer.outcome is ms.Outcome.DROPPED):
                reason = answer.reason
    served_at = first.frontier.decided if first.frontier else None
    return PushResult(
        outcome=first.outcome,
        staleness=staleness,
        global_step=first.global_step,
        values=pull.joined(answers.values(), served_at),
        reason=reason,
        shards=outcomes,
        half_applied=0 < dropped < len(outcomes),
    )


def check_finite(name: str, array: Array | IndexedSlices, kind: str = "gradient") -> None:
    """Raises `NotFinite`, naming the variable, if an element of this `kind` of array is NaN or infinite."""
    elements = array.values if isinstance(array, IndexedSlices) else array
    bad = not_finite(elements)
    if bad:
        raise NotFinite(
            f"{kind} for {name!r} has {bad:,} of {elements.size:,} elements that are NaN or infinite: nothing was sent"
        )


def check_encoded(gradients: Iterable[ms.Gradient]) -> None:
    """Raises `NotFinite`, naming the variable, for elements that were finite until they were encoded."""
    for gradient in gradients:
        array = gradient.array
        packed: object = array.values if isinstance(array, IndexedSlices) else array
        if isinstance(packed, Packed):
            try:
                packed.check()
            except FloatingPointError:
                raise NotFinite(
                    f"gradient for {gradient.name!r} has elements that are too large for {packed.form}: nothing was "
                    "sent; clip gradients, or choose another encoding"
                ) from None


def join(variable: PlacedVariable, values: Sequence[ms.Value], known: VersionedArray | None = None) -> Array:
    """The values of all partitions, in their order, as one array; read-only. That of `known` if nothing has changed.

    A value without an array is as in `known`, whose versions the shards were given. Raises `Malformed` if a value is
    not what its shard was asked for.
    """
    spec, changed = variable.spec, False
    if len(values) != len(variable.partitions):
        raise Malformed(f"got {len(values)} values of {spec.name!r}, which has {len(variable.partitions)} partitions")
    for index, value in enumerate(values):
        partition, array = variable.partitions[index], value.array
        if array is None:
            named = -1 if known is None else known.read.versions[index]
            if named < 0 or value.version != named:
                raise Malformed(
                    f"shard {partition.shard} answers that {value.name!r} is still at version {value.version}: this "
                    f"worker named {'none' if named < 0 else f'version {named}'}"
                )
        else:
            changed, expected = True, partition.spec
            usual = array.shape == expected.shape and array.dtype == DTYPES[expected.dtype]
            if not usual and not expected.matches(array):
                got = f"{array.dtype.name}{list(array.shape)}"
                raise Malformed(f"shard {partition.shard} has sent {got} for variable {expected}")
    old = None if known is None else known.array
    assert not isinstance(old, IndexedSlices), "a value has all rows"
    if old is not None and not changed:
        return old
    if len(values) == 1:
        array = values[0].array
        return array if isinstance(array, np.ndarray) else unpacked(values[0])
    joined = np.empty(spec.shape, DTYPES[spec.dtype])
    targets = variable.split(joined)
    sources = targets if old is None else variable.split(old)
    for value, target, source in zip(values, targets, sources, strict=True):
        target[...] = source if value.array is None else unpacked(value)
    joined.flags.writeable = False
    return joined


def join_rows(values: Sequence[ms.Value], positions: Sequence[slice | Array] | None) -> Array:
    """The rows of all partitions, at these positions, or else one partition after the other; read-only."""
    arrays = [unpacked(value) for value in values]
    if len(arrays) == 1:
        return arrays[0]
    if positions is None:
        joined = np.concatenate(arrays)
    else:
        joined = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
        for position, array in zip(positions, arrays, strict=True):
            joined[position] = array
    joined.flags.writeable = False
    return joined


def unpacked(value: ms.Value) -> Array:
    """The array of a value; read-only."""
    array = value.array
    assert array is not None, "it has changed, or was chosen"
    if isinstance(array, Packed):
        array = array.unpacked()
        array.flags.writeable = False
    return array
