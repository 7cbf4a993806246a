"""Training goes on after servers have lost their state: from the last checkpoint, with each example once an epoch.

A variable has an element for each example, to which each batch adds 1 for its own. What was trained after the
checkpoint is given up, and trained again.
"""

import logging

import pytest

import psworker as ps
from tests.integration.test_examples_once import BATCH, DATA, EXAMPLES, SGD, STRATEGIES, ledger, ones, session_over
from tests.support.combinations import combinations
from tests.support.shards import ShardsInProcess

EPOCHS = 3
BATCHES = 3 * -(-EXAMPLES // BATCH)


LOST = [(1, (0,)), (2, (0,)), (2, (1,)), (2, (0, 1))]
EACH = [(*lost, strategy) for strategy in STRATEGIES for lost in LOST]


@pytest.mark.parametrize(
    ("shards", "lost", "strategy", "begun", "later"),
    combinations(EACH, [(2,), (17,), (40,), (65,)], [(6,), (20,)]),
    ids=str,
)
def test_each_example_is_trained_once_an_epoch_although_the_shards_went_back(
    begun, later, shards, lost, strategy, caplog
):
    separately = not strategy  # two pushes for a batch
    transport, reports = ShardsInProcess(shards, stored=True), []
    with ps.collection(), session_over(transport, "w0", **strategy) as session, caplog.at_level(logging.WARNING):
        seen, other = ledger(), ledger("other")  # of two shards each has one
        for number, batch in enumerate(session.batches(DATA, BATCH, EPOCHS, on_epoch=reports.append, name="q"), 1):
            for variables in [(seen,), (other,)] if separately else [(seen, other)]:
                SGD.apply_gradients([(ones(batch), variable) for variable in variables])
            if begun <= number <= begun + 4:
                transport.show_cuts(session._client, begin=number == begun)
            if number == begun + later:
                assert all(stored.checkpoints for stored in transport.stored)
                transport.lose_state(*lost)
        session.pull()
        values = seen.value.tolist(), other.value.tolist()
    assert values == ([EPOCHS] * EXAMPLES, [EPOCHS] * EXAMPLES)
    assert [(one.epoch, one.examples) for one in reports] == [(epoch, EXAMPLES) for epoch in range(1, EPOCHS + 1)]
    assert sum("all shards went back" in record.getMessage() for record in caplog.records) >= 1
    assert number > BATCHES
    assert 1 <= session.dropped <= 2, "the open push, and the rest of its batch or sum"
