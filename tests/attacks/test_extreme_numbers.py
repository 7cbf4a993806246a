"""Extreme numbers in every integer field of every request: refused, or harmless to others and to the state on disk."""

from contextlib import ExitStack, suppress
from dataclasses import replace

import grpc
import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.core.part import MAX_GAP
from psserver.core.timelines import MAX_GAP as MAX_TIMELINE_GAP
from psserver.rpc import call_errors
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.codec import encode
from pswire.limits import MAX_BLOCK, MAX_NUMBER
from pswire.network.channel import member_metadata
from pswire.optimizers import GradientDescent
from pswire.specs.initializers import RowUniform
from pswire.tensors.transport import InlineSender
from pswire.tensors.values import IndexedSlices, Part, TensorSpec
from pswire.v1 import paramserver_pb2 as pb
from tests.support.combinations import few_fast
from tests.support.servers import NAME_KEY, Client, join_all

W = np.zeros(2, np.float32)
ROWS = IndexedSlices(np.ones((1, 1), np.float32), np.array([1]), (4, 1))
SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1
EXTREMES = (SMALLEST, 0, MAX_GAP, MAX_NUMBER, LARGEST)
QUEUE = ms.QueueSpec(name="q", size=8, block=4, epochs=2, seed=1, limit=5)


class Job:
    """The servers of a job with checkpoints and journals; they can be started again."""

    def __init__(self, folder, shards):
        configs = [ServerConfig(shard=n, shards=shards, lease=60.0, checkpoint_dir=folder) for n in range(shards)]
        self._configs = [replace(config, journal=True) for config in configs]
        self._stack = ExitStack()

    def __enter__(self):
        servers = [self._stack.enter_context(ServerThread(config)) for config in self._configs]
        self.clients = [Client(server.address) for server in servers]
        for client in self.clients:
            self._stack.callback(client.channel.close)
        return self

    def __exit__(self, *error):
        self._stack.close()

    def restart(self):
        self._stack.close()
        return self.__enter__()

    def send(self, shard, proto, token):
        """Whether a request is answered, not refused; one that would wait for others is given up soon."""
        method = getattr(self.clients[shard].stub, type(proto).__name__.removesuffix("Request"))
        with suppress(grpc.RpcError):
            method(proto, timeout=0.05, metadata=member_metadata(token))
            return True
        return False

    def train(self):
        """A new worker joins, registers, pushes, and leaves; and a status is answered."""
        worker = join_all(self.clients, "honest")
        for shard, client in enumerate(self.clients):
            client.register(worker, **{f"w{shard}": W})
        others = tuple(range(1, len(self.clients)))
        for shard, client in enumerate(self.clients):
            push = ms.Push(
                sender=worker,
                sequence=1,
                gradients=(ms.Gradient(f"w{shard}", 0, W + 1),),
                shards=() if shard else others,
            )
            assert client.unary(push).outcome is ms.Outcome.APPLIED
            assert client.unary(ms.Renew(sender=worker, settled=1)).global_step > 0
            assert client.status().global_step > 0
        for client in self.clients:
            client.unary(ms.Leave(worker))

    def end(self):
        """All members leave."""
        for name in {one.name for client in self.clients for one in client.status().workers if one.state == "live"}:
            member = join_all(self.clients, name)
            for client in self.clients:
                client.unary(ms.Leave(member))

    def write(self):
        """A checkpoint of all shards."""
        worker = join_all(self.clients, "writer")
        number, reports = 0, []
        while not all(report.written for report in reports) or not reports:
            if not reports or any(report.waiting_for.startswith("this shard has no part") for report in reports):
                number = 1 + max(client.unary(ms.Renew(sender=worker)).cut for client in self.clients)
            reports = [client.unary(ms.Cut(number)) for client in self.clients]
            for client in self.clients:
                client.unary(ms.Renew(sender=worker, cut=number))
        for client in self.clients:
            client.unary(ms.Leave(worker))


def requests(me, shard, shards, job, sequence):
    """A request of each kind, as this member would send it, with all its parts."""

    def mine(kind, **fields):
        """With its sender and its sequence number, if it has these."""
        own = {"sender": me, "sequence": sequence}
        return kind(**{name: value for name, value in own.items() if name in kind.__dataclass_fields__} | fields)

    change, name, on = ms.ChangeId(me, sequence, (1,)), f"w{shard}", {"shard": shard, "shards": shards}
    declared = ms.Declaration(TensorSpec("t", (4, 1), "float32"), None, GradientDescent(1.0), RowUniform(-1, 1))
    group = ms.UpdateGroup(number=1, members=(change,), pushes=1) if shard else None
    slices, whole, value = ms.Gradient("t", 0, ROWS), ms.Gradient(name, 0, W), ms.Assignment(name, W[:1], 1)
    progress = () if shard else (ms.Progress(queue="q", block=0, position=1),)
    point = ms.AcceptedPoint(iterations=1, evaluations=1, loss=0.5, gradient=0.5)
    fit = {"name": "m", "timeline": 1}
    counts = {"steps": 1, "settled": 1, "cut": 1}
    registered = {"places": (ms.Place("t", shard),), "states": (0,) * shards}
    return [
        ms.Join(worker=me.worker, incarnation=me.incarnation, job=job, timeline=1, **on, **counts),
        ms.Join(worker="new", incarnation=0, process_nonce=7, name_key=NAME_KEY, **on, **counts),
        mine(ms.Renew, settled=1, half_pushes=1, cut=1, written_by_all=1, timeline=1),
        mine(ms.Register, declarations=(replace(declared, part=Part(0, 4)),), **registered),
        mine(ms.Register, declarations=(declared,), cut=1, **registered),
        mine(ms.Pull, names=(name,), choices=(ms.Choice("t", np.array([1])),), known_versions=(-1,), of_cut=1),
        mine(ms.Push, gradients=(whole,), global_step=1, cut=1, progress=progress),
        mine(ms.Push, gradients=(slices,), after=(change,) * shard, group=group),
        mine(ms.Push, gradients=(whole,), shards=(1,) * (shards > 1 and not shard), remote=(ms.RemoteWeights("x", 1),)),
        mine(ms.Assign, assignments=(value,), cut=1, after=(change,) * shard),
        mine(
            ms.Assign,
            assignments=(ms.Assignment("t", ROWS.values, 1),),
            portions=ms.CountedPortions("m", 1, (0,)),
        ),
        mine(ms.Tune, names=(name,), optimizer=GradientDescent(0.5), fields=("learning_rate",), cut=1),
        mine(ms.Compute, names=(name,), operations=(), minimization="m", term=1, note="note", cut=1),
        mine(ms.Take, queue=QUEUE, finished=ms.Finished(0), reports_received=1, timeline=1),
        mine(ms.Evaluate, evaluation=ms.Evaluation(1, 10, 4), point=point, wait=False, cut=1, term=1, **fit),
        mine(ms.TakePortion, evaluation=1, holding=(0,), withdrawn=(1,), **fit),
        mine(ms.ClaimPortion, evaluation=1, portion=0, loss=0.5, **fit),
        ms.Cut(1, me),
        ms.Restore(1, 1),
        ms.Status(1),
        ms.Barrier(me, 1),
        ms.Stop(me, "over"),
        ms.Leave(me),
        ms.Reset(1, force=True),
        ms.Intervene(by="me", reason="why"),
    ]


def test_each_kind_of_request_is_tried():
    tried = {type(one) for one in requests(ms.Sender("w", 1), 0, 1, ms.Job(), 1)}
    assert tried == {call.request for call in ms.CALLS}


def integers(proto):
    """The paths of all integer fields of a request and its parts, also of parts that it does not have."""
    for field in proto.DESCRIPTOR.fields:
        if field.type in (field.TYPE_INT64, field.TYPE_INT32):
            yield (field.name,)
        elif field.message_type is not None and field.message_type.name not in ("Optimizer", "RowInitializer"):
            part = getattr(proto, field.name)
            if not field.is_repeated:
                yield from ((field.name, *path) for path in integers(part))
            elif part:
                yield from ((field.name, 0, *path) for path in integers(part[0]))


def put(proto, path, value):
    """Sets the integer at this path."""
    *outer, name = path
    for step in outer:
        proto = proto[step] if isinstance(step, int) else getattr(proto, step)
    field = proto.DESCRIPTOR.fields_by_name[name]
    if field.type == field.TYPE_INT32:
        value = min(max(value, -(1 << 31)), (1 << 31) - 1)
    if field.is_repeated:
        del getattr(proto, name)[:]
        getattr(proto, name).append(value)
    else:
        setattr(proto, name, value)


@pytest.fixture
def unhurried(monkeypatch):
    """Refusals of a connection are answered at once."""
    monkeypatch.setattr(call_errors, "PAUSE", 0.0)


def _bounded(message):
    """The integer fields of a message, none of them above what the protocol carries."""
    return {
        name: min(value, LARGEST)
        for name in type(message).__dataclass_fields__
        if type(value := getattr(message, name)) is int
    }


@pytest.mark.parametrize(("shards", "extremes"), few_fast([(1, EXTREMES), (2, (MAX_GAP, LARGEST))], fast=0))
def test_whatever_number_a_field_has_others_push_and_a_checkpoint_and_a_restart_work(
    tmp_path, unhurried, shards, extremes
):
    answered, shard = set(), shards - 1
    with Job(tmp_path, shards) as job:
        job.train()
        for kind in range(len(requests(ms.Sender("w", 1), 0, shards, ms.Job(), 1))):
            me, present = join_all(job.clients, "attacker"), job.clients[0].status().jobs[-1].job
            token, sequence = job.clients[0].token(me), 0
            paths = list(integers(encode(requests(me, shard, shards, present, 1)[kind], InlineSender())))
            for chosen in (*[[path] for path in paths], paths, paths):
                for value in extremes:
                    sequence += 1
                    message = requests(me, shard, shards, present, sequence)[kind]
                    proto = encode(message, InlineSender())
                    for path in chosen:
                        put(proto, path, value)
                    for one in range(shards) if isinstance(message, ms.Reset) else [shard]:
                        if job.send(one, proto, token):
                            answered.add(type(message))
            job.end()
            job.train()
            job.write()
        job.restart()
        job.train()
    assert {ms.Renew, ms.Register, ms.Cut, ms.Status} <= answered


@pytest.mark.slow
def test_numbers_that_a_shard_counts_on_from_cannot_be_raised_to_the_end_in_one_step_or_in_many(tmp_path, unhurried):
    with Job(tmp_path, 1) as job:
        job.train()
        (client,) = job.clients
        for _ in range(2):
            me = join_all(job.clients, "attacker")
            for number in (MAX_GAP + 1, MAX_NUMBER, LARGEST):
                for message in (
                    ms.Renew(sender=me, half_pushes=number),
                    ms.Cut(number + 1000),
                    ms.Restore(number, 1),
                    ms.Reset(number + 100, force=True),
                    ms.Push(sender=me, sequence=1, gradients=(ms.Gradient("w0", 0, W),), global_step=number + 100),
                    ms.Join(worker="new", steps=number),
                ):
                    proto = encode(replace(message, **_bounded(message)), InlineSender())
                    with pytest.raises((errors.InvalidMessage, errors.Malformed), match=r"without such gaps|at most"):
                        client.send(type(message).__name__, proto, client.token(me))
            client.unary(ms.Renew(sender=me, half_pushes=MAX_GAP))
        with pytest.raises(errors.InvalidMessage, match="timeline 1,002, but the last one known here is 1"):
            client.send("Restore", pb.RestoreRequest(timeline=MAX_TIMELINE_GAP + 2, cut=1), client.token(me))
        assert client.status().half_pushes == 2 * MAX_GAP
        job.end()
        job.write()
        job.restart()
        job.train()


def test_the_positions_of_a_queue_that_are_done_fit_into_a_status_however_large_its_blocks_are(tmp_path, unhurried):
    with Job(tmp_path, 1) as job:
        me, (client,) = join_all(job.clients, "attacker"), job.clients
        with pytest.raises(errors.Malformed, match=r"Queue\.block must be at most 4294967296, got 46116860"):
            client.unary(
                ms.Take(sender=me, queue=ms.QueueSpec(name="huge", size=MAX_NUMBER, block=MAX_NUMBER, epochs=0))
            )
        queue = ms.QueueSpec(name="large", size=MAX_BLOCK, block=MAX_BLOCK, epochs=0)
        for number in range(3):
            client.unary(ms.Take(sender=me, queue=queue, finished=ms.Finished(number - 1) if number else None))
        assert client.status().queues[0].done == 2 * MAX_BLOCK
