"""Records folders of jobs with journals and checkpoints, and the states of the shards that wrote them.

`tests/fixtures/jobs/NAME/` is a folder as a server that was killed has left it, `NAME.json` beside it the shards'
states at that moment. A cluster of two shards has all in one folder.
"""

import asyncio
import contextlib
import shutil
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import numpy as np

from psserver.storage import checkpoints
from pswire import messages as ms
from pswire import optimizers
from pswire.errors import SessionNotBegun
from pswire.specs import schedules, vectors
from pswire.specs.initializers import RowUniform
from pswire.tensors.compression import quantize_int8, to_16_bits, top_k
from pswire.tensors.values import IndexedSlices, Part, TensorSpec
from tests.recorded.commands import outputs
from tests.recorded.descriptions import as_json, describe_shard
from tests.recorded.formats import FIXTURES
from tests.recorded.server import Server
from tests.support.files import copy_of_one_moment

A, B, C = [ms.Sender(name, 1) for name in "abc"]
KEY = bytes(range(16))
EXAMPLES = ms.QueueSpec(name="examples", size=10, block=3, epochs=2, seed=1)
STREAM = ms.QueueSpec(name="stream", size=0, block=4, epochs=0)


class Moment(datetime):
    """The time at which everything recorded was written."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 1, tzinfo=tz or UTC)


def record(write):
    """Write all jobs."""
    for name, job in {"every_kind": every_kind, "synchronous": _synchronous, "two_shards": _two_shards}.items():
        kept = asyncio.run(recorded(job, FIXTURES / "jobs" / name))
        write("jobs", f"{name}.json", data=kept)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(shutil.copytree(FIXTURES / "jobs" / name, Path(place, name)))
            write("jobs", f"{name}.commands.json", data=outputs(folder, len(kept["shards"])))


async def recorded(job, destination):
    """Run a job in a folder of its own; its disk at the last moment is copied, and what the job returns is returned."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(checkpoints, "datetime", Moment):
        here = Path(folder, "job")
        async with AsyncExitStack() as stack:
            kept = as_json(await job(here, stack))
            copy(here, destination)
        return kept


def copy(folder, destination):
    """The disk of a server that is killed now, without its locks, which are empty files."""
    shutil.rmtree(destination, ignore_errors=True)
    destination.parent.mkdir(parents=True, exist_ok=True)
    copy_of_one_moment(folder, destination)
    for lock in [*destination.rglob("*.lock"), *destination.rglob("lock")]:
        lock.unlink()


def joining(worker, process_nonce, *, incarnation=0, shard=0, shards=1, **fields):
    """The Join of a process."""
    at = {"incarnation": incarnation, "shard": shard, "shards": shards}
    return ms.Join(worker=worker, process_nonce=process_nonce, **at, **fields)


async def join_both(servers, worker, process_nonce, job, states):
    """Let a worker join two shards."""
    joined = await servers[0].ask(joining(worker, process_nonce, shards=2, job=job))
    there = {"incarnation": 1, "shard": 1, "shards": 2, "states": states, "job": joined.job}
    await servers[1].ask(joining(worker, process_nonce, **there))


def declared(name, value, optimizer=None, part=None):
    value = np.asarray(value)
    return ms.Declaration(TensorSpec.of(name, value), value, optimizer, None, part)


# --- every kind of message --------------------------------------------------------------------------------------------

W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
ZERO = np.zeros(12, np.float32)
GRADIENT = (np.arange(12, dtype=np.float32).reshape(4, 3) - 5) / 16
ROWS = IndexedSlices(np.full((3, 2), 0.25, np.float32), np.array([4, 0, 4]), (6, 2))
DECLARED = (
    declared("W", W, optimizers.Adam(0.01)),
    declared(
        "V", np.array([0.5, -0.25, 2.0]), optimizers.Momentum(schedules.WarmUp(4, schedules.CosineDecay(0.1, 50)))
    ),
    declared(
        "H", np.array([[0.5, 1.5], [2.5, -1.0]], np.float16), optimizers.RMSProp(0.02, momentum=0.5, centered=True)
    ),
    declared("average", np.ones(2, np.float32), optimizers.MovingAverage(0.9)),
    declared("counts", np.arange(3, dtype=np.int32)),
    declared("flags", np.array([True, False])),
    declared("empty", np.zeros((0, 3), np.float32), optimizers.GradientDescent(0.1)),
    declared("scalar", np.array(1.5), optimizers.GradientDescent(0.5)),
    ms.Declaration(TensorSpec("table", (6, 2)), None, optimizers.Adagrad(0.1), RowUniform(-1.0, 1.0, 3)),
)


async def every_kind(folder, stack):
    """One shard that keeps all segments of its journal, with two checkpoints; its last worker is still there."""
    new = Server(
        folder, staleness="delay-compensated", lease=60.0, max_gradient_norm="8:clip", journal=True, keep_journal=True
    )
    server = await stack.enter_async_context(new)
    ask = server.ask
    job = ms.Job(0, "example", 1)
    await ask(joining("a", 11, tensor_transport="gRPC", job=job, program="train.py", name_key=KEY, workers=3))
    await ask(joining("b", 12, tensor_transport="shared memory", job=job))
    await ask(ms.Register(sender=A, declarations=DECLARED))
    await ask(ms.Register(sender=B, declarations=DECLARED[:2]))
    await ask(ms.Pull(sender=A, names=("W", "V", "H"), encoding="bfloat16"))
    await ask(
        ms.Pull(sender=B, names=("W",), choices=(ms.Choice("table", np.array([4, 0])), ms.Choice("W", None, "m")))
    )
    await ask(joining("c", 13, tensor_transport="gRPC", job=job))
    # dense, sparse and compressed gradients
    await _push(ask, A, 1, W=GRADIENT, V=np.array([0.5, 0.25, -1.0]), table=ROWS, loss=2.5)
    await _push(ask, B, 1, W=quantize_int8(GRADIENT, ZERO.copy()), loss=2.25, pull=("W",))
    await _push(ask, C, 1, W=top_k(GRADIENT, ZERO.copy(), 2), V=np.array([0.125, 0.0, 0.5]))
    await _push(ask, A, 2, W=to_16_bits(GRADIENT, "bfloat16"), H=np.full((2, 2), 0.5, np.float16))
    packed = IndexedSlices(to_16_bits(ROWS.values, "float16"), ROWS.indices, ROWS.shape)
    await _push(ask, B, 2, table=packed, average=np.array([3.0, 5.0], np.float32), scalar=np.array(-0.5))
    await _push(ask, B, 2, table=packed)  # a retry
    await _push(ask, C, 2, V=np.array([64.0, 0.0, 0.0]), loss=float("nan"))  # clipped
    await _push(ask, C, 3)  # without gradients
    # values and hyperparameters
    await ask(ms.Assign(sender=A, sequence=3, assignments=(ms.Assignment("counts", np.array([7, 8, 9], np.int32)),)))
    await ask(
        ms.Assign(sender=A, sequence=4, assignments=(ms.Assignment("W", np.ones((2, 3), np.float32), 1),), add=True)
    )
    await ask(ms.Tune(sender=A, sequence=5, names=("W",), optimizer=optimizers.Adam(0.5), fields=("learning_rate",)))
    # data queues
    await ask(ms.Take(sender=A, queue=EXAMPLES))
    await ask(ms.Take(sender=B, queue=EXAMPLES))
    await ask(ms.Take(sender=C, queue=EXAMPLES))
    await ask(ms.Take(sender=B, queue=STREAM))
    await _push(
        ask, A, 6, scalar=np.array(0.25), progress=(ms.Progress(queue="examples", block=0, position=2, cost_sum=1.25),)
    )
    await ask(ms.Take(sender=A, queue=EXAMPLES, finished=ms.Finished(0, 1.5)))
    await ask(ms.Take(sender=C, queue=EXAMPLES, give_back=True))
    await server.checkpoint()
    # a minimization
    evaluation = ms.Evaluation(1, 10, 4)
    point = ms.AcceptedPoint(iterations=0, evaluations=1, loss=0.75, gradient=0.5)
    await ask(ms.Evaluate(sender=A, name="fit", evaluation=evaluation, wait=False, term=1))
    for worker in (A, B, C):
        await ask(ms.TakePortion(sender=worker, name="fit"))
    await ask(ms.ClaimPortion(sender=A, name="fit", evaluation=1, portion=0, loss=1.5))
    await ask(ms.ClaimPortion(sender=B, name="fit", evaluation=1, portion=1, loss=0.1))
    await ask(_sum(A, 7, (0,), W=GRADIENT, V=np.ones(3)))
    await ask(ms.TakePortion(sender=B, name="fit", evaluation=1, holding=(), withdrawn=(1,)))
    await ask(ms.ClaimPortion(sender=B, name="fit", evaluation=1, portion=1, loss=0.1))
    await ask(_sum(B, 3, (1,), W=-GRADIENT, V=np.full(3, 0.5)))
    taker = await server.pending(ms.TakePortion(sender=A, name="fit", evaluation=1))
    evaluator = await server.pending(ms.Evaluate(sender=A, name="fit", evaluation=evaluation, term=1))
    server.tick(3.0)  # the portion of c is still out
    await taker
    await evaluator
    steps = (vectors.Copy("direction", vectors.GRADIENT), vectors.Scale("direction", -1.0), vectors.Fill("mask", 1.0))
    steps += (vectors.Axpy(vectors.VARIABLES, 0.125, "direction"), vectors.Dot("direction", vectors.GRADIENT))
    await ask(
        ms.Compute(sender=A, sequence=8, names=("W", "V"), operations=steps, minimization="fit", term=1, note="noted")
    )
    await ask(ms.Evaluate(sender=A, name="other", evaluation=ms.Evaluation(1, 2, 1), wait=False, term=1))
    await ask(ms.Evaluate(sender=A, name="other", end='{"loss": 0.5}', point=point, term=1))
    # heartbeats, interventions
    await ask(ms.Renew(sender=B, settled=3, half_pushes=1, tensor_transport="gRPC"))
    await ask(ms.Intervene(by="operator", reason="its data are bad", quarantine=("c",), scale_learning_rate=0.5))
    await _push(ask, C, 4, V=np.ones(3))  # dropped
    await ask(ms.Intervene(by="operator", reason="its data are good again", quarantine=("b",), release=("c",)))
    await _push(ask, C, 5, V=np.full(3, 0.0625), loss=1.0)
    await server.checkpoint()
    # what time brings about
    server.tick(30.0)
    await ask(ms.Renew(sender=A, idle=True, settled=8))
    await ask(ms.Renew(sender=B, settled=3))
    server.tick(40.0)  # c is lost, and its block and portion are handed out again
    overdue = await server.pending(ms.Take(sender=A, queue=ms.QueueSpec(name="single", size=2, block=2, epochs=1)))
    await overdue
    overdue = await server.pending(ms.Take(sender=B, queue=ms.QueueSpec(name="single", size=2, block=2, epochs=1)))
    server.tick(3.0)
    await overdue
    passed = await server.pending(ms.Barrier(A, 1))
    await ask(ms.Barrier(B, 1))
    await passed
    await ask(ms.Stop(B, "that is enough"))
    await ask(ms.Leave(B, failed=True))
    await ask(joining("b", 14, job=ms.Job(1, "example", 1)))
    await _push(ask, ms.Sender("b", 2), 1, V=np.full(3, 0.5))  # dropped: it is in quarantine in this life too
    await _push(ask, A, 9, W=GRADIENT, loss=0.5, pull=("W", "V"))
    await server.settled()
    return {"shards": [describe_shard(server.shard)]}


async def _push(ask, sender, sequence, loss=None, pull=(), progress=(), version=0, **gradients):
    chosen = tuple([ms.Gradient(name, version, array) for name, array in gradients.items()])
    return await ask(
        ms.Push(sender=sender, sequence=sequence, gradients=chosen, loss=loss, pull=pull, progress=progress)
    )


def _sum(sender, sequence, numbers, **arrays):
    assignments = tuple([ms.Assignment(name, array) for name, array in arrays.items()])
    portions = ms.CountedPortions("fit", 1, numbers)
    return ms.Assign(sender=sender, sequence=sequence, assignments=assignments, add=True, portions=portions)


# --- a synchronous job ------------------------------------------------------------------------------------------------


async def _synchronous(folder, stack):
    """Job 2 of a shard: pushes that are held over a checkpoint, a stalled worker, and a session that awaits workers."""
    new = Server(folder, consistency="sync:2", lease=60.0, progress_timeout=20.0, journal=True, keep_journal=True)
    server = await stack.enter_async_context(new)
    ask, one = server.ask, np.array([1.0, 2.0])
    variable = declared("W", np.zeros(2), optimizers.GradientDescent(0.5))
    await ask(joining("a", 21, job=ms.Job(0, "first")))
    await ask(ms.Register(sender=A, declarations=(variable,)))
    await ask(ms.Leave(A))
    await ask(ms.Reset(2))
    job = ms.Job(0, "second", 1)
    joined = [await ask(joining(name, 22, job=job, workers=3)) for name in "ab"]
    a, b = [ms.Sender(name, one.incarnation) for name, one in zip("ab", joined, strict=True)]
    await ask(ms.Register(sender=a, declarations=(variable,)))
    held = await server.pending(ms.Push(sender=a, sequence=1, gradients=(ms.Gradient("W", 0, one),), loss=0.5))
    await server.checkpoint()
    await ask(ms.Push(sender=b, sequence=1, gradients=(ms.Gradient("W", 0, one),), loss=0.25))
    await held
    held = await server.pending(ms.Push(sender=a, sequence=2, gradients=(ms.Gradient("W", 1, one),)))
    server.tick(1.0)
    server.tick(25.0)  # b is stalled: a goes on without it
    await held
    await ask(ms.Renew(sender=b, settled=1))
    late = await server.pending(ms.Push(sender=b, sequence=2, gradients=(ms.Gradient("W", 1, one),)))
    held = await server.pending(ms.Push(sender=a, sequence=3, gradients=(ms.Gradient("W", 2, one),)))
    third = await server.pending(ms.Push(sender=b, sequence=3, gradients=(ms.Gradient("W", 2, one),)))
    await asyncio.gather(late, held, third)
    await ask(ms.Leave(a))
    await ask(ms.Leave(b))
    join = joining("a", 23, job=ms.Job(0, "second", 2), workers=3)
    with contextlib.suppress(SessionNotBegun):
        await ask(join)
    server.tick(70.0)  # the third worker has not come
    last = await ask(join)
    a = ms.Sender("a", last.incarnation)
    await ask(ms.Register(sender=a, declarations=(variable,)))
    held = await server.pending(ms.Push(sender=a, sequence=1, gradients=(ms.Gradient("W", 0, one),), loss=0.125))
    await server.settled()
    kept = {"shards": [describe_shard(server.shard)]}
    held.cancel()
    return kept


# --- two shards -------------------------------------------------------------------------------------------------------


async def _two_shards(folder, stack):
    """Two shards whose order of changes shard 0 decides, with a cut that has late changes on shard 1."""
    options = {"consistency": "bounded:3", "staleness": "drop:5", "journal": True, "keep_journal": True}
    servers = [await stack.enter_async_context(Server(folder, n, 2, identity=101 + n, **options)) for n in range(2)]
    first, second = servers
    job, states, groups = ms.Job(0, "example"), (101, 102), {}
    for number, name in enumerate("ab", 31):
        await join_both(servers, name, number, job, states)
    rule = optimizers.Adam(0.1)
    table = ms.Declaration(TensorSpec("table", (3, 2)), None, rule, RowUniform(-1.0, 1.0, 7), Part(0, 5))
    places = (ms.Place("U", 0), ms.Place("V", 1), ms.Place("table", 0))
    await first.ask(
        ms.Register(sender=A, declarations=(declared("U", np.ones(2), rule), table), places=places, states=states)
    )
    table = ms.Declaration(TensorSpec("table", (2, 2)), None, rule, RowUniform(-1.0, 1.0, 7), Part(3, 5))
    await second.ask(
        ms.Register(sender=A, declarations=(declared("V", np.ones((2, 2), np.float32), rule), table), states=states)
    )

    async def push(sender, sequence, cut=0, only=(0, 1)):
        value = np.full(2, 0.5 * sequence)
        rows = IndexedSlices(np.full((1, 2), 0.5, np.float32), np.array([1]), (3, 2))
        gradients = ms.Gradient("U", 0, value), ms.Gradient("table", 0, rows)
        same, remote = {"sender": sender, "sequence": sequence, "cut": cut}, (ms.RemoteWeights("V", 0),)
        if 0 in only:
            message = ms.Push(gradients=gradients, loss=0.5, shards=(1,), remote=remote, **same)
            groups[sender, sequence] = await first.ask(message)
        if 1 in only:
            pushed = groups[sender, sequence]
            after = () if pushed.frontier is None else pushed.frontier.undelivered
            gradients = (ms.Gradient("V", 0, np.full((2, 2), 0.25, np.float32)),)
            same |= {"group": pushed.group, "global_step": pushed.global_step}
            await second.ask(ms.Push(gradients=gradients, after=after, **same))

    await push(A, 1)
    await push(B, 1)
    await push(A, 2, only=(0,))
    number = (await first.ask(ms.Cut())).number
    await second.ask(ms.Cut(number))
    await push(A, 2, only=(1,))  # belongs to the cut, and comes late
    await second.ask(
        ms.Assign(sender=B, sequence=2, assignments=(ms.Assignment("V", np.ones((2, 2), np.float32)),), add=True)
    )
    for server in servers:
        for sender in (A, B):
            await server.ask(ms.Renew(sender=sender, settled=2, cut=number))
    for server in servers:
        await server.written(number)
    await push(B, 3, cut=number)
    await push(A, 3, cut=number, only=(0,))  # half applied
    for server in servers:
        server.tick(1.0)
        await server.settled()
    return {"shards": [describe_shard(server.shard) for server in servers]}
