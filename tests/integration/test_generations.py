"""A generation has the values of one moment of all shards, while training goes on; checkpoints on demand."""

import threading
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

import psworker as ps
from psserver.config import ServerConfig
from psserver.rpc.server import ServerThread
from psserver.storage.checkpoints import read_manifest
from pswire.errors import ConfigurationError, GenerationLost, TimedOut
from pswire.messages import Cut, CutReport, Pull
from pswire.specs.consistency import parse_consistency
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.sessions.worker_part import SessionPart
from psworker.transport import Future, open_transport
from tests.support.combinations import few_fast
from tests.support.commands import wait_until
from tests.support.shards import ShardsInProcess

ADD = ps.Momentum(1.0, 0.0)
STRATEGIES = [{}, {"push_every": 2, "pull_every": 4, "overlap": True}, {"local_steps": 2}]


def session_over(transport, worker="w0", **strategy):
    return Session(WorkerConfig(name=worker, timeout=10, **strategy), transport, outer=ADD)


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


@pytest.mark.slow
@pytest.mark.parametrize("consistency", few_fast(["sync:2", "bounded:0"]))
def test_generations_and_checkpoints_begin_while_the_policy_holds_the_push_of_another_worker(tmp_path, consistency):
    """That one shows the number by its heartbeats: its push waits for the worker that waits for the cut."""
    choice = {"consistency": parse_consistency(consistency)}
    configs = [ServerConfig(shard=one, shards=2, checkpoint_dir=tmp_path, lease=1.5, **choice) for one in range(2)]
    with ServerThread(configs[0]) as first, ServerThread(configs[1]) as second:
        addresses = (first.address, second.address)

        def worker(name):
            return Session(WorkerConfig(addresses, name=name, timeout=20), open_transport(WorkerConfig(addresses)))

        def train():
            with ps.collection(), worker("other"):
                variables = two_variables()
                for _ in range(4):
                    step(*variables)

        with ps.collection(), worker("w0") as session:
            variables = two_variables()
            thread = threading.Thread(target=train)
            thread.start()
            step(*variables)
            for done in (1.0, 2.0):
                wait_until(lambda: any(one.held for one in session._client.status(5.0).workers))
                with session.generation(timeout=10):
                    a, b = [one.value.tolist() for one in variables]
                assert a == b
                assert a[0] >= done
                session.checkpoint(timeout=10)
                step(*variables)
            step(*variables)
        thread.join()


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


@pytest.mark.parametrize(
    "read",
    [lambda session, a: session.rows(a, [1]), lambda session, a: session.slot(a, "momentum")],
    ids=["rows", "slot"],
)
@pytest.mark.parametrize("cause", ["restart with a journal", "went back", "lease"])
def test_of_a_generation_that_servers_lose_the_worker_has_all_variables_and_other_reads_say_that_it_is_lost(
    cause, read, tmp_path
):
    transport = ShardsInProcess(2, stored=cause == "went back", lease=10.0)
    momentum, what = ps.Momentum(1.0, 0.5), "the values of generation" if cause == "went back" else "does not hold gen"
    with ps.collection(), session_over(transport) as session:
        a, b = two_variables()
        momentum.apply_gradients([(-np.ones(3), a), (-np.ones(3), b)])
        if cause == "went back":
            transport.show_cuts(session._client, begin=True)
        with session.generation():
            with ps.collection(), session_over(transport, "other"):
                momentum.apply_gradients([(-np.ones(3), variable) for variable in two_variables()])
            if cause == "restart with a journal":
                transport.machines[0].cuts.end()  # a journal has everything but the cut in memory
            elif cause == "went back":
                transport.lose_state(0)
            else:
                transport.sleep(11.0)
            with pytest.raises(GenerationLost, match=f"{what}.*(?s:.)*[Rr]epeat the block"):
                read(session, a)
            session.pull()
            assert a.value.tolist() == b.value.tolist() == [1, 1, 1], "of the moment"
            session.save(tmp_path / "model.safetensors")
            with pytest.raises(ConfigurationError, match="after the block"):
                momentum.apply_gradients([(np.ones(3), a)])
        now = [1, 1, 1] if cause == "went back" else [2.5, 2.5, 2.5]
        assert a.value.tolist() == b.value.tolist() == now, "fresh"
        with session.generation():  # the block is repeated
            read(session, a)
        ps.load(tmp_path / "model.safetensors")
        assert a.value.tolist() == b.value.tolist() == [1, 1, 1]
    assert not holders(transport)


def test_a_push_after_a_block_that_ended_as_shards_went_back_is_of_fresh_values_and_applied():
    transport, momentum = ShardsInProcess(2, stored=True, lease=10.0), ps.Momentum(1.0, 0.5)
    with ps.collection(), session_over(transport) as session:
        a, b = two_variables()
        momentum.apply_gradients([(-np.ones(3), a), (-np.ones(3), b)])
        transport.show_cuts(session._client, begin=True)
        with suppress(GenerationLost), session.generation():
            transport.lose_state(0)
            session.slot(a, "momentum")
            raise AssertionError("it is not lost")
        assert momentum.apply_gradients([(-np.ones(3), a), (-np.ones(3), b)]).outcome == "applied"
        assert session.dropped == 0
        assert a.value.tolist() == b.value.tolist() == [2.5, 2.5, 2.5]


@pytest.mark.parametrize("moment", ["begun", "complete"])
@pytest.mark.parametrize("shard", [0, 1])
def test_a_cut_that_a_shard_loses_before_the_block_begins_or_before_it_is_written_is_taken_again(shard, moment):
    transport, lost = ShardsInProcess(2), []

    def lose(at, message):
        """Before a message is taken: a server that is started again with its journal has everything but the cut."""
        mine = isinstance(message, Cut) and message.number if moment == "begun" else isinstance(message, Pull)
        machine = transport.machines[shard]
        if mine and at == shard and machine.cuts.current is not None and len(lost) < 2:
            lost.append(machine.cuts.number)
            machine.cuts.end()
        return False

    with ps.collection(), session_over(transport) as session:
        a, b = two_variables()
        step(a, b)
        transport.refuse = lose
        with session.generation() as number:
            assert a.value.tolist() == b.value.tolist() == [1, 1, 1]
        assert len(lost) == 2
        assert number > lost[1] > lost[0]
    assert not holders(transport)


def test_a_generation_is_held_no_longer_than_its_block_although_answers_and_its_release_are_lost():
    transport, seen, refused = ShardsInProcess(2, lease=0.3), [], []

    def first_time(shard, message):
        new = isinstance(message, Cut) and (shard, message) not in seen
        seen.append((shard, message))
        return new

    def release(shard, message):
        lost = isinstance(message, Cut) and message.release and len(refused) < 2
        refused.extend([shard] if lost else [])
        return lost

    with ps.collection(), session_over(transport) as session:
        a, b = two_variables()
        step(a, b)
        transport.lose, transport.refuse = first_time, release
        with session.generation() as number:
            assert holders(transport)
        assert refused == [0, 1]
        wait_until(lambda: not holders(transport))
        with session.generation() as later:
            assert later > number


def test_a_checkpoint_of_which_a_server_has_lost_its_part_before_it_was_written_is_taken_again(tmp_path):
    asked, lost = Counter(), []
    transport = open_transport(WorkerConfig(checkpoint_dir=str(tmp_path)), SessionPart())

    def call(shard, message, timeout, real=transport.call):
        """Twice as of a server that was started again: the third question is whether it is written."""
        answer = real(shard, message, timeout).result()
        if isinstance(message, Cut) and not message.release:
            asked[message.number] += 1
            if asked[message.number] == 3 and len(lost) < 2:
                lost.append(message.number)
                answer = CutReport(number=message.number, storage=True, gone=True)
        return Future(lambda: answer)

    transport.call = call
    with ps.collection(), session_over(transport) as session:
        a, _ = two_variables()
        step(a)
        assert session.checkpoint() > lost[1] > lost[0]


@pytest.mark.parametrize("shared_memory", few_fast([True, False], ids=["shared memory", "streams"]))
@pytest.mark.slow
def test_real_servers_write_checkpoints_on_demand_and_hold_generations_while_another_worker_trains(
    tmp_path, shared_memory
):
    configs = [ServerConfig(shard=shard, shards=2, checkpoint_dir=tmp_path) for shard in range(2)]
    with ServerThread(configs[0]) as first, ServerThread(configs[1]) as second:
        addresses, stop = (first.address, second.address), threading.Event()

        def worker(name):
            config = WorkerConfig(addresses, name=name, timeout=20, shared_memory=shared_memory)
            return Session(config, open_transport(config))

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
