"""Servers that come back at other addresses, which workers and others find in the file that has them."""

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np
import pytest

import psworker as ps
from psjob.status.status_client import StatusClient
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from psworker import ops
from psworker.transport.network_transport import NetworkTransport
from tests.support.combinations import few_fast
from tests.support.commands import BOUND, free_address, wait_until

SIZE = 40_000  # elements: enough for shared memory
LEASE = 3.0  # seconds
SGD = ps.GradientDescent(1.0)


@pytest.fixture(autouse=True)
def names_are_looked_up_often(monkeypatch, servers_stop_at_once):
    monkeypatch.setattr("pswire.network.shard_addresses.LOOK_EVERY", 0.05)


class Moving:
    """Servers with journals, whose addresses are in a file."""

    def __init__(self, folder, stack, shards=2, **options):
        self.file, self._stack = folder / "servers", stack
        storage = {"checkpoint_dir": folder, "journal": True, "lease": LEASE, **options}
        self._configs = [ServerConfig(shard=shard, shards=shards, **storage) for shard in range(shards)]
        self._running = [self._start(shard) for shard in range(shards)]
        self.write()

    @property
    def name(self):
        return f"file:{self.file}"

    @property
    def addresses(self):
        return [server.address for _, server in self._running]

    def write(self):
        self.file.write_text("".join(f"{address}\n" for address in self.addresses))

    def stop(self, shard):
        self._running[shard][0].close()

    def start(self, shard, bind=""):
        """Starts a shard's server again, with what it had, at another address."""
        self._running[shard] = self._start(shard, bind)

    def move(self, *shards):
        for shard in shards:
            self.stop(shard)
        for shard in shards:
            self.start(shard)
        self.write()

    def swap(self):
        """Both shards come back, each at the address of the other; the file is as before."""
        first, second = self.addresses
        for shard in range(2):
            self.stop(shard)
        self.start(0, second)
        self.start(1, first)

    def _start(self, shard, bind=""):
        own = self._stack.enter_context(ExitStack())
        return own, own.enter_context(ServerThread(replace(self._configs[shard], bind=bind or free_address())))


@pytest.fixture
def servers(tmp_path):
    with ExitStack() as stack:
        yield Moving(tmp_path, stack)


class Training:
    """A worker that subtracts 1 from two variables in each step, of which each shard has one."""

    def __init__(self, session):
        self.session, self.steps = session, 0
        self.variables = [ps.Variable(np.zeros(SIZE, np.float32), name=name) for name in "ab"]

    def step(self):
        a, b = self.variables
        SGD.minimize(ops.sum(a) + ops.sum(b), [a, b])
        self.steps += 1
        for variable in self.variables:
            np.testing.assert_array_equal(variable.value, np.full(SIZE, -self.steps, np.float32))


@pytest.fixture
def training(servers):
    with ps.collection(), ps.session(servers.name, name="w0", timeout=BOUND, progress="off") as session:
        yield Training(session)


def transport_of(session):
    return session._client._calls.transport


@pytest.mark.parametrize("moved", few_fast([((0, 1),), ((0,),), ((1,),)]))
def test_a_worker_goes_on_with_shards_at_other_addresses_and_keeps_its_other_connections(servers, training, moved):
    training.step()
    before = list(transport_of(training.session)._connections)
    servers.move(*moved)
    for _ in range(3):
        training.step()
    after = transport_of(training.session)._connections
    assert [one.address for one in after] == servers.addresses
    assert [set(one._specs) for one in after] == [set(one._specs) for one in before], "the sizes of answers are known"
    assert [shard for shard in range(2) if after[shard] is not before[shard]] == list(moved)
    assert training.session._client.membership.rejoins == 0, "the worker's membership is in the journal"
    assert training.session.dropped == 0
    assert [transport_of(training.session).tensor_transport(shard) for shard in range(2)] == ["shared memory"] * 2


def test_a_push_that_is_sent_while_a_shard_is_away_is_applied_once_where_the_shard_is_then(servers, training):
    training.step()
    servers.stop(1)

    def come_back():
        wait_until(lambda: looks < addresses._next_look)  # a try has failed
        servers.start(1)
        servers.write()

    addresses = transport_of(training.session)._addresses
    looks = addresses._next_look
    with ThreadPoolExecutor(1) as pool:
        back = pool.submit(come_back)
        training.step()
        back.result(BOUND)
    training.step()


def test_nothing_is_applied_by_a_shard_that_has_the_address_of_another_one(servers, monkeypatch):
    """The variable's halves have the same name and shape on both shards, and the worker is a member of both."""
    monkeypatch.setattr("pswire.placement.SPLIT_BYTES", 64)
    with ps.collection(), ps.session(servers.name, timeout=BOUND, progress="off") as session:
        x = ps.Variable(np.zeros((64, 2)), name="x")
        factors = np.repeat([1.0, 100.0], 32)[:, None]
        SGD.apply_gradients([(np.broadcast_to(factors, x.shape), x)])
        assert len(x.versions) == 2
        servers.swap()
        with ThreadPoolExecutor(1) as pool:
            looks = transport_of(session)._addresses
            before = looks._next_look

            def listed():
                wait_until(lambda: before < looks._next_look)  # a try has failed
                servers.write()

            later = pool.submit(listed)
            SGD.apply_gradients([(np.broadcast_to(factors, x.shape), x)])
            later.result(BOUND)
        np.testing.assert_array_equal(x.value, np.broadcast_to(-2 * factors, x.shape))
        assert session.dropped == 0


@pytest.mark.slow
def test_heartbeats_find_a_shard_at_its_other_address_while_the_worker_computes(frequent_heartbeats, servers, training):
    training.step()
    servers.move(1)
    wait_until(lambda: transport_of(training.session)._connections[1].address == servers.addresses[1])
    with StatusClient(servers.addresses[1:]) as client:

        def lease_left():
            [worker] = client.ask(BOUND).workers
            assert worker.state == "live"
            return worker.lease_left

        left = lease_left()
        wait_until(lambda: lease_left() > left)


def test_a_call_to_an_address_where_nobody_answers_ends_when_the_shard_is_found_elsewhere(servers):
    """As after the loss of a machine, of which no packet comes back."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = servers.addresses
        servers.file.write_text(f"{addresses[0]}\n127.0.0.1:{silent.getsockname()[1]}\n")
        with closing(NetworkTransport([servers.name])) as transport, ThreadPoolExecutor(1) as pool:
            hangs = pool.submit(transport.call(1, ms.Status(), 3_600).result)
            servers.write()
            transport._addresses._next_look = 0.0
            with pytest.raises(errors.TimedOut, match=rf"\(shard 1 of {servers.name}, which is looked up again\)"):
                transport.call(1, ms.Status(), 0.3).result()
            with pytest.raises(errors.Unavailable, match=f"the shard is at {addresses[1]} now"):
                hangs.result(BOUND)
            report = transport.call(1, ms.Status(), BOUND).result()
            assert isinstance(report, ms.StatusReport)
            assert report.shard == 1


def test_a_worker_whose_shard_is_nowhere_gives_up_with_both_names_in_time(servers):
    with ps.collection(), ps.session(servers.name, timeout=0.7, progress="off") as session:
        training = Training(session)
        training.step()
        servers.stop(1)
        with pytest.raises(errors.Unavailable) as caught:
            training.step()
        assert re.search(rf"gave up after \d+\.\d s: no server answers at {servers.addresses[1]}", str(caught.value))
        assert f"(shard 1 of {servers.name}, which is looked up again)" in str(caught.value)
