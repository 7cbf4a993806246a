"""A cluster of containers under failures: `make compose-test`, or `python3 -m tests.compose` in the repository's root.

Trains examples/softmax_mnist.py on all of MNIST with two shards and three workers, kills the chief's container,
disconnects another worker from the network for ten seconds, and checks that the job completes; then starts the cluster
twice more and stops it, at once and while it trains. Prints the events, and removes all that it has created, also after
Ctrl-C and SIGTERM. The exit code is 0 if all checks pass, 1 if not, 2 without a Docker engine or Compose.

Environment variables: DOCKER_HOST; COMPOSE, the command of Compose (default: `docker compose` or `docker-compose`);
BASE_IMAGE and BUILD_NETWORK as in deploy/compose.yaml. Needs only Python 3.11.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from tests.compose.checks import Facts, Verdict, check, exit_codes, exit_codes_at_once
from tests.compose.docker import TAIL, Clock, Cluster, Container, Failed, accept, compose_programs, docker, wait_for
from tests.compose.images import Images
from tests.compose.logs import Event, accuracies, lines, notes, rename, table, worth_telling

#: Cores of each worker: few, so that the job lasts long enough on a fast machine too.
WORKER_CPUS = "0.1"
CUT_SECONDS = 10.0
#: Timeouts in seconds, far above the usual times.
TO_TRAIN, TO_COME_BACK, TO_END = 120.0, 60.0, 300.0

say = partial(print, flush=True)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stopped)
    began = time.monotonic()
    host = os.environ.get("DOCKER_HOST", "the default address (DOCKER_HOST is not set)")
    try:
        engine = docker("version", "--format", "{{.Server.Version}}").strip()
    except Failed as error:
        say(f"compose-test: no Docker engine at {host}: {error}", file=sys.stderr)
        return 2
    try:
        programs = compose_programs(os.environ.get("COMPOSE", ""))
    except Failed as error:
        say(f"compose-test: Compose is not available: {error}", file=sys.stderr)
        return 2
    say(f"Docker engine {engine} at {host}")

    images = Images(secrets.token_hex(3))
    compose = shlex.split(next(iter(programs)))
    cluster = Cluster(compose, images.name.replace(":", "-"), {"WORKER_CPUS": WORKER_CPUS, "IMAGE": images.name})
    verdicts = [accepted(programs)]
    try:
        say(f"base image: {images.find_base()}")
        since = time.monotonic()
        images.build(cluster)
        say(f"image: {images.sizes()}; built in {time.monotonic() - since:.0f} s by `{shlex.join(compose)}`\n")
        verdicts += play(train_under_failures, cluster)
        verdicts += play(stop_at_once, cluster)
        verdicts += play(train_and_stop, cluster)
    except Failed as error:
        verdicts.append(Verdict(False, str(error)))
    finally:
        _ignore_signals()  # the rest is short and must complete
        verdicts.append(clean_up(cluster, images))
        say(*verdicts, sep="\n")
    failed = sum(not one.passed for one in verdicts)
    say(f"\ncompose-test: {failed} of {len(verdicts)} checks failed, {time.monotonic() - began:.0f} s in all")
    return 1 if failed else 0


def accepted(programs: Mapping[str, str]) -> Verdict:
    """Whether all available commands of Compose accept the file."""
    try:
        for program in programs:
            accept(program)
    except Failed as error:
        return Verdict(False, str(error))
    listed = ", ".join(f"`{program}` {version}" for program, version in programs.items())
    return Verdict(True, f"deploy/compose.yaml is accepted by {listed}")


def play(act: Callable[[Cluster], list[Verdict]], cluster: Cluster) -> list[Verdict]:
    """Runs one part and removes its containers; after a failure it first shows the end of their logs."""
    verdicts = []
    try:
        verdicts += act(cluster)
    except Failed as error:
        verdicts.append(Verdict(False, str(error)))
    try:
        if not all(one.passed for one in verdicts):
            show_logs(cluster)
        cluster.down()
    except Failed as error:
        verdicts.append(Verdict(False, str(error)))
    return verdicts


def train_under_failures(cluster: Cluster) -> list[Verdict]:
    """First part: one worker is killed, another is disconnected for a while, and the job completes."""
    clock = Clock()
    acts: list[Event] = []

    def act(who: str, what: str) -> None:
        acts.append(Event(clock.now(), who, what))
        say(f"{acts[-1].at - acts[0].at:6.1f} s  {who}: {what}")

    act("cluster", f"`up`: two servers, then three workers with {WORKER_CPUS} cores each")
    cluster.up()
    killed, cut, steps = inject_failures(cluster, act)
    containers, ended = _wait_for_the_end(cluster)

    names = {container.host: container.name for container in containers.values()}
    said = {name: rename(lines(name, cluster.log(one)), names) for name, one in containers.items()}
    events = [*acts, *(event for log in said.values() for event in worth_telling(log))]
    events += [Event(one.ended, one.name, f"ends with code {one.exit_code}") for one in containers.values() if ended]
    say("", table(events, acts[0].at), "", sep="\n")
    facts = Facts(
        seconds=max(one.ended for one in containers.values()) - acts[0].at if ended else None,
        notes=notes(said["server-0"]),
        accuracies=[value for log in said.values() for value in accuracies(log)],
        killed=killed.name,
        cut=cut.name,
        steps=steps,
        containers=containers,
    )
    return check(facts)


def inject_failures(cluster: Cluster, act: Callable[[str, str], None]) -> tuple[Container, Container, int]:
    """Kills the chief and disconnects another worker for a while; returns both, and the steps of the second by then."""
    status = wait_for("the second epoch", partial(_second_epoch, cluster), TO_TRAIN)
    killed, cut = _victims(cluster, status)
    act(killed.name, "is killed; it was the chief")
    docker("kill", killed.id)
    act(cut.name, "is disconnected from the network")
    network = cluster.network()
    docker("network", "disconnect", network, cut.id)
    time.sleep(CUT_SECONDS)
    before = wait_for(f"the steps of {cut.name}", partial(_steps, cluster, cut), TO_COME_BACK)
    act(cut.name, "is connected again")
    docker("network", "connect", "--alias", "worker", network, cut.id)
    with suppress(Failed):  # the checks report it
        after = wait_for(f"a step of {cut.name}", partial(_more_steps, cluster, cut, before), TO_COME_BACK)
        act(cut.name, f"continues: step {before:,}, then {after:,}")
    return killed, cut, before


def stop_at_once(cluster: Cluster) -> list[Verdict]:
    """Second part: it is stopped right after its workers have started, without SIGKILL."""
    cluster.up()
    seconds = _stop(cluster)
    verdict = exit_codes_at_once(cluster.containers())
    return [Verdict(verdict.passed, f"stopped right after `up`, in {seconds:.1f} s; {verdict.says}")]


def train_and_stop(cluster: Cluster) -> list[Verdict]:
    cluster.up()
    wait_for("the first step", partial(_first_step, cluster), TO_TRAIN)
    seconds = _stop(cluster)
    verdict = exit_codes(cluster.containers())
    return [Verdict(verdict.passed, f"stopped while training, in {seconds:.1f} s; {verdict.says}")]


def _stop(cluster: Cluster) -> float:
    since = time.monotonic()
    cluster.stop()
    return time.monotonic() - since


def clean_up(cluster: Cluster, images: Images) -> Verdict:
    problems: list[str] = []

    def attempt(step: Callable[[], object]) -> None:
        try:
            step()
        except Failed as error:
            problems.append(str(error))

    attempt(cluster.down)
    attempt(lambda: problems.extend(cluster.left()))
    attempt(images.remove)
    attempt(lambda: problems.extend(f"image {image}" for image in images.left()))
    if problems:
        return Verdict(False, "left behind: " + "; ".join(problems))
    return Verdict(True, "no container, network, volume or image is left behind")


def show_logs(cluster: Cluster) -> None:
    for container in cluster.containers().values():
        say(f"\n--- {container.name}: the last {TAIL} lines", *cluster.log(container).splitlines()[-TAIL:], sep="\n")


# --- conditions to wait for -------------------------------------------------------------------------------------------


def _second_epoch(cluster: Cluster) -> dict[str, Any] | None:
    status = cluster.status()
    return status if any(worker["epoch"] >= 2 for worker in status["workers"]) else None


def _first_step(cluster: Cluster) -> bool | None:
    return cluster.status()["global_step"] > 0 or None


def _victims(cluster: Cluster, status: dict[str, Any]) -> tuple[Container, Container]:
    """The containers of the chief, and of the first other worker."""
    live = [worker for worker in status["workers"] if worker["state"] == "live"]
    chiefs, others = [one for one in live if one["chief"]], [one for one in live if not one["chief"]]
    if not chiefs or not others:
        raise Failed(f"a live chief and another live worker are needed; there are: {live}")
    hosts = {container.host: container for container in cluster.containers().values()}
    chief, other = (hosts[one["name"].rpartition("-")[0]] for one in (chiefs[0], others[0]))
    return chief, other


def _steps(cluster: Cluster, container: Container) -> int:
    workers = cluster.status()["workers"]
    return max((worker["steps"] for worker in workers if worker["name"].startswith(container.host)), default=0)


def _more_steps(cluster: Cluster, container: Container, before: int) -> int | None:
    return steps if (steps := _steps(cluster, container)) > before else None


def _wait_for_the_end(cluster: Cluster) -> tuple[dict[str, Container], bool]:
    """The containers when all have ended, and whether they ended in time."""

    def all_ended() -> dict[str, Container] | None:
        containers = cluster.containers()
        return None if any(container.running for container in containers.values()) else containers

    try:
        return wait_for("the end of the job", all_ended, TO_END), True
    except Failed:
        return cluster.containers(), False


# --- signals ----------------------------------------------------------------------------------------------------------


def _stopped(number: int, frame: object) -> None:
    _ignore_signals()  # a second signal must not interrupt the cleanup
    sys.exit(128 + number)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
