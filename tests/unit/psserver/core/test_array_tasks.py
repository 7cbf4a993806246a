"""Array tasks: order, division into stretches, and failures, which do not keep other tasks from running."""

import itertools

import pytest

from psserver.core.array_tasks import ArrayTask, run, run_parts, stages
from psserver.runtime import task_order


def fails(done, text):
    done.append(text)
    raise ArithmeticError(text)


def divisible(name, done, elements=10):
    return ArrayTask("W", 8, lambda: done.append(name), lambda start, stop: done.append((name, start, stop)), elements)


def test_tasks_run_in_order_and_a_failure_is_raised_when_the_others_are_done():
    done = []
    runs = [lambda: done.append("a"), lambda: fails(done, "b"), lambda: done.append("c"), lambda: fails(done, "d")]
    with pytest.raises(ArithmeticError, match=r"^b$"):
        run([ArrayTask("W", 8, one) for one in runs])
    assert done == ["a", "b", "c", "d"]


def test_divisible_tasks_that_follow_each_other_are_one_stage():
    a, b, c, d = (divisible(name, []) for name in "abcd")
    whole, other = ArrayTask("W", 8, lambda: None), divisible("e", [], elements=7)
    assert stages([a, b, whole, c, other, d]) == [[a, b], [whole], [c], [other], [d]]


def test_each_stretch_is_done_by_all_tasks_in_their_order_before_the_next():
    done = []
    run_parts([divisible("a", done), divisible("b", done)], iter([(0, 4), (4, 10)]))
    assert done == [("a", 0, 4), ("b", 0, 4), ("a", 4, 10), ("b", 4, 10)]


def test_a_failure_of_a_part_is_raised_when_all_stretches_are_done():
    done = []
    broken = ArrayTask("W", 8, lambda: None, lambda start, stop: fails(done, f"from {start}"), 10)
    with pytest.raises(ArithmeticError, match=r"^from 0$"):
        run_parts([broken, divisible("b", done)], iter([(0, 4), (4, 10)]))
    assert done == ["from 0", ("b", 0, 4), "from 4", ("b", 4, 10)]


@pytest.mark.parametrize("elements", [9, 10, 11, 16, 17])
def test_a_large_variable_is_divided_into_rounds_between_which_others_have_their_turn(elements, monkeypatch):
    """And each round is shared by all threads: here the last one does it all."""
    monkeypatch.setattr(task_order, "MIN_DIVIDED_BYTES", 0)
    monkeypatch.setattr(task_order, "ELEMENTS_PER_STRETCH", 2)
    monkeypatch.setattr(task_order, "STRETCHES_PER_ROUND", 4)
    done = []
    whole = ArrayTask("W", 8, lambda: done.append("whole"))
    rounds = list(task_order._rounds([whole, divisible("a", done, elements)]))
    assert [len(jobs) for jobs in rounds] == [1, *[task_order.THREADS] * -(-elements // 8)]
    for jobs in rounds:
        before = len(done)
        for job in reversed(jobs):
            job()
        assert len(done) - before <= 4
    starts = range(0, elements, 2)
    assert done == ["whole", *[("a", start, min(start + 2, elements)) for start in starts]]


def test_a_task_of_one_stretch_is_not_divided(monkeypatch):
    monkeypatch.setattr(task_order, "MIN_DIVIDED_BYTES", 0)
    monkeypatch.setattr(task_order, "ELEMENTS_PER_STRETCH", 10)
    done = []
    for job in itertools.chain(*task_order._rounds([divisible("a", done), divisible("b", done)])):
        job()
    assert done == ["a", "b"]
