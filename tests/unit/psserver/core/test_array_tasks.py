"""Array tasks: order, division into stretches, and failures, which do not keep other tasks from running."""

import pytest

from psserver.core.array_tasks import ArrayTask, run, run_parts, stages
from psserver.runtime import task_order


def divisible(name, done, elements=10):
    return ArrayTask("W", 8, lambda: done.append(name), lambda start, stop: done.append((name, start, stop)), elements)


def test_tasks_and_stretches_run_in_order_and_a_failure_is_raised_when_the_others_are_done():
    done = []

    def fails(*where):
        done.append(where)
        raise ArithmeticError(len(done))

    broken = ArrayTask("W", 8, fails, fails, 10)
    with pytest.raises(ArithmeticError, match=r"^2$"):
        run([divisible("a", done), broken, divisible("b", done), broken])
    assert done == ["a", (), "b", ()]
    with pytest.raises(ArithmeticError, match=r"^5$"):
        run_parts([broken, divisible("b", done)], iter([(0, 4), (4, 10)]))
    assert done[4:] == [(0, 4), ("b", 0, 4), (4, 10), ("b", 4, 10)]


def test_divisible_tasks_that_follow_each_other_are_one_stage():
    a, b, c, d = (divisible(name, []) for name in "abcd")
    whole, other = ArrayTask("W", 8, lambda: None), divisible("e", [], elements=7)
    assert stages([a, b, whole, c, other, d]) == [[a, b], [whole], [c], [other], [d]]


@pytest.mark.parametrize("elements", [2, 9, 10, 11, 16, 17])
def test_a_large_variable_is_divided_into_rounds_between_which_others_have_their_turn(elements, monkeypatch):
    """And each round is shared by all threads: here the last one does it all. A task of one stretch is not divided."""
    monkeypatch.setattr(task_order, "MIN_DIVIDED_BYTES", 0)
    monkeypatch.setattr(task_order, "ELEMENTS_PER_STRETCH", 2)
    monkeypatch.setattr(task_order, "STRETCHES_PER_ROUND", 4)
    done = []
    rounds = list(task_order._rounds([ArrayTask("W", 8, lambda: done.append("whole")), divisible("a", done, elements)]))
    divided = elements > 2
    assert [len(jobs) for jobs in rounds] == [1, *[task_order.THREADS if divided else 1] * -(-elements // 8)]
    for jobs in rounds:
        before = len(done)
        for job in reversed(jobs):
            job()
        assert len(done) - before <= 4
    parts = [("a", start, min(start + 2, elements)) for start in range(0, elements, 2)]
    assert done == ["whole", *(parts if divided else ["a"])]
