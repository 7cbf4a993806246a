"""Data queues: every position of every epoch in one block, each block with one worker at a time."""

import pytest

from psserver.core.array_tasks import StepResult
from psserver.core.data_queue import PATIENCE, DataQueue, DataQueues
from pswire.errors import NotJoined, ParamServerError, Unavailable
from pswire.messages import Block, Finished, QueueSpec, Sender, Take


def replies(change, *arguments):
    result = StepResult()
    change(*arguments, result)
    return result.replies


def drain(queue, worker="w"):
    """All blocks that are left, finished one after the other."""
    blocks = []
    while (block := queue.take(worker, StepResult())) is not None:
        blocks.append(block)
        queue.finish(worker, Finished(block.number), StepResult())
    return blocks


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("block", [1, 2, 4, 5, 100])
@pytest.mark.parametrize("size", [1, 4, 5])
def test_the_blocks_of_an_epoch_are_its_positions_in_order(size, block, epochs):
    queue = DataQueue(QueueSpec("q", size, block, epochs))
    blocks = drain(queue)
    assert [one.number for one in blocks] == list(range(len(blocks)))
    positions = [(one.epoch, position) for one in blocks for position in range(one.start, one.stop)]
    assert positions == [(epoch, position) for epoch in range(1, epochs + 1) for position in range(size)]
    assert all(0 < one.stop - one.start <= block for one in blocks)
    assert queue.done
    assert [(report.epoch, report.examples) for report in queue.reports] == [(e + 1, size) for e in range(epochs)]


def test_returned_blocks_are_handed_out_first_in_order():
    queue = DataQueue(QueueSpec("q", 10, 2, 1))
    for worker in "abc":
        queue.take(worker, StepResult())
    assert [queue.give_back(worker) for worker in "cbz"] == [Block(2, 1, 4, 6), Block(1, 1, 2, 4), None]
    assert [queue.take(worker, StepResult()).number for worker in "def"] == [1, 2, 3]


def test_the_cost_of_an_epoch_is_the_mean_over_the_examples_that_have_one():
    queue = DataQueue(QueueSpec("q", 5, 2, 2))
    for cost_sum in (3.0, None, 0.5, None, None, None):
        queue.finish("w", Finished(queue.take("w", StepResult()).number, cost_sum), StepResult())
    assert [report.cost for report in queue.reports] == [3.5 / 3, None]


# --- those who wait ---------------------------------------------------------------------------------------------------

SPEC = QueueSpec("q", 2, 1, 1)


def take(queues, ticket, worker, now=0.0, spec=SPEC, finished=None, heard=0):
    """What is answered, by ticket."""
    done = None if finished is None else Finished(finished, 1.0)
    return answers(replies(queues.take, ticket, Take(Sender(worker, 1), spec, done, heard), now))


def answers(replies):
    return {reply.ticket: reply.answer for reply in replies}


def lost(sender):
    """What one hears whose lease has ended."""
    return NotJoined(f"{sender.worker} is lost")


def errors(answers):
    """Takes the errors out of some answers: their classes and texts, by ticket."""
    ended = {ticket: answer for ticket, answer in answers.items() if isinstance(answer, ParamServerError)}
    for ticket in ended:
        del answers[ticket]
    return {ticket: (type(error), str(error)) for ticket, error in ended.items()}


GIVEN_UP = Unavailable, "another call of this worker has replaced this one"


def all_out(chiefs=()):
    """Queues whose two blocks are out, with `a` and `b`."""
    queues = DataQueues(chiefs.__contains__)
    take(queues, 1, "a")
    take(queues, 2, "b")
    return queues


def test_a_repeated_request_replaces_the_waiting_one_and_keeps_its_place():
    queues = all_out()
    take(queues, 3, "c", now=0.0)
    assert errors(take(queues, 4, "c", now=PATIENCE - 1)) == {3: GIVEN_UP}
    assert replies(queues.explain, PATIENCE) == [], "its patience begins anew"
    take(queues, 5, "d", now=PATIENCE)
    assert errors(take(queues, 6, "c", now=PATIENCE)) == {4: GIVEN_UP}
    assert set(answers(replies(queues.forget, ["a"], lost))) == {6}, "and it keeps its place"


def test_returning_a_block_ends_a_waiting_request_of_the_same_worker():
    queues = all_out()
    take(queues, 3, "c")
    back = answers(replies(queues.take, 4, Take(Sender("c", 1), SPEC, None, 0, True), 0.0))
    assert errors(back) == {3: GIVEN_UP}
    assert (back[4].block, back[4].done) == (None, False)
    assert replies(queues.forget, ["a"], lost) == [], "c waits no more"


def test_a_request_that_waits_for_long_is_answered_once_with_the_workers_it_waits_for():
    queues = all_out()
    take(queues, 3, "c", now=1.0)
    (told,) = answers(replies(queues.explain, 1.0 + PATIENCE)).values()
    assert (told.block, told.done) == (None, False)
    assert told.waiting_for == "a (block 0 of epoch 1), b (block 1 of epoch 1)"
    assert replies(queues.explain, 100.0) == []
    assert replies(queues.forget, ["a"], lost) == [], "nobody waits any more"


def test_an_answer_tells_whether_its_worker_is_chief_by_then():
    chiefs = ["a"]
    queues = all_out(chiefs)
    for ticket, worker in ((3, "c"), (4, "d"), (5, "e")):
        take(queues, ticket, worker, now=float(ticket))
    chiefs[:] = ["c", "e"]
    freed = answers(replies(queues.forget, ["a"], lost)) | answers(replies(queues.explain, 4.0 + PATIENCE))
    assert {ticket: taken.chief for ticket, taken in freed.items()} == {3: True, 4: False}
    chiefs[:] = ["c"]
    take(queues, 6, "b", finished=1)
    freed = take(queues, 7, "c", finished=0)
    assert {ticket: (taken.done, taken.chief) for ticket, taken in freed.items()} == {
        5: (True, False),
        6: (True, False),
        7: (True, True),
    }
