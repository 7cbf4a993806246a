"""What grows with a job, counted in operations, and memory that a job gives back."""

import gc
import weakref

import numpy as np
import pytest

from psserver.core.data import data_queue, data_queues
from psserver.core.variables.variable import Variable
from pswire import errors
from pswire import messages as ms
from pswire.optimizers import Adam, GradientDescent
from tests.support.shards import A, B, ShardDriver, declared, restored


def queue(number=0, size=2, epochs=1):
    return ms.QueueSpec(name=f"q{number}", size=size, block=1, epochs=epochs)


def test_a_take_touches_its_queue_only(monkeypatch):
    job, touched = ShardDriver(), set()
    for number in range(50):
        assert job.answer(ms.Take(sender=A, queue=queue(number, size=3))).block.number == 0
    for name in ("take", "holds", "holders", "give_back"):
        method = getattr(data_queue.DataQueue, name)

        def note(queue, *arguments, method=method):
            touched.add(queue.spec.name)
            return method(queue, *arguments)

        monkeypatch.setattr(data_queue.DataQueue, name, note)
    assert job.answer(ms.Take(sender=B, queue=queue(7, size=3))).block.number == 1
    assert job.answer(ms.Take(sender=A, queue=queue(7, size=3), finished=ms.Finished(0))).block.number == 2
    assert job.answer(ms.Take(sender=A, queue=queue(7, size=3), give_back=True)).block is None
    assert touched == {"q7"}
    touched.clear()
    job.answer(ms.Leave(B))
    assert "q7" in touched


def test_epochs_that_are_open_are_bounded_and_further_blocks_wait(monkeypatch):
    monkeypatch.setattr(data_queue, "MAX_OPEN_EPOCHS", 3)
    job, spec = ShardDriver(), queue(size=2, epochs=100)
    assert job.answer(ms.Take(sender=A, queue=spec)).block.number == 0
    finished = None
    for number in range(1, 6):
        assert job.answer(ms.Take(sender=B, queue=spec, finished=finished)).block.number == number
        finished = ms.Finished(number)
    assert job.answer(ms.Take(sender=B, queue=spec, finished=finished), 7) is None, "until the first block is done"
    answers = job.step(ms.Take(sender=A, queue=spec, finished=ms.Finished(0)), 8)
    assert {ticket: answer.block.number for ticket, answer in answers.items()} == {7: 6, 8: 7}
    assert job.shard._queues.reports(2) == [
        ms.EpochReport(queue="q0", epoch=2, cost=None, examples=2),
        ms.EpochReport(queue="q0", epoch=3, cost=None, examples=2),
    ]


def test_the_newest_epochs_and_queues_are_listed(monkeypatch):
    job = ShardDriver()
    for number in range(3):
        job.answer(ms.Take(sender=A, queue=queue(number, size=1, epochs=2)))
        job.answer(ms.Take(sender=A, queue=queue(number, size=1, epochs=2), finished=ms.Finished(0)))
        job.answer(ms.Take(sender=A, queue=queue(number, size=1, epochs=2), finished=ms.Finished(1)))
    queues = job.shard._queues
    assert [(one.queue, one.epoch) for one in queues.reports(3)] == [("q1", 2), ("q2", 1), ("q2", 2)]
    monkeypatch.setattr(data_queues, "MAX_LISTED", 2)
    assert [one.spec.name for one in queues.status(ms.Status(), 0.0)["queues"]] == ["q1", "q2"]
    assert (queues.count, queues.complete_epochs) == (3, 6)


def test_bytes_are_counted_as_variables_come_and_not_added_up_each_time(monkeypatch):
    job = ShardDriver(declared("W", np.zeros(6)), declared("V", np.zeros(2, np.float32), GradientDescent(0.1)))
    job.answer(ms.Register(sender=A, declarations=(ms.Declaration(declared("W", np.zeros(6)).spec, None, Adam(0.1)),)))
    expected = sum([one.nbytes for one in job.shard.variables.values()])
    assert job.shard._store.nbytes == expected == 48 * 3 + 8
    again = ShardDriver(workers="").shard
    restored(job.shard, again, 0.0)
    assert again._store.nbytes == expected
    looked, nbytes = [], Variable.nbytes.fget
    monkeypatch.setattr(Variable, "nbytes", property(lambda one: looked.append(one.spec.name) or nbytes(one)))
    job.answer(ms.Register(sender=B, declarations=(declared("N", np.zeros(1)),)))
    assert set(looked) <= {"N"}


@pytest.mark.parametrize("how", ["reset", "next job"])
def test_the_arrays_of_a_job_are_freed_when_it_is_over(how):
    job = ShardDriver(declared("W", np.zeros(6), Adam(0.1)), workers="ab")
    job.push("a", 1, W=np.ones(6))
    arrays = job.shard.arrays()["W"]
    references = [weakref.ref(array) for array in (arrays.value, *arrays.slots.values())]
    del arrays
    if how == "reset":
        job.answer(ms.Reset(2, force=True))
    else:
        job.answer(ms.Leave(A))
        job.answer(ms.Leave(B))
        job.answer(ms.Join(worker="next"))
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_memory_that_a_checkpoint_holds_for_now_is_waited_for():
    job = ShardDriver(memory_limit=1000)
    job.shard._variables.memory.count(lambda: 500, passing=True)
    job.refuse(
        ms.Register(sender=A, declarations=(declared("W", np.zeros(100)),)),
        errors.Unavailable,
        "holds 500: try again when it is",
    )
    job.refuse(
        ms.Register(sender=A, declarations=(declared("W", np.zeros(200)),)), errors.TooLarge, "raise --memory-limit"
    )
