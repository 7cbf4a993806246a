"""While the loop of an optimizer is compiled, which takes seconds, a server answers everybody else."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from pswire import optimizers
from pswire.channel import check_health
from pswire.messages import Gradient, Outcome, Push, Tune
from pswire.optimizers import numba_compiler
from tests.gated_shard import PATIENCE, Gate

VALUE, GRADIENT = np.float32([1, 2, 3]), np.float32([0.5, -1, 2])


@pytest.fixture
def compiling(monkeypatch):
    """A gate that the compilation of a loop goes through, which finds no numba; `names` has each that was compiled."""
    gate = Gate()
    gate.names = []

    def machine_code(loop):
        name = loop.function.__name__.strip("_")
        if name not in gate.names:
            gate.names.append(name)
            gate.go_through()

    monkeypatch.setattr(numba_compiler, "machine_code", machine_code)
    yield gate
    gate.open()


def test_others_are_answered_while_the_loop_of_an_optimizer_is_compiled(connect, compiling):
    compiling.shut()
    with ServerThread(ServerConfig(lease=60.0)) as server, ThreadPoolExecutor(1) as pool:
        first, other = connect(server), connect(server)
        sender = first.join("w0")
        registered = pool.submit(first.register, sender, optimizers.Momentum(1.0, momentum=0.5), w=VALUE)
        assert compiling.reached.wait(PATIENCE)
        try:
            assert check_health(server.address, PATIENCE)
            assert other.join("w1").incarnation == 1
            assert [worker.name for worker in other.status().workers] == ["w0", "w1"]
            assert not other.status().variables
            assert not registered.done()
        finally:
            compiling.open()
        np.testing.assert_array_equal(registered.result().values[0].array, VALUE)
        push = Push(sender, 1, (Gradient("w", 0, GRADIENT),), None, ("w",))
        np.testing.assert_array_equal(first.transfer(push).values[0].array, VALUE - GRADIENT)
        assert compiling.names == ["momentum"]


def test_others_push_while_the_loop_of_other_hyperparameters_is_compiled(connect, compiling):
    with ServerThread(ServerConfig(lease=60.0)) as server, ThreadPoolExecutor(1) as pool:
        first, other = connect(server), connect(server)
        sender, another = first.join("w0"), other.join("w1")
        first.register(sender, optimizers.Momentum(1.0, momentum=0.5), w=VALUE)
        compiling.shut()
        nesterov = Tune(sender, 1, ("w",), optimizers.Momentum(1.0, momentum=0.5, nesterov=True), ("nesterov",))
        tuned = pool.submit(first.unary, nesterov)
        assert compiling.reached.wait(PATIENCE)
        try:
            pushed = other.transfer(Push(another, 1, (Gradient("w", 0, GRADIENT),), None, ("w",)))
            np.testing.assert_array_equal(pushed.values[0].array, VALUE - GRADIENT)  # not Nesterov's yet
            assert not tuned.done()
        finally:
            compiling.open()
        assert tuned.result().outcome is Outcome.APPLIED
        pushed = other.transfer(Push(another, 2, (Gradient("w", 1, GRADIENT),), None, ("w",)))
        momentum = 0.5 * GRADIENT + GRADIENT
        np.testing.assert_array_equal(pushed.values[0].array, VALUE - GRADIENT - (0.5 * momentum + GRADIENT))
        assert compiling.names == ["momentum", "nesterov"]
