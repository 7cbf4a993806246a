"""A generation has the values of one moment of all shards, while training goes on; checkpoints on demand."""

import threading

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.storage.checkpoint_manifest import read_manifest
from pswire.errors import ConfigurationError, ParamServerError, TimedOut
from psworker.config import StrategyConfig, WorkerConfig
from psworker.sessions.session import Session
from psworker.transport import open_transport
from psworker.transport.embedded import EmbeddedTransport
from tests.shards_in_process import ShardsInProcess

ADD = ps.Momentum(1.0, 0.0)
STRATEGIES = [{}, {"push_every": 2, "pull_every": 4, "overlap": True}, {"local_steps": 2}]


def session_over(transport, worker="w0", **strategy):
    return Session(WorkerConfig(name=worker, timeout=10, strategy=StrategyConfig(**strategy)), transport, outer=ADD)


def two_variables():
    """Of two shards each has one."""
    return ps.Variable(np.zeros(3), name="a"), ps.Variable(np.zeros(3), name="b")


def step(*variables):
    ADD.apply_gradients([(np.full(3, -1.0), variable) for variable in variables])


def holders(transport):
    """Those that any shard keeps a cut for."""
    cuts = [machine.cuts.current for machine in transport.machines]
    return [holder for cut in cuts if cut is not None for holder in cut.holders]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_all_values_are_of_one_moment_while_another_worker_trains_and_fresh_ones_come_afterwards(shards, strategy):
    transport, stop, seen = ShardsInProcess(shards, lease=0.1), threading.Event(), []

    def train():
        with ps.collection(), session_over(transport, "other"):
            variables = two_variables()
            while not stop.is_set():
                step(*variables)

    with ps.collection(), session_over(transport, **strategy) as session:
        a, b = two_variables()
        thread = threading.Thread(target=train)
        thread.start()
        try:
            for number in range(1, 6):
                step(a, b)
                with session.generation() as generation:
                    assert a.value.tolist() == b.value.tolist()
                    before = a.value.copy()
                    assert (before >= number).all(), "with all that this worker has pushed"
                    moved = transport.machines[0].global_step
                    while transport.machines[0].global_step < moved + 3:
                        stop.wait(0.001)
                    session.pull([b])
                    np.testing.assert_array_equal(b.value, before)
                    np.testing.assert_array_equal(session.rows(a, [1]), before[:1])
                    assert session.evaluate(lambda batch: a.value[0], ps.Dataset({"x": np.arange(3)})) == before[0]
                    seen.append(generation)
                assert a.value[0] >= before[0] + 3, "fresh"
        finally:
            stop.set()
            thread.join()
    assert seen == sorted(set(seen))
    assert not holders(transport)


def test_slots_and_saved_files_are_of_the_generation_too(tmp_path):
    transport = ShardsInProcess(2)
    momentum = ps.Momentum(1.0, 0.5)
    with ps.collection(), session_over(transport) as session:
        a, b = two_variables()
        momentum.apply_gradients([(np.ones(3), a), (np.ones(3), b)])
        with session.generation():
            with ps.collection(), session_over(transport, "other"):
                others = two_variables()
                momentum.apply_gradients([(np.ones(3), variable) for variable in others])
            assert session.slot(a, "momentum").tolist() == [1, 1, 1]
            session.save(tmp_path / "model.safetensors")
        assert session.slot(a, "momentum").tolist() == [1.5, 1.5, 1.5]
        assert a.value.tolist() == [-2.5, -2.5, -2.5]
        ps.load(tmp_path / "model.safetensors")
        assert a.value.tolist() == b.value.tolist() == [-1, -1, -1]


def test_nothing_can_be_changed_inside_and_the_cut_is_released_also_after_an_error():
    transport = ShardsInProcess(2)
    with ps.collection(), session_over(transport) as session:
        a, b = two_variables()
        step(a, b)
        changes = [
            lambda: step(a),
            lambda: session.assign(a, np.zeros(3)),
            lambda: session.set_hyperparameters(a, learning_rate=2.0),
            lambda: ps.Variable(np.zeros(3), name="c"),
            lambda: session.generation().__enter__(),
            session.checkpoint,
        ]
        for change in changes:
            with pytest.raises(ConfigurationError, match="values of one moment"), session.generation():
                change()
            assert not holders(transport)
        step(a, b)
        assert a.value.tolist() == [2, 2, 2]


def test_a_generation_waits_for_a_worker_that_sends_nothing_no_longer_than_its_timeout_and_names_it():
    transport = ShardsInProcess(2)  # without heartbeats
    transport.client("silent")
    with ps.collection(), session_over(transport) as session:
        a, b = two_variables()
        with pytest.raises(TimedOut, match="cut 1: shard 0 waits for silent"), session.generation(timeout=0.05):
            raise AssertionError
        step(a, b)
        assert a.value.tolist() == [1, 1, 1]
        assert not holders(transport)


def test_a_generation_is_gone_after_the_servers_went_back():
    transport = ShardsInProcess(2, stored=True)
    with ps.collection(), session_over(transport) as session:
        a, b = two_variables()
        step(a, b)
        transport.show_cuts(session._client, begin=True)

        def evaluate():
            with session.generation():
                transport.lose_state(0)
                session.pull()

        with pytest.raises(ParamServerError, match="the values of generation 2 are gone"):
            evaluate()
        step(a, b)
        assert a.value.tolist() == b.value.tolist() == [2, 2, 2]


def test_an_embedded_session_has_generations_too():
    with ps.collection(), session_over(EmbeddedTransport()) as session:
        a, b = two_variables()
        step(a, b)
        with session.generation():
            assert a.value.tolist() == b.value.tolist() == [1, 1, 1]
        step(a, b)
        assert a.value.tolist() == [2, 2, 2]


def test_servers_without_a_folder_write_no_checkpoint_and_the_error_says_what_to_do():
    with ps.collection(), session_over(ShardsInProcess(2)) as session:
        a, b = two_variables()
        with pytest.raises(ConfigurationError, match="--checkpoint-dir"):
            session.checkpoint()
        step(a, b)


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared memory", "gRPC"])
def test_real_servers_write_checkpoints_on_demand_and_hold_generations_while_another_worker_trains(
    tmp_path, shared_memory
):
    configs = [ServerConfig(shard=shard, shards=2, checkpoint_dir=tmp_path) for shard in range(2)]
    with ServerThread(configs[0]) as first, ServerThread(configs[1]) as second:
        addresses, stop = (first.address, second.address), threading.Event()

        def worker(name):
            config = WorkerConfig(addresses, name=name, timeout=20, shared_memory=shared_memory)
            return Session(config, open_transport(addresses, shared_memory=shared_memory))

        def train():
            with ps.collection(), worker("other"):
                variables = two_variables()
                while not stop.is_set():
                    step(*variables)

        with ps.collection(), worker("w0") as session:
            a, b = two_variables()
            thread = threading.Thread(target=train)
            thread.start()
            try:
                for _ in range(3):
                    step(a, b)
                    with session.generation():
                        assert a.value.tolist() == b.value.tolist()
                    number = session.checkpoint()
                    for shard in range(2):
                        read_manifest(tmp_path, number, shard, 2)
            finally:
                stop.set()
                thread.join()
