"""Variables and sessions in an interactive interpreter, where a cell may run again; notebooks: test_notebooks.py."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError
from pswire.messages import Leave, Push
from psworker import UpdateOp, nn, ops
from psworker.config import WorkerConfig
from psworker.sessions.session import Session
from psworker.transport.embedded import EmbeddedTransport

SGD = ps.GradientDescent(1.0)


@pytest.fixture
def interactive(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)


def names():
    return [variable.name for variable in ps.global_variables()]


def test_a_variable_made_again_replaces_the_earlier_one_in_an_interactive_interpreter_alone(monkeypatch):
    first, other = ps.Variable([1.0], name="W"), ps.Variable([5.0], name="b")
    with pytest.raises(ConfigurationError, match="there is already a variable 'W': choose another name"):
        ps.Variable([2.0], name="W")
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    again = ps.Variable([2.0, 3.0], name="W")  # of another shape
    assert ps.global_variables() == [other, again]
    assert (first.value.tolist(), first.name) == ([1], "W")
    with ps.session():
        assert SGD.minimize(ops.sum(again)) == 5
    assert (again.value.tolist(), first.value.tolist()) == ([1, 2], [1])


PROMPT = """
import psworker as ps
W = ps.Variable([1.0], name="W")
W = ps.Variable([2.0], name="W")
print(*ps.global_variables()[0].value, len(ps.global_variables()))
"""


@pytest.mark.slow
def test_at_pythons_own_prompt_a_variable_is_replaced_and_in_a_script_that_leads_to_it_refused(tmp_path):
    def shown(*arguments):
        command = [sys.executable, "-q", "-i", *arguments]
        environment = {**os.environ, "PYTHON_HISTORY": str(tmp_path / "history"), "PYTHONSTARTUP": ""}
        ended = subprocess.run(command, input=PROMPT, env=environment, capture_output=True, text=True, timeout=60)
        return ended.stdout.split(), ended.stderr

    assert shown()[0] == ["2.0", "1"]
    (tmp_path / "script.py").write_text(PROMPT)
    out, err = shown(str(tmp_path / "script.py"))
    assert "there is already a variable 'W': choose another name" in err
    assert out == ["2.0", "1"]


def test_a_loss_of_a_replaced_variable_is_refused_though_it_depends_on_others_too(interactive):
    W, b = ps.Variable([1.0], name="W"), ps.Variable([1.0], name="b")

    def loss(W=W):
        return ops.sum(W * 2 + b)

    recorded = loss()
    again = ps.Variable([1.0], name="W")
    with ps.session() as session:
        for computed in (loss, W.T.sum, lambda: recorded, lambda: ops.sum(ops.sum(W) + again)):
            with pytest.raises(ConfigurationError, match=r"with the variable 'W' that another .* has replaced: run"):
                SGD.minimize(computed())
        assert SGD.minimize(loss(again)) == 3
        assert session.global_step == 1
        assert loss().item() == 2, "its last value is still there to be looked at"


def test_a_replaced_variable_is_not_taken_for_the_one_of_its_name(interactive):
    W, mean = ps.Variable([1.0], name="W"), ps.Variable([1.0], name="mean", trainable=False)
    table = ps.Table((4, 2), ps.RowConstant(1.0), name="table")
    late = UpdateOp(mean, np.array([9.0]), 0.5)
    ps.note_update(late)
    present = ps.Variable([2.0], name="W"), ps.Variable([2.0], name="mean", trainable=False)
    rows = ps.Table((4, 2), ps.RowConstant(2.0), name="table")
    ps.note_update(UpdateOp(present[1], np.array([4.0]), 0.5))
    with ps.session() as session:
        SGD.minimize(ops.sum(present[0]) + ops.sum(ops.embedding(rows, [1])))
        before = [variable.value.tolist() for variable in present]
        assert before == [[1], [3]], "the observation for the earlier average is not in its mean"
        for call in (
            lambda: SGD.apply_gradients([(np.ones(1, np.float32), W)]),
            lambda: SGD.apply_gradients([(np.ones(1, np.float32), present[0])], [late]),
            lambda: session.assign(W, [7.0]),
            lambda: W.assign([7.0]),
            lambda: session.pull([W]),
            lambda: session.slot(W, "m"),
            lambda: session.rows(table, [1]),
            lambda: ops.embedding(table, [1]),
            lambda: table.assign_rows(0, np.ones((1, 2))),
            lambda: session.save("never.safetensors", [W]),
            lambda: session.save("never.safetensors", [table]),
        ):
            with pytest.raises(ConfigurationError, match=r"'(W|mean|table)' is not the one of .* has replaced it, or"):
                call()
        session.pull()
        assert [variable.value.tolist() for variable in present] == before
        assert session.rows(rows, [0, 1]).tolist() == [[2, 2], [1, 1]]
        assert session.global_step == 1


def test_a_variable_that_the_open_session_trains_is_not_replaced(interactive):
    W = ps.Variable([1.0], name="W")
    session = ps.session().open()
    with pytest.raises(ConfigurationError, match=r"'W', which the open session trains: close .* psworker.reset"):
        ps.Variable([2.0], name="W")
    SGD.minimize(ops.sum(W))
    session.close()
    assert (ps.global_variables(), W.value.tolist()) == ([W], [0])


class Scale(nn.Layer):
    """A factor and an offset of given initial values."""

    def __init__(self, factor, offset):
        with self.scope("scale"):
            self.factor = ps.Variable([factor], name="factor")
            self.offset = ps.Variable(offset, shape=(1,), name="offset")

    def __call__(self):
        return ops.sum(self.factor + self.offset)


def test_a_layer_of_the_same_name_that_fails_leaves_the_earlier_one(interactive):
    first = Scale(1.0, ps.initializers.zeros())
    loss = first()
    with pytest.raises(TypeError, match="returned int64"):
        Scale(2.0, lambda shape, _: np.zeros(shape, int))
    assert ps.global_variables() == first.variables
    with ps.session():
        SGD.minimize(loss)
        SGD.minimize(first())
    assert first.factor.value.tolist() == [-1]
    second = Scale(2.0, ps.initializers.zeros())
    assert ps.global_variables() == second.variables
    assert second.factor.value.tolist() == [2]


def test_a_session_forgets_layers_that_a_cell_has_made_again_and_keeps_all_that_something_refers_to(monkeypatch):
    def model():
        return nn.Sequential(nn.Dense(1, 1), nn.BatchNorm(1), nn.Dense(1, 1))

    held = [ps.Variable([1.0], name="held")]
    for runs in range(3):  # of a cell; in a script no variable is forgotten
        net = model()
        with ps.session():
            assert len(names()) == 1 + 8 * (runs + 1)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    for _ in range(3):
        net = model()
        with ps.session():
            assert ps.global_variables() == held + net.variables
    net = [net, model()]
    with ps.session():
        assert ps.global_variables() == [*held, *net[0].variables, *net[1].variables]


def test_a_variable_of_an_earlier_cell_that_is_still_held_is_named_with_what_to_do(interactive, caplog):
    earlier = nn.Dense(1, 1)
    net = nn.Dense(1, 1)
    with ps.session():
        SGD.minimize(ops.sum(net([[1.0]])))
    assert earlier.kernel.name in caplog.text
    assert "trainable=False; psworker.reset() forgets those of earlier cells (logged once" in caplog.text


def test_reset_begins_anew_with_the_same_names_and_initial_values():
    ps.reset()

    def model():
        return nn.Sequential(nn.Dense(2, 3), nn.Dense(3, 1))

    first = model()
    kernel = first.variables[0].value.tolist()
    ps.set_random_seed(7)
    ps.note_update(UpdateOp(ps.Variable([1.0], name="mean", trainable=False), np.ones(1), 0.5))
    loss = ops.sum(first(np.ones((1, 2), np.float32)))
    ps.reset()
    assert (ps.global_variables(), ps.update_ops()) == ([], [])
    second = model()
    assert names() == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]
    assert second.variables[0].value.tolist() == kernel
    with ps.session():
        with pytest.raises(ConfigurationError, match=r"variable 'dense.*' from before psworker.reset\(\): run the"):
            SGD.minimize(loss)
        SGD.minimize(ops.sum(second(np.ones((1, 2), np.float32))))
    with ps.collection(), pytest.raises(ConfigurationError, match=r"after psworker\.reset\(\) make it again"):
        first.variables[0].assign(np.zeros((2, 3)))


def test_a_session_that_a_failed_cell_has_left_open_is_closed_by_reset_and_then_others_open(open_session):
    x = ps.Variable([1.0], name="x")
    left = open_session("w0").open()
    SGD.minimize(ops.sum(x))
    with pytest.raises(ConfigurationError, match=r"already open.*session\.close\(\), or by psworker\.reset\(\)"):
        open_session("w1").open()
    ps.reset()
    assert x.value.tolist() == [0]
    with pytest.raises(ConfigurationError, match="this session is not open"):
        left.pull()
    y = ps.Variable([3.0], name="y")
    with open_session("w2") as session:
        SGD.minimize(ops.sum(y))
        left.close()
        SGD.minimize(ops.sum(y))
        assert session.global_step == 3, "two after the one before the reset"
    assert y.value.tolist() == [1]


def test_a_session_over_several_cells_pushes_what_is_pending_when_it_is_closed(open_session):
    x = ps.Variable([4.0], name="x")
    session = open_session("w0", push_every=2)
    assert session.open() is session
    for _ in range(3):
        SGD.minimize(ops.sum(x))
    session.close()
    assert x.value.tolist() == [1]
    session.close()
    with pytest.raises(ConfigurationError, match="this session was open before: make a new one"):
        session.open()
    with open_session("w1", push_every=2) as session:
        SGD.minimize(ops.sum(x))
        session.close(failed=True)  # as after an exception: the push that is pending is not sent
    with open_session("w2", push_every=2):
        assert x.value.tolist() == [1]


@pytest.mark.parametrize("message", [Push, Leave], ids=["in a push", "in leaving"])
def test_an_interrupt_within_the_shards_work_leaves_the_push_whole_and_is_raised_in_this_cell(monkeypatch, message):
    transport, step = EmbeddedTransport(), EmbeddedTransport._step
    x, y = ps.Variable([1.0], name="x"), ps.Variable([1.0], name="y")

    def interrupted(self, ticket, request):
        if isinstance(request, message):
            signal.raise_signal(signal.SIGINT)
        step(self, ticket, request)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(EmbeddedTransport, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt), Session(WorkerConfig(name="cell"), transport):
            SGD.minimize(ops.sum(x) + ops.sum(y))
        monkeypatch.undo()
        with Session(WorkerConfig(name="next cell"), transport) as session:
            assert (x.value.item(), y.value.item(), session.global_step) == (0, 0, 1)
    finally:
        signal.signal(signal.SIGINT, before)
