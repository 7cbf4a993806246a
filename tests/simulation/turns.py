"""Threads of which one runs at a time: they hand the turn on where they would wait, and a seed says to whom."""

import random
import threading
from collections.abc import Callable, Mapping

#: Seconds after which a turn that never comes has failed the test.
PATIENCE = 60.0


class Turns:
    """What they do together is decided by the seed alone, so nothing that they share needs a lock."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._gates: dict[str, threading.Semaphore] = {}
        self._failure: BaseException | None = None

    def run(self, lives: Mapping[str, Callable[[], None]]) -> None:
        """Lets all of them live, each in a thread of its name, until the last has ended; raises what one has raised."""
        self._gates = {name: threading.Semaphore(0) for name in lives}
        threads = [threading.Thread(target=self._live, args=(life,), name=name) for name, life in lives.items()]
        for thread in threads:
            thread.start()
        self._give()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def pass_on(self) -> None:
        """Hand the turn on and wait for it to come back. Does nothing in a thread that takes no turns."""
        mine = self._gates.get(threading.current_thread().name)
        if mine is not None:
            self._give()
            self._wait(mine)

    def _live(self, life: Callable[[], None]) -> None:
        name = threading.current_thread().name
        try:
            self._wait(self._gates[name])
            life()
        except BaseException as error:  # noqa: BLE001 - raised in `run`
            self._failure = self._failure or error
        finally:
            del self._gates[name]
            self._give()

    def _give(self) -> None:
        if self._gates:
            self._gates[self._random.choice(list(self._gates))].release()

    def _wait(self, mine: threading.Semaphore) -> None:
        if not mine.acquire(timeout=PATIENCE):
            raise AssertionError("the turn has not come")
        if self._failure is not None:
            raise AssertionError("another has failed")
