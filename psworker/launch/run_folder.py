"""The folder of a run: the checkpoints of its servers, the output of its processes, and its record.

runs/a/checkpoints/         written and read by the servers, from which the job resumes
runs/a/best.safetensors     the best model, if the program saves one (`Session.save_best`)
runs/a/logs/worker-0.log    the output of each process, of every life, and when it was started again
runs/a/run.json             how it was started, and its results (`psworker.launch.run_recorder`)
runs/a/events.jsonl         what happened: of shards, of processes, of the guard
runs/a/scalars/worker-0.jsonl   what each worker has recorded (`psworker.summaries`)
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pswire.errors import ConfigurationError
from pswire.security.private_files import make_private_folder
from pswire.specs.checkpoints import CheckpointEvery, EverySeconds


@dataclass(frozen=True)
class RunFolder:
    """The folder at `path`, and how often the servers write a checkpoint to it.

    `keep` is how many checkpoints are kept, `journal` whether every push is written to disk as well. With `resume` the
    folder may have an earlier run, which continues; without, it must be new or empty.
    """

    path: Path
    checkpoint_every: CheckpointEvery = field(default_factory=lambda: EverySeconds(60.0))
    keep: int = 5
    journal: bool = False
    resume: bool = False

    @property
    def checkpoints(self) -> Path:
        """The folder of the servers; absolute."""
        return self.path.absolute() / "checkpoints"

    def server_options(self) -> list[str]:
        """The options of `psserver serve`."""
        options = ["--checkpoint-dir", str(self.checkpoints), "--checkpoint-every", str(self.checkpoint_every)]
        return [*options, "--keep", str(self.keep), "--journal" if self.journal else "--no-journal"]

    def has_checkpoints(self) -> bool:
        """True if there is something to resume from; the servers know whether it is complete."""
        return self.checkpoints.is_dir() and any(one.suffix != ".lock" for one in self.checkpoints.iterdir())

    def has_written_checkpoints(self) -> bool:
        """True if a server has written one."""
        return any(self.checkpoints.glob("step-*"))

    @contextmanager
    def opened(self) -> Iterator["OpenRunFolder"]:
        """Create the folder, and lock it for this process and the processes that inherit the lock.

        Raises `ConfigurationError` if it is not empty and the run is not to resume, if it is in use, or if it cannot be
        created or written.
        """
        logs = self.path / "logs"
        user = "another psworker local, or by servers that it has left and that end within seconds"
        with locked_folder(self.path, (self.checkpoints, logs), user, resume=self.resume) as lock:
            yield OpenRunFolder(lock, logs)


@contextmanager
def locked_folder(path: Path, folders: Sequence[Path], user: str, *, resume: bool) -> Iterator[int]:
    """Create folders in `path`, and lock it; yields the file descriptor that holds the lock.

    Raises `ConfigurationError` if it is not empty and nothing is to `resume`, if it is in use, by `user`, or if it
    cannot be created or written.
    """
    import fcntl  # not on Windows, where there are no local clusters

    with ExitStack() as stack:
        try:
            if not resume and path.exists() and any(path.iterdir()):
                raise ConfigurationError(
                    f"the folder {path} is not empty: use --resume to continue its run, or another folder"
                )
            for folder in folders:
                make_private_folder(folder)
            lock = os.open(path, os.O_RDONLY)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"the folder {path} is in use by {user}: wait for their end, or use another folder"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"cannot use the folder {path}: {error.strerror}") from error
        yield lock


class OpenRunFolder:
    """A folder that is held by `lock`, a file descriptor, until all processes that have it have ended.

    Each process has a file `logs/NAME.log`, to which lines are appended at once. Any thread may call.
    """

    def __init__(self, lock: int, logs: Path) -> None:
        self.lock = lock
        self._logs = logs
        self._failed: set[str] = set()
        self._writing = threading.Lock()  # the lines of a call stay together

    def log(self, name: str, lines: Sequence[str]) -> str:
        """Append lines to the log of a process; returns the reason, once, if it cannot be written and ends there."""
        path = self._logs / f"{name}.log"
        with self._writing:
            try:
                if name not in self._failed:
                    with path.open("ab", buffering=0) as file:
                        file.write("".join(f"{line}\n" for line in lines).encode())
            except OSError as error:
                self._failed.add(name)
                return f"the log {path} ends here: {error.strerror}"
        return ""
