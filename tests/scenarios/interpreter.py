"""Scenario interpreter: replays commands for one shard, and compares its answers below each group of them.

    # A comment. `join`, `push` and so on are the methods `do_join`, `do_push` below, with their syntax.
    join w0
    register w0 W 3x2 gradient_descent learning_rate=0.5 value=1
    ----
    w0: joined as worker 0, incarnation 1, step 0
    w0: registered W version 0 = all 1

A group ends at the blank line after its answers. A worker sends as its latest incarnation, or as in `w0#1`. Each line
of the answers begins with the worker it is for, also when a pending call ends with an error. A refusal begins with the
error's class, and the interpreter checks that it changed nothing."""

import ast
import copy
import itertools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from psserver.core.shard import Shard
from psserver.core.variables.array_tasks import TasksPending, run
from pswire import messages
from pswire.errors import ParamServerError
from pswire.optimizers import UpdateSpec
from pswire.specs import initializers, schedules
from pswire.specs.consistency import parse_consistency, parse_staleness
from pswire.specs.gradient_norm import parse_gradient_norm
from pswire.tensors.compression import Packed
from pswire.tensors.values import DTYPES, Array, IndexedSlices, Part, TensorSpec
from tests.support.shards import finish_copies, new_shard, restored, slots_of, state_of

ANSWERS_BELOW = "----"

#: How the options of commands are read, most of which are fields of messages; others before "=" name variables,
#: hyperparameters or sizes.
OPTIONS = {
    **dict.fromkeys(["sequence", "at", "settled", "half_pushes", "reports_received"], int),
    **dict.fromkeys(["incarnation", "process_nonce", "session", "workers", "cut", "of_cut", "stage"], int),
    **dict.fromkeys(["loss", "cost", "scale_learning_rate"], float),
    **dict.fromkeys(
        ["program", "encoding", "tensor_transport", "after", "group", "value", "table", "part", "finished", "note"], str
    ),
    **dict.fromkeys(["dry_run", "give_back", "resume", "force", "stop"], bool),
    "name_key": str.encode,
    "job": lambda text: _job(*text.split(":")),
    **dict.fromkeys(["known_versions", "shards", "states"], lambda text: _numbers(text)),
    **dict.fromkeys(["pull", "fields", "quarantine", "release"], lambda text: tuple(text.split(","))),
    "sums": lambda text: tuple(map(float, text.split(","))),
    "places": lambda text: tuple(messages.Place(*one) for one in _pairs(text)),
    **dict.fromkeys(["holding", "withdrawn"], lambda text: _numbers(text)),
    **dict.fromkeys(["evaluation", "term"], int),
    "portions": lambda text: _counted(*text.split("/")),
    "progress": lambda text: tuple(_progress(*one.split("/")) for one in text.split(",")),
    "remote": lambda text: tuple(messages.RemoteWeights(*one) if len(one) > 1 else one[0] for one in _pairs(text)),
}
SHORT = {"seq": "sequence", "transport": "tensor_transport"}


def replay(text: str) -> str:
    """The scenario with the present answers of the shard."""
    scenario, lines, commands = Scenario(), [], []
    skipping = False
    for line in text.splitlines():
        if skipping and line:
            continue
        skipping = line == ANSWERS_BELOW
        lines.append(line)
        if skipping:
            lines += itertools.chain.from_iterable(map(scenario.run, commands))
            commands = []
        elif line and not line.startswith("#"):
            commands.append(line)
    assert not commands, f"no {ANSWERS_BELOW} below {commands}"
    return "\n".join(lines) + "\n"


class Scenario:
    """One shard, its clock, and the state of its workers."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.now = 0.0
        self._shows: set[str] = set()
        self._tickets = itertools.count(1)
        self._asked: dict[int, str] = {}
        self._incarnations: dict[str, int] = {}
        self._versions: dict[tuple[str, str], int] = {}  # what each worker was served last
        self._specs: dict[str, TensorSpec] = {}
        self._queues: dict[str, messages.QueueSpec] = {}
        self._asked_about: dict[str, str] = {}  # the minimization of which each worker takes portions
        self._evaluations: dict[tuple[str, str], int] = {}  # the last one of each minimization that each worker saw
        self._reports: dict[tuple[str, str], int] = {}  # epochs of each queue reported to each worker in this life

    def run(self, line: str) -> list[str]:
        """The answers of the shard to one command; `unsettled push ...` is sent while earlier tasks have not run.

        From `events`, `chief` and `jobs` on, events are shown above the answers, beside the name that a worker is
        chief, and the job that a worker has joined.
        """
        if line in ("events", "chief", "jobs"):
            self._shows.add(line)
            return []
        command, *words = line.partition(" # ")[0].split()
        self._settled = command != "unsettled"
        if not self._settled:
            command, *words = words
        pairs = [(SHORT.get(key, key), text) for key, _, text in [word.partition("=") for word in words if "=" in word]]
        options = {key: OPTIONS[key](text) for key, text in pairs if key in OPTIONS}
        if "after" in options:
            options["after"] = self._changes(options["after"])
        plain = [word for word in words if "=" not in word]
        pairs = [pair for pair in pairs if pair[0] not in OPTIONS]
        return getattr(self, f"do_{command}")(*plain, options=options, pairs=pairs)

    # --- commands -------------------------------------------------------------------------------------------------

    def do_shard(self, shard: str = "0", of: str = "of", shards: str = "1", *, pairs, **_) -> list[str]:
        """`shard [1 of 2] [lease=15] [memory_limit=1000] [consistency=bounded:2] [staleness=drop:4]`.

        Also `progress_timeout=20` seconds and `max_gradient_norm=10:clip`.
        Another one than an asynchronous shard 0 of 1; the first command, if it is there.
        """
        readers = {"consistency": parse_consistency, "staleness": parse_staleness}
        readers["max_gradient_norm"] = parse_gradient_norm
        given = {option: readers.get(option, int)(text) for option, text in pairs}
        self.shard = new_shard(int(shard), int(shards), **given)
        return []

    def do_join(self, who: str, *place: str, options, **_) -> list[str]:
        """`join w0 [0 of 2] [incarnation=3] [process_nonce=77] [states=11,12] [transport=gRPC]`.

        `name_key=` is that of all workers if none is given, so that each may take the place of another of its name.
        `job=mnist` is the job's name, and `job=3:mnist` also its number; `resume=1`, `program=train`, `session=2`,
        `workers=3`.
        """
        if session := options.pop("session", 0):
            options["job"] = replace(options.get("job", messages.Job()), session=session)
        shard, shards = (int(place[0]), int(place[2])) if place else (0, 1)
        return self._send(
            who, messages.Join(worker=who.strip("'"), shard=shard, shards=shards, **({"name_key": b"key"} | options))
        )

    def do_renew(self, who: str, *idle: str, options, **_) -> list[str]:
        """`renew w0 [idle] [settled=3] [half_pushes=1] [transport=gRPC]`."""
        return self._send(who, messages.Renew(sender=self._sender(who), idle="idle" in idle, **options))

    def do_leave(self, who: str, *how: str, **_) -> list[str]:
        """`leave w0 [failed] [done]`, the latter as another shard has answered."""
        return self._send(who, messages.Leave(self._sender(who), "failed" in how, "done" in how))

    def do_barrier(self, who: str, number: str, **_) -> list[str]:
        """`barrier w0 1`."""
        return self._send(who, messages.Barrier(self._sender(who), int(number)))

    def do_stop(self, who: str, *reason: str, **_) -> list[str]:
        """`stop w0 the cost is low`."""
        return self._send(who, messages.Stop(self._sender(who), " ".join(reason)))

    def do_reset(self, number: str, *, options, **_) -> list[str]:
        """`reset 5 [force=1]`."""
        return self._send("reset", messages.Reset(int(number), **options))

    def do_intervene(self, by: str, *reason: str, options, **_) -> list[str]:
        """`intervene guard the cost rises [stop=1] [quarantine=w1] [release=w1] [scale_learning_rate=0.5]`."""
        return self._send("intervene", messages.Intervene(by=by, reason=" ".join(reason), **options))

    def do_reports(self, **_) -> list[str]:
        """`reports`: of all jobs, the present one last."""
        (reply,) = self.shard.step(0, messages.Status(), self.now).replies
        return [
            f"{one.job}: {one.state}, step {one.global_step}, {one.workers} workers, {one.epochs} epochs"
            for one in reply.answer.jobs
        ]

    def do_register(self, who: str, name: str = "", shape: str = "", *rest: str, options, pairs) -> list[str]:
        """`register w0 [W 3x2 [float64] [value=1,2,3] [gradient_descent learning_rate=0.1]] [options]`.

        A learning rate may be a schedule, as it is written in a program, without spaces: `WarmUp(2,CosineDecay(1,4))`.
        Options: `table=RowConstant(1)` in place of a value, `part=3/100` (the first row, and of how many), `stage=2`,
        `places=W/0,V/1`, `states=11,12`, `dry_run=1`.
        """
        value, table, part = (options.pop(option, "") for option in ("value", "table", "part"))
        stage = options.pop("stage", 0)
        if not name:
            return self._send(who, messages.Register(sender=self._sender(who), declarations=(), **options))
        dtype = next((word for word in rest if word in DTYPES), "float32")
        kind = next((UpdateSpec.kinds[word] for word in rest if word in UpdateSpec.kinds), None)
        spec = TensorSpec(name, _shape(shape), dtype)
        self._specs.setdefault(name, spec)
        declared = messages.Declaration(
            spec,
            _array(value, spec) if value else None,
            kind(**{key: _field(text) for key, text in pairs}) if kind else None,
            _field(table) if table else None,
            Part(*map(int, part.split("/"))) if part else None,
            stage,
        )
        return self._send(who, messages.Register(sender=self._sender(who), declarations=(declared,), **options))

    def do_pull(self, who: str, *names: str, options, **_) -> list[str]:
        """`pull w0 W b [known_versions=3,-1] [encoding=bfloat16] [after=w1/3]`.

        `E[4,0]` are rows, `E.m` is a slot, `E.m[4,0]` rows of one.
        """
        chosen = [name.removesuffix("]").partition("[") for name in names if "[" in name or "." in name]
        choices = []
        for target, bracket, rows in chosen:
            name, _, slot = target.partition(".")
            choices.append(messages.Choice(name, np.array(_numbers(rows), np.int64) if bracket else None, slot))
        whole = tuple(name for name in names if "[" not in name and "." not in name)
        return self._send(who, messages.Pull(sender=self._sender(who), names=whole, choices=tuple(choices), **options))

    def do_push(self, who: str, *, options, pairs) -> list[str]:
        """`push w0 seq=1 W=1 b=1,2,3 [at=4] [loss=0.5] [pull=W,b] [known_versions=3,-1] [encoding=bfloat16]`.

        By default at the version that w0 was served. `progress=mnist/3/42/1.5`: of this queue block 3 is done before
        position 42, at a cost of 1.5 or, without it, an unknown one. Of several shards also `[shards=1,2]
        [remote=V/4] [after=w1/3] [group=3:w0/1,w1/2]`: other shards with a part, variables there with what had been
        decided when their weights were served, and messages by worker and sequence number.
        `W:2x2=1` and `W:float64=1` are a gradient of another shape or dtype, `W[2,0]=1,1,5,5` two rows of one.
        """
        gradients, at = [], options.pop("at", None)
        for target, text in pairs:
            name, _, indices = target.removesuffix("]").partition("[")
            spec = self._spec(name)
            version = self._versions.get((who, spec.name), 0) if at is None else at
            array = _rows(text, indices, spec) if target.endswith("]") else _array(text, spec)
            gradients.append(messages.Gradient(spec.name, version, array))
        if "group" in options:
            number, _, members = options["group"].partition(":")
            options["group"] = messages.UpdateGroup(number=int(number), members=self._changes(members))
        return self._send(who, messages.Push(sender=self._sender(who), gradients=tuple(gradients), **options))

    def _changes(self, text: str) -> tuple[messages.ChangeId, ...]:
        return tuple(messages.ChangeId(self._sender(who), sequence) for who, sequence in _pairs(text))

    def do_assign(self, who: str, *, options, pairs, add: bool = False) -> list[str]:
        """`assign w0 seq=1 W=5 W:1x2@3=6 [shards=1] [remote=V] [after=w1/3]`: W:1x2@3 is a row, that of number 3."""
        assignments = []
        for target, text in pairs:
            name, _, first = target.partition("@")
            spec = self._spec(name)
            assignments.append(messages.Assignment(spec.name, _array(text, spec), int(first) if first else None))
        return self._send(
            who, messages.Assign(sender=self._sender(who), assignments=tuple(assignments), add=add, **options)
        )

    def do_evaluate(self, who: str, name: str, number: str = "", *, options, pairs) -> list[str]:
        """`evaluate w0 fit 1 examples=10 portion=4 [term=1]`; without a number it only asks."""
        sizes = {key: int(text) for key, text in pairs}
        options.setdefault("term", 1 if number else 0)
        evaluation = messages.Evaluation(int(number), **sizes) if number else None
        return self._send(who, messages.Evaluate(sender=self._sender(who), name=name, evaluation=evaluation, **options))

    def do_end(self, who: str, name: str, result: str, *, options, **_) -> list[str]:
        """`end w0 fit converged [term=1]`."""
        options.setdefault("term", 1)
        return self._send(who, messages.Evaluate(sender=self._sender(who), name=name, end=result, **options))

    def do_compute(self, who: str, name: str, *, options, **_) -> list[str]:
        """`compute w0 fit seq=1 [term=1] [note=point-1]`: no operations; without a term it only asks."""
        return self._send(who, messages.Compute(sender=self._sender(who), minimization=name, **options))

    def do_take_portion(self, who: str, name: str, *, options, **_) -> list[str]:
        """`take_portion w0 fit [evaluation=1 holding=3,4 withdrawn=5]`: by default of the last evaluation it saw."""
        options.setdefault("evaluation", self._evaluations.get((who, name), 0))
        return self._send(who, messages.TakePortion(sender=self._sender(who), name=name, **options))

    def do_claim(self, who: str, name: str, portion: str, *, options, **_) -> list[str]:
        """`claim w0 fit 3 loss=0.5 [evaluation=1]`: by default of the last evaluation it saw."""
        options.setdefault("evaluation", self._evaluations.get((who, name), 0))
        return self._send(
            who, messages.ClaimPortion(sender=self._sender(who), name=name, portion=int(portion), **options)
        )

    def do_sum(self, who: str, *, options, pairs) -> list[str]:
        """`sum w0 seq=1 portions=fit/1/3,4 W=5`: the sum of the gradients of portions 3 and 4."""
        return self.do_assign(who, options=options, pairs=pairs, add=True)

    def do_minimizations(self, **_) -> list[str]:
        """`minimizations`: how far each of them is."""
        (reply,) = self.shard.step(0, messages.Status(), self.now).replies
        return [
            f"{one.name}: evaluation {one.evaluation}, {one.counted} of {one.portions} counted, {one.claimed} claimed, "
            f"{one.out} out, backups: {one.backups}, first: {one.backups_won}" + f", over: {one.end}" * bool(one.end)
            for one in reply.answer.minimizations
        ]

    def do_assign_add(self, who: str, **given) -> list[str]:
        """`assign_add w0 seq=1 W=5`."""
        return self.do_assign(who, **given, add=True)

    def do_tune(self, who: str, kind: str, *names: str, options, pairs) -> list[str]:
        """`tune w0 momentum W V seq=2 learning_rate=0.5 [fields=beta]`: by default the fields that are given."""
        values = {key: _field(text) for key, text in pairs}
        fields = {"fields": tuple(values), **options}
        tune = messages.Tune(
            sender=self._sender(who), names=names, optimizer=UpdateSpec.kinds[kind](**values), **fields
        )
        return self._send(who, tune)

    def do_take(self, who: str, name: str, *, options, pairs) -> list[str]:
        """`take w0 mnist [size=10 block=4 epochs=2 seed=0] [finished=0] [cost=1.5] [reports_received=0] [give_back=1]`.

        Also `limit=15 in_order=1 evaluates=1`, and `sums=3,5` of a block that is finished. Later without the sizes. All
        reports that the worker was given count as received, unless `reports_received` is given.
        """
        sizes = {key: int(text) for key, text in pairs}
        queue = messages.QueueSpec(name=name, **sizes) if sizes else self._queues[name]
        self._queues.setdefault(name, queue)
        options.setdefault("reports_received", self._reports.get((who, name), 0))
        self._reports[who, name] = options["reports_received"]
        cost, sums = options.pop("cost", None), options.pop("sums", ())
        if "finished" in options:
            options["finished"] = messages.Finished(int(options["finished"]), cost, sums)
        return self._send(who, messages.Take(sender=self._sender(who), queue=queue, **options))

    def do_tick(self, seconds: str, **_) -> list[str]:
        """`tick 2`: two seconds pass, and the shard gets a tick."""
        self.now += float(seconds)
        return self._send("tick", self.shard.due(self.now), nothing="nothing happens")

    def do_wait(self, seconds: str, **_) -> list[str]:
        """`wait 2`: two seconds pass, without a tick."""
        self.now += float(seconds)
        return []

    def do_status(self, **_) -> list[str]:
        return self._send("status", messages.Status())

    def do_queues(self, **_) -> list[str]:
        """`queues`: how far each of them is."""
        (reply,) = self.shard.step(0, messages.Status(), self.now).replies
        return [
            f"{one.spec.name}: epoch {one.epoch}, {one.done} done of {one.spec.total or 'no end'}, "
            f"blocks out: {one.blocks_out}"
            for one in reply.answer.queues
        ]

    def do_memory(self, **_) -> list[str]:
        """`memory`: of values, slots, and the weights served to workers."""
        (reply,) = self.shard.step(0, messages.Status(), self.now).replies
        return [f"{reply.answer.nbytes} bytes"]

    def do_worker(self, who: str, *fields: str, **_) -> list[str]:
        """`worker w0 cost held`: fields of its row in a status."""
        (reply,) = self.shard.step(0, messages.Status(), self.now).replies
        (row,) = [one for one in reply.answer.workers if one.name == who]
        return [f"{who}: " + ", ".join(f"{field} {getattr(row, field)!r}" for field in fields)]

    def do_cut(self, *words: str, **_) -> list[str]:
        """`cut [5] [w0 [release]]`: begins cut 5, or the next, or asks for it; w0 holds it, or no more."""
        number, *holder = words if words and words[0].isdigit() else ("0", *words)
        sender = self._sender(holder[0]) if holder else None
        return self._send("cut", messages.Cut(int(number), sender, "release" in holder))

    def do_cut_values(self, *names: str, **_) -> list[str]:
        """`cut_values W`: of a shard that is restored from the present cut, with its late changes."""
        finish_copies(self.shard)
        cut = copy.deepcopy(self.shard.cuts.current)
        new = Shard.for_state(cut.state)
        new.restore(cut.state, {name: one.arrays for name, one in cut.copies.items()}, self.now)
        for number, message in enumerate(cut.late):
            run(new.step(number, message, self.now).tasks)
        complete = "complete" if cut.complete else f"waits for {cut.waiting_for}"
        values = [f"{name} = {_text(new.variables[name].value)}" for name in names]
        return [f"cut {cut.number}, {complete}, {len(cut.late)} late changes: {', '.join(values)}"]

    def do_restart(self, **_) -> list[str]:
        """`restart`: another shard goes on from the state of this one, as a checkpoint has it."""
        new = Shard.for_state(self.shard.state())
        replies = restored(self.shard, new, self.now)
        assert state_of(new.state()) == state_of(self.shard.state())
        self.shard = new
        return [self._shown(self._asked.pop(reply.ticket), reply.answer) for reply in replies]

    def do_job(self, **_) -> list[str]:
        """`job`: whether it has ended."""
        end = self.shard.job_end
        if end is None:
            return ["job: goes on"]
        return [f"job: ended at {end.since:g} s, {'done' if end.done else 'not done'}, {end.workers} workers"]

    def do_progress(self, **_) -> list[str]:
        """`progress`: who trains, with how many settled pushes, and whether the training is ending."""
        progress = self.shard._members.progress
        clocks = ", ".join(f"{name} at {member.clock}" for name, member in progress.training.items())
        ending = ", ending" if progress.ending else ""
        return [f"training: {clocks or 'none'}; slowest at {progress.least_clock}{ending}"]

    def do_slots(self, *names: str, **_) -> list[str]:
        """`slots W`."""
        return [
            f"{name}.{slot} = {_text(value)}" for name in names for slot, value in slots_of(self.shard, name).items()
        ]

    def do_vectors(self, *names: str, **_) -> list[str]:
        """`vectors W`."""
        found = [(name, self.shard.variables[name].vectors) for name in names]
        return [f"{name}.{vector} = {_text(value)}" for name, vectors in found for vector, value in vectors.items()]

    # --- inside ---------------------------------------------------------------------------------------------------

    def _send(self, who: str, message: messages.Message, nothing: str = "no answer yet") -> list[str]:
        ticket = next(self._tickets)
        self._asked[ticket] = who
        if isinstance(message, messages.TakePortion):
            self._asked_about[who] = message.name
        before = state_of(self.shard)
        try:
            result = self.shard.step(ticket, message, self.now, settled=self._settled)
        except (ParamServerError, TasksPending) as error:
            assert state_of(self.shard) == before, f"refused, but something has changed: {message}"
            return [f"{type(error).__name__}: {error}".removesuffix(": ")]
        run(result.tasks)
        events = [f"{'warning' if event.warning else 'event'}: {event.text}" for event in result.events]
        lines = [self._shown(self._asked.pop(reply.ticket), reply.answer) for reply in result.replies]
        return [*(events if "events" in self._shows else []), *lines] or [nothing]

    def _shown(self, who: str, answer: messages.Answer | ParamServerError) -> str:
        if isinstance(answer, ParamServerError):
            return f"{who}: {type(answer).__name__}: {answer}"
        if isinstance(answer, messages.Joined):
            self._incarnations[who] = answer.incarnation
            self._reports = {key: count for key, count in self._reports.items() if key[0] != who}
        for report in getattr(answer, "reports", ()):
            self._reports[who, report.queue] = report.epoch
        if isinstance(answer, messages.PortionTaken):
            self._evaluations[who, self._asked_about[who]] = answer.evaluation
        for value in getattr(answer, "values", ()):
            self._versions[who, value.name] = value.version
        chief = "chief" in self._shows and getattr(answer, "chief", False)
        job = ""
        if "jobs" in self._shows and isinstance(answer, messages.Joined):
            job = f", {answer.job}" + (f"; {answer.note}" if answer.note else "")
        return f"{who}{' (chief)' * chief}: {_describe(answer)}{job}"

    def _sender(self, who: str) -> messages.Sender:
        name, _, incarnation = who.partition("#")
        return messages.Sender(name, int(incarnation or self._incarnations.get(name, 1)))

    def _spec(self, target: str) -> TensorSpec:
        """The variable's spec, or what `W:2x2:float64` makes of it."""
        name, *changes = target.split(":")
        spec = self._specs.get(name, TensorSpec(name, ()))
        for change in changes:
            shape, dtype = (spec.shape, change) if change in DTYPES else (_shape(change), spec.dtype)
            spec = TensorSpec(name, shape, dtype)
        return spec


# --- reading ------------------------------------------------------------------------------------------------------


def _pairs(text: str) -> list[list]:
    """Texts, each with its number, if it has one: `W/0,V`."""
    return [[part if not part.isdigit() else int(part) for part in pair.split("/")] for pair in text.split(",") if pair]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _progress(queue: str, block: str, position: str, cost: str | None = None) -> messages.Progress:
    return messages.Progress(
        queue=queue, block=int(block), position=int(position), cost_sum=None if cost is None else float(cost)
    )


def _counted(name: str, evaluation: str, numbers: str) -> messages.CountedPortions:
    return messages.CountedPortions(name, int(evaluation), _numbers(numbers))


def _job(*words: str) -> messages.Job:
    *number, name = words
    return messages.Job(int(number[0]) if number else 0, name)


def _shape(text: str) -> tuple[int, ...]:
    return () if text == "scalar" else tuple(map(int, text.split("x")))


def _field(text: str | ast.expr) -> object:
    """A field of a spec: a literal, a schedule, or an initializer of rows."""
    node = ast.parse(text, mode="eval").body if isinstance(text, str) else text
    if not isinstance(node, ast.Call):
        value = ast.literal_eval(node)
        return float(value) if type(value) is int else value
    named = {keyword.arg: _field(keyword.value) for keyword in node.keywords}
    make = getattr(schedules, node.func.id, None) or getattr(initializers, node.func.id)
    return make(*map(_field, node.args), **named)


def _array(text: str, spec: TensorSpec) -> Array:
    numbers = np.array([float(part) for part in text.split(",")]).astype(DTYPES[spec.dtype])
    return np.full(spec.shape, numbers[0]) if numbers.size == 1 else numbers.reshape(spec.shape)


def _rows(text: str, indices: str, spec: TensorSpec) -> IndexedSlices:
    """Such rows as may come over the wire, where the indices are anything."""
    numbers = np.array([int(index) for index in indices.split(",") if index], np.int64)
    values = _array(text, TensorSpec(spec.name, (len(numbers), *spec.shape[1:]), spec.dtype))
    return IndexedSlices(values, numbers, spec.shape, check_range=False)


# --- writing ------------------------------------------------------------------------------------------------------


def _describe(answer: messages.Answer) -> str:
    match answer:
        case messages.Joined(incarnation=incarnation, number=number, global_step=step):
            return f"joined as worker {number}, incarnation {incarnation}, step {step}"
        case messages.Renewed(global_step=step, waiting_for=waiting_for):
            return f"renewed, step {step}" + (f"; held: {waiting_for}" if waiting_for else "")
        case messages.Left():
            return "left"
        case messages.Passed():
            return "passed the barrier"
        case messages.Stopped(reason):
            return f"stopped: {reason}"
        case messages.Emptied(job):
            return f"empty, {job}"
        case messages.Intervened(step, quarantined):
            return f"intervened, step {step}" + (f", in quarantine: {', '.join(quarantined)}" if quarantined else "")
        case messages.Registered(values=values, behind=behind):
            rest = f", behind with {' '.join(behind)}" if behind else ""
            return f"registered {_values(values)}".rstrip() + rest
        case messages.Pulled(values, step, frontier):
            return f"pulled {_values(values)}, step {step}{_frontier(frontier)}"
        case messages.Pushed():
            outcome, staleness, step, values = answer.outcome, answer.staleness, answer.global_step, answer.values
            reason, group, frontier = answer.reason, answer.group, answer.frontier
            because = f" ({reason})" if reason else f" in group {group.number}" if group else ""
            fresh = f", {_values(values)}" if values else ""
            return f"{outcome.value}{because}, staleness {staleness}, step {step}{fresh}{_frontier(frontier)}"
        case messages.Assigned(outcome=messages.Outcome.DROPPED, reason=reason):
            return f"dropped ({reason})"
        case messages.Assigned(outcome=outcome, versions=versions, global_step=step, frontier=frontier):
            named = f", versions {', '.join(map(str, versions))}" if versions else ""
            return f"{outcome.value}{named}, step {step}{_frontier(frontier)}"
        case messages.Computed(outcome=outcome, term=term, note=note):
            return f"{outcome.value}, term {term}" + (f", note {note}" if note else "")
        case messages.CutReport(number=number, complete=complete, held=held, gone=gone, waiting_for=waiting_for):
            state = ["complete"] * complete + ["held"] * held + ["gone"] * gone
            return ", ".join([f"cut {number}", *state]) + f"; {waiting_for}" * bool(waiting_for)
        case messages.Tuned(outcome, step):
            return f"{outcome.value}, step {step}"
        case messages.Taken(done=done, reports=reports, stopped=stopped) if stopped and done:
            return "; ".join([f"all done, stopped by {stopped}", *map(_report, reports)])
        case messages.Taken(block=block, done=done, waiting_for=waiting_for, reports=reports):
            what = _block(block) if block else "all done" if done else f"waiting for {waiting_for}"
            return "; ".join([what, *map(_report, reports)])
        case messages.Evaluated():
            return _evaluated(answer)
        case messages.PortionTaken():
            return _portion_taken(answer)
        case messages.PortionClaimed(counted):
            return "its claim counts" if counted else "its claim does not count"
        case messages.StatusReport():
            return _status(answer)
    raise AssertionError(f"no text for {answer}")


def _evaluated(answer: messages.Evaluated) -> str:
    text = f"evaluation {answer.number}: {answer.counted} counted"
    text += "" if answer.loss is None else f", loss {answer.loss:.17g}"
    text += f"; waiting for {answer.waiting_for}" if answer.waiting_for else ""
    text += f"; over: {answer.end}" if answer.end else ""
    return text + (f"; stopped by {answer.stopped}" if answer.stopped else "")


def _portion_taken(answer: messages.PortionTaken) -> str:
    parts = [f"evaluation {answer.evaluation}"]
    if (one := answer.portion) is not None:
        parts.append(f"portion {one.number}: {one.start} to {one.stop}{', alone' * one.alone}")
    parts += ["push"] * answer.push
    parts += [f"stop {','.join(map(str, answer.stop))}"] * bool(answer.stop)
    parts += [f"over: {answer.end}"] * bool(answer.end)
    parts += [f"waiting for {answer.waiting_for}"] * bool(answer.waiting_for)
    return ", ".join(parts + [f"stopped by {answer.stopped}"] * bool(answer.stopped))


def _frontier(frontier: messages.Frontier | None) -> str:
    if frontier is None:
        return ""
    undelivered = [
        f"{one.sender.worker}/{one.sequence} for {','.join(map(str, one.shards))}" for one in frontier.undelivered
    ]
    return f", decided {frontier.decided}" + (f" after {' and '.join(undelivered)}" if undelivered else "")


def _values(values: Iterable[messages.Value]) -> str:
    return ", ".join(f"{value.name} version {value.version} = {_text(value.array)}" for value in values)


def _text(array: Array | Packed | None) -> str:
    """Every element, in the fewest digits that name it exactly."""
    if array is None:
        return "what you have"
    if isinstance(array, Packed):
        return f"{_text(array.unpacked())} in {array.form}"
    numbers = [str(number).removesuffix(".0") for number in array.ravel()]
    if array.ndim and len(numbers) > 1 and len(set(numbers)) == 1:
        return f"all {numbers[0]}"
    return " ".join(numbers) if numbers else "nothing"


def _block(block: messages.Block) -> str:
    return f"block {block.number}: {block.start} to {block.stop} of epoch {block.epoch}"


def _report(report: messages.EpochReport) -> str:
    sums = f", sums {', '.join(f'{one:g}' for one in report.sums)}" if report.sums else ""
    return f"epoch {report.epoch} of {report.queue} is complete: {report.examples} examples, cost {report.cost}{sums}"


def _status(report: messages.StatusReport) -> str:
    half = f", {report.half_pushes} half pushes" if report.half_pushes else ""
    lines = [f"shard {report.shard} of {report.shards}, step {report.global_step}, {report.repeated} repeated{half}"]
    lines += [
        f"  variable {one.spec}: version {one.version}, updates {one.updates}, {one.optimizer}"
        for one in report.variables
    ]
    lines += [
        f"  worker {one.number} {one.name}#{one.incarnation}: {one.state}, steps {one.steps}, staleness "
        f"{one.staleness} (in all {one.staleness_sum}), loss {one.loss}, epoch {one.epoch}, lease {one.lease_left:g} s"
        + (f", via {one.tensor_transport}" if one.tensor_transport else "")
        for one in report.workers
    ]
    lines += [f"  worker {one.number} {one.name}: {one.dropped} dropped" for one in report.workers if one.dropped]
    lines += [f"  worker {one.number} {one.name}: {one.clipped} clipped" for one in report.workers if one.clipped]
    lines += [f"  worker {one.number} {one.name} waits: {one.waiting_for}" for one in report.workers if one.waiting_for]
    lines += [
        f"  step {one.global_step}: {one.worker} tuned {' '.join(one.names)}: {one.optimizer}" for one in report.changes
    ]
    return "\n".join([*lines, *(f"  {_report(epoch)}" for epoch in report.epochs)])
