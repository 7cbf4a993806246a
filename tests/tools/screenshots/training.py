"""A real run of Deep MNIST with three workers, one of which can be slowed and one killed."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from psjob.status.status_client import StatusClient
from tests.support.commands import BOUND, Command, environment

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "examples" / "deep_mnist.py"

#: Seconds of the leases of workers, and for which the slowed worker runs and is stopped in turns.
LEASE, RUNS, STOPS = 4.0, 0.02, 0.3


class DeepMnist:
    """`psworker local` with worker-0 and worker-1, and worker-2 from outside: a worker of its own may not end the job.

    A context manager: at its end all processes have ended. `options` are those of `psworker local`, `arguments` those
    of the script; `folder` is for the output of the commands. `local` and `killed` are the two commands.
    """

    def __init__(self, folder: Path, *options: str, arguments: tuple[str, ...] = ()) -> None:
        self._folder, self._script = folder, (str(SCRIPT), *arguments)
        self._options = ("--workers", "2", "--threads", "1", *options)
        self._env = environment(PSSERVER_LEASE=f"{LEASE:g}", XDG_STATE_HOME=str(folder))
        self._slowed = threading.Event()

    def __enter__(self) -> "DeepMnist":
        with ExitStack() as stack:
            self.local = self._start(stack, "local", "local", *self._options, *self._script)
            self.servers = self.word_after("servers at ")
            run = ["run", "--servers", self.servers, "--name", "worker-2", "--threads", "1", *self._script]
            if "--run-dir" in self._options:
                run[1:1] = ["--summary-dir", self._options[self._options.index("--run-dir") + 1]]
            self.killed = self._start(stack, "worker-2", *run)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack, name: str, *arguments: str) -> Command:
        command = Command(self._folder / name, "-m", "psworker", *arguments, folder=ROOT, env=self._env)
        stack.callback(self._end, command)
        return command

    @staticmethod
    def _end(command: Command) -> None:
        if command.popen.poll() is None:
            command.end()

    def word_after(self, text: str) -> str:
        """The word after a text in the output of `psworker local`, such as "live page at ", as soon as it is there."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [line for line in self.local.out + self.local.err if text in line]
            return bool(found)

        wait_until(look, repr(text), BOUND)
        return found[0].split(text)[1].split(" ")[0]

    def wait_for_step(self, step: int, seconds: float = 240.0) -> None:
        """Waits until the job has made so many updates."""
        os.environ["XDG_STATE_HOME"] = self._env["XDG_STATE_HOME"]  # where the tokens of the servers are
        with StatusClient(self.servers.split(",")) as client:
            wait_until(lambda: client.ask(BOUND).global_step >= step, f"step {step:,}", seconds)

    def slow(self) -> None:
        """Stops and continues worker-1 in turns until the end of the run."""
        pid = next(
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_worker(pid, "worker-1")
        )
        thread = threading.Thread(target=self._stop_in_turns, args=(pid,), name="slow worker-1")
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._slowed.set)

    def _is_worker(self, pid: int, name: str) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:  # it has ended
            return False
        return f"--name {name} " in " ".join(words) and self.servers in words

    def _stop_in_turns(self, pid: int) -> None:
        while not self._slowed.is_set():
            for number, seconds in ((signal.SIGSTOP, STOPS), (signal.SIGCONT, RUNS)):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                if number == signal.SIGSTOP:
                    time.sleep(seconds)  # never ends while the worker is stopped
                else:
                    self._slowed.wait(seconds)

    def kill(self) -> None:
        """Kills worker-2."""
        self.killed.end(signal.SIGKILL)


def wait_until(is_so: Callable[[], bool], what: str, seconds: float) -> None:
    """Waits for a condition, looking at it twice a second."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} within {seconds:g} s")
        time.sleep(0.5)
