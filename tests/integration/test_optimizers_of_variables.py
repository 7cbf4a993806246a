"""Another optimizer of a variable from some step on, in all workers."""

import logging

import numpy as np
import pytest

import psworker as ps
from pswire.errors import AlreadyRegistered, ConfigurationError
from pswire.tensors.values import IndexedSlices
from psworker import ops
from tests.support.servers import EMBEDDED, GRPC, SHARED_OF_TWO, parameters

#: A first step has the length of the learning rate.
ADAM = ps.Adam(0.25, epsilon=1e-300)
SGD, MOMENTUM = ps.GradientDescent(0.5), ps.Momentum(1.0, 0.5)
#: A variable, and a table, of which two shards have some rows each.
SHAPE = (6, 2)
ONES = np.ones(SHAPE)


class Worker:
    """A worker's model and session; each push has gradients of 1 for all elements."""

    def __init__(self, session):
        self.W, self.E = ps.Variable(ONES, "W"), ps.Table(SHAPE, ps.RowConstant(1.0), "E", "float64")
        self.session = session

    def push(self, optimizer):
        """The value afterwards, which all elements have."""
        rows = IndexedSlices(ONES, np.arange(6), SHAPE)
        self.session.push(optimizer, [(ONES, self.W), (rows, self.E)])
        [value] = {*self.W.value.flat, *self.session.rows(self.E, range(6)).flat}
        return value

    def slot(self, name):
        [value] = {*self.session.slot(self.W, name).flat, *self.session.slot(self.E, name).flat}
        return value


@pytest.mark.parametrize("open_session", parameters(EMBEDDED, SHARED_OF_TWO, slow=(GRPC,)), indirect=True)
def test_the_optimizer_of_the_worker_that_is_furthest_holds_for_all_and_begins_with_new_slots(open_session, caplog):
    with open_session("w0") as one:
        first = Worker(one)
        with ps.collection(), open_session("w1") as another:
            second = Worker(another)
            assert first.push(ADAM) == 0.75
            assert first.push(SGD) == 0.25
            assert "W, E: from now on GradientDescent(learning_rate=0.5) in place of Adam(" in caplog.text
            caplog.clear()
            assert second.push(ADAM) == -0.25, "by the new one"
            assert "E, W keep the optimizer that another worker has given them" in caplog.text
            with pytest.raises(AlreadyRegistered, match=r"with GradientDescent\(.*declares Momentum\(.* all workers"):
                second.push(MOMENTUM)
            assert second.push(SGD) == -0.75
            assert second.push(MOMENTUM) == -1.75
            assert first.push(SGD) == -1.75 - 1.5
            assert first.push(MOMENTUM) == -3.25 - 1.75, "the one that it has by now"
            assert first.slot("momentum") == 1.75
            assert first.push(ADAM) == -5 - 0.25
            assert first.slot("m") == pytest.approx(0.1)


@pytest.mark.parametrize("options", [{}, {"push_every": 5}, {"local_steps": 5, "outer": ps.GradientDescent(1.0)}])
def test_in_each_strategy_steps_are_made_by_the_optimizer_that_they_were_computed_for(open_session, options):
    """8 steps by momentum, and 8 by gradient descent: of sums of 5 and 3 gradients, or of each gradient."""
    x = ps.Variable([10.0], "x")
    with open_session("w0", **options):
        for optimizer in (MOMENTUM, SGD):
            for _ in range(8):
                optimizer.minimize(ops.sum(x))
    momentum, value = 0.0, 10.0
    for gradient in [5, 3] if "push_every" in options else [1] * 8:
        momentum = 0.5 * momentum + gradient
        value -= momentum
    assert x.value == [value - 0.5 * 8]


@pytest.mark.parametrize("options", [{}, {"local_steps": 2}])
def test_two_optimizers_of_one_variable_in_turn_are_refused(open_session, options):
    x = ps.Variable([1.0], "x")
    with open_session("w0", **options), pytest.raises(ConfigurationError, match="'x' gets another optimizer at each"):
        for _ in range(2):
            MOMENTUM.minimize(ops.sum(x))
            SGD.minimize(ops.sum(x))


def pretrained_and_tuned(folder, stop_at=None):
    """Loops of 4 and 8 examples: the global step at the beginning, the value and its momentum at the end."""
    with ps.collection(), ps.session(checkpoint_dir=folder, resume=True) as session:
        w, began = ps.Variable([0.0], "w"), session.global_step
        for batch in session.batches({"x": ONES[:4, 0]}, 1):
            SGD.minimize(ops.sum(w * batch.x))
        for step, batch in enumerate(session.batches({"x": ONES[:4, 0]}, 1, epochs=2)):
            if step == stop_at:
                raise KeyboardInterrupt
            MOMENTUM.minimize(ops.sum(w * batch.x))
        return began, float(w.value[0]), float(session.slot(w, "momentum")[0])


@pytest.mark.parametrize("stop_at", [0, 3])
def test_a_job_that_is_resumed_goes_on_with_the_optimizer_of_its_loop(tmp_path, stop_at):
    """Stopped before the first step of the second, or amidst it."""
    with pytest.raises(KeyboardInterrupt):
        pretrained_and_tuned(tmp_path, stop_at)
    value, momentum = -0.5 * 4, 0.0
    for _ in range(8):
        momentum = 0.5 * momentum + 1
        value -= momentum
    assert pretrained_and_tuned(tmp_path) == (4 + stop_at, value, momentum)
