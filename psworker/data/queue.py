"""`Queue`: items that threads make ahead of their use. Knows no datasets and no servers.

It is in this process; the data queues of shard 0, of which workers take blocks of a dataset, are something else.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Generic, NoReturn, TypeVar

from pswire.errors import ConfigurationError, DatasetError, TimedOut

__all__ = ["Queue"]

logger = logging.getLogger(__name__)

LOG_EVERY = 5.0  # seconds between two log lines of a call that waits
FRAMES = 4  # of a thread that is waited for, at most, in a message

Item = TypeVar("Item")


class Queue(Generic[Item]):
    """Items that threads make ahead: of an iterable, or of a function that makes one a call.

        with ps.data.Queue(read_batches(), capacity=8) as queue:   # a generator
            for batch in queue: ...

        queue = ps.data.Queue(sample, workers=4)                   # def sample(): return one batch
        batch = queue.get()                                        # the next one

    The end of the iterable, or StopIteration raised by the function, is the end of the queue: `get` raises
    StopIteration, and a loop ends. Any other exception of the source is raised by `get`, with its traceback, after the
    items that were made before it. An item belongs to the consumer, who may use it as often as it likes.

    Several threads may get items, each of which goes to one of them. A `Queue` that is closed, or to which
    nothing refers, makes no further items, and its threads end.

    Args:
        source: the iterable is read by one worker at a time, and a generator is closed with the queue; the function is
            called by all workers at once.
        capacity: items that are made ahead at most, ready or in the making [one more than workers].
        workers: threads; with one, items come in the source's order. More help where a function waits, or releases the
            GIL, as numpy does.
        timeout: seconds that `get` waits for an item at most, and `close` for the threads.

    Raises:
        ConfigurationError: `workers`, `capacity` or `timeout` is too small.
        DatasetError: the source is neither an iterable of items nor a function.
    """

    __slots__ = ("__weakref__", "_prefetching", "_stop")

    def __init__(
        self,
        source: Iterable[Item] | Callable[[], Item],
        *,
        capacity: int | None = None,
        workers: int = 1,
        timeout: float = 60.0,
    ) -> None:
        size = workers + 1 if capacity is None else capacity
        if not 1 <= workers <= size:
            raise ConfigurationError(f"a queue needs 1 worker or more, and capacity for each: got {workers} and {size}")
        if not timeout > 0:
            raise ConfigurationError(f"the timeout must be a positive number of seconds, got {timeout}")
        self._prefetching = _Prefetching(source, size, timeout)
        self._stop = weakref.finalize(self, self._prefetching.stop)
        self._prefetching.start(workers)

    def get(self) -> Item:
        """The next item; waits for it.

        Raises StopIteration after the last item, an exception of the source, TimedOut, or ConfigurationError if the
        queue is closed.
        """
        return self._prefetching.get()

    def size(self) -> int:
        """The number of items that are ready now, of `capacity` at most."""
        return self._prefetching.size()

    def put(self, item: object) -> NoReturn:
        """Raises TypeError: items come from the source, which may be another queue."""
        raise TypeError(
            "ps.data.Queue: items come from its source, so none can be put into it: for items that other threads make, "
            "put them into a queue.Queue and give iter(that_queue.get, None), which ends with None. A data queue of "
            "session.batches has a fixed number of examples: begin another loop for further ones"
        )

    def close(self) -> None:
        """Stop the threads and wait until they have ended; items that are left are dropped.

        Raises TimedOut if a thread does not return from the source. It ends when it does, or with the process.
        """
        self._stop()
        self._prefetching.join()

    def __iter__(self) -> Queue[Item]:
        return self

    def __next__(self) -> Item:
        return self.get()

    def __enter__(self) -> Queue[Item]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Queue({self._prefetching})"


class _Prefetching(Generic[Item]):
    """State shared by consumers and workers. Threads refer to it and not to the `Queue`, which can thus be collected.

    `changed` guards all fields below it. Its lock is reentrant: the garbage collector may call `stop` in a thread that
    holds it. `reading` is held while an iterable is read, and never taken by a thread that holds `changed`.
    """

    def __init__(self, source: Iterable[Item] | Callable[[], Item], capacity: int, timeout: float) -> None:
        self._make, self._iterator, self._name = _opened(source)
        self._reading = threading.Lock() if self._iterator else nullcontext()
        self._capacity, self._timeout = capacity, timeout
        self._threads: list[threading.Thread] = []
        self.changed = threading.Condition(threading.RLock())
        self._ready: deque[Item] = deque()
        self._making: dict[threading.Thread, float] = {}  # since when each makes an item
        self._running = 0  # threads
        self._ended = self._closed = False  # no further item is begun; items are dropped
        self._failure: tuple[BaseException, TracebackType | None] | None = None

    def start(self, workers: int) -> None:
        """Start the threads."""
        self._running = workers
        for number in range(workers):
            name = f"psworker-queue-{self._name}-{number}"
            self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def get(self) -> Item:
        """As `Queue.get`."""
        with self.changed:
            self._wait(lambda: self._closed or bool(self._ready) or self._is_over(), "get waits for an item of")
            if self._closed:
                raise ConfigurationError(f"the queue of {self._name} is closed: get its items before, or make another")
            if self._ready:
                self.changed.notify_all()
                return self._ready.popleft()
            if self._failure:
                error, at = self._failure
                raise error.with_traceback(at)
            raise StopIteration

    def size(self) -> int:
        """The number of items that are ready."""
        with self.changed:
            return len(self._ready)

    def stop(self) -> None:
        """Begin no further items, and drop the ready ones."""
        with self.changed:
            self._ended = self._closed = True
            self._ready.clear()
            self.changed.notify_all()

    def join(self) -> None:
        """Wait for the threads, but for one that calls this."""
        own = threading.current_thread() in self._threads
        with self.changed:
            self._wait(lambda: self._running == own, "close waits for a thread of")
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        if isinstance(self._iterator, Generator) and not own:
            self._iterator.close()

    # --- worker threads -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._begin():
                try:
                    self._finish(self._next())  # no name here: it would keep the item
                except StopIteration:
                    self._end(None)
        except BaseException as error:  # noqa: BLE001 - raised by get
            self._end(error)
        with self.changed:
            self._running -= 1
            self.changed.notify_all()

    def _begin(self) -> bool:
        """Wait until there is room for an item; return whether to make it."""
        with self.changed:
            self.changed.wait_for(lambda: self._ended or len(self._ready) + len(self._making) < self._capacity)
            if self._ended:
                return False
            self._making[threading.current_thread()] = time.monotonic()
            return True

    def _next(self) -> Item:
        with self._reading:
            if self._ended:  # while this thread waited to read: an iterable is not read beyond its end, or an error
                raise StopIteration
            return self._make()

    def _finish(self, item: Item) -> None:
        if self._iterator is None and isinstance(item, Generator):
            raise DatasetError(
                f"{self._name} returned a generator, but a queue calls a function once for each item: "
                f"give the generator, {self._name}()"
            )
        with self.changed:
            del self._making[threading.current_thread()]
            if not self._closed:
                self._ready.append(item)
            self.changed.notify_all()

    def _end(self, error: BaseException | None) -> None:
        """Begin no further items; of several errors the first one is kept."""
        with self.changed:
            self._making.pop(threading.current_thread(), None)
            if error is not None and self._failure is None:
                self._failure = error, error.__traceback__
            self._ended = True
            self.changed.notify_all()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return self._ended and not self._making

    def _wait(self, ready: Callable[[], bool], waiting: str) -> None:
        """Wait with the lock, which waiting releases. Logs whom it waits for; raises TimedOut."""
        began, waited = time.monotonic(), 0.0
        while not self.changed.wait_for(ready, min(LOG_EVERY, self._timeout - waited)):
            waited = time.monotonic() - began
            if waited >= self._timeout:
                raise TimedOut(
                    f"gave up after {waited:.1f} s: {waiting} {self._name}, {self._whereabouts()}; "
                    "if the source is only slow, give the queue a larger timeout"
                )
            logger.warning("%s %s, for %.0f s: %s", waiting, self._name, waited, self._whereabouts())

    def _whereabouts(self) -> str:
        """The place in the code of each thread that makes an item, and since when."""
        frames, now = sys._current_frames(), time.monotonic()
        found = []
        for thread, since in self._making.items():
            stack = traceback.extract_stack(frames[thread.ident]) if thread.ident in frames else []
            inside = [at for at in stack if at.filename not in (__file__, threading.__file__)][-FRAMES:]
            if inside:
                calls = " > ".join(f"{at.name} ({Path(at.filename).name}:{at.lineno})" for at in inside)
                found.append(f"{thread.name} has been in {calls} for {now - since:.0f} s")
        return "; ".join(found) or f"of which {self._running} threads are left"

    def __str__(self) -> str:
        with self.changed:
            state = "closed" if self._closed else f"{len(self._ready)} ready, {len(self._making)} in the making"
        return f"{self._name}, {state}"


def _opened(
    source: Iterable[Item] | Callable[[], Item],
) -> tuple[Callable[[], Item], Iterator[Item] | None, str]:
    """A function that makes the next item; the iterator that it reads, if it does; and the name of the source."""
    name = getattr(source, "__qualname__", None) or type(source).__name__
    if isinstance(source, Iterable) and not hasattr(source, "keys"):
        iterator = iter(source)
        return iterator.__next__, iterator, name
    if callable(source):
        return source, None, name
    raise DatasetError(f"a queue takes an iterable of items or a function that makes one a call, not {name}")
