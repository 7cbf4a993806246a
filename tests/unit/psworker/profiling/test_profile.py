"""Profiles: times of spans by a clock that a test sets; a program in this process, whose values stay the same."""

import json
import threading
from collections import Counter
from contextlib import suppress
from inspect import getclosurevars
from itertools import count, pairwise

import numpy as np
import pytest

import psworker as ps
from psworker import nn, ops
from psworker.profiling.phases import BACKWARD, DATA, FORWARD, TIMED
from psworker.profiling.profile import Profile, ProfileDone
from psworker.profiling.spans import Span, Spans


def test_the_time_of_a_span_is_its_own_without_that_of_the_spans_in_it():
    now = [0]

    def work(nanoseconds):
        now[0] += nanoseconds

    spans = Spans(lambda: now[0])
    inner = spans.timed(lambda: work(3), "", "inner")
    elsewhere = spans.timed(lambda: work(2), "push", "elsewhere", {"data": "evaluate"})
    outer = spans.timed(lambda: (work(10), inner(), inner(), elsewhere(), work(1)), "data", "outer")
    outer()
    elsewhere()
    assert spans.found == [
        Span("data", "inner", 10, 3, 3),
        Span("data", "inner", 13, 3, 3),
        Span("evaluate", "elsewhere", 16, 2, 2),
        Span("data", "outer", 0, 19, 11),
        Span("push", "elsewhere", 19, 2, 2),
    ]


def test_a_call_that_fails_is_a_span_and_one_of_another_thread_is_none():
    spans = Spans(count().__next__)
    failing = spans.timed(lambda: 1 / 0, "data", "failing")
    with pytest.raises(ZeroDivisionError):
        failing()
    assert not spans.is_within
    other = threading.Thread(target=spans.timed(lambda: None, "data", "other"))
    other.start()
    other.join()
    assert [span.name for span in spans.found] == ["failing"]


@ps.op
def doubled(x, /):
    return 2 * x, (lambda g: 2 * g,)


def train(steps, **options):
    """Trains a model in this process; the loss of each step and the last values."""
    losses = []
    with ps.collection():
        ps.set_random_seed(1)
        model = nn.Sequential(nn.Dense(3, 4, activation=ops.tanh), doubled, nn.Dense(4, 1))
        data = ps.Dataset({"x": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)})
        loss = lambda batch: ops.mean(ops.square(model(batch.x) - 1))
        try:
            with ps.session(progress="off", **options) as session:
                for number, batch in enumerate(session.batches(data, 4, epochs=100), 1):
                    losses.append(ps.GradientDescent(0.1).minimize(loss(batch)))
                    if number % 4 == 0:
                        losses.append(session.evaluate(loss, data))
                    if number == steps:
                        break
        except ProfileDone:
            pass
        return losses, [variable.value for variable in model.variables]


def test_a_step_is_counted_by_phase_and_op_and_the_parts_are_the_whole(tmp_path):
    functions = [vars(owner)[name] for owner, name, *_ in TIMED]
    of_ops = [getclosurevars(one).nonlocals["function"] for one in (ops.matmul, doubled)]
    profile = Profile(steps=6, warmup=3)
    with profile.measuring():
        losses, _ = train(100)
    assert [vars(owner)[name] for owner, name, *_ in TIMED] == functions
    assert [getclosurevars(one).nonlocals["function"] for one in (ops.matmul, doubled)] == of_ops
    assert len(losses) == 3 + 6 - 1 + 2, "the program ends in the last step that is measured"
    sums = profile.sums()
    calls = {phase: {one.name: one.calls for one in parts} for phase, parts in sums.items()}
    assert calls[FORWARD] == {"matmul": 12, "add": 12, "tanh": 6, "doubled": 6, "subtract": 6, "square": 6, "mean": 6}
    assert calls[BACKWARD] == {
        "tape": 6,
        "matmul": 2 * 6 + 6,  # the first one's input has no gradient
        "add": 24,
        "tanh": 6,
        "doubled": 6,
        "subtract": 6,
        "square": 6,
        "mean": 6,
    }
    assert calls["evaluate"]["mean"] == 2  # evaluations after the steps 4 and 8, of 40 examples each
    assert calls["embedded shard"]["update"] >= 6
    assert calls[DATA]["make the batch"] >= 6
    assert all(one.nanoseconds >= 0 for parts in sums.values() for one in parts)
    assert sum(one.nanoseconds for parts in sums.values() for one in parts) == profile.total == sum(profile.durations)
    assert len(profile.durations) == 6


def test_a_push_without_apply_gradients_ends_a_step():
    profile = Profile(steps=2, warmup=1)
    with ps.collection(), profile.measuring(), suppress(ProfileDone):
        w = ps.Variable(np.ones(2, np.float32), name="w")
        with ps.session(progress="off") as session:
            for _ in range(9):
                session.push(ps.GradientDescent(0.1), [(np.ones(2, np.float32), w)])
    assert w.value == pytest.approx(1 - 3 * 0.1)
    assert [one.calls for one in profile.sums()["encode and push"] if one.name == "names and losses"] == [2]


@pytest.mark.parametrize("options", [{}, {"push_every": 2, "pull_every": 2}, {"local_steps": 3}])
def test_training_has_the_same_bits_while_it_is_profiled_and_after(options):
    before = train(9, **options)
    with Profile(steps=50, warmup=0).measuring():
        profiled = train(9, **options)
    for losses, values in (profiled, train(9, **options)):
        assert losses == before[0]
        assert all(map(np.array_equal, values, before[1]))


def test_a_trace_has_complete_events_of_chromiums_format_each_within_another_or_beside_it(tmp_path):
    profile = Profile(steps=3, warmup=1)
    with profile.measuring():
        train(100)
    profile.write_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace.keys() == {"traceEvents", "displayTimeUnit"}
    events = trace["traceEvents"]
    for event in events:
        assert event.keys() == {"name", "cat", "ph", "ts", "dur", "pid", "tid"}
        assert event["ph"] == "X"
        assert all(isinstance(event[name], str) and event[name] for name in ("name", "cat"))
        assert all(isinstance(event[name], int) for name in ("pid", "tid"))
        assert all(isinstance(event[name], int | float) and event[name] >= 0 for name in ("ts", "dur"))
    steps = [event for event in events if event["cat"] == "step"]
    assert [event["name"] for event in steps] == ["step 1", "step 2", "step 3"]
    for before, after in pairwise(steps):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=2e-3)
    ends = []  # of the events that an event is within
    for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
        end = event["ts"] + event["dur"]
        while ends and ends[-1] <= event["ts"] + 1e-3:
            ends.pop()
        assert not ends or end <= ends[-1] + 1e-3, event
        ends.append(end)
    assert Counter(event["name"] for event in events if event["cat"] == FORWARD)["tanh"] == 3
