"""Threads and an event loop in simulated time, of which one runs at a time: a seed makes one run, and nobody waits.

Code that blocks, waits or sleeps runs in fibers: threads that hand the turn back to the simulation where they would
wait. Each belongs to a process, which may be killed: its fibers end where they are, and its event loop tasks too.
"""

import asyncio
import contextvars
import heapq
import itertools
import random
import threading

#: Seconds of real time after which a turn that does not come back has failed the test.
MAX_TURN_SECONDS = 60.0

PROCESS = contextvars.ContextVar("process", default=None)


class Killed(BaseException):
    """Ends a fiber of a killed process."""


class Process:
    """What is killed together. `context` is that of its tasks in the event loop."""

    def __init__(self, simulation, name):
        self.simulation, self.name, self.dead = simulation, name, False
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.fibers, self.tasks = [], []

    def kill(self):
        """Ends all fibers and tasks, at once. Called by the simulation, not in a fiber."""
        self.dead = True
        while self.fibers:
            self.simulation.switch(self.fibers[-1])
        for task in self.tasks:
            task.cancel()
        self.simulation.drain(killing=True)


class Waitable:
    """Something that fibers wait for, which is true or not."""

    def __init__(self, simulation):
        self.simulation, self._waiting = simulation, []

    def notify_all(self):
        """Has those that wait look again, in any order."""
        waiting, self._waiting = self._waiting, []
        for fiber, pause in waiting:
            self.simulation.after(self.simulation.random.uniform(0, 1e-4), self.simulation.resume, fiber, pause)

    notify = notify_all

    def wait_for(self, condition, timeout=None):
        """As `threading.Condition`."""
        simulation = self.simulation
        until = None if timeout is None else simulation.now + timeout
        while not (met := condition()) and (until is None or simulation.now < until):
            fiber = simulation.current
            self._waiting.append((fiber, fiber.pauses))
            if until is not None:
                simulation.after(until - simulation.now, simulation.resume, fiber, fiber.pauses)
            fiber.pause()
        return met

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Event(Waitable):
    """As `threading.Event`."""

    def __init__(self, simulation):
        super().__init__(simulation)
        self._set = False

    def is_set(self):
        return self._set

    def set(self):
        self._set = True
        self.notify_all()

    def wait(self, timeout=None):
        return self.wait_for(self.is_set, timeout)


class Fiber:
    """A thread of a process that runs while the simulation waits for it."""

    def __init__(self, process, run):
        self.process, self.pauses, self.alive, self.ended = process, 0, True, Waitable(process.simulation)
        self._run, self._turn = run, threading.Semaphore(0)
        process.fibers.append(self)
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def pause(self):
        """Hands the turn back, and returns when it comes again."""
        self.process.simulation.turn.release()
        self._turn.acquire()
        self.pauses += 1
        if self.process.dead:
            raise Killed

    def give_turn(self):
        self._turn.release()

    def join(self, timeout=None):
        self.ended.wait_for(lambda: not self.alive, timeout)

    def is_alive(self):
        return self.alive

    def _live(self):
        self._turn.acquire()
        simulation = self.process.simulation
        try:
            if not self.process.dead:
                self._run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by the simulation
            simulation.fail(error)
        finally:
            self.alive = False
            self.process.fibers.remove(self)
            self.ended.notify_all()
            simulation.turn.release()


class Loop(asyncio.BaseEventLoop):
    """An event loop in simulated time, whose threads are fibers."""

    def __init__(self, simulation):
        super().__init__()
        self._simulation, self._last = simulation, {}
        self.set_exception_handler(lambda _, context: simulation.loop_failed(context))

    def time(self):
        return self._simulation.now

    def call_at(self, when, callback, *args, context=None):
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._simulation.after(when - self.time(), lambda: handle.cancelled() or handle._run())
        return handle

    def run_in_executor(self, executor, func, *args):
        process, future, before = PROCESS.get(), self.create_future(), self._last.get(executor)

        def run():
            if executor is not None and before is not None:  # it has one thread
                before.join()
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - raised where the future is awaited
                self.call_soon(_end, future.set_exception, future, error)
            else:
                self.call_soon(_end, future.set_result, future, result)

        if not process.dead:
            self._last[executor] = self._simulation.fiber(process, run)
        return future

    def create_task(self, coro, *, name=None, context=None):
        task = super().create_task(coro, name=name, context=context)
        process = PROCESS.get() if context is None else context[PROCESS]
        if process is not None:
            process.tasks = [one for one in process.tasks if not one.done()]
            process.tasks.append(task)
        return task

    def drain(self):
        """Runs all that can run now."""
        asyncio.events._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio.events._set_running_loop(None)

    def _write_to_self(self):
        """Nobody waits in `select`."""


def _end(setter, future, result):
    if not future.done():
        setter(result)


class Simulation:
    """Events in the order of their times; `now` are seconds. `random` decides everything that is left open."""

    def __init__(self, seed):
        self.random, self.now, self.current = random.Random(seed), 0.0, None
        self.turn = threading.Semaphore(0)
        self.failure, self.events = None, 0
        self._queue, self._numbers, self._killing = [], itertools.count(), False
        self.loop = Loop(self)

    def after(self, seconds, action, *arguments):
        """Has something done later."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._numbers), action, arguments))

    def run(self, until, most):
        """Goes on until a condition holds; raises what has failed. At most `most` events: otherwise something hangs."""
        while not until():
            assert self._queue, "nothing will ever happen again"
            self.now, _, action, arguments = heapq.heappop(self._queue)
            action(*arguments)
            self.drain()
            self.events += 1
            if self.failure is not None:
                raise self.failure
            assert self.events < most, f"something hangs: {self.now:.0f} s"

    def drain(self, *, killing=False):
        """Runs the event loop. While `killing`, what its callbacks raise is no failure."""
        self._killing, before = killing or self._killing, self._killing
        self.loop.drain()
        self._killing = before

    def fail(self, error):
        self.failure = self.failure or error

    def loop_failed(self, context):
        if not self._killing:
            self.fail(context.get("exception") or AssertionError(context["message"]))

    def fiber(self, process, run):
        """Starts a thread of a process."""
        fiber = Fiber(process, run)
        self.after(self.random.uniform(0, 1e-3), self.resume, fiber, 0)
        return fiber

    def resume(self, fiber, pause):
        """Lets a fiber go on, unless it did since that pause."""
        if fiber.alive and fiber.pauses == pause:
            self.switch(fiber)

    def switch(self, fiber):
        before, self.current = self.current, fiber
        fiber.give_turn()
        assert self.turn.acquire(timeout=MAX_TURN_SECONDS), "a fiber has not given the turn back"
        self.current = before

    def sleep(self, seconds):
        """In a fiber: lets time pass."""
        fiber = self.current
        self.after(seconds, self.resume, fiber, fiber.pauses)
        fiber.pause()

    def close(self):
        self.loop.close()
