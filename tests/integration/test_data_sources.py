"""Loops over examples of all kinds: order, steps and epochs over all workers, iterables, errors, and queue status.

Which examples are trained when a worker fails is in `test_examples_once.py`.
"""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

import psworker as ps
from pswire.errors import AlreadyRegistered, DatasetError
from pswire.messages import Push, QueueSpec, Renew, Take
from pswire.specs.consistency import Bounded
from psworker import ops
from psworker.config import WorkerConfig
from psworker.sessions import session_numbers
from psworker.sessions.session import Session
from tests.support.shards import ShardsInProcess

DATA = ps.Dataset({"x": np.arange(25)})
SGD = ps.GradientDescent(1.0)


def count():
    return ps.Variable(np.zeros(1), name="count")


def train(variable, batch):
    """A step that counts the examples of its batch."""
    SGD.apply_gradients([(-np.full(1, float(len(batch))), variable)])


def session_over(transport, worker="w0", **strategy):
    return Session(WorkerConfig(name=worker, timeout=10, **strategy), transport, outer=SGD)


def status(queue):
    return queue.epoch, queue.done, queue.blocks_out


def test_without_shuffling_the_batches_are_those_of_the_rows_in_order(open_session):
    with open_session("w0") as session:
        seen = [batch.x.tolist() for batch in session.batches(DATA, 10, 2, shuffle=False)]
    assert seen == [list(range(10)), list(range(10, 20)), list(range(20, 25))] * 2


@pytest.mark.parametrize(("steps", "epochs"), [(1, None), (3, None), (4, None), (6, 2), (8, None), (7, 3)])
def test_steps_end_the_loop_after_so_many_batches_of_the_same_examples_as_without(open_session, steps, epochs):
    with open_session("w0") as session:
        whole = [batch.x.tolist() for batch in session.batches(DATA, 10, 3, seed=4)]
        seen = [batch.x.tolist() for batch in session.batches(DATA, 10, epochs, seed=4, steps=steps)]
        assert seen == whole[:steps]
        assert session.queues()[1].done == sum(map(len, seen))
        assert len(list(session.batches(DATA, 10, 1, steps=100))) == 3, "the epochs end first"


@pytest.mark.slow
def test_steps_are_those_of_all_workers_together(open_session):
    data, joined = ps.Dataset({"x": np.arange(1003)}), threading.Barrier(3)

    def work(name):
        variable, reports = count(), []
        with open_session(name) as session:
            joined.wait(30)
            batches = 0
            for batch in session.batches(data, 10, None, steps=250, on_epoch=reports.append):
                batches += 1
                train(variable, batch)
            session.pull()
            return batches, reports, float(variable.value[0])

    with ThreadPoolExecutor(3) as threads:
        batches, reports, counts = zip(*threads.map(work, ("w0", "w1", "w2")), strict=True)
    assert sum(batches) == 250
    assert max(counts) == 2 * 1003 + 48 * 10
    assert all([one.epoch for one in each] == [1, 2] for each in reports)


def test_epochs_without_end_go_on_until_the_program_leaves_and_its_block_goes_back(open_session):
    with open_session("w0") as session:
        batches = session.batches(DATA, 5, None, name="q")
        seen = list(itertools.islice(batches, 12))
        assert [batch.epoch for batch in seen] == [1] * 5 + [2] * 5 + [3] * 2
        assert sorted(np.concatenate([batch.x for batch in seen[5:10]])) == list(range(25))
        (queue,) = session.queues()
        assert queue.spec == QueueSpec(name="q", size=25, block=80)
        assert status(queue) == (3, 50, 1)
        batches.close()
        assert status(session.queues()[0]) == (3, 50, 0)


def test_queues_say_how_far_the_pushes_are_and_how_much_there_is(open_session):
    variable = count()
    with open_session("w0") as session:
        assert session.queues() == ()
        for number, batch in enumerate(session.batches(DATA, 2, 3, seed=7, steps=20), 1):
            train(variable, batch)
            (queue,) = session.queues()
            assert (queue.done, queue.spec.total) == (2 * number - number // 13, 39)
        assert queue.spec == QueueSpec(name="batches-1", size=25, block=32, epochs=3, seed=7, limit=39)
        assert status(session.queues()[0]) == (2, 39, 0)


def test_a_function_is_called_with_the_shuffled_numbers_of_each_batch(open_session):
    read = []

    def rows(indices):
        read.append(indices.tolist())
        return {"x": indices, "tokens": ps.Ragged([[1] * (index % 3) for index in indices])}

    with open_session("w0") as session:
        expected = [batch.x.tolist() for batch in session.batches(DATA, 10, seed=3)]
        for batch in session.batches(ps.FunctionDataset(rows, 25), 10, seed=3):
            assert (batch.tokens.lengths == batch.x % 3).all()
        assert read == expected
        assert session.evaluate(lambda batch: batch.x.mean(), ps.FunctionDataset(rows, 25), 10) == pytest.approx(12)


def test_a_ragged_column_is_trained_like_any_other(open_session):
    rows = [np.full(length, length, np.float32) for length in range(9)]
    table = ps.Variable(np.zeros(9), name="table")
    with open_session("w0") as session:
        for batch in session.batches({"x": rows, "y": np.arange(9)}, 4):
            sums = ops.segment_sum(ops.gather(table, batch.x.values.astype(int)), batch.x.segment_ids, len(batch))
            SGD.minimize(-ops.sum(sums))
        np.testing.assert_array_equal(table.value, np.arange(9))


def test_an_iterable_is_read_by_each_worker_and_steps_count_the_batches_of_all(open_session):
    joined = threading.Barrier(3)

    def work(name):
        variable = count()
        with open_session(name) as session:
            joined.wait(30)
            numbers = ({"x": number} for number in itertools.count(session.number, 3))
            seen = []
            for batch in session.batches(numbers, 2, steps=100):
                seen += batch.x.tolist()
                train(variable, batch)
            assert seen == list(range(session.number, 3 * len(seen), 3)), "its own, in order"
            session.pull()
            return len(seen), float(variable.value[0]), session.queues()[0]

    with ThreadPoolExecutor(3) as threads:
        lengths, counts, queues = zip(*threads.map(work, ("w0", "w1", "w2")), strict=True)
    assert sum(lengths) == max(counts) == 200
    assert queues[0].spec == QueueSpec(name="batches-1", block=16, limit=100)
    assert max(queue.done for queue in queues) == 100


def test_passes_of_an_iterable_are_those_of_each_worker(open_session):
    passes = []

    def numbers():
        passes.append(len(passes))
        return ({"x": number} for number in range(5))

    with open_session("w0") as session:
        seen = [(batch.epoch, batch.x.tolist()) for batch in session.batches(numbers, 3, 2)]
        assert (seen, passes) == ([(1, [0, 1, 2]), (1, [3, 4]), (2, [0, 1, 2]), (2, [3, 4])], [0, 1])
        assert len(list(session.batches(numbers, 3, None, steps=7))) == 7
        assert session.queues()[0].blocks_out == 0
        with pytest.raises(ValueError, match="on_epoch is for datasets"):
            session.batches(numbers, 3, on_epoch=print)


@pytest.mark.parametrize(
    "strategy", [{}, {"push_every": 3}, {"push_every": 2, "overlap": True}, {"local_steps": 4}], ids=str
)
def test_what_a_worker_does_not_read_of_its_block_goes_to_the_others_when_its_iterable_ends(strategy):
    """The steps of the job are exact, though the first worker has 7 batches only."""
    transport = ShardsInProcess(1)
    with ps.collection(), session_over(transport, "first", **strategy) as session:
        variable = count()
        for batch in session.batches(({"x": [n]} for n in range(7)), None, steps=40):
            train(variable, batch)
        assert status(session.queues()[0]) == (1, 7, 0)
    with ps.collection(), session_over(transport, "second", **strategy) as session:
        variable = count()
        rest = 0
        for batch in session.batches(({"x": [n]} for n in itertools.count()), None, steps=40):
            rest += 1
            train(variable, batch)
        session.pull()
        assert (rest, float(variable.value[0])) == (33, 40)


def test_a_worker_whose_iterable_has_ended_is_idle_so_others_do_not_wait_for_it():
    transport = ShardsInProcess(1, consistency=Bounded(0))
    with session_over(transport) as session:
        variable = count()
        for batch in session.batches([{"x": [n]} for n in range(3)].__iter__(), None):
            train(variable, batch)
        transport.sent.clear()
        session.pull()
    assert [renew.idle for _, renew in transport.messages(Renew)] == [True]


def test_an_iterable_goes_on_where_it_was_when_all_servers_went_back():
    """Batches whose pushes are lost with the servers' state are not read again; no other one is left out."""
    transport = ShardsInProcess(1, stored=True)
    with session_over(transport) as session:
        variable, seen = count(), []
        for batch in session.batches(({"x": [n]} for n in range(60)), None, name="q"):
            number = int(batch.x[0])
            seen.append(number)
            train(variable, batch)
            if number in range(2, 6):
                transport.show_cuts(session._client, begin=number == 2)
            if number == 20:
                transport.lose_state(0)
                session.pull()
                assert session._client.rollback.count == 1
    assert seen == list(range(60))


def test_an_error_of_the_source_comes_from_the_loop_after_the_push_and_gives_the_block_back():
    """The next batch is prepared in a push: `minimize` does not raise what the program's source has raised."""

    def broken(indices):
        if 7 in indices:
            raise OSError("disk on fire")
        return {"x": indices}

    for source in (ps.FunctionDataset(broken, 10), (broken(np.array([n])) for n in range(10))):
        batch_size = 1 if isinstance(source, ps.FunctionDataset) else None
        transport = ShardsInProcess(1)
        with ps.collection(), session_over(transport) as session:
            variable, seen = count(), []
            with pytest.raises(OSError, match="disk on fire"):  # noqa: PT012 - the loop raises it
                for batch in session.batches(source, batch_size, shuffle=False):
                    train(variable, batch)
                    seen += batch.x.tolist()
            assert seen == list(range(7))
            assert len(transport.messages(Push)) == 7
            assert transport.messages(Take)[-1][1].give_back
            assert status(session.queues()[0]) == (1, 7, 0)


@pytest.mark.parametrize("endless", ["a dataset", "an iterable"])
def test_a_worker_that_stops_the_job_ends_endless_loops_of_all_workers(open_session, endless):
    joined = threading.Barrier(2)

    def work(name):
        with open_session(name) as session:
            joined.wait(30)
            source = DATA if endless == "a dataset" else ({"x": number} for number in itertools.count())
            for number, _ in enumerate(session.batches(source, 1, None if source is DATA else 1), 1):
                if name == "w0" and number == 20:
                    session.stop_all("enough")
            return session.stopped

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, ("w0", "w1"))) == ["w0: enough"] * 2


def test_an_evaluation_is_the_mean_over_the_examples_of_any_source_whatever_their_batches(open_session):
    mean = lambda batch: batch.x.mean()
    numbers = [{"x": number} for number in range(25)]
    with open_session("w0") as session:
        for source in (DATA, {"x": np.arange(25)}, numbers, iter(numbers), lambda: numbers):
            assert session.evaluate(mean, source, 7) == pytest.approx(12)
        parts = [np.arange(20), np.arange(20, 25)]
        assert session.evaluate(mean, iter(parts), None, collate=lambda x: {"x": x}) == pytest.approx(12)
        for batch_size in (0, None):
            with pytest.raises(ValueError, match="batch_size"):
                session.evaluate(mean, DATA, batch_size)


def test_a_generator_that_ends_at_once_is_an_error_that_says_so(open_session):
    with open_session("w0") as session:
        with pytest.raises(DatasetError, match="gave nothing in pass 1; each worker needs at least one example"):
            list(session.batches(iter([]), 3))
        with pytest.raises(DatasetError, match="gave nothing in pass 1"):
            session.evaluate(len, iter([]))


@pytest.mark.parametrize("stop_at", [0, 4, 7])
def test_a_resumed_job_with_more_steps_trains_the_batches_of_one_that_had_them_from_the_beginning(tmp_path, stop_at):
    """The first run ends after 7 steps, within a block and an epoch, or earlier, by an error."""

    def run(folder, steps, stop_at=0):
        seen, ledger = [], ps.Variable(np.zeros(25), name="ledger")
        session_numbers.forget()  # as in a process of its own
        with suppress(InterruptedError), ps.session(checkpoint_dir=folder) as session:
            for batch in session.batches(DATA, 2, None, seed=3, steps=steps):
                mark = np.zeros(25)
                mark[batch.x] = -1
                SGD.apply_gradients([(mark, ledger)])
                seen.append(batch.x.tolist())
                if len(seen) == stop_at:
                    raise InterruptedError
        return seen, ledger.value.tolist()

    runs = []
    for folder, *steps in (("a", 7, stop_at), ("a", 30), ("a", 30), ("b", 30)):
        with ps.collection():
            runs.append(run(tmp_path / folder, *steps))
    (first, _), (second, ledger), (none, again), (through, expected) = runs
    assert (first + second, none) == (through, [])
    assert ledger == again == expected
    assert sum(expected) == 2 * 25 + 4 * 2


def test_a_resumed_job_counts_the_steps_of_an_iterable_on(tmp_path):
    def run(steps):
        session_numbers.forget()  # as in a process of its own
        with ps.session(checkpoint_dir=tmp_path) as session:
            variable, numbers = count(), ({"x": [n]} for n in itertools.count())
            seen = [train(variable, batch) for batch in session.batches(numbers, None, steps=steps)]
            return len(seen), variable.value.item()

    with ps.collection():
        assert run(20) == (20, 20)
    with ps.collection():
        assert run(50) == (30, 50)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"batch_size": 0}, "got 0, 1, 0, None"),
        ({"epochs": 0}, "got 10, 0, 0, None"),
        ({"steps": 0}, "steps 1 or more if given: got 10, 1, 0, 0"),
        ({"batch_size": None}, "batch_size=None is for iterables whose items are batches"),
    ],
)
def test_numbers_that_are_out_of_range_are_refused(open_session, arguments, pattern):
    with open_session("w0") as session, pytest.raises(ValueError, match=pattern):
        session.batches(DATA, **{"batch_size": 10, **arguments})


def test_workers_that_do_not_agree_on_the_order_or_the_end_are_refused(open_session):
    with open_session("w0") as session:
        next(session.batches(DATA, 10, name="q"))
        with pytest.raises(AlreadyRegistered, match="has in_order=False, but this worker requests in_order=True"):
            next(session.batches(DATA, 10, shuffle=False, name="q"))
        with pytest.raises(AlreadyRegistered, match="has limit=0, but this worker requests limit=10"):
            next(session.batches(DATA, 10, steps=1, name="q"))


def test_batches_of_a_queue_are_trained_in_their_order_and_its_errors_end_the_loop():
    def parts():
        for number in range(6):
            yield {"x": np.arange(number + 1)}
        raise OSError("part 6 is missing")

    seen = []
    with ps.session() as session, ps.data.Queue(parts()) as queue:
        variable = count()
        batches = session.batches(queue, batch_size=None)
        for batch in itertools.islice(batches, 6):
            train(variable, batch)
            seen.append(len(batch))
        with pytest.raises(OSError, match="part 6 is missing"):
            next(batches)
        assert seen == [1, 2, 3, 4, 5, 6]
        session.pull()
        assert variable.value.item() == 21
