"""Members that train badly on purpose, over real sockets: others train on, and the damage of one push is bounded."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.runtime.task_order import THREADS
from pswire.messages import Choice, Declaration, Gradient, Outcome, Pull, Push, Register, Renew
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency
from pswire.specs.initializers import RowNormal
from pswire.tensors.values import TensorSpec
from tests.support.servers import Client

#: Seconds that others wait for a member without a push; its heartbeats come sooner than its lease ends.
PROGRESS_TIMEOUT, LEASE = 0.2, 3.0


@contextmanager
def servers(shards=1, lease=60.0, **options):
    """The clients of servers of one job, by shard."""
    with ExitStack() as stack:
        clients = []
        for shard in range(shards):
            config = ServerConfig(shard=shard, shards=shards, lease=lease, **options)
            clients.append(Client(stack.enter_context(ServerThread(config)).address))
            stack.callback(clients[-1].channel.close)
        yield clients


def push(client, sender, sequence, value=1.0, version=0, **fields):
    """The answer to a push of one gradient of W, with the value of W."""
    gradient = Gradient("W", version, np.full(3, value, np.float32))
    return client.transfer(Push(sender=sender, sequence=sequence, gradients=(gradient,), pull=("W",), **fields))


def renewing(client, member, waiting):
    """The answer of a call that waits, during which a member does nothing but renew its lease."""
    renewed = []
    while not waiting.done():
        renewed.append(client.unary(Renew(sender=member)))
    return waiting.result(), renewed


@pytest.mark.parametrize("consistency", ["bounded:0", "sync:2"])
@pytest.mark.slow
def test_a_member_that_pushes_once_and_then_only_renews_its_lease_does_not_stop_the_others(consistency):
    options = {"consistency": parse_consistency(consistency), "progress_timeout": PROGRESS_TIMEOUT, "lease": LEASE}
    with servers(**options) as (client,), ThreadPoolExecutor(2) as threads:
        worker, member = client.join("worker"), client.join("member")
        client.register(worker, W=np.zeros(3, np.float32))
        once = threads.submit(push, client, member, 1)
        if consistency == "sync:2":
            push(client, worker, 1)
        assert once.result().outcome is Outcome.APPLIED
        answer, renewed = renewing(client, member, threads.submit(push, client, worker, 2, version=1))
        assert (answer.outcome, renewed[0].waiting_for) == (Outcome.APPLIED, "")
        row = client.status().workers[1]
        assert (row.name, row.state) == ("member", "live")
        assert row.waiting_for.startswith("not waited for: it exceeded --progress-timeout")
        renewing(client, worker, threads.submit(push, client, member, 2))  # it counts again: others wait for it
        assert client.status().workers[1].waiting_for == ""


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [1e30, 1.0], ids=["checked", "ordinary"])
def test_others_push_while_a_member_has_the_server_fill_large_tables_with_random_numbers(gradient):
    """The tables take all threads for some tenths of a second; a push is answered in between, also a checked one."""
    with servers() as (client,), ThreadPoolExecutor(1) as threads:
        worker, member = client.join("worker"), client.join("member")
        W = np.full((400, 400), gradient, np.float32)
        client.register(worker, W=np.zeros_like(W))
        specs = [TensorSpec(f"T{one}", (1 << 14, 16), "float32") for one in range(32 * THREADS)]
        tables = tuple([Declaration(spec, None, GradientDescent(1.0), RowNormal(1.0)) for spec in specs])
        filled, pushes = threads.submit(client.unary, Register(sender=member, declarations=tables)), 0
        while len(client.status().variables) == 1:
            pass  # the registration has not arrived
        while not filled.done():
            pushes += 1
            client.transfer(Push(sender=worker, sequence=pushes, gradients=(Gradient("W", 0, W),)))
        assert pushes > 2
        first = client.unary(Pull(sender=member, names=(), choices=(Choice("T0", np.array([0, (1 << 14) - 1])),)))
        assert 0.1 < np.abs(first.values[0].array).mean() < 3


def trained(consistency, steps=15):
    """The distance from the goal after some steps of five workers, one of which pushes large finite numbers."""
    goal = np.array([1, -2, 3], np.float32)
    with servers(consistency=parse_consistency(consistency)) as (client,), ThreadPoolExecutor(5) as threads:
        senders = [client.join(f"w{number}") for number in range(5)]
        client.register(senders[0], GradientDescent(0.5), W=np.zeros(3, np.float32))
        value, random = np.zeros(3, np.float32), np.random.default_rng(7)
        for step in range(steps):
            gradients = [value - goal + random.normal(0, 0.1, 3).astype(np.float32) for _ in range(4)]
            gradients.append(random.choice([-1e6, 1e6], 3).astype(np.float32))
            pushes = [
                Push(sender=sender, sequence=step + 1, gradients=(Gradient("W", step, gradient),), pull=("W",))
                for sender, gradient in zip(senders, gradients, strict=True)
            ]
            answers = list(threads.map(client.transfer, pushes))
            value = answers[0].values[0].array
        return float(np.abs(value - goal).max())


@pytest.mark.slow
def test_sync_with_a_median_or_trimmed_mean_trains_beside_a_worker_that_pushes_garbage_and_with_the_mean_it_does_not():
    assert trained("sync:5,aggregate=median") < 0.2
    assert trained("sync:5,aggregate=trimmed:0.2") < 0.2
    assert trained("sync:5") > 1e3
