"""What a member could let grow without bound, over real sockets: refused, forgotten or given back; others train on."""

from contextlib import ExitStack, suppress

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.core.data import data_queues
from psserver.core.variables import store
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire.messages import (
    Cut,
    Declaration,
    Finished,
    Gradient,
    Join,
    Leave,
    Place,
    Push,
    QueueSpec,
    Register,
    Renew,
    Reset,
    Sender,
    Take,
)
from pswire.specs.initializers import RowUniform
from pswire.tensors.values import TensorSpec
from tests.support.servers import Client, join_all

W = np.zeros(2, np.float32)


def served(**options):
    """A server, and a client of it."""
    return ServerThread(ServerConfig(lease=60.0, **options))


def push(client, sender, sequence=1):
    return client.unary(Push(sender=sender, sequence=sequence, gradients=(Gradient("W", 0, np.ones(2, np.float32)),)))


def test_a_flood_of_joins_is_refused_at_the_limit_and_members_train_on():
    with served(max_workers=5) as server:
        client = Client(server.address)
        worker = client.join("worker")
        client.register(worker, W=W)
        for number in range(4):
            client.join(f"w{number}")
        for number in range(4, 9):  # further refusals of one connection would be answered later and later
            with pytest.raises(errors.Unavailable, match="5 workers are live"):
                client.join(f"w{number}")
        assert push(client, worker).global_step == 1
        client.unary(Leave(Sender("w0", 1)))
        assert client.unary(Renew(sender=client.join("last"))).global_step == 1
        client.channel.close()


#: The elements of a table that takes three quarters of the memory for variables, which is half of the limit.
LIMIT, ROWS = 1 << 22, (3 << 20) // 2 // 4


def table(sender, name, rows=ROWS):
    """A registration of some 100 bytes, for which the server fills a table."""
    return Register(
        sender=sender,
        declarations=(Declaration(TensorSpec(name, (rows, 1), "float32"), None, None, RowUniform(-1.0, 1.0)),),
    )


@pytest.mark.parametrize("forced", [False, True])
def test_memory_that_a_member_fills_by_a_small_message_is_bounded_and_given_back_with_its_job(forced):
    with served(memory_limit=LIMIT) as server:
        client = Client(server.address)
        member = client.join("member")
        with pytest.raises(errors.TooLarge, match="may hold 2,097,152"):
            client.unary(table(member, "huge", 1 << 40))
        client.unary(table(member, "first"))
        with pytest.raises(errors.TooLarge, match="use more shards, or raise --memory-limit"):
            client.unary(table(member, "second"))
        if forced:
            client.unary(Reset(2, force=True))
        else:
            client.unary(Leave(member))
        worker = client.join("worker")
        assert client.status().nbytes == 0
        client.unary(table(worker, "second"))
        assert client.status().nbytes == 4 * ROWS
        client.channel.close()


@pytest.mark.slow
def test_the_next_job_begins_while_the_last_checkpoint_of_the_job_before_is_written(tmp_path):
    with served(memory_limit=LIMIT, checkpoint_dir=tmp_path) as server:
        client = Client(server.address)
        member = client.join("member")
        client.unary(table(member, "first", ROWS // 2))
        client.unary(Leave(member))
        worker = client.join("worker")
        registered = None
        while registered is None:
            with suppress(errors.Unavailable):  # and not TooLarge: workers try again
                registered = client.unary(table(worker, "second"))
        assert client.status().nbytes == 4 * ROWS
        client.channel.close()


def test_empty_variables_and_places_count_with_what_they_take(monkeypatch):
    monkeypatch.setattr(store, "UNCOUNTED", 10)
    with served(memory_limit=2 * 5 * store.VARIABLE_BYTES, shards=2) as server:
        client = Client(server.address)
        member = client.unary(Join(worker="member", incarnation=0, shard=0, shards=2))
        member, empty = Sender("member", member.incarnation), np.zeros(0, np.float32)
        declared = [Declaration(TensorSpec.of(f"v{number}", empty), empty) for number in range(16)]
        for one in declared[:15]:
            client.unary(Register(sender=member, declarations=(one,)))
        with pytest.raises(errors.TooLarge, match="v15 with their slots need 8,192 bytes more"):
            client.unary(Register(sender=member, declarations=(declared[15],)))
        places = tuple([Place(f"p{number}", 1) for number in range(100)])
        with pytest.raises(errors.TooLarge):
            client.unary(Register(sender=member, declarations=(), places=places))
        assert client.status().totals.variables == 15
        client.channel.close()


def test_data_queues_are_bounded_and_others_go_on(monkeypatch):
    monkeypatch.setattr(data_queues, "MAX_QUEUES", 5)
    with served() as server:
        client = Client(server.address)
        member = client.join("member")
        for number in range(5):
            assert (
                client.unary(
                    Take(sender=member, queue=QueueSpec(name=f"q{number}", size=4, block=2, epochs=1))
                ).block.number
                == 0
            )
        with pytest.raises(errors.TooLarge, match="one more than the 5 that a job may have"):
            client.unary(Take(sender=member, queue=QueueSpec(name="q5", size=4, block=2, epochs=1)))
        assert (
            client.unary(
                Take(sender=member, queue=QueueSpec(name="q0", size=4, block=2, epochs=1), finished=Finished(0))
            ).block.number
            == 1
        )
        client.channel.close()


@pytest.mark.slow
def test_late_changes_of_a_cut_that_a_member_does_not_show_are_within_the_limit_and_the_next_one_is_written(tmp_path):
    options = {"shards": 2, "memory_limit": 2 << 20, "checkpoint_dir": tmp_path}
    with ExitStack() as stack:
        servers = [stack.enter_context(served(shard=shard, **options)) for shard in range(2)]
        clients = [Client(server.address) for server in servers]
        client, large = clients[0], np.zeros(16 << 10, np.float32)
        attacker, honest = [join_all(clients, name) for name in ("attacker", "honest")]
        client.register(honest, W=large)
        number = client.unary(Cut()).number
        client.unary(Renew(sender=honest, cut=number))
        sequence = 0
        while client.status().storage.writing:
            sequence += 1
            assert sequence < 30, "a limit of 1 MiB takes no more changes of 64 KiB, beside the variable and its copy"
            gradient = Gradient("W", 0, large)
            client.unary(Push(sender=attacker, sequence=sequence, gradients=(gradient,)))
        report = client.unary(Cut(number))
        assert "attacker did not show its number" in report.waiting_for
        assert not report.written
        again = number + 1
        while not all(one.unary(Cut(again)).written for one in clients):
            for one in clients:
                one.unary(Cut(again))
            if client.unary(Cut(again)).waiting_for.startswith("this shard has no part"):
                again += 1  # the one before was still being given up
            for one in clients:
                for sender in (attacker, honest):
                    one.unary(Renew(sender=sender, cut=again))
        for one in clients:
            one.channel.close()
