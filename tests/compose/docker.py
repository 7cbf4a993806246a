"""Commands of Docker and Compose, each with a timeout, and their output as plain data.

Identifies containers by the labels that every version of Compose sets, not by their names. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "deploy" / "compose.yaml"
SERVERS = "server-0:7070,server-1:7070"
WORKERS = 3
#: Lines of a log that are shown after a failure.
TAIL = 40
#: Seconds between SIGTERM and SIGKILL for a command.
GRACE = 10.0

_PROJECT, _SERVICE, _NUMBER = (f"com.docker.compose.{what}" for what in ("project", "service", "container-number"))
_Answer = TypeVar("_Answer")


class Failed(Exception):
    """A command has failed, or something did not happen in time."""


def run(*command: str, timeout: float, env: Mapping[str, str] | None = None, log: IO[str] | None = None) -> str:
    """The output of a command, which never outlives this call.

    With `log`, a file open to append, its output goes there instead.

    Raises:
        Failed: it has failed, or did not end within `timeout` seconds.
    """
    output, errors = (subprocess.PIPE, subprocess.PIPE) if log is None else (log, subprocess.STDOUT)
    text = shlex.join(command)
    try:
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, text=True, env=env, cwd=ROOT, start_new_session=True
        )
    except FileNotFoundError as error:
        raise Failed(f"{command[0]} is not installed") from error
    try:
        printed, complaint = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"`{text}` did not end within {timeout:g} s") from late
    finally:
        if process.poll() is None:  # timeout or interrupt
            _end(process)
    if process.returncode:
        why = complaint if log is None else "\n".join(text_of(log).splitlines()[-TAIL:])
        raise Failed(f"`{text}` ended with code {process.returncode}:\n{why.strip()}")
    return printed or ""


def _end(process: subprocess.Popen[str]) -> None:
    """Ends it with its children; it has some seconds for its own cleanup."""
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def text_of(log: IO[str]) -> str:
    """The contents of a log so far; further output is appended."""
    log.seek(0)
    return log.read()


def docker(*arguments: str, timeout: float = 60.0) -> str:
    """The output of `docker ARGUMENTS`. Raises `Failed`."""
    return run("docker", *arguments, timeout=timeout)


def wait_for(what: str, ask: Callable[[], _Answer | None], timeout: float) -> _Answer:
    """Polls each second until there is an answer. Raises `Failed` if there is none within `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        why = ""
        try:
            if (answer := ask()) is not None:
                return answer
        except Failed as error:
            why = f"; {error}"
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {timeout:g} s{why}")
        time.sleep(1.0)


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Clock:
    """The time of the engine, which may be on another machine, in seconds since 1970."""

    def __init__(self) -> None:
        self._ahead = moment(docker("info", "--format", "{{.SystemTime}}").strip()) - time.time()

    def now(self) -> float:
        return time.time() + self._ahead


@dataclass(frozen=True)
class Container:
    """The state of a container; `name` is its service, for a worker with its number. `ended` as in `moment`."""

    id: str
    name: str
    running: bool = True
    exit_code: int = 0
    restarts: int = 0
    ended: float = 0.0

    @property
    def host(self) -> str:
        """Its host name, the beginning of the names of its workers."""
        return self.id[:12]


class Cluster:
    """The services of deploy/compose.yaml in a separate project.

    Args:
        compose: the command, such as `docker compose`.
        project: the name of the project.
        settings: values of variables of the file; the other ones have their defaults, whatever the environment.
    """

    def __init__(self, compose: Sequence[str], project: str, settings: Mapping[str, str]) -> None:
        self._command = [*compose, "--project-name", project, "--file", str(COMPOSE_FILE)]
        defaults = dict.fromkeys(re.findall(r"\$\{(\w+)", COMPOSE_FILE.read_text()), "")
        self._settings = {**defaults, **settings}
        self._ours = f"label={_PROJECT}={project}"

    def build(self, base: str, network: str, log: IO[str]) -> None:
        """Builds the image of all services on a base image, with this build network."""
        self._compose("build", "server-0", timeout=900, log=log, BASE_IMAGE=base, BUILD_NETWORK=network)

    def up(self) -> None:
        """Starts the servers and, when they are healthy, the workers."""
        self._compose("up", "--detach", "--no-build", "--scale", f"worker={WORKERS}", timeout=180)

    def stop(self) -> None:
        self._compose("stop", timeout=120)

    def down(self) -> None:
        self._compose("down", "--volumes", "--remove-orphans", timeout=120)

    def _compose(self, *arguments: str, timeout: float, log: IO[str] | None = None, **settings: str) -> None:
        env = os.environ | self._settings | settings
        run(*self._command, *arguments, timeout=timeout, env=env, log=log)

    def containers(self) -> dict[str, Container]:
        ids = docker("ps", "--all", "--quiet", "--no-trunc", "--filter", self._ours).split()
        found = [_container(data) for data in json.loads(docker("inspect", *ids))] if ids else []
        return {container.name: container for container in sorted(found, key=lambda container: container.name)}

    def network(self) -> str:
        return docker("network", "ls", "--quiet", "--filter", self._ours).strip()

    def status(self) -> dict[str, Any]:
        """The output of `psserver status --json`. Raises `Failed`."""
        server = self.containers()["server-0"].id
        answer: dict[str, Any] = json.loads(docker("exec", server, "psserver", "status", SERVERS, "--json"))
        return answer

    def log(self, container: Container) -> str:
        with tempfile.TemporaryFile("a+", errors="replace") as log:
            run("docker", "logs", "--timestamps", container.id, timeout=60, log=log)
            return text_of(log)

    def left(self) -> list[str]:
        kinds = {"container": ("ps", "--all"), "network": ("network", "ls"), "volume": ("volume", "ls")}
        return [
            f"{kind} {name}"
            for kind, listing in kinds.items()
            for name in docker(*listing, "--quiet", "--filter", self._ours).split()
        ]


def _container(data: Mapping[str, Any]) -> Container:
    labels, state = data["Config"]["Labels"], data["State"]
    service = labels[_SERVICE]
    return Container(
        id=data["Id"],
        name=f"{service}-{labels[_NUMBER]}" if service == "worker" else service,
        running=state["Running"] or state["Restarting"],
        exit_code=state["ExitCode"],
        restarts=data["RestartCount"],
        ended=moment(state["FinishedAt"]),
    )


def compose_programs(chosen: str) -> dict[str, str]:
    """The available commands of Compose with their versions, the `chosen` one first, if any.

    Raises `Failed` if there is none, or the chosen one is missing.
    """
    found = {}
    for program in filter(None, dict.fromkeys([chosen, "docker compose", "docker-compose"])):
        try:
            found[program] = run(*shlex.split(program), "version", "--short", timeout=60).strip()
        except Failed:
            if program == chosen:
                raise
    if not found:
        raise Failed("neither `docker compose` nor `docker-compose` is installed")
    return found


def accept(program: str) -> None:
    """Raises `Failed` if this command of Compose does not accept deploy/compose.yaml."""
    run(*shlex.split(program), "--file", str(COMPOSE_FILE), "config", "--quiet", timeout=60)


def image_size(name: str) -> int:
    """Bytes of an image. Raises `Failed` if there is none of this name."""
    return int(docker("image", "inspect", "--format", "{{.Size}}", name))


def images(*options: str) -> set[str]:
    """Short identifiers of images; without options, of those that are no intermediate layers."""
    return set(docker("images", "--quiet", *options).split())
