"""Each example is trained once an epoch, also when a worker fails or leaves its loop in the middle of a block.

A variable has an element for each example, to which each batch adds 1 for its own: the ledger. Killed processes are in
`tests/cluster/test_killed_processes.py`.
"""

from contextlib import nullcontext

import numpy as np
import pytest

import psworker as ps
from pswire.messages import Push, Take
from pswire.specs.consistency import DropStalePushes
from psworker import ops
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from tests.support.combinations import combinations
from tests.support.shards import ShardsInProcess

EXAMPLES, BATCH = 100, 3
DATA = ps.Dataset({"x": np.arange(EXAMPLES)})
SGD = ps.GradientDescent(1.0)
STRATEGIES = [{}, {"push_every": 3}, {"push_every": 2, "pull_every": 6, "overlap": True}, {"local_steps": 4}]


def session_over(transport, worker, **strategy):
    config = WorkerConfig(name=worker, timeout=10, **strategy)
    return Session(config, transport, outer=SGD)


def ledger(name="ledger"):
    return ps.Variable(np.zeros(EXAMPLES), name=name)


def ones(batch):
    """The gradient that adds 1 to the elements of the batch."""
    gradient = np.zeros(EXAMPLES)
    gradient[batch.x] = -1
    return gradient


def train(seen, batch):
    """One step, whose loss is the mean of the examples' numbers."""
    loss = ops.sum(seen * ones(batch))
    SGD.minimize(loss - float(loss.value) + float(np.mean(batch.x)))


def the_rest(transport, epochs=1, **strategy):
    """Another worker trains what is left; the final ledger, and the epochs' reports."""
    reports = []
    with ps.collection(), session_over(transport, "rest", **strategy) as session:
        seen = ledger()
        for batch in session.batches(DATA, BATCH, epochs, on_epoch=reports.append, name="q"):
            train(seen, batch)
        session.pull()
        return seen.value.tolist(), reports


@pytest.mark.parametrize(
    ("how", "strategy", "steps", "shards"),
    combinations(
        [(how, strategy) for how in ("fail", "leave", "stay") for strategy in STRATEGIES],
        [(1,), (4,), (16,), (30,)],
        [(1,), (2,)],
    ),
    ids=str,
)
def test_of_a_block_that_a_worker_leaves_the_others_train_the_rest_once(steps, strategy, how, shards):
    """The cost of an epoch is the mean over all examples. A worker that stays is still there, and pulls."""
    transport = ShardsInProcess(shards)
    error = pytest.raises(RuntimeError) if how == "fail" else nullcontext()
    with error, ps.collection(), session_over(transport, "first", **strategy) as session:
        seen = ledger()
        for number, batch in enumerate(session.batches(DATA, BATCH, 2, name="q"), 1):
            train(seen, batch)
            if number == steps and how == "fail":
                raise RuntimeError("out of ideas")
            if number == steps:
                break
        if how == "stay":
            session.pull()
            values, reports = the_rest(transport, 2, **strategy)
    if how != "stay":
        values, reports = the_rest(transport, 2, **strategy)
    assert values == [2.0] * EXAMPLES
    assert [(one.epoch, one.examples) for one in reports] == [(1, EXAMPLES), (2, EXAMPLES)]
    assert [one.cost for one in reports] == [pytest.approx(np.mean(DATA.x))] * 2


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_push_names_the_examples_whose_gradients_it_has_and_no_others(strategy):
    transport, data = ShardsInProcess(1), ps.Dataset({"x": np.arange(25)})
    with session_over(transport, "w0", **strategy) as session:
        count = ps.Variable(np.zeros(1), name="count")
        for number, batch in enumerate(session.batches(data, 1), 1):
            if number == 5:
                session.pull()  # this batch is not trained yet
            SGD.apply_gradients([(-np.ones(1) * len(batch), count)])
    pushes = [push for _, push in transport.messages(Push)]
    pushed = np.cumsum([-push.gradients[0].array.item() for push in pushes])
    assert [push.progress[0].position for push in pushes] == pushed.tolist()
    assert pushed[-1] == 25


def test_with_two_sums_a_push_names_no_examples_whose_gradients_the_other_sum_has_still():
    transport, data = ShardsInProcess(1), ps.Dataset({"x": np.arange(32)})
    with session_over(transport, "w0", push_every=3) as session:
        both = ps.Variable(np.zeros(1), name="a"), ps.Variable(np.zeros(1), name="b")
        for number, _ in enumerate(session.batches(data, 1)):
            SGD.apply_gradients([(-np.ones(1), both[0])])
            if number % 2:  # the sums are complete at different batches
                SGD.apply_gradients([(-np.ones(1), both[1])])
    pushed, named = {"a": 0.0, "b": 0.0}, []
    for _, push in transport.messages(Push):
        for one in push.gradients:
            pushed[one.name] -= one.array.item()
        for one in push.progress:
            named.append(one.position)
            assert pushed["a"] >= one.position
            assert pushed["b"] >= one.position // 2
    assert named[-1] == 32
    assert len(named) > 3


def test_a_push_names_the_batches_of_all_loops_that_run():
    transport = ShardsInProcess(2)
    with session_over(transport, "w0") as session:
        x = ps.Variable(np.zeros(1), name="x")
        SGD.apply_gradients([(np.ones(1), x)])
        a, b = (
            session.batches(ps.Dataset({"x": np.arange(size)}), 2, name=name) for name, size in (("a", 4), ("b", 9))
        )
        for _ in zip(a, b, strict=False):
            SGD.apply_gradients([(np.ones(1), x)])
    pushes = [push for shard, push in transport.messages(Push) if not shard]
    named = [[(one.queue, one.block, one.position, one.cost_sum) for one in push.progress] for push in pushes]
    assert named == [[], *([("a", 0, end, None), ("b", 0, end, None)] for end in (2, 4))]
    assert all(not push.progress for shard, push in transport.messages(Push) if shard)


def test_the_block_of_a_loop_that_is_left_is_given_back_when_its_gradients_are_pushed():
    transport = ShardsInProcess(1)
    with session_over(transport, "w0", push_every=9) as session:
        seen = ledger()
        for batch in session.batches(DATA, BATCH, name="q"):
            SGD.apply_gradients([(ones(batch), seen)])
            break
        assert [take.give_back for _, take in transport.messages(Take)] == [False]
        session.pull()
        kinds = [type(message) for _, message in transport.sent if isinstance(message, Push | Take)]
        assert kinds == [Take, Push, Take]
        assert transport.messages(Take)[-1][1].give_back
    assert the_rest(transport, push_every=9)[0] == [1.0] * EXAMPLES


def test_the_examples_of_a_dropped_push_count_as_done():
    """Its worker goes on with others; in the ledger, they are those that are missing."""
    transport = ShardsInProcess(1, staleness=DropStalePushes(0))
    with ps.collection(), session_over(transport, "first") as session:
        seen = ledger()
        for number, batch in enumerate(session.batches(DATA, BATCH, name="q"), 1):
            if number == 2:
                with ps.collection(), session_over(transport, "other"):
                    SGD.apply_gradients([(np.zeros(EXAMPLES), ledger())])
            SGD.apply_gradients([(ones(batch), seen)])
            if number == 2:
                break
        assert session.dropped == 1
    values, reports = the_rest(transport)
    assert {number for number, value in enumerate(values) if value != 1} == set(batch.x.tolist())
    assert [(one.epoch, one.examples) for one in reports] == [(1, EXAMPLES)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_worker_that_looks_at_the_model_after_an_epoch_is_between_two_blocks_and_one_in_its_block_is_not(strategy):
    """So the guard does not take an evaluation for a reader that hangs."""
    transport, after, within = ShardsInProcess(1), [], []

    def is_between_blocks():
        (row,) = transport.machines[0].status(0.0).workers
        return row.between_blocks

    with session_over(transport, "w0", **strategy) as session:
        seen = ledger()
        batches = session.batches(DATA, BATCH, 2, on_epoch=lambda _: after.append(is_between_blocks()))
        for number, batch in enumerate(batches, 1):
            train(seen, batch)
            if number % 34 == 20:
                session.pull()
                within.append(is_between_blocks())
        assert is_between_blocks()
    assert after == [True, True]
    assert within == [False, False]
