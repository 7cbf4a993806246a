"""Unchanged values are not sent again by any strategy: the same values bit for bit, fewer bytes."""

import numpy as np
import pytest

import psworker as ps
from pswire.messages import Assignment, Pulled, Pushed, tensor_bytes
from psworker import ops
from psworker.client import placement
from psworker.config import StrategyConfig, WorkerConfig
from psworker.sessions.replica import Replica
from psworker.sessions.session import Session
from tests.shards_in_process import ShardsInProcess

FROZEN, TRAINED = (64, 8), (12, 8)
FROZEN_BYTES, TRAINED_BYTES, MEAN_BYTES = 64 * 8 * 4, 12 * 8 * 4, 8 * 4
STRATEGIES = [{}, {"push_every": 2, "pull_every": 3}, {"overlap": True}, {"local_steps": 2}]


def received(transport):
    """Bytes of values in answers to pushes and pulls."""
    return sum(tensor_bytes(answer) for _, answer in transport.answers if isinstance(answer, Pulled | Pushed))


@pytest.fixture(params=[1, 3], ids="{} shards".format)
def new_job(request, monkeypatch):
    """A function that makes the transport to new shards, between which all variables but the smallest are split."""
    monkeypatch.setattr(placement, "SPLIT_BYTES", 64)
    return lambda: ShardsInProcess(request.param)


def opened(transport, **strategy):
    return Session(WorkerConfig(name="w0", timeout=30, strategy=StrategyConfig(**strategy)), transport)


class Model:
    """A layer on rows that are never trained, a table's rows beside them, and the mean of what was seen."""

    def __init__(self):
        self.frozen = ps.Variable(self.numbers(FROZEN, 1), name="frozen", trainable=False)
        self.trained = ps.Variable(self.numbers(TRAINED, 2), name="trained")
        self.mean = ps.Variable(np.zeros(8, np.float32), name="mean", trainable=False)

    @staticmethod
    def numbers(shape, seed):
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    def step(self, number):
        ids = np.random.default_rng(number).integers(0, 12, 5)
        rows = ops.embedding(self.trained, ids)
        ps.note_update(ps.UpdateOp(self.mean, rows.value.mean(axis=0), 0.9))
        ps.Adam(0.01).minimize(ops.sum(ops.square(rows - self.frozen.value[number % 64])))

    @property
    def values(self):
        return [variable.value.tobytes() for variable in (self.frozen, self.trained, self.mean)]


def trained(transport, strategy):
    """What the variables were after each step, and at the end; one is assigned in between."""
    with ps.collection():
        model, seen = Model(), []
        with opened(transport, **strategy) as session:
            for number in range(10):
                model.step(number)
                seen.append(model.values)
                if number == 5:
                    session.assign(model.frozen, Model.numbers(FROZEN, 9))
            session.pull()
            seen.append(model.values)
    return seen


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_training_is_bit_for_bit_that_of_a_worker_that_names_nothing_and_receives_less(new_job, strategy, monkeypatch):
    named, unnamed = new_job(), new_job()
    found = trained(named, strategy)
    monkeypatch.setattr(Replica, "_known_values", lambda replica, names: [])
    assert found == trained(unnamed, strategy)
    assert 0 < received(named) <= received(unnamed) - 3 * FROZEN_BYTES


def test_a_value_that_the_program_has_put_in_place_of_the_servers_is_replaced_by_theirs(new_job):
    transport, model = new_job(), Model()
    with opened(transport) as session:
        theirs, trained = model.frozen.value, model.trained.value
        model.frozen.value = theirs.copy()  # equal, but the program may write into it
        session.pull([model.frozen])
        assert received(transport) == FROZEN_BYTES
        np.testing.assert_array_equal(model.frozen.value, theirs, strict=True)
        model.frozen.value = Model.numbers(FROZEN, 7)
        model.step(0)
        assert received(transport) == 2 * FROZEN_BYTES + TRAINED_BYTES + MEAN_BYTES
        np.testing.assert_array_equal(model.frozen.value, theirs, strict=True)
        assert not np.array_equal(model.trained.value, trained)


def test_a_pull_between_two_rounds_of_local_steps_brings_what_others_have_changed_alone(new_job):
    transport, model = new_job(), Model()
    with opened(transport, local_steps=2) as session:
        model.step(0)
        model.step(1)
        before, values = received(transport), model.values
        session.pull()
        assert (received(transport), model.values) == (before, values)
        session._client.assign([Assignment("frozen", Model.numbers(FROZEN, 9))])
        session.pull()
        assert received(transport) == before + FROZEN_BYTES
        np.testing.assert_array_equal(model.frozen.value, Model.numbers(FROZEN, 9), strict=True)
