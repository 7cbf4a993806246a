"""A job whose servers and workers are killed at any moment: real executors, files and clients in simulated time.

Each push makes an element of its own 1 larger on every shard, so what was done twice, never, or on some shards only
shows in the values. One seed makes one run.
"""

import asyncio
import logging
import os
import re
import types
from collections import Counter, defaultdict, deque
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

from psjob.status.job_status import ShardAnswer, merge_reports
from psserver.config import StorageConfig
from psserver.runtime.clock import Clock, tick_seconds
from psserver.runtime.executor import Executor
from psserver.runtime.start_shard import start_shard
from psserver.storage import journal, retention
from psserver.storage.journal import JournalWriter
from psserver.storage.own_start import own_start, start_at
from psserver.storage.shard_run import read_run
from pswire import messages as ms
from pswire import placement
from pswire.errors import ParamServerError, TimedOut, Unavailable, WrongShard, Zombie
from pswire.optimizers import GradientDescent, numba_compiler, rule_for
from pswire.specs.checkpoints import EverySeconds, JournalSync
from pswire.specs.consistency import parse_consistency, parse_staleness
from psworker.client.client import Client
from psworker.client.membership import JobChoice
from psworker.transport import Future
from tests.simulation.simulated_time import PROCESS, Event, Killed, Process, Simulation, Waitable
from tests.support.shards import declared, new_shard

QUEUE = ms.QueueSpec(name="examples", size=20, block=4, epochs=4)
EXAMPLES = {(epoch, position) for epoch in range(1, QUEUE.epochs + 1) for position in range(QUEUE.size)}
WORKERS = ("w0", "w1", "w2")
MARKS = 400  # pushes of a worker, at most

#: Seconds: leases, how long a client tries, and when the last thing goes wrong.
LEASE, TIMEOUT, CALM = 6.0, 60.0, 30.0

#: What may happen to a message before `CALM`, and how often.
FATES = {"delivered": 60, "lost": 2, "answer lost": 3, "doubled": 3, "delayed": 2}

#: What may happen to processes before `CALM`, and how often.
ACCIDENTS = {"kill a server": 4, "kill servers": 2, "kill all servers": 1, "stop a server": 2, "kill a worker": 3}

#: Events of a run, at most: some ten times as many as usual.
MAX_EVENTS = 600_000


@dataclass(frozen=True)
class Options:
    """Of a job. `journal` has for each shard whether it has one, `fails` whether it was told not to go back."""

    shards: int = 2
    consistency: str = "async"
    staleness: str = "none"
    journal: tuple[bool, ...] = (True, True)
    fails: tuple[bool, ...] = (False, False)
    sync: JournalSync = JournalSync.EVERY
    shared: bool = True
    interval: float = 3.0
    keep: int = 3
    accidents: float = 0.3  # a second

    @property
    def keeps_all(self):
        """Whether no acknowledged push may be lost: each shard has a journal, or one refuses to go back."""
        return all(self.journal) or any(self.fails)

    @classmethod
    def drawn(cls, random, shards, consistency, staleness, kind):
        """Options of a kind: "journal", "none", "mixed" or "fail"."""
        journal = {"journal": (True,), "none": (False,)}.get(kind, (True, False))
        return cls(
            shards,
            consistency,
            staleness,
            journal=tuple([random.choice(journal) for _ in range(shards)]),
            fails=tuple([kind == "fail" and random.random() < 0.6 for _ in range(shards)]),
            sync=random.choice([JournalSync.EVERY, JournalSync.EVERY, JournalSync.INTERVAL, JournalSync.OFF]),
            shared=random.random() < 0.5,
            interval=random.choice([0.3, 1.0, 4.0]),
            keep=random.choice([2, 5]),
            accidents=random.choice([0.1, 0.3, 0.8]),
        )


class Writer(JournalWriter):
    """The thread of a journal, in simulated time."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._changed = Waitable(Job.present.simulation)

    def start(self):
        self._fiber = Job.present.simulation.fiber(PROCESS.get(), self.run)

    def join(self, timeout=None):
        self._fiber.join(timeout)

    def is_alive(self):
        return self._fiber.alive


class Call:
    """A message to a shard on its way."""

    def __init__(self, simulation):
        self._settled, self._answer, self._simulation = Waitable(simulation), None, simulation

    def settle(self, answer):
        """The first answer or error counts."""
        if self._answer is None:
            self._answer = answer
            self._settled.notify_all()

    def result(self):
        self._settled.wait_for(lambda: self._answer is not None)
        if isinstance(self._answer, ParamServerError):
            raise self._answer
        return self._answer


class Server:
    """A shard's server: its lives, each of them a process, and its folder, which stays."""

    def __init__(self, job, shard):
        options, folder = job.options, job.folder / ("all" if job.options.shared else f"host-{shard}")
        self.job, self.shard, self.folder = job, shard, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.process = self.executor = None
        self.life, self.up, self.ticking, self.calls = 0, False, False, {}  # calls without an answer: a set in order
        self.open = 0
        self.config = StorageConfig(
            folder,
            checkpoint_every=EverySeconds(options.interval),
            keep=options.keep,
            journal=options.journal[shard],
            journal_sync=options.sync,
            on_lost_state="fail" if options.fails[shard] else "rollback",
        )
        self._policies = {
            "consistency": parse_consistency(options.consistency),
            "staleness": parse_staleness(options.staleness),
        }

    def new_shard(self):
        identity = self.job.simulation.random.getrandbits(40) + 1
        return new_shard(self.shard, self.job.options.shards, LEASE, None, **self._policies, identity=identity)

    def start(self):
        """Begins the next life."""
        if self.process is not None:
            return
        simulation = self.job.simulation
        self.life += 1
        process = self.process = Process(simulation, f"shard {self.shard}, life {self.life}")
        tick = tick_seconds(LEASE)
        clock = Clock(lambda: simulation.now, tick)

        async def serve(shard, start):
            self.executor = executor = Executor(shard, clock)
            executor.persist(self.config, self.new_shard, start)
            self.up = self.ticking = True
            while True:
                await asyncio.sleep(tick)
                if not self.ticking:
                    return
                executor.tick()

        def begin():
            shard, start = start_shard(self.config, self.new_shard, clock())
            if start.lost or start.gave_up:
                self.job.seen["started with lost state"] += 1
            simulation.loop.call_soon(lambda: self._task(process, serve(shard, start)), context=process.context)

        simulation.fiber(process, begin)

    def kill(self):
        """As kill -9, in whatever it does."""
        process = self.process
        if process is None:
            return
        if self.executor is not None and self.executor.persistence.writer.writing is not None:
            self.job.seen["killed while it wrote a checkpoint"] += 1
        if self.executor is None:
            self.job.seen["killed while it started"] += 1
        self._end(process)

    def _end(self, process):
        self.up, self.process, self.executor = False, None, None
        process.kill()
        for descriptor in [one for one, owner in self.job.locks.items() if owner is process]:
            os.close(descriptor)
        for call in self.calls:
            self.job.simulation.after(0.0, call.settle, Unavailable("the connection was closed"))
        self.calls = {}
        self.open = 0

    def stop(self):
        """As SIGTERM: what is open is answered, then the state is written."""
        process, executor, simulation = self.process, self.executor, self.job.simulation
        if not self.up:
            return

        async def stop():
            self.up = False
            executor.close()
            for _ in range(50):
                if not self.open:
                    break
                await asyncio.sleep(0.1)
            await executor.step(ms.Status())
            self.ticking = False  # as a server's, which would begin cuts
            await executor.shutdown()
            simulation.after(0.0, lambda: self.process is process and self._end(process))

        self._task(process, stop())

    def take(self, call, message, life, *, answered):
        """A message arrives."""
        if not self.up or self.life != life:
            call.settle(Unavailable(f"shard {self.shard} cannot be reached"))
            return
        self.calls[call] = None
        self.open += 1
        task = self._task(self.process, self._answer(call, message, answered))
        task.add_done_callback(lambda _: self._closed(life), context=self.process.context)

    def _closed(self, life):
        if self.life == life:
            self.open -= 1

    async def _answer(self, call, message, answered):
        try:
            answer = await self.executor.step(message)
        except ParamServerError as error:
            answer = error
        if answered:
            simulation = self.job.simulation
            simulation.after(simulation.random.expovariate(200), self._deliver, call, answer)

    def _deliver(self, call, answer):
        self.calls.pop(call, None)
        call.settle(answer)

    def _task(self, process, coroutine):
        task = self.job.simulation.loop.create_task(coroutine, context=process.context)
        task.add_done_callback(self._check)
        return task

    def _check(self, task):
        if not task.cancelled() and task.exception() is not None:
            self.job.simulation.fail(task.exception())


class Network:
    """A transport over which messages get lost, doubled and late."""

    def __init__(self, job, process):
        self.shards, self._job, self._process = job.options.shards, job, process

    def call(self, shard, message, timeout):
        job, simulation = self._job, self._job.simulation
        if self._process.dead:
            raise Killed
        server, random, call = job.servers[shard], simulation.random, Call(simulation)
        life, latency, again = server.life, random.expovariate(200), random.uniform(0, 3)
        fate = "delivered" if job.calm else random.choices(list(FATES), list(FATES.values()))[0]
        job.seen[fate] += 1
        simulation.after(timeout, call.settle, TimedOut(f"no answer for {timeout:.0f} s"))
        if fate in ("lost", "delayed", "answer lost"):
            error = random.choice([Unavailable, TimedOut])
            simulation.after(random.uniform(0, 2), call.settle, error(f"{type(message).__name__}: {fate}"))
        if fate in ("delivered", "doubled"):
            simulation.after(latency, partial(server.take, call, message, life, answered=True))
        if fate in ("doubled", "delayed"):
            simulation.after(again, partial(server.take, Call(simulation), message, life, answered=False))
        if fate == "answer lost":
            simulation.after(latency, partial(server.take, call, message, life, answered=False))
        return Future(partial(self._result, call, shard, message))

    def _result(self, call, shard, message):
        answer = call.result()
        if isinstance(answer, ms.Pushed) and answer.outcome is not ms.Outcome.DROPPED:
            self._job.acknowledged[shard].add(self._job.mark_of(message))
        return answer

    def tensor_transport(self, shard):
        return ""

    def close(self):
        """Others go on."""


@dataclass(eq=False)
class Mark:
    """A push: the element that it makes 1, the example it trains, and what became of it as its worker knows."""

    worker: str
    number: int
    example: tuple[int, int]
    outcome: str = "open"
    recoveries: int = 0


class Job:
    """Servers and workers, and the ledger of what they did."""

    present = None

    def __init__(self, seed, folder, options_of):
        self.simulation = Simulation(seed)
        self.options = options_of(self.simulation.random)
        self.folder, self.seen, self.calm = Path(folder), Counter(), False
        self.acknowledged, self.locks = defaultdict(set), {}
        self.marks, self.errors, self.generations = {}, [], []
        self.workers, self.lives, self.killed_workers, self.done = {}, Counter(), set(), set()
        self._next = Counter()

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self):
        """Runs it to its end; raises what went wrong."""
        simulation = self.simulation
        Job.present = self
        _compile()
        with ExitStack() as stack:
            stack.callback(simulation.close)
            stack.callback(self._end_all)
            stack.enter_context(_simulated(self))
            self.servers = [Server(self, shard) for shard in range(self.options.shards)]
            for server in self.servers:
                simulation.after(simulation.random.uniform(0, 1), server.start)
            for name in WORKERS:
                simulation.after(simulation.random.uniform(0, 3), self.start_worker, name)
            simulation.after(simulation.random.uniform(1, 5), self._accident)
            simulation.after(CALM, self._begin_calm)
            simulation.run(lambda: self.calm and not self.workers, MAX_EVENTS)
            self.values = self.status = None
            process = Process(simulation, "observer")
            observer = simulation.fiber(process, partial(self._observe, process))
            simulation.run(lambda: not observer.alive, MAX_EVENTS)

    def _end_all(self):
        for process in [*self.workers.values()]:
            process.kill()
        for server in self.servers:
            server.kill()

    def _begin_calm(self):
        self.calm = True
        for server in self.servers:
            if not server.up:
                self.simulation.after(8.0, server.start)
            server.start()

    def _accident(self):
        simulation, random = self.simulation, self.simulation.random
        if self.calm:
            return
        what = random.choices(list(ACCIDENTS), list(ACCIDENTS.values()))[0]
        self.seen[what] += 1
        servers = {
            "kill a server": [random.choice(self.servers)],
            "kill servers": random.sample(self.servers, random.randint(1, len(self.servers))),
            "kill all servers": self.servers,
            "stop a server": [random.choice(self.servers)],
        }.get(what, [])
        for server in servers:
            if what.startswith("stop"):
                server.stop()
                simulation.after(random.uniform(0.0, 9.0), server.start)
                simulation.after(9.0, server.start)
            else:
                server.kill()
                pause = random.choice([0.001, random.uniform(0, 2), random.uniform(0, 9)])
                simulation.after(pause, server.start)
                if random.random() < 0.2:  # in its start
                    simulation.after(pause + random.expovariate(200), self._kill_again, server)
        living = [name for name, process in self.workers.items() if not process.dead]
        if what == "kill a worker" and living:
            name = random.choice(living)
            self.killed_workers.add(name)
            self.workers[name].kill()
            if name == WORKERS[0] or self.options.consistency.startswith("sync") or random.random() < 0.8:
                simulation.after(random.uniform(0, 4), self.start_worker, name)
            else:
                del self.workers[name]
        simulation.after(random.expovariate(self.options.accidents), self._accident)

    def _kill_again(self, server):
        if not self.calm:
            server.kill()
            self.simulation.after(self.simulation.random.uniform(0, 2), server.start)

    # --- workers --------------------------------------------------------------------------------------------------

    def start_worker(self, name):
        process = self.workers[name] = Process(self.simulation, name)
        self.simulation.fiber(process, partial(self._live, process))

    def _live(self, process):
        """One life of a worker."""
        name = process.name
        try:
            self._train(process)
        except Zombie:  # a late Join of an earlier incarnation
            self.seen["zombie"] += 1
            self.killed_workers.add(name)
            self.simulation.after(0.1, self.start_worker, name)
            process.dead = True
            return
        except ParamServerError as error:
            self.errors.append((name, error))
        self.done.add(name)
        del self.workers[name]
        process.dead = True

    def declarations(self):
        shape = self.options.shards, MARKS
        return [declared(name, np.zeros(shape), GradientDescent(learning_rate=1)) for name in WORKERS]

    def mark_of(self, push):
        [gradient] = push.gradients
        return gradient.name, int(np.flatnonzero(gradient.array)[0]) % MARKS

    def _train(self, process):
        simulation, random, name = self.simulation, self.simulation.random, process.name
        client = Client(Network(self, process), name, TIMEOUT, job=JobChoice(resume=True))
        self.lives[name] += 1
        client.join()
        weights = {one.name: one for one in client.register(self.declarations())}

        def refresh():
            weights.update({one.name: one for one in client.pull(WORKERS)})

        client.rollback.on_rollback = refresh
        client.registration.value_of = lambda variable: np.zeros(
            (self.options.shards, MARKS)
        )  # as it was before any push
        finished = None
        while True:
            taken = client.blocks.take(QUEUE, finished)
            finished = None
            if taken.done and self.calm:
                client.pull(WORKERS)  # as a session that ends; it may be the first that shows that state was lost
                if client.blocks.has(QUEUE.name):
                    break
                continue
            if taken.block is None:
                client.report_idle()
                simulation.sleep(0.5)
                continue
            block, whole = taken.block, True
            for position in range(block.start, block.stop):
                simulation.sleep(random.expovariate(10))
                if random.random() < 0.03:
                    self._command(client)
                if not client.blocks.has(QUEUE.name):
                    whole = False
                    break
                mark = self._next[name]
                self._next[name] += 1
                one = self.marks[name, mark] = Mark(name, mark, (block.epoch, position))
                gradient = np.zeros((self.options.shards, MARKS))
                gradient[:, mark] = -1
                progress = ms.Progress(
                    queue=QUEUE.name, block=block.number, position=position + 1, cost_sum=position + 1.0 - block.start
                )
                push = client.push([replace(weights[name], array=gradient)], 1.0, [name], progress=(progress,))
                result = push.result()
                one.outcome = "HALF" if result.half_applied else result.outcome.name
                self.seen["half-applied, as its worker knows"] += result.half_applied
                weights.update({value.name: value for value in result.values})
                if not client.blocks.has(QUEUE.name):
                    one.outcome, whole = "gone back", False
                    break
            finished = ms.Finished(block.number, float(block.stop - block.start)) if whole else None
        client.report_idle()
        client.leave()
        client.close()

    def _command(self, client):
        """A generation, or a checkpoint."""
        try:
            if self.simulation.random.random() < 0.5:
                client.checkpoint(10.0)
                self.seen["checkpoint"] += 1
            else:
                self.generations.append({one.name: one.array for one in client.hold_cut(WORKERS, (), 10.0)})
                self.seen["generation"] += 1
                try:
                    self._read_generation(client, self.generations[-1])
                finally:
                    client.release_cut()
        except Zombie:
            raise
        except ParamServerError as error:
            self.seen[f"command: {type(error).__name__}"] += 1

    def _read_generation(self, client, values):
        """Reads a generation from the servers for a while, some of which may lose it: then nothing else is read."""
        rows = np.arange(self.options.shards)
        for name in WORKERS:
            self.simulation.sleep(self.simulation.random.expovariate(2))
            assert np.array_equal(client.choose(name, rows).array, values[name]), "not of one moment"
        self.seen["generation read again"] += 1

    def _observe(self, process):
        """Reads what is left at the end, as one more worker."""
        client = Client(Network(self, process), "observer", TIMEOUT, job=JobChoice(resume=True))
        try:
            client.join()
            client.register(self.declarations())
            self.values = {one.name: one.array for one in client.pull(WORKERS)}
            self.simulation.sleep(
                3 * LEASE
            )  # killed workers are known to be gone: a push of a live one may be under way
            calls = client._calls
            self.status = [calls.call(shard, ms.Status(), ms.StatusReport) for shard in range(self.options.shards)]
            client.leave()
        except ParamServerError as error:
            self.errors.append(("observer", error))
        process.dead = True

    # --- what must hold -------------------------------------------------------------------------------------------

    def check(self):
        """Raises `AssertionError` unless what must hold does."""
        options = self.options
        if any(options.fails) and self.errors:
            self._check_refusals()
            return
        assert not self.errors, self.errors
        problems = {one for one in self.seen if one.startswith("command: ")}
        assert problems <= {"command: GenerationLost", "command: TimedOut", "command: Unavailable"}, problems
        shards = range(options.shards)
        present = [{key for key in self.marks if self.values[key[0]][shard, key[1]]} for shard in shards]
        parts = {value for array in self.values.values() for value in np.unique(array).tolist()}
        assert parts <= {0.0, 1.0, 1 / 2, 1 / 3}, f"a push was applied twice: {parts}"
        timelines = {report.storage.timeline for report in self.status}
        assert len(timelines) == 1, timelines
        half = {key for key in self.marks if 0 < sum(key in one for one in present) < options.shards}
        counted = merge_reports([ShardAnswer(str(shard), self.status[shard]) for shard in shards]).half_pushes
        wrong = [self.marks[key] for key in half if self.marks[key].outcome in ("APPLIED", "REPEATED", "DROPPED")]
        assert not wrong, f"on some shards only: {wrong}"
        assert len(half) <= counted, f"{len(half)} half pushes, and {counted} are counted"
        if options.keeps_all:
            assert timelines == {1}
            for shard in shards:
                missing = self.acknowledged[shard] - present[shard]
                assert not missing, f"shard {shard} has lost what it had acknowledged: {sorted(missing)}"
            for key, mark in self.marks.items():
                there = [key in one for one in present]
                assert not any(there) or mark.outcome != "DROPPED", f"dropped, and yet there: {mark}"
                assert all(there) or mark.outcome not in ("APPLIED", "REPEATED"), f"lost: {mark} {there}"
            assert not any(report.storage.lost_pushes for report in self.status)
        done = Counter(self.marks[key].example for key in present[0])
        dropped = {mark.example for mark in self.marks.values() if mark.outcome in ("DROPPED", "open")}
        twice = {example: n for example, n in done.items() if n > 1}
        assert not twice or self.seen["lease ended"], f"trained more than once: {twice}"
        never = EXAMPLES - done.keys()
        drops = options.staleness.startswith("drop") or options.consistency.startswith("sync")
        assert never <= (dropped if drops else set()), f"never trained: {sorted(never)}"
        for shard in shards:
            lost, said = len(self.acknowledged[shard] - present[shard]), self.status[shard].storage.lost_pushes
            reported = f"shard {shard} reports {said} lost pushes, and {lost} are"
            assert said == lost or (said < lost and self.killed_workers), reported
        for number, generation in enumerate(self.generations):
            self._check_equal(generation, f"generation {number}")
        self._check_checkpoints()

    def _check_refusals(self):
        """A job that ended because shards refused to go back: these still have what they had acknowledged."""
        options = self.options
        assert not all(options.journal), f"nothing was lost: {self.errors}"
        refused = [
            int(found[1])
            for _, error in self.errors
            if (found := re.fullmatch("shard ([0-9]+) does not go back .* --on-lost-state fail: .*", str(error)))
        ]
        assert refused, self.errors
        assert all(options.fails[shard] for shard in refused), self.errors
        others = [error for _, error in self.errors if not isinstance(error, WrongShard)]
        assert len(refused) + len(others) == len(self.errors), self.errors
        assert all(isinstance(error, TimedOut) and "start 1 more worker" in str(error) for error in others), self.errors
        for server in self.servers:
            at = server.folder, server.shard, options.shards
            if options.fails[server.shard]:
                assert read_run(*at).timeline == 1
            if options.fails[server.shard] and options.journal[server.shard]:
                shard, start = server.new_shard(), own_start(*at)
                start.restore(shard, 0.0, truncate=False)
                arrays = {name: one.value.ravel() for name, one in shard.arrays().items()}
                missing = [(name, mark) for name, mark in self.acknowledged[server.shard] if not arrays[name][mark]]
                assert not missing, f"shard {server.shard} has lost what it had acknowledged: {sorted(missing)}"
                self.seen["journal of a refusing shard read"] += 1

    def _check_equal(self, values, what):
        for name, array in values.items():
            different = np.flatnonzero((array != array[0]).any(axis=0))
            wrong = [self.marks[name, int(one)] for one in different]
            wrong = [mark for mark in wrong if mark.outcome in ("APPLIED", "REPEATED")]
            assert not wrong, f"{what} has on some shards only {wrong}"

    def _check_checkpoints(self):
        common = None
        for server in self.servers:
            mine = set(retention.cuts(server.folder, server.shard, self.options.shards))
            common = mine if common is None else common & mine
        for number in sorted(common):
            rows = defaultdict(list)
            for server in self.servers:
                start = start_at(server.folder, 9, number, server.shard, self.options.shards)
                shard = server.new_shard()
                start.restore(shard, 0.0)
                assert not start.notes, start.notes
                for name, one in shard.arrays().items():
                    rows[name].append(one.value)
            self.seen["checkpoint read"] += 1
            self._check_equal({name: np.concatenate(one) for name, one in rows.items()}, f"checkpoint {number}")


def _compile():
    """Compiles the update rule, whose first use opens files."""
    loop = rule_for(GradientDescent(learning_rate=1)).loop
    if loop is not None:
        numba_compiler.machine_code(loop)


# --- patches ----------------------------------------------------------------------------------------------------------


class Queue:
    """As `queue.SimpleQueue`."""

    def __init__(self):
        self._items, self._changed = deque(), Waitable(Job.present.simulation)

    def put(self, item):
        self._items.append(item)
        self._changed.notify_all()

    def get(self):
        self._changed.wait_for(lambda: self._items)
        return self._items.popleft()


class _Errors(logging.Handler):
    def __init__(self, job):
        super().__init__(logging.WARNING)
        self._job = job

    def emit(self, record):
        if "was silent" in str(record.args):
            self._job.seen["lease ended"] += 1
        if record.levelno >= logging.ERROR:
            self._job.simulation.fail(AssertionError(f"logged: {record.getMessage()}"))


@contextmanager
def _simulated(job):
    simulation = job.simulation
    clock = types.SimpleNamespace(monotonic=lambda: simulation.now, sleep=simulation.sleep)
    no_timeout = 1e9

    def thread(target, args, name, daemon):
        process, fiber = simulation.current.process, types.SimpleNamespace()
        fiber.start = lambda: setattr(fiber, "fiber", simulation.fiber(process, partial(target, *args)))
        fiber.join = lambda: fiber.fiber.join()
        return fiber

    threads = types.SimpleNamespace(
        Event=lambda: Event(simulation),
        Condition=lambda lock: Waitable(simulation),
        Lock=nullcontext,
        RLock=nullcontext,
        Thread=thread,
        TIMEOUT_MAX=no_timeout,
    )

    def point():
        fiber = simulation.current
        if fiber is not None:
            if fiber.process.dead:
                raise Killed
            if simulation.random.random() < 0.3:
                simulation.sleep(simulation.random.expovariate(500))

    def hooked(real, nothing=False):
        def call(*arguments, **options):
            point()
            return None if nothing else real(*arguments, **options)

        return call

    def pwritev(descriptor, buffers, offset, real=os.pwritev):
        point()
        if simulation.current is not None and simulation.random.random() < 0.1:
            data = b"".join(bytes(one) for one in buffers)
            return os.pwrite(descriptor, data[: simulation.random.randint(1, len(data))], offset)
        return real(descriptor, buffers, offset)

    def lock(folder, real=journal.lock_journal):
        descriptor = real(folder)
        job.locks[descriptor] = PROCESS.get()
        return descriptor

    def close(descriptor, real=os.close):
        job.locks.pop(descriptor, None)
        real(descriptor)

    logger = logging.getLogger()
    handler = _Errors(job)
    names = ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "ftruncate")
    with (
        mock.patch.multiple(journal, JournalWriter=Writer, lock_journal=lock),
        mock.patch.object(os, "close", close),
        mock.patch("psserver.storage.journal.time", clock),
        mock.patch("psserver.runtime.cut_copies.SimpleQueue", Queue),
        mock.patch("psworker.client.client.threading", threads),
        mock.patch("psworker.client.membership.threading", threads),
        mock.patch("psworker.client.rollback.threading", threads),
        mock.patch("psworker.client.cut_numbers.threading", threads),
        mock.patch("psworker.client.heartbeat.threading", threads),
        mock.patch("psworker.client.heartbeat.time", clock),
        mock.patch("psworker.client.retry.time", clock),
        mock.patch("psworker.client.membership.secrets", types.SimpleNamespace(randbits=simulation.random.getrandbits)),
        mock.patch.object(placement, "SPLIT_BYTES", 0),
        mock.patch.multiple(os, **{name: hooked(getattr(os, name)) for name in names}),
        mock.patch.multiple(os, fsync=hooked(os.fsync, nothing=True), fdatasync=hooked(os.fdatasync, nothing=True)),
        mock.patch.object(os, "pwritev", pwritev),
    ):
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


def simulate(seed, folder, shards, consistency, staleness, kind):
    """A job of this seed, checked."""
    job = Job(seed, folder, lambda random: Options.drawn(random, shards, consistency, staleness, kind))
    job.run()
    job.check()
    return job
