"""The shard: a deterministic state machine that processes one message at a time and does no arithmetic itself.

    message -> membership (who sends it? is it new?) -> the part that answers it: its check, then its handler
            -> effects on other parts (members that are gone, changes that belong to a cut) -> replies

The same messages in the same order give bit-identical variables, slots and replies. Waiting, I/O and the clock are
outside, in `psserver.runtime.executor` and `psserver.rpc.server`. Here is what crosses parts: jobs that begin, members
that are gone, cuts, and timelines.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psserver.core import events
from psserver.core.cuts.cuts import Cuts
from psserver.core.cuts.shard_cut import ShardCut
from psserver.core.data.data_queues import DataQueues
from psserver.core.gaps import check_count
from psserver.core.job.attendance import Attendance
from psserver.core.job.barrier import Barrier
from psserver.core.job.interventions import Interventions
from psserver.core.job.jobs import Jobs
from psserver.core.job.joins import Joins
from psserver.core.late_steps import LateSteps
from psserver.core.members.deduplication import is_repeated
from psserver.core.members.member import Member
from psserver.core.members.membership import JobEnd, Membership
from psserver.core.minimization.minimizations import Minimizations
from psserver.core.minimization.sums import Sums
from psserver.core.minimization.vectors import Vectors
from psserver.core.options import ShardOptions
from psserver.core.part import Call, Check, Handler, Part, Position
from psserver.core.policies.policy import Policy
from psserver.core.policies.update_order import UpdateOrder
from psserver.core.registration import Registration
from psserver.core.timelines import OF_TIMELINES, Timeline
from psserver.core.traffic import TrafficMeter
from psserver.core.updates.pending_calls import PendingCalls
from psserver.core.updates.remote_decisions import RemoteDecisions
from psserver.core.updates.update_calls import UpdateCalls
from psserver.core.updates.updates import Updates
from psserver.core.variable_arrays import VariableArrays
from psserver.core.variables.array_tasks import StepResult, TasksPending, run
from psserver.core.variables.element_checks import Inspection, inspect
from psserver.core.variables.rounding import Samples
from psserver.core.variables.variable import Variable
from pswire import messages as ms
from pswire.errors import InvalidMessage, WrongShard
from pswire.messages import ShardState

#: Messages that a worker sends one after another, each of which is settled by its answer.
_SETTLED = ms.Assign | ms.Tune | ms.Compute


class Shard:
    """A deterministic state machine, not thread-safe. Arrays in an answer are read-only copies.

    Args:
        options: the same from its beginning to its end, and after a restore.
        policy: in place of the one that these specify.
        identity: of the state, drawn at random when it begins and restored with it; 0: none.
        stores_cuts: whether each cut is written to disk, from its beginning.
    """

    def __init__(
        self,
        options: ShardOptions = ShardOptions(),  # noqa: B008 - frozen
        *,
        policy: Policy | None = None,
        identity: int = 0,
        stores_cuts: bool = False,
    ) -> None:
        self._options = options
        self.shard, self.shards = options.shard, options.shards
        self._policy = policy or options.policy
        self._position = Position()
        self._timeline = Timeline(self.shard, self._position)
        self.cuts = Cuts(
            options, self._position, self._timeline, self.state, self.waiting, self._apply_late, stored=stores_cuts
        )
        self._jobs = Jobs(self.shard, one_job=options.one_job)
        self._begin_parts(identity)

    def _begin_parts(self, identity: int, last_incarnation: int = 0) -> None:
        """Make the parts of a job, all of them empty."""
        options, shard, position = self._options, self.shard, self._position
        position.global_step, position.stopped = 0, ""
        self._traffic, self._samples = TrafficMeter(), Samples()
        self._members = members = Membership(
            options.lease,
            has_chief=not shard,
            one_job=options.one_job,
            last_incarnation=last_incarnation,
            max_workers=options.max_workers,
        )
        order = UpdateOrder() if options.orders else None
        timeline, jobs, cuts = self._timeline, self._jobs, self.cuts
        self._variables = variables = Registration(options, identity, position, members, order)
        store, memory = variables.store, variables.memory
        cuts.begin_job(members, store, memory)
        queues = DataQueues(shard, position, members)
        vectors = Vectors(store, memory)
        minimizations = Minimizations(shard, position, members, vectors, memory)
        sums = Sums(position, members, minimizations, vectors)
        updates = Updates(position, members, store, queues, order)
        pending = PendingCalls(options, self._policy, position, members, store, sums, updates)
        decisions = RemoteDecisions(options, variables.invariants, order)
        calls = UpdateCalls(options, position, members, store, cuts, queues, sums, updates, decisions, pending)
        barrier = Barrier(shard, position, members)
        attendance = Attendance(position, members, jobs, variables, cuts, queues, updates, pending, barrier)
        self._joins = Joins(options, position, timeline, members, jobs, variables, queues, minimizations, updates)
        self.interventions = Interventions(shard, position, members, variables, queues, minimizations, pending)
        self._store, self._queues, self._minimizations = store, queues, minimizations
        self._updates, self._pending, self._decisions = updates, pending, decisions
        #: In the order in which they are restored, forget members and take a tick.
        self._parts: tuple[Part, ...] = (
            attendance,
            self._joins,
            cuts,
            variables,
            updates,
            calls,
            pending,
            queues,
            minimizations,
            barrier,
            self.interventions,
        )
        self._answers: dict[type, tuple[Check | None, Handler]] = {
            ms.Status: (None, self._report),
            ms.Tick: (None, self._tick),
        }
        for part in self._parts:
            self._answers |= part.messages()

    # --- the state ------------------------------------------------------------------------------------------------

    @classmethod
    def for_state(cls, state: ShardState, *, replays: bool = False) -> "Shard":
        """A new shard with the options of a state, for `restore`; its memory has no limit.

        One that `replays` takes all messages as by `replay`.
        """
        shard = cls(ShardOptions.of_state(state))
        shard.cuts.paused = replays
        return shard

    def state(self) -> ShardState:
        """All but the arrays of variables and pending calls."""
        fields = {name: value for part in self._parts for name, value in part.state().items()}
        return ShardState(
            shard=self.shard,
            shards=self.shards,
            consistency=str(self._options.consistency),
            handling=str(self._options.staleness),
            max_gradient_norm=self._options.limit_text,
            timeline=self.timeline,
            **fields,
        )

    def restore(self, state: ShardState, arrays: Mapping[str, VariableArrays], now: float) -> None:
        """Continue from a state, whose arrays this shard owns from now on; for a new shard with the same options.

        Raises `WrongShard` for the state of another shard, or one with other options, `ValueError` if state and arrays
        do not fit together.
        """
        if differences := self._options.differences(state):
            raise WrongShard(differences)
        self._store.restore([Variable.restored(one, arrays[one.spec.name]) for one in state.variables])
        for part in self._parts:
            part.restore(state, now)
        self._timeline.number = state.timeline

    def begin_from(
        self,
        timeline: int,
        now: float,
        *,
        late: Iterable[ms.Message] | None = None,
        lost: bool = False,
        went_back: bool = False,
    ) -> list[str]:
        """Follow a timeline from the present state; call it after `restore`, if there is a state.

        With the `late` changes of its cut, the state is that of the cut: evaluations in progress are given up. Returns
        a sentence for each that was refused. `lost`: it waits to be told to which cut it goes back. `went_back`: the
        state is older than what was acknowledged, and is given up to: all members join again.
        """
        refused: list[str] = []
        if late is not None:
            made = self._late_steps(late, now)
            run(made.tasks)
            refused = made.refused
        self._timeline.number, self._timeline.lost = timeline, lost
        for member in self._members if went_back else ():
            member.must_join = True
        return refused

    def replay(self, ticket: int, message: ms.Message, now: float) -> StepResult:
        """Take a message that this shard has taken before, as `step`: the cuts that it shows were taken then."""
        before, self.cuts.paused = self.cuts.paused, True
        try:
            return self.step(ticket, message, now)
        finally:
            self.cuts.paused = before

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
        """The tickets and messages of all calls without an answer: a restored shard takes these messages again."""
        return [(call.ticket, call.message) for part in self._parts for call in part.waiting()]

    @property
    def global_step(self) -> int:
        """Updates applied; pushes applied as one group count once."""
        return self._position.global_step

    @property
    def timeline(self) -> int:
        """The number of the timeline that it follows."""
        return self._timeline.number

    @property
    def lost(self) -> bool:
        """Whether it has begun from an older state than it had acknowledged, and waits to be told to which."""
        return self._timeline.lost

    @property
    def identity(self) -> int:
        """Of the state (`JobInvariants`)."""
        return self._variables.invariants.identity

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

        If workers were awaited in vain, it is the time at which the shard gave them up.
        """
        return None if self._jobs.awaits(self._members) else self._members.job_end

    def answer_bytes(self, message: ms.Message, *, at_once: bool = False) -> int:
        """The most bytes of values in the answer to `message`, which need not be checked yet.

        A value that the worker knows counts too, since it may have changed by then, unless the step is taken `at_once`
        by a shard that never holds a call. Raises `UnknownVariable`, or `InvalidMessage` for an impossible choice.
        """
        return self._store.answer_bytes(message, modified=not (at_once and self._pending.asynchronous))

    def due(self, now: float) -> ms.Tick:
        """The tick of this moment: the only place where time decides anything."""
        return ms.Tick(**{name: value for part in self._parts for name, value in part.due(now).items()})

    # --- check and step -------------------------------------------------------------------------------------------

    def check_sender(self, sender: ms.Sender) -> Member:
        """The member that sends. Raises what `step` would for any message of it: `NotJoined`, `Zombie`, `StateLost`.

        So a server can refuse a stranger's message before it decodes the rest.
        """
        if self._timeline.lost:
            self._timeline.check_not_lost()
        return self._members.check(sender)

    def check(self, message: Any) -> tuple[Any, bool]:  # noqa: ANN401
        """The member that sends a message, and whether this was settled before.

        Raises what `step` would, except for NaN, infinity and row numbers: looks at no element. So a server can refuse
        a large message after reading only its header.
        """
        sender = getattr(message, "sender", None)
        member = None if sender is None else self.check_sender(sender)
        repeated = False
        if member is not None and (sequence := getattr(message, "sequence", 0)) and sequence != member.settled + 1:
            repeated = is_repeated(member, message)
        if (cut := getattr(message, "cut", 0)) > self._position.cut:
            check_count(message, "cut", cut, self._position.cut)
        answered = self._answers.get(type(message))
        if answered is None:  # a Restore
            raise InvalidMessage("a shard goes back to checkpoints only: start its server with --checkpoint-dir")
        if (check := answered[0]) is not None:
            check(message, member)
        if type(message) in OF_TIMELINES:
            self._timeline.check(message)
        return member, repeated

    def inspect(self, message: ms.Message) -> Inspection:
        """The checks of elements that `check` leaves out.

        Call `check` first. May run beside steps, in another thread: of the shard it reads only what never changes.
        """
        return inspect(self._store.variables, message, self._options.max_gradient_norm)

    def checkable(self, message: ms.Message) -> set[str] | None:
        """The variables of which a step may make a checked update: it needs the results of their tasks; None: all."""
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
        member, repeated = self.check(message)
        if self.shard and isinstance(message, ms.Push | ms.Pull | ms.Assign):
            message = self._decisions.here(message)
        call: Call[Any] = Call(ticket, message, member, now, repeated, allocator)
        found = inspection or inspect(self._store.variables, message, self._options.max_gradient_norm)
        call.magnitudes, nbytes, call.norm, call.factor, call.clipped = found
        if not settled and self._is_checked(call):
            raise TasksPending
        if not isinstance(message, ms.Renew | ms.Status):
            self._position.changes += 1
        result = StepResult(settled, now)
        shown = getattr(message, "cut", -1)
        if shown > self._position.cut:
            self.cuts.begin(shown, result)
        if member is not None:
            self._members.renew(member, now)
            if self.cuts.late_below:
                self.cuts.show(member, shown)
        if now >= self._traffic.next_snapshot:
            self._traffic.tick(now)
            self._samples.ask((variable.rounding for variable in self._store), now)
        if repeated and isinstance(message, _SETTLED):
            self._updates.repeat(call, result)
        else:
            if isinstance(message, ms.Tune | ms.Compute):
                self._pending.abandon(member, result)  # a held push would settle an older number later
            _, handler = self._answers[type(message)]
            handler(call, result)
            if result.begins is not None:
                self._begin_job(result.begins, result)
                _, handler = self._answers[type(message)]
                handler(call, result)
        if result.gone or result.idle:
            self._carry_out(result)
        if self.cuts.late_below and result.changes:
            self.cuts.keep_late(result)
        traffic = self._traffic
        traffic.pushes, traffic.bytes_in = self._updates.applied, traffic.bytes_in + nbytes
        traffic.bytes_out += result.bytes_out
        return result

    def _is_checked(self, call: Call[Any]) -> bool:
        """Whether a step by this call may make a checked change."""
        message = call.message
        if self._pending.may_be_checked:
            return True
        if isinstance(message, ms.Push | ms.Assign):
            return self._store.is_checked(call.magnitudes)
        cut = self.cuts.current
        if not isinstance(message, ms.Cut) or message.holder is None or cut is None:
            return False
        return message.number == cut.number and cut.may_apply

    def _tick(self, call: Call[ms.Tick], result: StepResult) -> None:
        for part in self._parts:
            part.tick(call.message, result)
            self._carry_out(result)

    # --- what crosses parts ---------------------------------------------------------------------------------------

    def _carry_out(self, result: StepResult) -> None:
        """Carry out the effects of a part on the others, which may have further ones."""
        while result.gone or result.idle:
            gone, idle = result.gone, result.idle
            result.gone, result.idle = [], []
            for member in idle:
                self._members.progress.finish(member, out_of_data=True)
                self._pending.abandon(member, result)
                self._pending.decide(result)
            if gone:
                self._forget(gone, result)

    def _forget(self, gone: Sequence[Member], result: StepResult) -> None:
        """End the calls of members, and return their blocks to the data queues; this may release other calls."""
        for part in self._parts:
            part.forget(gone, result)
        self._pending.decide(result)
        for member in self._members.forget():
            self._queues.forget_epoch(member.name)
            self._updates.forget_order(member.name)

    def _begin_job(self, job: ms.Job, result: StepResult) -> None:
        """End the present job, whose last state is a cut if there are checkpoints, and begin another one."""
        report, members = self._jobs.report(self._position, self._members, self._queues), self._members
        if report.state != "empty":
            live = members.live
            for member in live:  # of which only shard 0 knew that they are gone
                members.leave(member, result.now, failed=True)
            self._forget(live, result)
            if self.cuts.stored and not (self.cuts.paused or self.lost or self.shard) and self._store.variables:
                self.cuts.begin(self.cuts.number + 1, result, at_once=True)
            self._begin_parts(self.identity, members.last_incarnation)
        self._jobs.begin(job, report, members)
        result.begins, result.ended = None, report
        if report.job.number:
            result.events.append(events.job_begins(job, report))

    # --- cuts and timelines -------------------------------------------------------------------------------------------

    def check_timeline(self, message: ms.Restore) -> None:
        """Raise `InvalidMessage` for a timeline that is far above this shard's; its server carries the message out."""
        self._timeline.check_restore(message)

    def _apply_late(self, cut: ShardCut, result: StepResult) -> None:
        """Make the late changes in the copies: as after a restore of the cut, by the same rules, to the same bits."""
        shard = Shard.for_state(cut.state)
        shard.restore(cut.state, {name: copy.arrays for name, copy in cut.copies.items()}, 0.0)
        result.tasks += shard._late_steps(cut.late, 0.0).tasks
        cut.applied = shard._store.variables

    def _late_steps(self, changes: Iterable[ms.Message], now: float) -> LateSteps:
        return LateSteps(self, changes, self._minimizations, self._pending, now)

    # --- status ---------------------------------------------------------------------------------------------------

    def _report(self, call: Call[ms.Status], result: StepResult) -> None:
        result.reply(call.ticket, self.status(result.now, call.message))

    def status(self, now: float, asked: ms.Status = ms.Status()) -> ms.StatusReport:  # noqa: B008 - frozen
        """The answer to `Status`; changes nothing."""
        fields = {name: value for part in self._parts for name, value in part.status(asked, now).items()}
        cut = self.cuts.current
        writing, missing = (0, "") if cut is None else (cut.number, cut.waiting_for)
        return ms.StatusReport(
            shard=self.shard,
            shards=self.shards,
            consistency=str(self._options.consistency),
            handling=str(self._options.staleness),
            traffic=self._traffic.traffic(now),
            storage=ms.StorageStatus(
                writing=writing, waiting_for=missing, timeline=self.timeline, lost_pushes=self._joins.lost_pushes
            ),
            **fields,
        )
