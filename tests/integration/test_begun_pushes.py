"""Pushes that are begun before their gradients are there: completed by the same push, and else without a trace."""

import logging
from contextlib import ExitStack

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.direct.connection import DirectConnection
from psserver.rpc.server import ServerThread
from pswire.errors import NotFinite
from pswire.specs.consistency import Bounded
from psworker.client import client
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from tests.support.commands import wait_until
from tests.support.servers import DIRECT, DIRECT_OF_TWO, EMBEDDED, GRPC, SHARED, Certificates, parameters
from tests.support.transports import streams

pytestmark = pytest.mark.skipif(streams() != "direct", reason="this run is over gRPC")

over_direct_connections = pytest.mark.parametrize("open_session", parameters(DIRECT, DIRECT_OF_TWO), indirect=True)
SHAPES = {"large": (600, 500), "empty": (0, 4), "other": (400, 700), "scalar": ()}
SGD = ps.GradientDescent(1.0)


@pytest.fixture
def arrived(monkeypatch):
    """The bytes that servers of this process have read from direct connections, in a list of one number."""
    total, read = [0], DirectConnection._read_now

    def counted(connection, into):
        nbytes = read(connection, into)
        total[0] += nbytes or 0
        return nbytes

    monkeypatch.setattr(DirectConnection, "_read_now", counted)
    return total


class Model:
    """Variables of a few megabytes, and gradients by chance."""

    def __init__(self, session):
        self.session, self.random = session, np.random.default_rng(3)
        self.variables = [ps.Variable(np.zeros(shape, np.float32), name=name) for name, shape in SHAPES.items()]
        self.memory = [np.full(shape, np.nan, np.float32) for shape in SHAPES.values()]

    def gradients(self):
        return [self.random.normal(size=shape).astype(np.float32) for shape in SHAPES.values()]

    def begin(self, gradients, loss=None, count=None):
        """A push that is begun in reverse order, with the first `count` of its gradients."""
        pairs = [*zip(self.memory, self.variables, strict=True)]
        begun = self.session.begin_push(pairs[::-1], loss)
        for gradient, variable in [*zip(gradients, self.variables, strict=True)][::-1][:count]:
            begun.send(variable.name, gradient)
        return begun

    def push(self, gradients):
        SGD.apply_gradients([*zip(gradients, self.variables, strict=True)])


def trained(open_session, *, begun, steps=4):
    """The variables after steps, begun or not."""
    with ps.collection(), open_session("w0") as session:
        model, found = Model(session), []
        model.push(model.gradients())
        for _ in range(steps):
            gradients = model.gradients()
            if begun:
                found.append(model.begin(gradients))
            model.push(gradients)
        assert [one.finished for one in found] == [True] * steps * begun
        assert session.global_step == steps + 1
        return [one.value.copy() for one in model.variables]


@pytest.mark.parametrize("case", [DIRECT, DIRECT_OF_TWO], ids=str)
def test_values_are_those_of_ordinary_pushes_bit_for_bit(case, caplog):
    with case.sessions() as open_session, caplog.at_level(logging.INFO):
        found = trained(open_session, begun=True)
    with EMBEDDED.sessions() as open_session:
        wanted = trained(open_session, begun=False)
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)
    assert "refused" not in caplog.text


@over_direct_connections
def test_gradients_are_at_the_server_before_the_last_one_is_there(open_session, arrived):
    with open_session("w0") as session:
        model = Model(session)
        model.push(model.gradients())
        gradients, before = model.gradients(), arrived[0]
        begun = model.begin(gradients, count=3)  # "other", of 1,120,000 bytes; "large" is not there
        wait_until(lambda: arrived[0] - before > 1_000_000)
        assert session.global_step == 1
        begun.send("large", gradients[0])
        model.push(gradients)
        assert begun.finished
        assert session.global_step == 2


def others(model, gradients, _):
    gradients[2] = gradients[2] * 2


def twice(model, gradients, begun):
    begun.send("large", gradients[0])


def without_one(model, gradients, _):
    gradients[0] = None


def a_loss(model, gradients, _):
    model.session.note_loss(0.5, model.variables)


def assigned(model, gradients, _):
    model.session.assign(model.variables[0], np.ones(SHAPES["large"]))


def trained_by_another(model, gradients, _):
    with ps.collection(), model.open_session("w1") as session:
        other = Model(session)
        other.push(other.gradients())
    model.session.pull()


@over_direct_connections
@pytest.mark.parametrize("happens", [others, twice, without_one, a_loss, assigned, trained_by_another])
def test_another_push_takes_back_what_was_begun_and_is_applied_once(happens, open_session, caplog):
    with open_session("w0") as session, caplog.at_level(logging.INFO):
        model = Model(session)
        model.open_session = open_session
        model.push(model.gradients())
        gradients = model.gradients()
        begun = model.begin(gradients)
        happens(model, gradients, begun)
        before, steps = [one.value.copy() for one in model.variables], session.global_step
        model.push(gradients)
        assert (begun.finished, session.global_step, session.dropped) == (False, steps + 1, 0)
        assert begun.reason
        for variable, gradient, value in zip(model.variables, gradients, before, strict=True):
            assert np.array_equal(variable.value, value if gradient is None else value - gradient)
        again = model.gradients()  # on a new connection
        begun = model.begin(again)
        model.push(again)
        assert begun.finished
    assert "refused" not in caplog.text


@over_direct_connections
def test_nothing_is_applied_of_a_push_with_nan_or_one_that_is_followed_by_none(open_session):
    with open_session("w0") as session:
        model = Model(session)
        model.push(model.gradients())
        before = [one.value.copy() for one in model.variables]
        gradients = model.gradients()
        gradients[2][1] = np.nan
        model.begin(gradients)
        with pytest.raises(NotFinite):
            model.push(gradients)
        model.begin(model.gradients())
        model.begin(model.gradients())
    with ps.collection(), open_session("w1") as session:
        model = Model(session)
        assert (session.global_step, session.half_applied) == (1, 0)
        for variable, value in zip(model.variables, before, strict=True):
            assert np.array_equal(variable.value, value)


@over_direct_connections
def test_what_takes_too_long_is_taken_back_and_pushed_as_a_whole(open_session, monkeypatch, caplog):
    monkeypatch.setattr(client, "MAX_BEGUN_SECONDS", 0.01)
    with open_session("w0") as session, caplog.at_level(logging.INFO):
        model = Model(session)
        model.push(model.gradients())
        gradients = model.gradients()
        begun = model.begin(gradients)
        wait_until(lambda: not any(call.is_active() for call in begun._calls.values()))
        model.push(gradients)
        assert (begun.finished, session.global_step) == (False, 2)
        assert "took too long" in begun.reason
    assert "refused" not in caplog.text


@over_direct_connections
def test_a_left_loop_gives_its_block_back_although_a_push_was_begun(open_session):
    seen = []
    with open_session("w0") as session:
        model = Model(session)
        model.push(model.gradients())
        for number, batch in enumerate(session.batches({"n": np.arange(40)}, 10, name="q")):
            gradients = model.gradients()
            begun = model.begin(gradients, 1.0)
            session.note_loss(1.0, model.variables)
            if number == 2:
                break
            model.push(gradients)
            assert begun.finished
            seen += batch.n.tolist()
        assert begun.reason, "it was taken back"
        for batch in session.batches({"n": np.arange(40)}, 10, name="q"):
            model.push(model.gradients())
            seen += batch.n.tolist()
    assert sorted(seen) == [*range(40)]


def test_over_tls_a_push_is_completed_and_taken_back_too(tmp_path):
    certificates = Certificates(tmp_path)
    with ServerThread(ServerConfig("127.0.0.1:0", **certificates.server)) as server:
        config = WorkerConfig((server.address,), "w0", 30, shared_memory=False, tls_ca=str(tmp_path / "ca.crt"))
        with Session(config) as session:
            model, finished = Model(session), []
            model.push(model.gradients())
            total = model.variables[2].value.copy()
            for number in range(4):
                gradients = model.gradients()
                begun = model.begin(gradients)
                if number == 1:
                    others(model, gradients, begun)
                model.push(gradients)
                finished.append(begun.finished)
                total -= gradients[2]
            assert (finished, session.global_step) == ([True, False, True, True], 5)
            assert np.array_equal(model.variables[2].value, total)


@pytest.mark.parametrize(
    ("case", "options"),
    [(EMBEDDED, {}), (GRPC, {}), (SHARED, {}), (DIRECT, {"push_every": 2}), (DIRECT, {"encoding": "float16"})],
    ids=str,
)
def test_elsewhere_nothing_is_begun(case, options):
    with case.sessions() as open_session, open_session("w0", **options) as session:
        model = Model(session)
        model.push(model.gradients())
        assert session.begin_push([*zip(model.memory, model.variables, strict=True)], None) is None


@pytest.mark.parametrize("shards", [1, 2])
def test_a_policy_that_shard_0_decides_by_has_one_shard_only(shards):
    with ExitStack() as stack:
        configs = [
            ServerConfig("127.0.0.1:0", shard=shard, shards=shards, consistency=Bounded(2)) for shard in range(shards)
        ]
        addresses = tuple([stack.enter_context(ServerThread(config)).address for config in configs])
        with Session(WorkerConfig(addresses, "w0", 30, shared_memory=False)) as session:
            model = Model(session)
            model.push(model.gradients())
            gradients = model.gradients()
            if shards == 1:
                begun = model.begin(gradients)
                model.push(gradients)
                assert begun.finished
            else:
                assert session.begin_push([*zip(model.memory, model.variables, strict=True)], None) is None
