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
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tests.compose.checks import Verdict, check, exit_codes
from tests.compose.docker import (
    COMPOSE_FILE,
    TAIL,
    Cluster,
    Container,
    Failed,
    Images,
    compose_programs,
    docker,
    run,
    wait_for,
)
from tests.compose.logs import Event, events, moment, notes, table

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
    missing = f"no Docker engine at {host}"
    try:
        engine = docker("version", "--format", "{{.Server.Version}}").strip()
        missing = "Compose is not available"
        programs = compose_programs(os.environ.get("COMPOSE", ""))
    except Failed as error:
        say(f"compose-test: {missing}: {error}", file=sys.stderr)
        return 2
    say(f"Docker engine {engine} at {host}")

    images, compose = Images(secrets.token_hex(3)), next(iter(programs))
    cluster = Cluster(compose, images.name.replace(":", "-"), WORKER_CPUS=WORKER_CPUS, IMAGE=images.name)
    verdicts = []
    try:
        for program in programs:
            run(*shlex.split(program), "--file", str(COMPOSE_FILE), "config", "--quiet", timeout=60)
        listed = ", ".join(f"`{program}` {version}" for program, version in programs.items())
        verdicts.append(Verdict(True, f"deploy/compose.yaml is accepted by {listed}"))
        say(f"base image: {images.find_base()}")
        since = time.monotonic()
        say(f"image: {images.build(cluster)}; built in {time.monotonic() - since:.0f} s by `{compose}`\n")
        for act in (train_under_failures, *(partial(start_and_stop, training=training) for training in (False, True))):
            verdicts += play(act, cluster)
    except Failed as error:
        verdicts.append(Verdict(False, str(error)))
    finally:
        _ignore_signals()  # the rest is short and must complete
        verdicts.append(clean_up(cluster, images))
        say(*verdicts, sep="\n")
    failed = sum(not one.passed for one in verdicts)
    say(f"\ncompose-test: {failed} of {len(verdicts)} checks failed, {time.monotonic() - began:.0f} s in all")
    return 1 if failed else 0


def play(act: Callable[[Cluster], list[Verdict]], cluster: Cluster) -> list[Verdict]:
    """Starts the cluster, runs one part and removes the containers; after a failure it first shows their logs."""
    verdicts = []
    try:
        verdicts += act(cluster)
    except Failed as error:
        verdicts.append(Verdict(False, str(error)))
    try:
        if not all(one.passed for one in verdicts):
            for container in cluster.containers().values():
                last = cluster.log(container).splitlines()[-TAIL:]
                say(f"\n--- {container.name}: the last {TAIL} lines", *last, sep="\n")
        cluster.down()
    except Failed as error:
        verdicts.append(Verdict(False, str(error)))
    return verdicts


def train_under_failures(cluster: Cluster) -> list[Verdict]:
    """First part: one worker is killed, another is disconnected for a while, and the job completes."""
    # The engine, whose times the logs have, may be on another machine.
    ahead = moment(docker("info", "--format", "{{.SystemTime}}").strip()) - time.time()
    story: list[Event] = []

    def act(who: str, what: str) -> None:
        story.append(Event(time.time() + ahead, who, what))
        say(f"{story[-1].at - story[0].at:6.1f} s  {who}: {what}")

    act("cluster", f"`up`: two servers, then three workers with {WORKER_CPUS} cores each")
    cluster.up()
    start = story[0].at
    killed, cut, steps = inject_failures(cluster, act)
    seconds = None
    with suppress(Failed):  # the checks report it
        ended = wait_for(
            "the end", cluster.containers, TO_END, lambda found: not any(c.running for c in found.values())
        )
        seconds = max(one.ended for one in ended.values()) - start
    containers = cluster.containers()
    names = {container.host: container.name for container in containers.values()}
    for name, container in containers.items():
        story += events(name, cluster.log(container), names)
        if seconds is not None:
            story.append(Event(container.ended, name, f"ends with code {container.exit_code}"))
    say("", table(story, start), "", sep="\n")
    found = notes(event for event in story if event.who != "server-1")
    return check(seconds, found, killed.name, cut.name, steps, containers)


def inject_failures(cluster: Cluster, act: Callable[[str, str], None]) -> tuple[Container, Container, int]:
    """Kills the chief and disconnects another worker for a while; returns both, and the steps of the second by then."""
    status = wait_for(
        "the second epoch", cluster.status, TO_TRAIN, lambda status: any(one["epoch"] >= 2 for one in status["workers"])
    )
    hosts = {container.host: container for container in cluster.containers().values()}
    live = [worker for worker in status["workers"] if worker["state"] == "live"]
    chiefs, others = (
        [hosts[one["name"].rpartition("-")[0]] for one in live if one["chief"] == it] for it in (True, False)
    )
    if not chiefs or not others:
        raise Failed(f"a live chief and another live worker are needed; there are: {live}")
    killed, cut = chiefs[0], others[0]
    act(killed.name, "is killed; it was the chief")
    docker("kill", killed.id)
    act(cut.name, "is disconnected from the network")
    network = cluster.network()
    docker("network", "disconnect", network, cut.id)
    time.sleep(CUT_SECONDS)
    steps = partial(cluster.steps, cut)
    before = wait_for(f"the steps of {cut.name}", steps, TO_COME_BACK, lambda steps: True)
    act(cut.name, "is connected again")
    docker("network", "connect", "--alias", "worker", network, cut.id)
    with suppress(Failed):  # the checks report it
        after = wait_for(f"a step of {cut.name}", steps, TO_COME_BACK, lambda steps: steps > before)
        act(cut.name, f"continues: step {before:,}, then {after:,}")
    return killed, cut, before


def start_and_stop(cluster: Cluster, *, training: bool) -> list[Verdict]:
    """Second and third part: stopped right after its workers have started, or while it trains; without SIGKILL."""
    cluster.up()
    if training:
        wait_for("the first step", cluster.status, TO_TRAIN, lambda status: status["global_step"] > 0)
    seconds = cluster.stop()
    passed, says = exit_codes(cluster.containers(), at_once=not training)
    when = "while training" if training else "right after `up`"
    return [Verdict(passed, f"stopped {when}, in {seconds:.1f} s; {says}")]


def clean_up(cluster: Cluster, images: Images) -> Verdict:
    problems: list[str] = []
    for step in (cluster.down, cluster.left, images.remove, images.left):
        try:
            problems += step() or []
        except Failed as error:
            problems.append(str(error))
    left = "; ".join(problems) or "no container, network, volume or image"
    return Verdict(not problems, f"left behind: {left}")


def _stopped(number: int, frame: object) -> None:
    _ignore_signals()  # a second signal must not interrupt the cleanup
    sys.exit(128 + number)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
