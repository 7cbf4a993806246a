"""The shard: a deterministic state machine that processes one message at a time and does no arithmetic itself.

    message -> membership (who sends it? is it new?) -> store (is it valid?)
            -> policy (now, later, never?) -> store and update rules (the change) -> reply

The same messages in the same order give bit-identical variables, slots and replies. Waiting, I/O and the clock are
outside, in `psserver.runtime.executor` and `psserver.rpc.server`.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn

from psserver.core import events
from psserver.core.barrier import Barrier
from psserver.core.cuts import Cuts, ShardCut
from psserver.core.data_queues import DataQueues
from psserver.core.jobs import Jobs, joined_note
from psserver.core.members.deduplication import is_repeated
from psserver.core.members.job_invariants import JobInvariants
from psserver.core.members.member import Member
from psserver.core.members.membership import JobEnd, Membership
from psserver.core.members.progress_timeout import ProgressTimeout
from psserver.core.metrics import TrafficMeter, percentile
from psserver.core.minimization.minimizations import Minimizations
from psserver.core.pending_calls import PendingCall, PendingCalls
from psserver.core.policies import policy_for
from psserver.core.policies.gradient_norm import RejectLargeGradients
from psserver.core.policies.policy import Policy, join_names
from psserver.core.policies.update_order import UpdateOrder
from psserver.core.state import VariableArrays
from psserver.core.status import detail, worker_status
from psserver.core.variables.array_tasks import StepResult, TasksPending
from psserver.core.variables.element_checks import Inspection, Magnitudes, inspect, is_gradient
from psserver.core.variables.rounding import MAX_SAMPLED, SECONDS_BETWEEN_SAMPLES
from psserver.core.variables.store import Store
from psserver.core.variables.variable import Variable
from pswire import messages as ms
from pswire.errors import GenerationLost, InvalidMessage, StateLost, Unavailable, UnknownVariable, WrongShard
from pswire.messages import ShardState
from pswire.optimizers import UpdateSpec
from pswire.specs.consistency import (
    Asynchronous,
    Consistency,
    DelayCompensation,
    IgnoreStaleness,
    Mean,
    StalenessSpec,
    Synchronous,
    parse_consistency,
    parse_staleness,
)
from pswire.specs.gradient_norm import GradientNormLimit, parse_gradient_norm

#: By how much one message may raise a number that the shard counts on from, or adds up: more than a worker counts while
#: the shard does not hear of it, and far below the largest that the protocol carries. Restores count timelines.
MAX_GAP, MAX_TIMELINE_GAP = 1 << 32, 1000

#: Workers, epochs and changes that a status lists, live workers and the newest first, so that it fits into a message.
MAX_LISTED = 1000

#: Minimizations that a status lists: each may have a result of some kilobytes.
MAX_MINIMIZATIONS = 20

#: Variables that a change of hyperparameters names.
MAX_NAMED = 100

#: What a stalled worker and its row of the status are told.
_STALLED = "not waited for: it exceeded --progress-timeout, and counts again with its next push"


#: Messages that are refused when they come from before the shards went back.
_OF_TIMELINES = tuple([call.request for call in ms.CALLS if call.of_timeline])


class Shard:
    """A deterministic state machine, not thread-safe. Arrays in an answer are read-only copies.

    Args:
        shard, shards: index among the shards of the job, from 0, and their number.
        lease: seconds of silence after which a worker is lost.
        memory_limit: bytes that values and slots may take; None: no limit.
        policy: in place of the one that `consistency` and `staleness` specify.
        identity: of the state, drawn at random when it begins and restored with it; 0: none.
        one_job: whether it serves one job only (`Membership`).
        max_gradient_norm: the limit of the gradients of a push, on this shard, and what is done with larger ones.
        progress_timeout: seconds that others wait for the push of a member at most; None: as long as it is live.
        max_workers: live at a time; None: any number.
    """

    def __init__(
        self,
        shard: int = 0,
        shards: int = 1,
        lease: float = 15.0,
        memory_limit: int | None = None,
        consistency: Consistency = Asynchronous(),  # noqa: B008 - frozen
        staleness: StalenessSpec = IgnoreStaleness(),  # noqa: B008
        policy: Policy | None = None,
        identity: int = 0,
        one_job: bool = False,
        progress_timeout: float | None = None,
        max_workers: int | None = None,
        max_gradient_norm: GradientNormLimit | None = None,
    ) -> None:
        self.shard, self.shards = shard, shards
        self._progress_timeout = ProgressTimeout(progress_timeout)
        self._consistency, self._staleness = consistency, staleness
        self._lease, self._memory_limit, self._one_job, self._max_workers = lease, memory_limit, one_job, max_workers
        self._policy = policy or policy_for(consistency, staleness, shard, shards)
        self._max_gradient_norm = max_gradient_norm
        if max_gradient_norm is not None and max_gradient_norm.action == "reject":
            self._policy = RejectLargeGradients(self._policy, max_gradient_norm)
        self.timeline = 0
        self.lost = False  # it has begun from an older state than it had acknowledged, and waits to be told to which
        self.cuts = Cuts(shards, decides=not shard and (consistency.decides or staleness.decides))
        self._jobs = Jobs(shard, one_job=one_job)
        self._make_parts(identity)

    def _make_parts(self, identity: int, last_incarnation: int = 0) -> None:
        """Make the parts of a job, all of them empty."""
        shard, shards, staleness = self.shard, self.shards, self._staleness
        self._repeated = self._lost_pushes = 0
        self._next_samples = -math.inf  # a time; no part of the state, and decides nothing
        self._changes: list[ms.Change] = []
        self._explanations: tuple[Callable[[str], str], Callable[[str], str]] | None = None  # until the next change
        self._invariants = JobInvariants(shard, shards, identity)
        self._members = Membership(
            self._lease,
            has_chief=not shard,
            one_job=self._one_job,
            last_incarnation=last_incarnation,
            max_workers=self._max_workers,
        )
        self._barrier = Barrier(self._members, lambda: self.global_step)
        strength = staleness.strength if isinstance(staleness, DelayCompensation) else 0.0
        aggregate = self._consistency.aggregate if isinstance(self._consistency, Synchronous) else Mean()
        self._store = Store(self._memory_limit, strength, aggregate)
        self._store.places = lambda: self._invariants.places
        self._store.copied_bytes = lambda: 0 if self.cuts.current is None else self.cuts.current.nbytes
        # whether shard 0 decides about pushes before they come here
        self._follows = bool(shard) and (self._consistency.decides or staleness.decides)
        ordered = not shard and shards > 1 and (self._consistency.orders or staleness.orders)
        self._update_order = UpdateOrder() if ordered else None
        self._queues = DataQueues(self._members, self.cuts)
        free_bytes = self.cuts.free_bytes = lambda: self._store.free_bytes
        self._minimizations = Minimizations(self._members, self.cuts, free_bytes, hands_out=not shard)
        self._store.other_bytes = lambda: self._minimizations.nbytes
        parts = self._store, self._members, self.cuts, self._queues, self._minimizations, self._update_order
        self._pending = PendingCalls(self._policy, *parts)
        self._traffic = TrafficMeter()

    @classmethod
    def for_state(cls, state: ShardState) -> "Shard":
        """A new shard with the options of a state, for `restore`; its memory has no limit."""
        consistency, staleness = parse_consistency(state.consistency), parse_staleness(state.handling)
        limit = parse_gradient_norm(state.max_gradient_norm)
        at = state.shard, state.shards
        return cls(*at, consistency=consistency, staleness=staleness, max_gradient_norm=limit)

    # --- the state ------------------------------------------------------------------------------------------------

    def state(self) -> ShardState:
        """All but the arrays of variables and pending calls."""
        pending, queues, stalenesses = self._pending, self._queues.state(), self._pending.stalenesses
        places, states = self._invariants.state()
        return ShardState(
            shard=self.shard,
            shards=self.shards,
            identity=self._invariants.identity,
            consistency=str(self._consistency),
            handling=str(self._staleness),
            cut=self.cuts.number,
            timeline=self.timeline,
            global_step=pending.global_step,
            last_step=pending.last_step,
            applied=pending.applied,
            dropped=pending.dropped,
            repeated=self._repeated,
            lost_pushes=self._lost_pushes,
            members=self._members.state(),
            variables=tuple([variable.state() for variable in self._store]),
            queues=queues[0],
            epochs=queues[1],
            stalenesses=tuple([ms.StalenessCount(*one) for one in stalenesses.items()]),
            changes=tuple(self._changes),
            places=places,
            states=states,
            served=self._store.served.state(),
            order=None if self._update_order is None else self._update_order.state(),
            groups=self._invariants.groups,
            job=self._jobs.present,
            jobs=self._jobs.earlier,
            awaited=self._jobs.awaited,
            stopped=self._queues.stopped,
            max_gradient_norm=self._limit_text,
            clipped=pending.clipped,
            minimizations=self._minimizations.state(),
        )

    @property
    def _limit_text(self) -> str:
        return "" if self._max_gradient_norm is None else str(self._max_gradient_norm)

    def restore(self, state: ShardState, arrays: Mapping[str, VariableArrays], now: float) -> None:
        """Continue from a state, whose arrays this shard owns from now on; for a new shard with the same options.

        Raises `WrongShard` for the state of another shard, or one with other options, `ValueError` if state and arrays
        do not fit together.
        """
        mine = self.shard, self.shards, str(self._consistency), str(self._staleness), self._limit_text or "off"
        limit = state.max_gradient_norm or "off"
        theirs = state.shard, state.shards, state.consistency, state.handling, limit
        if mine != theirs:
            text = "shard {} of {} with --consistency {} --staleness {} --max-gradient-norm {}"
            raise WrongShard(f"the state is of {text.format(*theirs)}, and this is {text.format(*mine)}")
        self._invariants.identity = state.identity
        self._invariants.restore(state.places, state.groups, state.states)
        self._members.restore(state.members, now)
        variables = [Variable.restored(one, arrays[one.spec.name]) for one in state.variables]
        self._store.restore(variables)
        self._store.served.restore(state.served)
        self._pending.restore(state)
        self._queues.restore(state.queues, state.epochs)
        self._queues.stopped = self._minimizations.stopped = state.stopped
        self._minimizations.restore(state.minimizations)
        self._jobs.restore(state.job, state.jobs, state.awaited)
        self._repeated, self._changes = state.repeated, list(state.changes)
        self.timeline, self._lost_pushes = state.timeline, state.lost_pushes
        self.cuts.number = self.cuts.completed = state.cut
        if self._update_order is not None and state.order is not None:
            self._update_order.restore(state.order)

    def go_back(self, timeline: int) -> None:
        """Begin a timeline from this state, which is older than what was acknowledged: all members join again."""
        self.timeline, self.lost = timeline, False
        for member in self._members:
            member.must_join = True

    def quarantines_as_in(self, other: "Shard") -> list[ms.Intervene]:
        """The messages that put workers into quarantine, or release them, as the other state of this shard has them."""
        changes = []
        for member in self._members:
            known = other._members.get(member.name)
            if known is not None and known.quarantined != member.quarantined:
                by, _, reason = (known.quarantined or member.quarantined).partition(": ")
                names = (member.name,)
                quarantine, release = (names, ()) if known.quarantined else ((), names)
                changes.append(ms.Intervene(by=by, reason=reason, quarantine=quarantine, release=release))
        return changes

    def resume(self, now: float) -> None:
        """Begin all leases anew: the shard's clock has another origin, or it was down."""
        self._members.resume(now)

    def arrays(self) -> dict[str, VariableArrays]:
        """The arrays of all variables, in order; still this shard's."""
        return {variable.spec.name: variable.arrays for variable in self._store}

    @property
    def variables(self) -> Mapping[str, Variable]:
        """All variables by name, in order; still this shard's."""
        return self._store.variables

    def waiting(self) -> list[tuple[int, ms.Message]]:
        """The tickets and messages of all calls without an answer: steps of these complete a restored state."""
        parts = self._pending, self._queues, self._barrier, self._minimizations
        return [call for part in parts for call in part.waiting()]

    @property
    def global_step(self) -> int:
        """Updates applied; pushes applied as one group count once."""
        return self._pending.global_step

    @property
    def identity(self) -> int:
        """Of the state (`JobInvariants`)."""
        return self._invariants.identity

    @property
    def job(self) -> ms.Job:
        """The present job."""
        return self._jobs.present

    @property
    def version(self) -> int:
        """The number of changes of all variables together."""
        return sum([variable.version for variable in self._store])

    @property
    def keeps_served_weights(self) -> bool:
        """Whether later updates depend on the values that pulls were answered with."""
        return self._store.strength > 0

    @property
    def live_workers(self) -> int:
        """The number of workers that take part now."""
        return self._members.live_count

    @property
    def job_end(self) -> JobEnd | None:
        """When the last worker left, and how the job ended; None while a worker is live or awaited in the job.

        From a job in which workers were awaited in vain, it is the time since which they are awaited no longer.
        """
        return None if self._jobs.awaits(self._members) else self._members.job_end

    def answer_bytes(self, message: ms.Message, *, at_once: bool = False) -> int:
        """The most bytes of values in the answer to `message`, which need not be checked yet.

        Values at their known version count, since they may be modified by then, unless the step is taken `at_once` by a
        shard that never holds a call. Raises `UnknownVariable`, or `InvalidMessage` for an impossible choice.
        """
        return self._store.answer_bytes(message, modified=not (at_once and self._pending.asynchronous))

    def due(self, now: float) -> ms.Tick:
        """The tick of this moment: the only place where time decides anything."""
        awaited = {} if self._progress_timeout.seconds is None else self._pending.awaited()
        stalled = self._progress_timeout.stalled(awaited, now)
        overdue, (takers, evaluators) = self._queues.overdue(now), self._minimizations.overdue(now)
        end = self._members.job_end
        gives_up = end is not None and self._jobs.awaits(self._members) and end.since + self._lease < now
        return ms.Tick(
            lost=self._members.expired(now),
            overdue=overdue,
            stalled=stalled,
            takers=takers,
            evaluators=evaluators,
            gives_up=gives_up,
        )

    # --- check and step -------------------------------------------------------------------------------------------

    def check(self, message: ms.Message) -> None:
        """Raise what `step` would raise, except for NaN, infinity and row numbers: looks at no element.

        So a server can refuse a large message after reading only its header.
        """
        self._check(message)

    def check_sender(self, sender: ms.Sender) -> None:
        """Raise what `step` would raise for any message of this sender: `NotJoined`, `Zombie` or `StateLost`.

        So a server can refuse a stranger's message before it decodes the rest.
        """
        self._check_sender(sender)

    def inspect(self, message: ms.Message) -> Inspection:
        """The checks of elements that `check` leaves out.

        Call `check` first. May run beside steps, in another thread: of the shard it reads only what never changes.
        """
        return inspect(self._store.variables, message, norm=self._max_gradient_norm is not None)

    def checkable(self, message: ms.Message) -> set[str] | None:
        """The variables that a step by `message` may change under guard, whose tasks must have run; None: all."""
        if isinstance(message, ms.Cut):
            return None
        names = self._pending.held_names()
        if isinstance(message, ms.Push):
            names.update([one.name for one in message.gradients])
        elif isinstance(message, ms.Assign):
            names.update([one.name for one in message.assignments])
        return names

    def step(
        self,
        ticket: int,
        message: ms.Message,
        now: float,
        *,
        inspection: Inspection | None = None,
        allocator: ms.Allocator | None = None,
        settled: bool = True,
    ) -> StepResult:
        """Take one message; returns the replies that it releases, also to earlier messages, array tasks and events.

        Never waits: a call that remains pending gets its reply from a later step. If it raises, nothing has changed.
        The caller runs the tasks. The message's arrays are borrowed until the tasks that use them have run: those of
        this step, or for a held push those of the step that answers.

        Args:
            ticket: identifies this message among the open ones.
            message: a request, or a tick.
            now: seconds on a clock that never goes back.
            inspection: the result of `inspect`, if it was called.
            allocator: memory for the values of the answer, whenever it comes; borrowed as long as the arrays.
            settled: all tasks of earlier steps have run, of the variables of `checkable`.

        Raises:
            TasksPending: not `settled`, and a change is checked (`psserver.core.variables.array_tasks`); call again
                when all tasks have run.
            ParamServerError: the message is refused.
        """
        member, repeated = self._check(message)
        if self.shard and isinstance(message, ms.Push | ms.Pull | ms.Assign) and message.after:
            message = self._after_changes_here(message)
        if self.shard and isinstance(message, ms.Push) and message.group is not None:
            group, members = message.group, self._members_here(message.group)
            group = ms.UpdateGroup(number=group.number, members=members, pushes=max(group.pushes, len(group.members)))
            message = dataclasses.replace(message, group=group)
        needs_norm = self._max_gradient_norm is not None
        magnitudes, bytes_in, norm = inspection or inspect(self._store.variables, message, norm=needs_norm)
        limit, factor = self._max_gradient_norm, 1.0
        if limit is not None and (factor := limit.factor(norm)) != 1.0:
            variables = self._store.variables
            magnitudes = {
                name: magnitude * factor if is_gradient(variables[name]) else magnitude
                for name, magnitude in magnitudes.items()
            }
        if not settled and (
            self._pending.may_be_checked
            or (isinstance(message, ms.Push | ms.Assign) and self._store.is_checked(magnitudes))
            or (isinstance(message, ms.Cut) and self._applies_late(message))
        ):
            raise TasksPending
        if not isinstance(message, ms.Renew | ms.Status):
            self._explanations = None
        result = StepResult(settled, now)
        shown = getattr(message, "cut", -1)
        if shown > self.cuts.number:
            self._begin_cut(shown, result)
        if member is not None:
            self._members.renew(member, now)
            if self.cuts.late_below:
                self.cuts.show(member, shown)
        if now >= self._traffic.next_snapshot:
            self._traffic.tick(now)
        match message:
            case ms.Push():
                call = PendingCall(ticket, message, member, allocator, None, magnitudes, norm, factor, since=now)
                if factor != 1.0:
                    call.clipped = f"--max-gradient-norm {limit}: the norm of its gradients was {norm:.6g}"
                self._push(call, repeated, result)
            case ms.Pull() if message.of_cut:
                self._pull_of_cut(ticket, message, allocator, result)
            case ms.Pull():
                self._pending.add(PendingCall(ticket, message, member, allocator), result)
            case ms.Take():
                self._take(ticket, message, member, now, result)
            case ms.Assign() | ms.Tune() | ms.Compute() if repeated:
                self._repeated += 1
                if isinstance(message, ms.Compute):
                    self._store.wait_for(message.names, result)  # its results may not be there yet
                answer = member.answer
                if answer.outcome is ms.Outcome.APPLIED:
                    answer = dataclasses.replace(answer, outcome=ms.Outcome.REPEATED)
                result.replies.append(ms.Reply(ticket, answer))
            case ms.Evaluate():
                self._evaluate(ticket, message, now, result)
            case ms.TakePortion():
                self._take_portion(ticket, message, member, now, result)
            case ms.ClaimPortion():
                self._minimizations.claim(ticket, message, result)
            case ms.Assign():
                self._assign(PendingCall(ticket, message, member, allocator, None, magnitudes), result)
            case ms.Tune():
                self._tune(ticket, message, member, result)
            case ms.Compute():
                self._compute(ticket, message, member, result)
            case ms.Register():
                self._register(ticket, message, magnitudes, allocator, result)
            case ms.Renew():
                self._renew(ticket, message, member, now, result)
            case ms.Join():
                self._join(ticket, message, now, result)
            case ms.Cut():
                self._cut(ticket, message, result)
            case ms.Leave():
                self._leave(ticket, message, member, now, result)
            case ms.Barrier():
                if not self._barrier.arrive(ticket, message, member, result):
                    self._wait_without_pushes(member, result)
            case ms.Stop():
                self._stop(ticket, message, member, result)
            case ms.Reset():
                self._reset(ticket, message, now, result)
            case ms.Intervene():
                self._intervene(ticket, message, result)
            case ms.Status():
                result.replies.append(
                    ms.Reply(ticket, self.status(now, message.first_variable, with_detail=message.detail))
                )
            case ms.Tick():
                self._tick(message, now, result)
        traffic = self._traffic
        traffic.pushes, traffic.bytes_in = self._pending.applied, traffic.bytes_in + bytes_in
        traffic.bytes_out += result.bytes_out
        result.events += self.cuts.events()
        return result

    def _check(self, message: ms.Message) -> tuple[Any, bool]:
        """As `check`; returns the member that sends, and whether the message was settled before."""
        sender, repeated = getattr(message, "sender", None), False
        member: Any = None if sender is None else self._check_sender(sender)
        self.check_counters(message, member)
        match message:
            case ms.Push():
                if message.group is not None:
                    self._check_group(message, message.group)
                if message.shards and not 0 < min(message.shards) <= max(message.shards) < self.shards:
                    raise InvalidMessage(f"a push with parts on shards {message.shards} of {self.shards}")
                if message.remote:
                    self._check_remote(message.remote, [one.name for one in message.remote])
                if message.progress:
                    self._check_has_queues()
                    self._queues.check_progress(message)
                repeated = is_repeated(member, message)
                self._store.check_gradients(message.gradients)
                self._store.check_pull(message)
            case ms.Pull():
                if message.of_cut:
                    self._check_of_cut(message)
                self._store.check_pull(message)
            case ms.Cut():
                if self.lost:  # its checkpoint would look like one of the others
                    self._refuse_until_restored()
                if message.holder is not None:
                    self._members.check(message.holder)
            case ms.Restore():
                raise InvalidMessage("a shard does not go back by itself: its server restores it from a checkpoint")
            case ms.Tune():
                repeated = is_repeated(member, message)
                self._store.check_tune(message)
            case ms.Compute():
                repeated = is_repeated(member, message)
                if not repeated:
                    self._minimizations.check_compute(message)  # first: another coordinator may have dropped vectors
                    self._store.check_compute(message)
            case ms.Join():
                self._invariants.check_join(message)
                self._check_timeline(message)
                self._jobs.begun_by(message, self._members, self._job_state)
                self._members.check_join(message)
            case ms.Register():
                self._invariants.check_register(message)
                if isinstance(self._consistency, Synchronous):
                    self._store.check_held_pushes(self._consistency.workers, message.declarations)
                new = self._invariants.new_places(message)
                self._store.check_declarations(message.declarations, dry_run=message.dry_run, new_places=new)
            case ms.Assign():
                if message.remote:
                    self._check_remote((), message.remote)
                repeated = is_repeated(member, message)
                if message.portions is not None and not repeated:
                    self._minimizations.check_sum(message.portions)
                    self._store.check_gradients_of_sum(message.assignments)
                self._store.check_assignments(message.assignments)
            case ms.Take():
                self._check_has_queues()
                self._queues.check(message)
            case ms.Evaluate():
                self._minimizations.check_evaluate(message)
            case ms.TakePortion() | ms.ClaimPortion() if self.shard:
                raise WrongShard(f"this is shard {self.shard}: portions are taken and claimed on shard 0")
            case ms.Barrier() | ms.Stop() if self.shard:
                raise WrongShard(f"this is shard {self.shard}: workers wait for each other, and stop, on shard 0")
            case ms.Reset():
                self._check_reset(message)
            case ms.Intervene():
                self._check_intervene(message)
        if isinstance(message, _OF_TIMELINES) and message.timeline not in (0, self.timeline):
            self._refuse_timeline(message.sender.worker, message.timeline)
        return member, repeated

    def check_counters(self, message: ms.Message, member: Member | None = None) -> None:
        """Raise `InvalidMessage` for a number that the shard counts on from, or adds up, and that is far above its own.

        All other integers of a message are bounded by its codec, and compared with what the shard has, or only kept.
        """
        for what, number, known, gap in self._counters(message, member):
            if number > known + gap:
                raise InvalidMessage(
                    f"{type(message).__name__} with {what} {number:,}, but the last one known here is {known:,}: it "
                    "counts without such gaps"
                )

    def _counters(self, message: Any, member: Any) -> Iterator[tuple[str, int, int, int]]:  # noqa: ANN401
        """What `check_counters` checks of a message of a member: a name, the number, the shard's own, and the gap."""
        match message:
            case ms.Push():
                yield "sequence number", message.sequence, member.settled, MAX_GAP
                yield "global step", message.global_step, self._pending.last_step, MAX_GAP
            case ms.Assign() | ms.Tune() | ms.Compute():
                yield "sequence number", message.sequence, member.settled, MAX_GAP
            case ms.Renew():
                yield "settled sequence number", message.settled, member.settled, MAX_GAP
                yield "number of half-applied pushes", message.half_pushes, member.half_pushes, MAX_GAP
            case ms.Join():
                yield from self._counters_of_join(message)
            case ms.Reset():
                yield "job", message.number, self.job.number, MAX_GAP
            case ms.Cut():
                yield "cut", message.number, self.cuts.number, MAX_GAP
            case ms.Restore():
                yield "timeline", message.timeline, self.timeline, MAX_TIMELINE_GAP
        if (cut := getattr(message, "cut", 0)) and not isinstance(message, ms.Restore):
            yield "cut", cut, self.cuts.number, MAX_GAP

    def _counters_of_join(self, message: ms.Join) -> Iterator[tuple[str, int, int, int]]:
        known = self._members.get(message.worker)
        settled, steps = (known.settled, known.steps) if known is not None and known.is_of(message) else (0, 0)
        yield "incarnation", message.incarnation, self._members.last_possible_incarnation(self.timeline), MAX_GAP
        yield "settled sequence number", message.settled, settled, MAX_GAP
        yield "number of pushes", message.steps, steps, MAX_GAP
        yield "job", message.job.number, self.job.number, MAX_GAP

    def _check_sender(self, sender: ms.Sender) -> Member:
        if self.lost:
            self._refuse_until_restored()
        return self._members.check(sender)

    def _check_has_queues(self) -> None:
        if self.shard:
            raise WrongShard(f"this is shard {self.shard}: data queues are kept on shard 0")

    def _check_remote(self, weights: Iterable[ms.RemoteWeights], names: Sequence[str]) -> None:
        if self._update_order is None:
            raise InvalidMessage(f"{names[0]!r}: this shard does not order changes on other shards")
        self._invariants.check_placed(names)
        self._update_order.check(weights)

    def _may_have(self, pushes: int) -> bool:
        return isinstance(self._consistency, Synchronous) and pushes <= self._consistency.workers

    def _check_group(self, push: ms.Push, group: ms.UpdateGroup) -> None:
        if not self.shard:
            raise InvalidMessage("shard 0 decides which pushes make an update: a push to it has no group")
        if group.pushes > len(group.members) and not self._may_have(group.pushes):
            raise InvalidMessage(f"an update of {group.pushes} pushes, with --consistency {self._consistency}")
        members = self._members_here(group)
        if not any((one.sender, one.sequence) == (push.sender, push.sequence) for one in members):
            raise InvalidMessage(
                f"a push of worker {push.sender.worker!r} for update {group.number} of shard 0, which it is not in"
            )

    def _members_here(self, group: ms.UpdateGroup) -> tuple[ms.ChangeId, ...]:
        """The pushes of a group with a part on this shard: all, if it does not name the shards of any."""
        named = [one for one in group.members if one.shards]
        return self._with_parts_here(named or group.members)

    def _with_parts_here(self, changes: Iterable[ms.ChangeId]) -> tuple[ms.ChangeId, ...]:
        """Of changes over all shards those that have a part on this one; without `shards` they have one."""
        here = [change for change in changes if not change.shards or self.shard in change.shards]
        return tuple([ms.ChangeId(change.sender, change.sequence) for change in here])

    def _after_changes_here(self, message: Any) -> Any:  # noqa: ANN401 - a Push, Pull or Assign
        """A message that names of the changes before it only those of other workers on this shard."""
        others = [one for one in message.after if one.sender.worker != message.sender.worker]
        return dataclasses.replace(message, after=self._with_parts_here(others))

    # --- membership -----------------------------------------------------------------------------------------------

    def _join(self, ticket: int, message: ms.Join, now: float, result: StepResult) -> None:
        before = self._job_report()
        begun = self._jobs.begun_by(message, self._members, before.state)
        if begun is not None:
            self._begin_job(begun, now, result)
        elif before.state not in ("running", "empty") and self._queues.stopped:
            self._queues.stopped = self._minimizations.stopped = ""  # the job goes on
        self._jobs.note_workers(message)
        known = self._members.get(message.worker)
        was_live, goes_back = (known.state == "live", known.must_join) if known is not None else (False, False)
        member, new_incarnation = self._members.join(message, now, self.timeline)
        if message.steps > member.steps:
            self._lost_pushes += message.steps - member.steps
            result.events.append(events.lost_pushes(member, message.steps - member.steps))
            member.steps = message.steps  # counted once, also if this shard goes back again
        if message.settled:
            self._settle(member, message.settled)
        if new_incarnation or not was_live:
            result.events.append(events.joined(member, new_incarnation=new_incarnation))
        note = "" if self.shard or message.resume else joined_note(before, self.job)
        joined = ms.Joined(
            incarnation=member.incarnation,
            number=member.number,
            lease=self._members.lease,
            global_step=self.global_step,
            consistency=str(self._consistency),
            staleness=str(self._staleness),
            chief=self._members.chief.is_chief(member.name),
            state=self._invariants.identity,
            timeline=self.timeline,
            cut=self.cuts.number,
            steps=member.steps,
            job=self.job,
            note=note,
            stopped=self._queues.stopped,
        )
        result.replies.append(ms.Reply(ticket, joined))
        if member.quarantined and new_incarnation and not self._follows:
            self._members.progress.stall(member)
        if new_incarnation:
            self._forget([member], result)
        elif goes_back:  # it does not know of the block that it had at the cut
            self._queues.forget([member.name], result)
            self._minimizations.forget([member.name], result)

    def _renew(self, ticket: int, message: ms.Renew, member: Member, now: float, result: StepResult) -> None:
        self._members.renew(member, now, message.tensor_transport)
        member.half_pushes = max(member.half_pushes, message.half_pushes)  # heartbeats may arrive out of order
        # a heartbeat from before the worker's last messages does not abandon them
        settled = message.settled
        if (message.idle or settled) and not (settled and settled < self._pending.newest(message.sender)):
            self._explanations = None
            self._settle(member, settled)
            if message.idle:
                self._members.progress.finish(member)
            self._pending.abandon(member, result)
            self._pending.decide(result)
        waiting_for, chief = self._waits_for(member), self._members.chief.is_chief(member.name)
        renewed = ms.Renewed(
            global_step=self.global_step,
            waiting_for=waiting_for,
            chief=chief,
            cut=self.cuts.number,
            stopped=self._queues.stopped,
            push_held=self.cuts.decides and self._pending.holds_push_of(member),
        )
        result.replies.insert(0, ms.Reply(ticket, renewed))

    def _waits_for(self, member: Member) -> str:
        if self._explanations is None:
            self._explanations = self._pending.explanations(), self._barrier.explanations()
        of_push, of_barrier = self._explanations
        stalled = member.state == "live" and member.name in self._members.progress.stalled
        apart = f"nobody: its pushes are dropped, {member.quarantined}" if member.quarantined else _STALLED
        return of_push(member.name) or of_barrier(member.name) or (apart if stalled or member.quarantined else "")

    def _settle(self, member: Member, sequence: int) -> None:
        """Note that the worker's messages up to this number are over: those that arrive later are refused."""
        self._pending.settle(ms.Sender(member.name, member.incarnation), sequence)
        self._members.half_pushes.settle(member, sequence)

    def _leave(self, ticket: int, message: ms.Leave, member: Member, now: float, result: StepResult) -> None:
        chief = self._members.chief.state()
        finished = self.global_step > 0 and not message.failed
        self._members.leave(member, now, failed=message.failed, done=finished or message.done)
        result.events.append(events.left(member, failed=message.failed))
        self._note_chief(chief, result)
        result.replies.append(ms.Reply(ticket, ms.Left(self._members.done)))
        self._forget([member], result)
        if not self._members.live_count:
            self._minimizations.give_up()

    def _tick(self, tick: ms.Tick, now: float, result: StepResult) -> None:
        self.cuts.check_time(now)
        if tick.lost:
            chief = self._members.chief.state()
            lost = self._members.expire(tick.lost, now)
            result.events.extend([events.lost(member, self._members.lease) for member in lost])
            self._note_chief(chief, result)
            self._forget(lost, result)
        if tick.stalled:
            result.events.extend([events.stalled(member) for member in self._pending.stall(tick.stalled, result)])
        if tick.gives_up:
            result.events.append(events.awaited_no_longer(self.job, self._members.joined, self._jobs.awaited))
            self._jobs.awaited = 0
            self._members.note_job_end(now)  # those that wait for the next session join now
        self._queues.explain(tick.overdue, result)
        self._minimizations.explain(tick.takers, tick.evaluators, result)

    def _note_chief(self, before: ms.Sender | None, result: StepResult) -> None:
        """Say so if another worker is the chief now."""
        now = self._members.chief.state()
        if before is not None and now is not None and now != before:
            result.events.append(events.chief_moved(before.worker, now.worker))

    def _forget(self, gone: Collection[Member], result: StepResult) -> None:
        """End the calls of these workers, and return their blocks to the data queues; this may release other calls."""
        names = dict.fromkeys([member.name for member in gone])
        self.cuts.leave(names)
        self.cuts.release(names)
        self._pending.forget(names, result)
        self._queues.forget(names, result)
        self._minimizations.forget(names, result)
        self._barrier.forget(names, result)
        self._pending.decide(result)
        self._barrier.release(result)
        for member in self._members.forget():
            self._queues.forget_epoch(member.name)
            if self._update_order is not None:
                self._update_order.forget(member.name)

    def _wait_without_pushes(self, member: Member, result: StepResult) -> None:
        """Note that a worker waits for others, which therefore must not wait for its next push."""
        self._members.progress.finish(member, out_of_data=True)
        self._pending.abandon(member, result)
        self._pending.decide(result)

    # --- the job --------------------------------------------------------------------------------------------------

    def _begin_job(self, job: ms.Job, now: float, result: StepResult) -> None:
        """End the present job, whose last state is a cut if there are checkpoints, and begin another one."""
        report, members = self._job_report(), self._members
        if report.state != "empty":
            live = self._members.live
            for member in live:  # of which only shard 0 knew that they are gone
                self._members.leave(member, now, failed=True)
            self._forget(live, result)
            if self.cuts.stored and not self.shard and self._store.variables:
                self._begin_cut(self.cuts.number + 1, result, at_once=True)
            self._make_parts(self._invariants.identity, self._members.last_incarnation)
        self._jobs.begin(job, report, members)
        if report.job.number:
            result.events.append(events.job_begins(job, report))

    def _job_report(self) -> ms.JobReport:
        members, reports = self._members, self._queues.reports(1)
        cost = reports[-1].cost if reports else None
        step, workers = self.global_step, members.joined
        return ms.JobReport(
            job=self.job,
            state=self._job_state,
            global_step=step,
            workers=workers,
            epochs=self._queues.complete_epochs,
            cost=cost,
        )

    @property
    def _job_state(self) -> str:
        """As in `JobReport`. Examples that were left by lost workers are still to be trained."""
        state = self._members.job_state
        left = state == "done" and not self._queues.done and self._members.some_were_lost
        return "interrupted" if left else state

    def _stop(self, ticket: int, message: ms.Stop, member: Member, result: StepResult) -> None:
        if not self._queues.stopped:
            reason = message.reason or "no reason given"
            self._stop_all(f"{member.name}: {reason}", result)
            result.events.append(events.job_stopped(member, reason))
        result.replies.append(ms.Reply(ticket, ms.Stopped(self._queues.stopped)))

    def _stop_all(self, reason: str, result: StepResult) -> None:
        """Hand out neither blocks nor portions any more."""
        self._queues.stop(reason, result)
        self._minimizations.stop(reason, result)

    def _check_reset(self, message: ms.Reset) -> None:
        live = [member.name for member in self._members.live]
        if message.number > self.job.number and live and not message.force:
            raise Unavailable(f"{self.job} is running with {join_names(live)}: stop it first, or use --force")

    def _reset(self, ticket: int, message: ms.Reset, now: float, result: StepResult) -> None:
        if message.number > self.job.number:
            self._begin_job(ms.Job(message.number), now, result)
        result.replies.append(ms.Reply(ticket, ms.Emptied(self.job)))

    def _check_intervene(self, message: ms.Intervene) -> None:
        for worker in (*message.quarantine, *message.release):
            if self._members.get(worker) is None:
                known = join_names([member.name for member in self._members.newest(10)]) or "none yet"
                raise InvalidMessage(f"no worker {worker!r} has joined shard {self.shard}; there are: {known}")
        if message.scale_learning_rate != 1.0:
            self._store.check_scaled(message.scale_learning_rate)

    def _intervene(self, ticket: int, message: ms.Intervene, result: StepResult) -> None:
        reason = f"{message.by}: {message.reason}"
        if message.stop and not self.shard and not self._queues.stopped:
            self._stop_all(reason, result)
            result.events.append(events.job_stopped_by(message.by, message.reason))
        for name in message.release:
            self._members[name].quarantined = ""
            result.events.append(events.released(name, reason))
        for name in message.quarantine:
            self._members[name].quarantined = reason
            result.events.append(events.quarantined(name, reason))
            if not self._follows:
                self._pending.quarantine(self._members[name], result)
        self._minimizations.release(message.quarantine, result)  # also serves those that are in quarantine no more
        if message.scale_learning_rate != 1.0:
            for optimizer, names in self._store.scale_learning_rates(message.scale_learning_rate):
                self._note_change(message.by, names, optimizer)
            result.events.append(events.learning_rates_scaled(message.scale_learning_rate, reason))
        quarantined = tuple([member.name for member in self._members if member.quarantined])
        result.replies.append(ms.Reply(ticket, ms.Intervened(self.global_step, quarantined)))

    # --- variables ------------------------------------------------------------------------------------------------

    def _register(
        self,
        ticket: int,
        message: ms.Register,
        magnitudes: Magnitudes,
        allocator: ms.Allocator | None,
        result: StepResult,
    ) -> None:
        if message.dry_run:
            result.replies.append(ms.Reply(ticket, ms.Registered((), self.global_step)))
            return
        self._invariants.keep(message)
        if message.cut < self.cuts.late_below:
            self.cuts.keep_late(message)
        self._store.declare(message.declarations, magnitudes, result)
        names = tuple([one.spec.name for one in message.declarations if not self._store.is_table(one)])
        values = self._store.read(ms.Pull(sender=message.sender, names=names), result, allocator)
        result.replies.append(ms.Reply(ticket, ms.Registered(values, self.global_step, self._pending.frontier)))

    def _push(self, call: PendingCall, repeated: bool, result: StepResult) -> None:
        message, member = call.message, call.member
        assert isinstance(message, ms.Push)
        if not repeated and self._update_order is not None:  # all shards have settled the worker's earlier messages
            self._update_order.settle(message.sender, message.sequence)
        if not repeated and not (message.gradients or message.shards or message.group):
            self._pending.settle_empty(call, result)
        elif not repeated and member.quarantined and not self._follows:
            self._pending.drop_quarantined(call, result)
        elif not repeated:
            if not member.training:
                if member.name in self._members.progress.stalled:
                    result.events.append(events.pushes_again(member))
                self._members.progress.start(member)
        else:
            answer = member.answer
            if answer is None:
                reason = "its part came too late: the worker's lease had expired here, or it had abandoned the part"
                answer = ms.Pushed(outcome=ms.Outcome.DROPPED, staleness=0, global_step=self.global_step, reason=reason)
                self._members.record(member, message.sequence, answer)
                self._members.half_pushes.late_part(member, message.sequence)
            assert isinstance(answer, ms.Pushed), "checked"
            self._repeated += 1
            if answer.outcome is ms.Outcome.APPLIED:
                answer = dataclasses.replace(answer, outcome=ms.Outcome.REPEATED)
            call.answer, call.magnitudes = answer, {}
        self._pending.add(call, result)

    def _assign(self, call: PendingCall, result: StepResult) -> None:
        assert isinstance(call.message, ms.Assign)
        if self._update_order is not None:
            self._update_order.settle(call.message.sender, call.message.sequence)
        self._pending.abandon(call.member, result)  # a held push would settle an older number later
        self._pending.add(call, result)

    def _tune(self, ticket: int, message: ms.Tune, member: Member, result: StepResult) -> None:
        optimizer = self._store.tune(message)
        self._note_change(member.name, message.names, optimizer)
        self._pending.abandon(member, result)  # a held push would settle an older number later
        if message.cut < self.cuts.late_below:
            self.cuts.keep_late(message)
        tuned = ms.Tuned(ms.Outcome.APPLIED, self.global_step)
        self._members.record(member, message.sequence, tuned)
        result.replies.append(ms.Reply(ticket, tuned))

    def _compute(self, ticket: int, message: ms.Compute, member: Member, result: StepResult) -> None:
        results = self._store.compute(message, result)
        term, note = self._minimizations.compute(message)
        self._pending.abandon(member, result)  # a held push would settle an older number later
        if message.cut < self.cuts.late_below:
            self.cuts.keep_late(message)
        computed = ms.Computed(
            outcome=ms.Outcome.APPLIED, results=results, global_step=self.global_step, term=term, note=note
        )
        self._members.record(member, message.sequence, computed)
        result.replies.append(ms.Reply(ticket, computed))

    def _note_change(self, by: str, names: Sequence[str], optimizer: UpdateSpec) -> None:
        named = tuple(names[:MAX_NAMED])
        change = ms.Change(
            global_step=self.global_step, worker=by, names=named, optimizer=optimizer, others=len(names) - len(named)
        )
        self._changes = [*self._changes, change][-MAX_LISTED:]

    # --- cuts -----------------------------------------------------------------------------------------------------

    def _begin_cut(self, number: int, result: StepResult, *, at_once: bool = False) -> None:
        """Take the snapshot of a cut, unless another one is not over, or there is no memory for its copies.

        Nor one right after another (`Cuts.not_before`), unless `at_once`.
        """
        if not self.cuts.enabled or (result.now < self.cuts.not_before and not at_once):
            self.cuts.skip(number)
            return
        self.cuts.end_if_idle()
        store, busy = self._store, self.cuts.busy
        if busy is not None or store.nbytes > store.free_bytes:
            self.cuts.skip(number)
            needs = f"a copy of {store.nbytes:,} bytes does not fit into --memory-limit"
            result.events.append(events.cut_skipped(number, needs if busy is None else f"{busy.number} is not over"))
            return
        self.cuts.number = number
        self.cuts.begin(number, self.state(), store.variables, self.waiting(), self._members.live, result.now)
        result.began_cut = True

    def _cut(self, ticket: int, message: ms.Cut, result: StepResult) -> None:
        cuts, number = self.cuts, message.number
        cuts.end_if_idle(unless=number)
        busy = cuts.busy
        if not number and busy is not None:
            waiting_for = f"cut {busy.number} is not over"
            result.replies.append(ms.Reply(ticket, ms.CutReport(number=0, waiting_for=waiting_for)))
            return
        if not number and result.now < cuts.not_before:
            waiting_for = f"cut {cuts.number} began a moment ago, and took a part of the time of this shard"
            result.replies.append(ms.Reply(ticket, ms.CutReport(number=0, waiting_for=waiting_for)))
            return
        if (number > cuts.number or not number) and not message.release:
            number = number or max(cuts.number + 1, self.global_step)
            self._begin_cut(number, result)
        cut, holder = cuts.current, message.holder
        if cut is not None and cut.number == number and holder is not None:
            if message.release:
                cut.released.add(holder)
                cuts.release([holder.worker])
            elif holder not in cut.released:
                cut.holders.add(holder)
                for copy in cut.copies.values() if cut.late else ():
                    copy.start(result)
                if cut.may_apply:
                    self._apply_late(cut, result)
        result.replies.append(ms.Reply(ticket, cuts.report(number)))

    def _applies_late(self, message: ms.Cut) -> bool:
        cut = self.cuts.current
        return cut is not None and message.holder is not None and message.number == cut.number and cut.may_apply

    def _apply_late(self, cut: ShardCut, result: StepResult) -> None:
        """Make the late changes in the copies: as after a restore of the cut, by the same rules, to the same bits."""
        shard = Shard.for_state(cut.state)
        shard.restore(cut.state, {name: copy.arrays for name, copy in cut.copies.items()}, 0.0)
        shard.begin_late()
        for ticket, change in enumerate(cut.late):
            result.tasks += shard.step(ticket, change, 0.0).tasks
        result.tasks += shard.end_late(0.0).tasks
        cut.applied = shard._store.variables

    def begin_late(self) -> None:
        """The late changes of a cut come next, until `end_late`."""
        self._minimizations.begin_late()

    def end_late(self, now: float) -> StepResult:
        """Make the updates of late pushes that wait for others: whose part is missing was gone when the cut completed.

        For a shard that was restored from a cut, after its late changes.
        """
        self._minimizations.end_late()
        held = {message.sender.worker for _, message in self.waiting() if isinstance(message, ms.Push)}
        gone = [member.name for member in self._members.live if member.name not in held]
        return self.step(0, ms.Tick(lost=tuple(gone)), now) if held else StepResult()

    def begin_final_cut(self) -> ShardCut | None:
        """The cut of a shard that takes no more messages: complete at once; None if there is no memory for it."""
        self.cuts.end()
        self._begin_cut(self.cuts.number + 1, StepResult(), at_once=True)
        cut = self.cuts.current
        if cut is not None:
            self.cuts.leave(list(cut.missing))
        return cut

    def _check_of_cut(self, message: ms.Pull) -> None:
        cut = self.cuts.current
        if cut is None or cut.number != message.of_cut or message.sender not in cut.holders:
            raise GenerationLost(
                f"shard {self.shard} does not hold generation {message.of_cut} for {message.sender.worker}: it was "
                "started again since, or the worker's lease ended there. Repeat the block of session.generation()"
            )
        if not cut.readable:
            raise InvalidMessage(f"cut {message.of_cut} is not complete here yet: ask about it until it is")
        variables = cut.variables()
        for name in (*message.names, *[choice.name for choice in message.choices]):
            if name not in variables:
                raise UnknownVariable(f"no variable {name!r} in cut {message.of_cut}: it was registered later")

    def _pull_of_cut(self, ticket: int, message: ms.Pull, allocator: ms.Allocator | None, result: StepResult) -> None:
        cut = self.cuts.current
        assert cut is not None, "checked"
        for name in (*message.names, *[choice.name for choice in message.choices]):
            if name in cut.copies:
                cut.copies[name].start(result)
        values = self._store.read(message, result, allocator, cut.variables())
        result.replies.append(ms.Reply(ticket, ms.Pulled(values, cut.state.global_step)))

    def _refuse_until_restored(self) -> NoReturn:
        raise StateLost(
            f"shard {self.shard} was started again from checkpoint {self.cuts.number}, which is older than what it had "
            "acknowledged"
        )

    def _check_timeline(self, message: ms.Join) -> None:
        if self.lost:
            self._refuse_until_restored()
        known = self._members.get(message.worker)
        must_join = known is not None and known.must_join and known.is_of(message)
        if message.timeline != self.timeline and (message.timeline or must_join):  # 0: it joins for the first time
            self._refuse_timeline(message.worker, message.timeline)

    def _refuse_timeline(self, worker: str, timeline: int) -> NoReturn:
        raise StateLost(
            f"shard {self.shard} follows timeline {self.timeline} of the job, and worker {worker!r} timeline {timeline}"
        )

    def _storage_status(self) -> ms.StorageStatus:
        cut = self.cuts.current
        writing, missing = (0, "") if cut is None else (cut.number, cut.waiting_for)
        timeline, lost = self.timeline, self._lost_pushes
        return ms.StorageStatus(writing=writing, waiting_for=missing, timeline=timeline, lost_pushes=lost)

    # --- minimizations --------------------------------------------------------------------------------------------

    def _evaluate(self, ticket: int, message: ms.Evaluate, now: float, result: StepResult) -> None:
        if self._minimizations.evaluate(ticket, message, now, result):
            self._store.clear_gradient(result)
            if message.cut < self.cuts.late_below:
                self.cuts.keep_late(message)

    def _take_portion(
        self, ticket: int, message: ms.TakePortion, member: Member, now: float, result: StepResult
    ) -> None:
        if not self._minimizations.take(ticket, message, now, result) and member.training:
            self._wait_without_pushes(member, result)

    # --- data queues and status -----------------------------------------------------------------------------------

    def _take(self, ticket: int, message: ms.Take, member: Member, now: float, result: StepResult) -> None:
        if not self._queues.take(ticket, message, now, result):
            self._wait_without_pushes(member, result)

    def status(self, now: float, first_variable: int = 0, *, with_detail: bool = False) -> ms.StatusReport:
        """The answer to `Status`."""
        first = min(first_variable, len(self._store.variables))
        listed = islice(self._store, first, first + MAX_LISTED)
        members, queues = self._members, self._queues.count
        totals = ms.Totals(
            variables=len(self._store.variables), workers=members.joined, live=members.live_count, queues=queues
        )
        pending, half_pushes = self._pending, self._members.half_pushes
        newest, held = members.newest(MAX_LISTED), pending.held_since()
        between_blocks = self._queues.between_blocks()
        if now >= self._next_samples:
            self._next_samples = now + SECONDS_BETWEEN_SAMPLES
            for variable in islice(self._store, MAX_SAMPLED):
                variable.rounding.due = True
        return ms.StatusReport(
            shard=self.shard,
            shards=self.shards,
            global_step=self.global_step,
            repeated=self._repeated,
            variables=tuple([variable.status() for variable in listed]),
            workers=tuple([self._worker_status(one, now, held.get(one.name), between_blocks) for one in newest]),
            epochs=tuple(self._queues.reports(MAX_LISTED)),
            dropped=pending.dropped,
            nbytes=self._store.nbytes + self._store.served.nbytes,
            consistency=str(self._consistency),
            handling=str(self._staleness),
            traffic=self._traffic.traffic(now),
            staleness=ms.Staleness(percentile(pending.stalenesses, 50), percentile(pending.stalenesses, 99)),
            changes=tuple(self._changes),
            half_pushes=half_pushes.count,
            last_pushes=half_pushes.last_pushes(MAX_LISTED),
            storage=self._storage_status(),
            queues=tuple(self._queues.status(MAX_LISTED)),
            jobs=(*self._jobs.earlier, self._job_report()),
            stopped=self._queues.stopped,
            totals=totals,
            held=len(held),
            clipped=pending.clipped,
            detail=detail(newest, list(self._store.variables), pending.stalenesses) if with_detail else None,
            minimizations=() if self.shard else tuple(self._minimizations.status(MAX_MINIMIZATIONS)),
        )

    def _worker_status(
        self, one: Member, now: float, held_since: float | None, between_blocks: Container[str]
    ) -> ms.WorkerStatus:
        return worker_status(
            one,
            now,
            epoch=self._queues.epoch_of(one.name),
            between_blocks=one.name in between_blocks,
            waiting_for=self._waits_for(one),
            chief=self._members.chief.is_chief(one.name),
            held_since=held_since,
        )
