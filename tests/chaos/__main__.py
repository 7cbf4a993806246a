"""Consistency under faults: `make chaos`, or `python -m tests.chaos` in the repository's root.

Trains a job with real servers and workers under each consistency policy and staleness handling, on one to three shards.
Meanwhile workers are killed, stopped, started twice and made to fail, servers are stopped, killed and started again,
and connections are cut, reset, stalled and refused. Finally the job completes, and the values on the servers, and those
in each checkpoint on disk, are compared with the workers' records of each push and example (`check`). Prints a table;
if a guarantee was broken, the exit code is 1, and records and logs are kept.

    python -m tests.chaos --only sync:2,backup=2 --staleness none --shards 2 --seed 7        one configuration
    python -m tests.chaos --transport grpc                                                   tensors by gRPC
"""

import asyncio
import itertools
import json
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from psserver.rpc.unix_sockets import sweep
from pswire.specs.consistency import Synchronous, parse_consistency, parse_staleness
from psworker.config import TRANSPORTS
from psworker.transport import DIRECT, GRPC
from tests.chaos import scheme
from tests.chaos.check import Check
from tests.chaos.cluster import LEASE, NETWORK, WEIGHTS, WITHIN, Cluster, Faults

TO_END = 90.0  # seconds for the job to complete after the last fault
BATCH, EPOCHS = 4, 2
RATES = {"async": 150, "bounded": 60, "sync": 35}  # assumed pushes per second
PAUSE = 0.01  # longest time of a step beside its push, seconds
ENOUGH = 5  # faults of a kind, one of which at least meets a direct connection
MOST_SHOWN = 3  # lines for each kind of violation

#: Columns of the table of results, and counts of `Check`.
COUNTS = [
    "pushes",
    "lost",
    "doubled",
    "half",
    "reads",
    "torn",
    "dropped",
    "worst staleness",
    "examples twice",
    "checkpoints",
    "half in checkpoint",
]

say = partial(print, flush=True)


@click.command(help="Verifies guarantees under injected faults.")
@click.option("--only", metavar="CONSISTENCY", multiple=True, help="May be given several times.")
@click.option("--staleness", metavar="HANDLING", multiple=True, help="none or drop:T.")
@click.option("--shards", type=click.IntRange(1, 3), multiple=True)
@click.option("--seed", type=int, help="Of the random generator; printed if not given.")
@click.option("--seconds", default=8.0, help="Length of a job without faults; they last at most twice that time.")
@click.option("--keep", is_flag=True, help="Keep all records and logs.")
@click.option("--faults", default=",".join(WEIGHTS), help="Only these, separated by commas; '' for none.")
@click.option("--transport", type=click.Choice(TRANSPORTS), default="auto", show_default=True, help="Of workers.")
def main(only, staleness, shards, seed, seconds, keep, faults, transport) -> None:
    kinds = [kind for kind in faults.split(",") if kind]
    if unknown := set(kinds) - set(WEIGHTS):
        raise click.BadParameter(f"unknown: {', '.join(sorted(unknown))}", param_hint="--faults")
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    say(f"seed {seed}\n")
    total, passed, met = Counter(), Counter(), Counter()
    results, injected = [["", *COUNTS, "violations"]], [["faults injected", *WEIGHTS, "workers"]]
    policies = only or ("async", "bounded:2", "sync:3", "sync:2,backup=2")
    for options in itertools.product(policies, staleness or ("none", "drop:2"), shards or (1, 2, 3)):
        began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="chaos-"))
        name = f"{' '.join(options[:2]).removesuffix(' none')}, {options[2]} shard{'s' * (options[2] > 1)}"
        try:
            check, *counted = asyncio.run(run_one(name, folder, *options, seed, seconds, kinds, transport))
        except BaseException as error:
            shutil.rmtree(folder)
            if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
                sys.exit(130)
            raise
        finally:
            sweep()  # sockets of killed servers
        count = counted[0]
        for sums, one in zip((total, passed, met), counted, strict=True):
            sums.update(one)
        word, workers = "BROKEN" if check.violations else "kept", len(check.histories)
        say(f"{name}: {word}; {time.monotonic() - began:.0f} s, {workers} workers, {count.total()} faults")
        for kind, lines in check.violations.items():
            say(*(f"    {kind} ({len(lines)}): {line}" for line in lines[:MOST_SHOWN]), sep="\n")
        if check.violations or keep:
            command = "--only {} --staleness {} --shards {} --seed {} --seconds {}".format(*options, seed, seconds)
            command += f" --transport {transport}"
            say(f"    records and logs: {folder}\n    python -m tests.chaos {command} --faults {shlex.quote(faults)}")
        else:
            shutil.rmtree(folder)
        violations = ", ".join(f"{len(lines)} {kind}" for kind, lines in check.violations.items()) or "0"
        results.append([name, *(f"{check.counts[what]:,}" for what in COUNTS), violations])
        injected.append([name, *(str(count[kind]) for kind in WEIGHTS), str(workers)])
    say("", *table(results), "", *table(injected), sep="\n")
    say("", *reach(total, passed, met), sep="\n")
    broken = sum(row[-1] != "0" for row in results[1:])
    say(f"\nchaos: {broken} of {len(results) - 1} configurations broke a guarantee; seed {seed}")
    missed = unreached(transport, total, passed, met)
    say(*(f"chaos: {line}" for line in missed), sep="\n")
    sys.exit(1 if broken or missed else 0)


async def run_one(
    name: str,
    folder: Path,
    policy: str,
    handling: str,
    shards: int,
    seed: int,
    seconds: float,
    kinds: Sequence[str],
    transport: str,
) -> tuple[Check, Counter[str], Counter[str], Counter[str]]:
    """Runs one configuration: servers, workers, faults, verification.

    Returns also the number of faults by kind, and `passed` and `met` of proxies.
    """
    cancel = asyncio.current_task().cancel
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel)  # as Ctrl-C: leaves nothing behind
    consistency, staleness = parse_consistency(policy), parse_staleness(handling)
    gradients, workers = 1, 3
    if isinstance(consistency, Synchronous):
        gradients, workers = consistency.workers, consistency.workers + consistency.backup
    # The last batch is a smaller one.
    examples = max(1, int(RATES[policy.partition(":")[0]] * seconds) // EPOCHS) * BATCH + 3
    flags = ["--consistency", policy, "--staleness", handling]
    settings = {"seed": seed, "unit": scheme.unit_of(gradients), "batch": BATCH, "epochs": EPOCHS, "pause": PAUSE}
    settings |= {"examples": examples, "compensated": False, "marks": False, "images": False}
    settings |= {"partial": gradients == 1}  # gradients of a synchronous update are for the same
    cluster = Cluster(folder, shards, flags, settings, transport=transport)
    faults = Faults(cluster, random.Random(f"{seed}, {name}"), kinds)
    try:
        for server in cluster.servers:
            await asyncio.to_thread(server.wait_for, "listening on")
        for number in range(workers):
            await faults.start(f"w{number}")
        await faults.inject(2 * seconds)
        complete = await faults.finish(TO_END)
        finals, status = await asyncio.to_thread(cluster.finals)
        cuts = await asyncio.to_thread(cluster.cuts)
    finally:
        cluster.close()
    facts = {"configuration": name, "seed": seed, "faults": faults.count, "complete": complete}
    fields = ("column", "name", "ended_by", "code", "faults")
    facts["workers"] = [{field: getattr(worker, field) for field in fields} for worker in cluster.workers]
    (folder / "run.json").write_text(json.dumps(facts, indent=1))
    cluster.read_records()
    data = {"examples": examples, "epochs": EPOCHS, "half_pushes": status.half_pushes, "complete": complete}
    check = Check(consistency, staleness, cluster.workers, finals, LEASE, cuts=cuts, **data)
    return check, faults.count, *cluster.counts()


def reach(injected: Counter[str], passed: Counter[str], met: Counter[str]) -> list[str]:
    """What passed proxies, and which of their faults met direct connections."""
    carried = ", ".join(f"{passed[name] / 1e6:.1f} MB by {name}" for name in (GRPC, DIRECT))
    faults = ", ".join(f"{met[kind]} by {injected[kind]} {kind}" for kind in NETWORK)
    return [
        f"through proxies: {carried}",
        f"proxies with a direct connection that were disturbed: {faults}; {met[WITHIN]} {WITHIN}",
    ]


def unreached(transport: str, injected: Counter[str], passed: Counter[str], met: Counter[str]) -> list[str]:
    """Why this run says nothing of its transport: faults did not meet it, or tensors went by another one."""
    if transport == "grpc":
        return [f"{passed[DIRECT]} bytes passed direct connections, and none should"] * (passed[DIRECT] > 0)
    kinds = [kind for kind in NETWORK if injected[kind] >= ENOUGH and not met[kind]]
    return [f"none of {injected[kind]} {kind} faults met a direct connection" for kind in kinds]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return [f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines]


if __name__ == "__main__":
    main()
