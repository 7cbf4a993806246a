"""Cuts: this shard's part of a state of all shards in which each push is on all of its shards, or on none.

A cut has a number. Changes carry the number of the last cut that their worker knew of when it began them, equal on all
shards. A shard that sees a higher number takes its snapshot first; a change of a lower number that arrives later is
kept beside the snapshot, for it may be in the snapshots of other shards. When every live worker has shown the number,
no such change can arrive any more, and the cut is complete. The proof is in docs/reliability.md.

Source: T. H. Lai and T. H. Yang, "On Distributed Snapshots", Information Processing Letters 25 (1987).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from psserver.core.cuts.late_changes import owned
from psserver.core.cuts.shard_cut import ShardCut, VariableCopy
from psserver.core.events import cut_given_up, cut_skipped
from psserver.core.gaps import check_count
from psserver.core.members.member import Member
from psserver.core.members.membership import Membership
from psserver.core.options import ShardOptions
from psserver.core.part import Call, Check, Handler, Part, Position, names
from psserver.core.timelines import Timeline
from psserver.core.variables.array_tasks import StepResult
from psserver.core.variables.memory import Memory
from psserver.core.variables.store import Store
from pswire import messages as ms
from pswire.errors import GenerationLost, InvalidMessage, UnknownVariable

#: Seconds in which the workers that were live at a snapshot have to show its number; then the cut is given up.
SECONDS_TO_SHOW = 600.0

#: The time between two cuts, in times of what the last one took, with its copies at so many bytes a second; those that
#: took fewer seconds than this have no pause.
PAUSE, COPIED_A_SECOND, SHORT_CUT = 10.0, 4e9, 0.02

#: Bytes that a late change, and each of its entries, takes beside its arrays: names, numbers, hyperparameters.
LATE_BYTES = 1 << 10


class Cuts(Part):
    """The cuts of one shard: one at a time. `completed` is the number of the last one that is.

    `late_below`: a change of a lower number belongs to the cut in progress; 0: there is none that could. A single shard
    needs no late changes, and `decides` says that shard 0 decides about pushes when it applies them: what it applies
    after the snapshot comes after the cut on all shards.
    """

    def __init__(
        self,
        options: ShardOptions,
        position: Position,
        timeline: Timeline,
        state: Callable[[], ms.ShardState],
        waiting: Callable[[], list[tuple[int, ms.Message]]],
        apply_late: Callable[[ShardCut, StepResult], None],
        *,
        stored: bool,
    ) -> None:
        self.completed = self.late_below = 0
        self.current: ShardCut | None = None
        self.not_before = -math.inf  # a time before which no other cut begins
        self.paused = False  # whether no cut begins: the messages that are taken were taken before
        self.decides = not options.shard and options.decides
        self._shard, self._shards, self._position, self._timeline = options.shard, options.shards, position, timeline
        self._state, self._calls, self._apply_late = state, waiting, apply_late
        self.stored = stored  # whether a server writes each cut to disk, from its beginning
        self._given_up: ShardCut | None = None
        self._why_given_up = ""
        self._seen: ShardCut | None = None  # at the last tick

    def begin_job(self, members: Membership, store: Store, memory: Memory) -> None:
        """Take cuts of the variables of another job from now on; copies and late changes count in its memory."""
        self._members, self._store, self._memory = members, store, memory
        memory.count(lambda: 0 if self.current is None else self.current.nbytes, passing=True)

    def messages(self) -> dict[type, tuple[Check | None, Handler]]:
        """As `Part.messages`."""
        return {ms.Cut: (self._check_cut, self._cut)}

    def state(self) -> dict[str, Any]:
        """As `Part.state`."""
        return {"cut": self.number}

    def restore(self, state: ms.ShardState, now: float) -> None:
        """As `Part.restore`."""
        self.skip(state.cut, complete=True)

    def forget(self, gone: Sequence[Member], result: StepResult) -> None:
        """Wait for these members no longer, and hold nothing for them."""
        workers = names(gone)
        self.leave(workers)
        self.release(workers)

    def tick(self, tick: ms.Tick, result: StepResult) -> None:
        """Give up a cut whose number some workers have not shown in time: they may never, and others cannot begin."""
        cut = self.current
        if cut is not None and cut.missing and result.now - cut.since > SECONDS_TO_SHOW:
            self._give_up(cut, f"more than {SECONDS_TO_SHOW:g} s have passed", result)

    @property
    def number(self) -> int:
        """The number of the last cut that this shard has seen."""
        return self._position.cut

    def begin(self, number: int, result: StepResult, *, at_once: bool = False) -> None:
        """Take the snapshot of a cut, unless another one is not over, or there is no memory for its copies.

        Nor one right after another (`not_before`), unless `at_once`. The copies of variables are made with their next
        change, or one by one.
        """
        if self.paused or (result.now < self.not_before and not at_once):
            self.skip(number)
            return
        self.end_if_idle()
        busy, nbytes = self.busy, self._store.nbytes
        self.skip(number)  # the state has its number
        if busy is not None or nbytes > self._memory.free:
            needs = f"a copy of {nbytes:,} bytes does not fit into --memory-limit"
            result.events.append(cut_skipped(number, needs if busy is None else f"{busy.number} is not over"))
            return
        state, copies = self._state(), {}
        for variable in self._store:
            copies[variable.spec.name] = variable.copy = VariableCopy.of(variable)
        missing = {one.name: one.incarnation for one in self._members.live} if self._shards > 1 else {}
        self.late_below = number if missing else 0
        self.current = ShardCut(number, state, copies, self._calls(), missing, writing=self.stored, since=result.now)
        if not missing:
            self.completed = number
        result.began_cut = True

    def begin_final(self) -> ShardCut | None:
        """The cut of a shard that takes no more messages: complete at once; None if there is no memory for it."""
        self.end()
        self.begin(self.number + 1, StepResult(), at_once=True)
        cut = self.current
        if cut is not None:
            self.leave(list(cut.missing))
        return cut

    def number_state(self) -> None:
        """Number a new cut, which is complete: its caller writes the present state down as it stands."""
        self.skip(max(self.number + 1, self._position.global_step), complete=True)

    def pause(self, now: float, took: float) -> None:
        """Let no other cut begin soon after the present one, whose snapshot alone took so many seconds."""
        if self.current is not None:
            took += self.current.nbytes / COPIED_A_SECOND
            self.not_before = now + PAUSE * took if took > SHORT_CUT else now

    def skip(self, number: int, *, complete: bool = False) -> None:
        """Note a cut that this shard has no part in, or one that is `complete`: its state is stored as it stands."""
        self._position.cut = number
        if complete:
            self.completed = number

    def show(self, member: Member, number: int) -> None:
        """Note that a worker sends no more changes below this number."""
        cut = self.current
        if cut is not None and number >= cut.number and cut.missing.get(member.name) == member.incarnation:
            self.leave([member.name])

    def leave(self, workers: Iterable[str]) -> None:
        """Wait no longer for these workers, and hold nothing for them that are gone."""
        cut = self.current
        if cut is None or not cut.missing:
            return
        for worker in workers:
            cut.missing.pop(worker, None)
        if not cut.missing:
            self.late_below, self.completed = 0, cut.number

    def release(self, workers: Iterable[str]) -> None:
        """Hold the values of the cut no longer for these workers."""
        if self.current is not None:
            gone = set(workers)
            self.current.holders = {one for one in self.current.holders if one.worker not in gone}
            self.end_if_idle()

    def end_if_idle(self, unless: int = 0) -> None:
        """Drop the cut if it is complete and nobody needs it, unless it has this number."""
        cut = self.current
        if cut is not None and cut.complete and not cut.holders and not cut.writing and cut.number != unless:
            self.end()

    def drop_unused(self) -> None:
        """Drop a cut that nobody has needed since the last call; a worker may be about to hold it."""
        if self.current is not None and self.current is self._seen:
            self.end_if_idle()
        self._seen = self.current

    def end(self) -> None:
        """Drop the cut: it was written, or nobody needs it."""
        if self.current is not None:
            for copy in self.current.copies.values():
                if copy.source.copy is copy:
                    copy.source.copy = None
        self.current, self.late_below = None, 0

    @property
    def busy(self) -> ShardCut | None:
        """The cut that is not over: no other can begin. Also one that was given up, while it is still written."""
        if self.current is None and self._given_up is not None and self._given_up.writing:
            return self._given_up
        return self.current

    def keep_late(self, result: StepResult) -> None:
        """Keep those changes of a step that have a lower number; pushes only if shard 0 does not decide.

        If there is no memory for one, the cut is given up: training goes on.
        """
        for change in result.changes:
            cut = self.current
            if cut is None or change.cut >= self.late_below or (self.decides and isinstance(change, ms.Push)):
                continue
            nbytes = ms.tensor_bytes(change) + LATE_BYTES * (1 + ms.entries(change))
            if nbytes > self._memory.free:
                taken = f"{len(cut.late):,} late changes take {cut.late_bytes:,} bytes"
                self._give_up(cut, f"{taken}, all of --memory-limit", result)
                return
            cut.late.append(owned(change, cut.version_of))
            cut.late_bytes += nbytes

    def _give_up(self, cut: ShardCut, why: str, result: StepResult) -> None:
        self._why_given_up = f"{why}, and {cut.waiting_for} did not show its number: a worker does when its push ends"
        result.events.append(cut_given_up(cut.number, self._why_given_up))
        self._given_up, cut.late, cut.late_bytes = cut, [], 0
        self.end()

    # --- the message ----------------------------------------------------------------------------------------------

    def _check_cut(self, message: ms.Cut, member: None) -> None:
        check_count(message, "cut", message.number, self.number)
        self._timeline.check_not_lost()  # a lost shard's checkpoint would look like one of the others
        if message.holder is not None:
            self._members.check(message.holder)

    def _cut(self, call: Call[ms.Cut], result: StepResult) -> None:
        message, number = call.message, call.message.number
        self.end_if_idle(unless=number)
        busy = self.busy
        if not number and busy is not None:
            result.reply(call.ticket, ms.CutReport(number=0, waiting_for=f"cut {busy.number} is not over"))
            return
        if not number and result.now < self.not_before:
            waiting_for = f"cut {self.number} began a moment ago, and took a part of the time of this shard"
            result.reply(call.ticket, ms.CutReport(number=0, waiting_for=waiting_for))
            return
        if (number > self.number or not number) and not message.release:
            number = number or max(self.number + 1, self._position.global_step)
            self.begin(number, result)
        cut, holder = self.current, message.holder
        if cut is not None and cut.number == number and holder is not None:
            if message.release:
                cut.released.add(holder)
                self.release([holder.worker])
            elif holder not in cut.released:
                cut.holders.add(holder)
                for copy in cut.copies.values() if cut.late else ():
                    copy.start(result)
                if cut.may_apply:
                    self._apply_late(cut, result)
        result.reply(call.ticket, self.report(number))

    def report(self, number: int) -> ms.CutReport:
        """The state of a cut on this shard, as far as it is known without its storage."""
        cut = self.current
        if cut is None or cut.number != number:
            over = "" if self.completed == number else f"this shard has no part of cut {number}"
            if self._given_up is not None and self._given_up.number == number:
                over = f"nobody: this shard has given cut {number} up, since {self._why_given_up}"
            return ms.CutReport(number=number, complete=self.completed >= number, waiting_for=over, gone=True)
        if cut.holders and cut.complete and not cut.readable:
            return ms.CutReport(number=number, waiting_for="copies of the variables", held=True)
        return ms.CutReport(number=number, complete=cut.complete, waiting_for=cut.waiting_for, held=bool(cut.holders))

    # --- the values of a cut --------------------------------------------------------------------------------------

    def check_pull(self, message: ms.Pull) -> None:
        """Raise unless the cut of this message is held for its worker, and its values can be read."""
        cut = self.current
        if cut is None or cut.number != message.of_cut or message.sender not in cut.holders:
            raise GenerationLost(
                f"shard {self._shard} does not hold generation {message.of_cut} for {message.sender.worker}: it was "
                "started again since, or the worker's lease ended there. Repeat the block of session.generation()"
            )
        if not cut.readable:
            raise InvalidMessage(f"cut {message.of_cut} is not complete here yet: ask about it until it is")
        variables = cut.variables()
        for name in (*message.names, *[choice.name for choice in message.choices]):
            if name not in variables:
                raise UnknownVariable(f"no variable {name!r} in cut {message.of_cut}: it was registered later")

    def pull(self, call: Call[ms.Pull], store: Store, result: StepResult) -> None:
        """Answer with values of the cut."""
        message, cut = call.message, self.current
        assert cut is not None, "checked"
        for name in (*message.names, *[choice.name for choice in message.choices]):
            if name in cut.copies:
                cut.copies[name].start(result)
        values = store.read(message, message.names, message.choices, result, call.allocator, cut.variables())
        result.reply(call.ticket, ms.Pulled(values, cut.state.global_step))
