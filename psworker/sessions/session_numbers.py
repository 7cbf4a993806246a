"""Numbers of the sessions that this process has opened, by which its n-th session is the n-th job of its program.

A session is counted when it has opened. Those with other servers, under another name or with another folder of
checkpoints are counted by themselves.
"""

from dataclasses import dataclass

from psworker.config import WorkerConfig


@dataclass(slots=True)
class Sessions:
    """The `count` of opened sessions, and the `name` of their jobs; "": they were not numbered."""

    count: int = 0
    name: str = ""


_opened: dict[tuple[object, ...], Sessions] = {}


def sessions_of(config: WorkerConfig) -> Sessions:
    """The sessions of this process with the servers, the worker's name and the folder of this configuration."""
    return _opened.setdefault((config.servers, config.name, config.folder), Sessions())


def forget() -> None:
    """Begins to count anew, as another process would."""
    _opened.clear()
