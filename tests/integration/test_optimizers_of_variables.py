"""Several optimizers in one step, and another one for a variable from some step on, in all workers."""

import numpy as np
import pytest

import psworker as ps
from pswire.errors import AlreadyRegistered, ConfigurationError
from pswire.tensors.values import IndexedSlices
from psworker import nn, ops
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
    with open_session("w0", **options):
        for optimizer in (MOMENTUM, SGD, MOMENTUM):
            optimizer.minimize(ops.sum(x))
        with pytest.raises(ConfigurationError, match="'x' gets another optimizer at each step, Momentum"):
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


def grouped_model():
    """Of which each loss has a gradient of 1 for all elements."""
    with ps.variable_scope("encoder"):
        kernel, bias = ps.Variable([8.0], "kernel"), ps.Variable([8.0], "bias")
    head = ps.Variable([8.0], "head")
    return kernel, bias, head, lambda: kernel[0] + bias[0] + head[0]


@pytest.mark.parametrize("options", [{}, {"push_every": 2}, {"local_steps": 2, "outer": ps.GradientDescent(1.0)}])
def test_each_parameter_group_is_trained_by_its_optimizer_in_one_push(open_session, status, options):
    """AdamW of a rate of 0.25, with and without a weight decay of 0.5, and a rate that is halved at each step."""
    kernel, bias, head, loss = grouped_model()
    halved = ps.schedules.ExponentialDecay(2.0, decay_steps=1, decay_rate=0.5)
    slow = ps.GradientDescent(halved)
    optimizer = ps.ParameterGroups(
        [(head, slow), ("*/bias", ps.AdamW(0.25, weight_decay=0.0)), ("*", ps.AdamW(0.25, weight_decay=0.5))]
    )
    gradients = 2 if "push_every" in options else 1
    with open_session("w0", **options) as session:
        for _ in range(2):
            optimizer.minimize(loss())
        session.pull()
        pushes = {"push_every": 1, "local_steps": 1}.get(next(iter(options), ""), 2)
        assert (session.global_step, status(session).workers[0].steps) == (pushes, pushes)
        expected = [8.0, 8.0, 8.0]
        for step in range(2 // gradients):
            expected[0] -= 0.25 * (1 + 0.5 * expected[0])
            expected[1] -= 0.25
            expected[2] -= 2.0 * 0.5**step * gradients
        np.testing.assert_allclose(np.ravel([kernel.value, bias.value, head.value]), expected, rtol=1e-6)
        before = head.value[0]
        session.set_hyperparameters(slow, learning_rate=0.0)
        optimizer.minimize(loss())
        session.pull()
        assert head.value[0] == before
        assert bias.value[0] < expected[1]


def test_a_layer_stands_for_its_variables():
    """Of a norm: the trainable ones, without its averages."""
    model, other = nn.Sequential(nn.Dense(2, 2), nn.BatchNorm(2)), nn.Dense(2, 2)
    loss = ops.sum(other(model(np.ones((3, 2)), training=False)))
    optimizer = ps.ParameterGroups([(model, ps.GradientDescent(0.0)), ("*", ps.GradientDescent(0.5))])
    assert [one for _, one in optimizer.compute_gradients(loss, model)] == model.trainable_variables
    assert {optimizer.optimizer_of(one.name).learning_rate for one in model.variables} == {0.0}
    with ps.session() as session:
        optimizer.minimize(ops.sum(other(model(np.ones((3, 2)), training=False))), other)
        assert [one.version for one in other.variables] == [1, 1]
        session.pull(model)
    assert {one.version for one in model.variables} == {0}


def test_groups_have_one_transform_and_the_first_group_of_a_variable_counts(open_session, caplog):
    kernel, bias, head, loss = grouped_model()
    groups = ps.ParameterGroups([("encodr/*", MOMENTUM), ([kernel], SGD), ("encoder/*", ps.GradientDescent(2.0))])
    with open_session("w0"):
        with pytest.raises(ValueError, match="'head' is in none of the parameter groups: give a last one"):
            groups.minimize(loss())
        clipped = groups.with_transform(lambda pairs: ps.clip_by_global_norm(pairs, 2**-0.5))
        ps.optimize_loss(loss(), optimizer=clipped, variables=[kernel, bias])
    assert np.ravel([kernel.value, bias.value, head.value]).tolist() == pytest.approx([7.75, 7.0, 8.0])
    assert "no variable is named 'encodr/*' so far; there are: encoder/kernel, encoder/bias, head" in caplog.messages[0]


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        ([], ValueError, "at least one group"),
        ([ps.Adam()], TypeError, r"pairs of variables and their optimizer.*got Adam"),
        ([("*", 0.1)], TypeError, r"pairs of variables and their optimizer.*got \('\*', 0.1\)"),
        ([(["*"], SGD)], TypeError, r"a group of ParameterGroups takes a psworker.Variable or Table, got '\*'"),
        ([("*", SGD.with_transform(list))], ValueError, "give the transform to the groups"),
    ],
)
def test_other_groups_are_refused(groups, error, message):
    with pytest.raises(error, match=message):
        ps.ParameterGroups(groups)
