"""Servers behind names in the DNS, as a real name server answers them: found, missing, of another job, and moved."""

from contextlib import ExitStack, closing

import dns.resolver
import pytest

import psworker as ps
from psjob.status.interventions import InterventionCalls
from psjob.status.status_client import StatusClient
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import errors
from pswire import messages as ms
from pswire.network.discovery import look_up
from pswire.network.shard_addresses import ShardAddresses
from pswire.network.shard_numbers import by_shard
from psworker.transport.network_transport import NetworkTransport
from tests.support.commands import BOUND, free_address
from tests.support.name_server import NameServer, Records
from tests.support.servers import Certificates


@pytest.fixture(autouse=True)
def names_are_looked_up_often(monkeypatch, servers_stop_at_once):
    monkeypatch.setattr("pswire.network.shard_addresses.LOOK_EVERY", 0.05)


@pytest.fixture
def names(monkeypatch):
    """The records of a name server that this process asks."""
    resolver = dns.resolver.Resolver(configure=False)
    records: Records = {}
    with NameServer(("127.0.0.1", 0), lambda: records) as server:
        resolver.nameservers, resolver.port = ["127.0.0.1"], server.server_address[1]
        dns.resolver.override_system_resolver(resolver)
        monkeypatch.setattr(dns.resolver, "default_resolver", resolver)
        yield records
        dns.resolver.restore_system_resolver()


class Hosts:
    """Servers of which each has an address of the loopback for its own, and all the same port."""

    def __init__(self, stack):
        first, _, self.port = free_address().rpartition(":")
        self._net, self._stack, self._host = first.rpartition(".")[0], stack, 0

    def start(self, shard, shards, **options):
        """Starts a shard's server on a host of its own, whose address it returns; `close` of that stops it."""
        self._host += 1
        host = f"{self._net}.{self._host}"
        own = self._stack.enter_context(ExitStack())
        own.enter_context(ServerThread(ServerConfig(f"{host}:{self.port}", shard=shard, shards=shards, **options)))
        return host, own

    def free(self):
        """The address of a host without a server."""
        self._host += 1
        return f"{self._net}.{self._host}"

    def at(self, *hosts):
        return tuple(f"{host}:{self.port}" for host in hosts)


@pytest.fixture
def hosts():
    with ExitStack() as stack:
        yield Hosts(stack)


def test_the_servers_behind_a_name_are_put_in_the_order_of_their_shards(names, hosts):
    ips = [hosts.start(shard, 3)[0] for shard in (2, 0, 1)]
    names["ps.test"] = {"A": ips}
    with closing(NetworkTransport([f"dns:///ps.test:{hosts.port}"])) as transport:
        reports = [transport.call(shard, ms.Status(), BOUND).result() for shard in range(3)]
    assert [report.shard for report in reports] == [0, 1, 2]


def test_a_service_has_the_hosts_and_ports_of_its_records(names, hosts):
    names["ps-0.test"], names["ps-1.test"] = {"A": ["127.0.0.1"]}, {"A": ["127.0.0.1"]}
    with ExitStack() as stack:
        ports = [
            stack.enter_context(ServerThread(ServerConfig(shard=shard, shards=2))).address.rpartition(":")[2]
            for shard in range(2)
        ]
        records = [f"0 0 {port} ps-{shard}.test." for shard, port in enumerate(ports)]
        names["_psserver._tcp.ps.test"] = {"SRV": records[::-1]}
        name = "dns+srv://_psserver._tcp.ps.test"
        found = look_up(name, BOUND)
        assert found == (f"ps-0.test:{ports[0]}", f"ps-1.test:{ports[1]}")


def test_a_wait_says_which_shards_are_there_and_which_not(names, hosts):
    ip, _ = hosts.start(1, 3)
    down = hosts.free()
    names["ps.test"] = {"A": [ip, down]}
    with pytest.raises(errors.Unavailable) as caught:
        NetworkTransport([f"dns:///ps.test:{hosts.port}"], timeout=0.5)
    found = f"found shard 1 of 3 at dns:///ps.test:{hosts.port}, waits for shards 0, 2: start its server"
    assert found in str(caught.value)
    assert f"no server answers at {down}:{hosts.port}: Connection refused" in str(caught.value)


@pytest.mark.parametrize("scheme", ["dns:///", "dns+srv://"])
def test_a_name_that_does_not_exist_is_waited_for(names, scheme):
    name = f"{scheme}nobody.test"
    with pytest.raises(errors.Unavailable, match=r"gave up after 0\.\d s: .*nobody\.test(:7070)? has no .*are th"):
        NetworkTransport([name], timeout=0.3)


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ((0, 2), "the servers at {0} and {1} both are shard 0 of 2: give each another --shard"),
        ((1, 3), "the server at {0} is shard 0 of 2, and the one at {1} is shard 1 of 3: they belong to different"),
    ],
)
def test_servers_that_cannot_be_of_one_job_are_named_at_once(names, hosts, other, problem):
    ips = [hosts.start(*place)[0] for place in [(0, 2), other]]
    names["ps.test"] = {"A": ips}
    with pytest.raises(errors.WrongShard) as caught:
        NetworkTransport([f"dns:///ps.test:{hosts.port}"], timeout=3_600)
    texts = [problem.format(*hosts.at(*order)) for order in (ips, ips[::-1])]
    in_turn = "the server at {1} is shard 1 of 3, and the one at {0} is shard 0 of 2: they belong"
    assert any(text in str(caught.value) for text in [*texts, in_turn.format(*hosts.at(*ips))])


def test_a_shard_is_found_at_another_address_behind_its_name_and_the_others_are_not_asked(names, hosts, tmp_path):
    options = {"checkpoint_dir": tmp_path, "journal": True}
    first, _ = hosts.start(0, 2, **options)
    second, running = hosts.start(1, 2, **options)
    names["ps.test"] = {"A": [first, second]}
    with ps.collection(), ps.session(f"dns:///ps.test:{hosts.port}", timeout=BOUND, progress="off") as session:
        x = ps.Variable(0.0, name="x")
        connections = session._client._calls.transport._connections
        kept = connections[0]
        running.close()
        moved, _ = hosts.start(1, 2, **options)
        names["ps.test"] = {"A": [moved, first]}
        y = ps.Variable(1.0, name="y")
        session.assign_all({x: 2.0, y: 3.0})
        assert tuple(one.address for one in connections) == hosts.at(first, moved)
        assert connections[0] is kept
        assert [float(x.value), float(y.value)] == [2.0, 3.0]


def test_two_shards_that_have_swapped_their_addresses_are_both_found(names, hosts):
    ips = [hosts.start(shard, 2)[0] for shard in range(2)]
    names["ps.test"] = {"A": ips}
    addresses = ShardAddresses([f"dns:///ps.test:{hosts.port}"])
    addresses.find(BOUND)
    addresses.current = addresses.current[::-1]  # as if they had been so before
    for shard in range(2):
        addresses._next_look = 0.0
        addresses.look_again(shard)
        with addresses._state:
            assert addresses._state.wait_for(lambda: not addresses._looking, BOUND)
    assert addresses.current == hosts.at(*ips)


def test_a_server_that_has_an_ipv4_and_an_ipv6_address_counts_once_by_the_first():
    answers = {"[fd00::1]:7070": (1, 2), "[fd00::2]:7070": (0, 2), "10.0.0.2:7070": (0, 2), "10.0.0.1:7070": (1, 2)}
    assert by_shard(answers).addresses == {1: "[fd00::1]:7070", 0: "[fd00::2]:7070"}
    with pytest.raises(errors.WrongShard):
        by_shard(answers | {"10.0.0.3:7070": (0, 2)})


def test_a_status_shows_the_shards_that_are_found_and_follows_them(names, hosts):
    with StatusClient([f"dns:///ps.test:{hosts.port}"]) as client:
        assert "has no address" in client.ask(BOUND).answers[0].problem
        first, _ = hosts.start(0, 2)
        names["ps.test"] = {"A": [first]}
        client.addresses._next_look = 0.0
        found, missing = client.ask(BOUND).answers
        assert (found.address, found.report.shard) == (*hosts.at(first), 0)
        assert missing.address == f"dns:///ps.test:{hosts.port}"
        assert "shard 1: found shard 0 of 2 at" in missing.problem
        second, running = hosts.start(1, 2)
        names["ps.test"] = {"A": [first, second]}
        client.addresses._next_look = 0.0
        assert [answer.address for answer in client.ask(BOUND).answers] == list(hosts.at(first, second))
        running.close()
        moved, _ = hosts.start(1, 2)
        names["ps.test"] = {"A": [first, moved]}
        client.addresses._next_look = 0.0
        assert client.ask(BOUND).answers[1].report is None
        with client.addresses._state:
            assert client.addresses._state.wait_for(lambda: not client.addresses._looking, BOUND)
        assert [answer.address for answer in client.ask(BOUND).answers if answer.report] == list(hosts.at(first, moved))


def test_an_intervention_reaches_all_shards_behind_a_name(names, hosts):
    names["ps.test"] = {"A": [hosts.start(shard, 2)[0] for shard in range(2)]}
    name = f"dns:///ps.test:{hosts.port}"
    with (
        ps.collection(),
        ps.session(name, name="w0", timeout=BOUND, progress="off") as session,
        InterventionCalls([name], "operator") as interventions,
    ):
        x = [ps.Variable(0.0, name=f"x{number}") for number in range(2)]
        assert interventions.quarantine("w0", "a test") == ["w0"]
        ps.GradientDescent(1.0).minimize(x[0] + x[1], x)
        assert session.dropped == 1
        assert interventions.release("w0", "a test") == []


def test_certificates_are_checked_against_the_name_or_the_one_that_is_given(names, hosts, tmp_path):
    certificates = Certificates(tmp_path / "job", ("ps.test",))
    names["ps.test"] = names["other.test"] = {"A": [hosts.start(0, 1, **certificates.server)[0]]}

    def shards(name, **tls):
        with closing(NetworkTransport([name], certificates.client(**tls), timeout=BOUND)) as transport:
            return transport.call(0, ms.Status(), BOUND).result().shards

    assert shards(f"dns:///ps.test:{hosts.port}") == 1
    with pytest.raises(errors.Unauthenticated, match=r"is not for other\.test, but for ps\.test"):
        shards(f"dns:///other.test:{hosts.port}")
    assert shards(f"dns:///other.test:{hosts.port}", tls_name="ps.test") == 1
