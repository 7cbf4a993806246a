"""Commands of Docker and Compose, each with a timeout, and their output as plain data.

Identifies containers by the labels that every version of Compose sets, not by their names.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "deploy" / "compose.yaml"
#: The default of deploy/Dockerfile.
BASE_IMAGE = re.search(r"^ARG BASE_IMAGE=(\S+)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)[1]
WORKERS = 3
TAIL = 40  # lines of a log that are shown after a failure
GRACE = 10.0  # seconds between SIGTERM and SIGKILL for a command

_LABEL = "com.docker.compose"


class Failed(Exception):
    """A command has failed, or something did not happen in time."""


def run(*command: str, timeout: float, log: IO[str] | None = None, **environment: str) -> str:
    """The output of a command, which never outlives this call; with `log`, a file open to append, it goes there.

    Raises `Failed` if it fails, or does not end within `timeout` seconds.
    """
    output, errors = (subprocess.PIPE, subprocess.PIPE) if log is None else (log, subprocess.STDOUT)
    text, env = shlex.join(command), os.environ | environment
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
        if process.poll() is None:  # timeout or interrupt: it and its children have some seconds for their own cleanup
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        why = complaint if log is None else "\n".join(text_of(log).splitlines()[-TAIL:])
        raise Failed(f"`{text}` ended with code {process.returncode}:\n{why.strip()}")
    return printed or ""


def text_of(log: IO[str]) -> str:
    """The contents of a log so far; further output is appended."""
    log.seek(0)
    return log.read()


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def docker(*arguments: str, timeout: float = 60.0) -> str:
    """The output of `docker ARGUMENTS`. Raises `Failed`."""
    return run("docker", *arguments, timeout=timeout)


def wait_for(what: str, ask: Callable[[], Any], timeout: float, good: Callable[[Any], bool]) -> Any:
    """Polls each second until there is a good answer. Raises `Failed` if there is none within `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        why = ""
        try:
            if good(answer := ask()):
                return answer
        except Failed as error:
            why = f"; {error}"
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {timeout:g} s{why}")
        time.sleep(1.0)


class Container(NamedTuple):
    """The state of a container; `name` is its service, for a worker with its number. `ended` as in `moment`."""

    id: str
    name: str
    running: bool = False
    exit_code: int = 0
    restarts: int = 0
    ended: float = 0.0

    @property
    def host(self) -> str:
        """Its host name, the beginning of the names of its workers."""
        return self.id[:12]

    @property
    def end(self) -> str:
        if self.running:
            return "(still running)"
        return f"{self.exit_code}" + f" after {self.restarts} restarts" * bool(self.restarts)


class Cluster:
    """The services of deploy/compose.yaml in a separate project; `compose` is a command such as `docker compose`.

    The variables of the file that are not in `settings` have their defaults, whatever the environment.
    """

    def __init__(self, compose: str, project: str, **settings: str) -> None:
        self._command = [*shlex.split(compose), "--project-name", project, "--file", str(COMPOSE_FILE)]
        self._settings = dict.fromkeys(re.findall(r"\$\{(\w+)", COMPOSE_FILE.read_text()), "") | settings
        self._ours = f"label={_LABEL}.project={project}"

    def compose(self, *arguments: str, timeout: float = 180.0, log: IO[str] | None = None, **settings: str) -> None:
        run(*self._command, *arguments, timeout=timeout, log=log, **self._settings | settings)

    def up(self, **settings: str) -> None:
        """Starts the servers and, when they are healthy, the workers."""
        self.compose("up", "--detach", "--no-build", **{"WORKERS": f"{WORKERS}"} | settings)

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans")

    def containers(self) -> dict[str, Container]:
        """By name, in the order of names."""
        ids = docker("ps", "--all", "--quiet", "--no-trunc", "--filter", self._ours).split()
        found = []
        for data in json.loads(docker("inspect", *ids)) if ids else []:
            labels, state = data["Config"]["Labels"], data["State"]
            service, number = (labels[f"{_LABEL}.{label}"] for label in ("service", "container-number"))
            name = f"{service}-{number}" if service == "worker" else service
            running, ended = state["Running"] or state["Restarting"], moment(state["FinishedAt"])
            found.append(Container(data["Id"], name, running, state["ExitCode"], data["RestartCount"], ended))
        return {container.name: container for container in sorted(found, key=lambda container: container.name)}

    def network(self) -> str:
        return docker("network", "ls", "--quiet", "--filter", self._ours).strip()

    def running(self) -> list[Container]:
        return [container for container in self.containers().values() if container.running]

    def workers(self) -> list[dict[str, Any]]:
        """The workers in the output of `psserver status --json`. Raises `Failed`."""
        status = "psserver", "status", "server-0:7070,server-1:7070", "--json"
        return json.loads(docker("exec", self.containers()["server-0"].id, *status))["workers"]

    def log(self, container: Container) -> str:
        return run("sh", "-c", f"docker logs --timestamps {container.id} 2>&1", timeout=60)

    def left(self) -> list[str]:
        """Its remaining containers, networks and volumes."""
        kinds = ("container", "ls", "--all"), ("network", "ls"), ("volume", "ls")
        found = {listing[0]: docker(*listing, "--quiet", "--filter", self._ours).split() for listing in kinds}
        return [f"{kind} {name}" for kind, names in found.items() for name in names]


# --- images -----------------------------------------------------------------------------------------------------------


def images(*options: str) -> set[str]:
    """Short identifiers of images; without options, of those that are no intermediate layers."""
    return set(docker("images", "--quiet", *options).split())


def made(log: str) -> tuple[set[str], set[str]]:
    """Images that a build has created or used, and containers that it has run, from the output of the builder."""
    return tuple(set(re.findall(rf"^ ---> {what}([0-9a-f]{{12}})$", log, re.MULTILINE)) for what in ("", "Running in "))


class Images:
    """The image under test and its base, built under unique names and removed again.

    The classic builder leaves unnamed images of the stages of a build. It prints their identifiers, which tells them
    from those of other builds. BuildKit leaves only the named image.
    """

    def __init__(self, project: str, log: IO[str]) -> None:
        self.name, self._substitute = f"{project}:image", f"{project}:base"
        self._names = [self.name, self._substitute]
        self._base, self._network = os.environ.get("BASE_IMAGE", ""), os.environ.get("BUILD_NETWORK", "")
        self._before, self._log = images("--all"), log

    def find_base(self) -> str:
        """Finds, pulls or builds the base image; returns a description. Raises `Failed`."""
        chosen, self._base = self._base, self._base or BASE_IMAGE
        try:
            if images(self._base):
                return self._base
            docker("pull", "--quiet", self._base, timeout=300)
            return f"{self._base}, pulled"
        except Failed:
            if chosen:
                raise
        self._base, self._network = self._substitute, "host"
        run(str(ROOT / "deploy" / "offline-base-image.sh"), self._substitute, timeout=600, log=self._log)
        return f"a substitute built here, because {BASE_IMAGE} cannot be pulled"

    def build(self, cluster: Cluster) -> None:
        """Builds the image of the cluster's services. Raises `Failed`."""
        settings = {"BASE_IMAGE": self._base, "BUILD_NETWORK": self._network}
        cluster.compose("build", "server-0", timeout=900, log=self._log, **settings)

    def build_without_compose(self) -> None:
        """Builds the image. Raises `Failed`."""
        network = ["--network", self._network] * bool(self._network)
        base = f"--build-arg=BASE_IMAGE={self._base}"
        self._build(self.name, "--file=deploy/Dockerfile", base, *network, ".")

    def build_upon(self, name: str, dockerfile: str, context: str) -> None:
        """Builds an image of this name from a file with the argument IMAGE, which is this image. Raises `Failed`."""
        self._names.append(name)
        self._build(name, f"--file={dockerfile}", f"--build-arg=IMAGE={self.name}", context)

    def _build(self, name: str, *arguments: str) -> None:
        run("docker", "build", f"--tag={name}", *arguments, timeout=900, log=self._log)

    def remove(self) -> None:
        """Removes all images and containers of the build. Raises `Failed`."""
        _, run_in = made(text_of(self._log))
        if running := run_in & set(docker("ps", "--all", "--quiet").split()):
            with suppress(Failed):  # the engine removes that of an interrupted build by itself, perhaps now
                docker("rm", "--force", *running)
        if left := self.left():
            docker("image", "rm", "--force", *left)

    def left(self) -> list[str]:
        """The remaining images, without layers of other images, which are removed with those."""
        steps, _ = made(text_of(self._log))
        unnamed = steps & (images("--filter", "dangling=true") - self._before)
        return [*unnamed, *(name for name in self._names if images(name))]
