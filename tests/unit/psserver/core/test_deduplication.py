"""The ledger: for each worker the last message that was carried out, and nothing else."""

import pytest

from psserver.core.members.deduplication import DeduplicationTable
from pswire.errors import OutOfOrder
from pswire.messages import Outcome, Pushed, Sender

W0, W1 = Sender("w0", 1), Sender("w1", 1)


def pushed(step):
    return Pushed(Outcome.APPLIED, 0, step)


def test_the_last_message_gets_its_answer_again_and_a_later_one_is_new():
    ledger = DeduplicationTable()
    assert ledger.find(W0, 1) is None
    ledger.record(W0, 1, pushed(7))
    assert ledger.find(W0, 1).answer == pushed(7)
    assert ledger.find(W0, 2) is None
    assert ledger.find(W0, 100) is None


def test_a_message_before_the_last_is_out_of_order_and_named():
    ledger = DeduplicationTable()
    ledger.record(W0, 3, pushed(1))
    with pytest.raises(OutOfOrder, match="message 2 of worker 'w0' came after its message 3"):
        ledger.find(W0, 2)
    assert ledger.find(W0, 3).answer == pushed(1)


def test_workers_and_incarnations_do_not_share_numbers():
    ledger = DeduplicationTable()
    ledger.record(W0, 3, pushed(1))
    assert ledger.find(W1, 1) is None
    assert ledger.find(Sender("w0", 2), 1) is None
    ledger.record(Sender("w0", 2), 1, pushed(2))
    assert ledger.find(Sender("w0", 2), 1).answer == pushed(2)
