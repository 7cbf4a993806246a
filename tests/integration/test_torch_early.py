"""Gradients of PyTorch that leave during the backward pass: the same values, and nothing applied that a step is not."""

import copy
import logging

import numpy as np
import pytest

import psworker as ps
from psserver.rpc.direct.connection import DirectConnection
from pswire.errors import NotFinite
from psworker.client.begun_push import BegunPush
from tests.support.commands import wait_until
from tests.support.servers import DIRECT, DIRECT_OF_TWO, EMBEDDED, parameters

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pst = pytest.importorskip("psworker.torch")
from torch import nn  # noqa: E402 - after the check
from torch.nn import functional as F  # noqa: E402, N812

pytestmark = [
    pytest.mark.slow,  # its import alone takes seconds
    pytest.mark.parametrize("open_session", parameters(DIRECT, DIRECT_OF_TWO), indirect=True),
]

generator = torch.Generator().manual_seed(0)
X = torch.randn(100, 200, generator=generator)
Y = torch.randint(0, 5, (100,), generator=generator)
STEPS = 20


def network():
    """1.6 MB of parameters in the second layer."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(200, 500), nn.Tanh(), nn.Linear(500, 800), nn.Tanh(), nn.Linear(800, 5))


def backward(model, step=0):
    part = slice(step % 10 * 10, step % 10 * 10 + 10)
    F.cross_entropy(model(X[part]), Y[part]).backward()


def nothing(model, session):
    pass


def train(session, *, early, change=nothing):
    """The network after steps with a rate that changes; `change` is called between backward pass and step."""
    model = network()
    adam = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-3)
    optimizer = pst.distribute(adam, model, early=early)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(STEPS):
        backward(model, step)
        change(model, session)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    assert (session.global_step, session.dropped) == (STEPS, 0)
    return model, optimizer


def assert_equal(model, wanted):
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.fixture
def begun(monkeypatch):
    """The pushes that were begun."""
    found, begin = [], BegunPush.__init__

    def noted(push, *arguments):
        found.append(push)
        begin(push, *arguments)

    monkeypatch.setattr(BegunPush, "__init__", noted)
    return found


@pytest.fixture
def ordinary():
    """A function that trains without early gradients, in this process."""

    def trained(change=nothing):
        with EMBEDDED.sessions() as open_session, ps.collection(), open_session("w0") as session:
            return train(session, early=False, change=change)[0]

    return trained


def test_values_are_those_of_ordinary_pushes_bit_for_bit_and_no_hook_is_left(open_session, ordinary, begun, caplog):
    with open_session("w0") as session, caplog.at_level(logging.INFO):
        model, _ = train(session, early=True)
    assert [one.finished for one in begun] == [True] * (STEPS - 1)  # the first step shows the order
    assert_equal(model, ordinary())
    assert "refused" not in caplog.text
    backward(model)
    assert len(begun) == STEPS - 1
    assert not any(one._post_accumulate_grad_hooks for one in model.parameters())


def clipped(model, session):
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def clamped(model, session):
    for one in model.parameters():
        one.grad.data.clamp_(-1e-3, 1e-3)  # of which autograd's version counter knows nothing


def twice(model, session):
    backward(model, 3)


def without_one(model, session):
    if session.global_step:
        model[0].bias.grad = None


def with_a_loss(model, session):
    pst.note_loss(1.0)


@pytest.mark.parametrize("change", [clipped, clamped, twice, without_one, with_a_loss])
def test_gradients_that_change_after_the_backward_pass_are_pushed_as_they_are_then(
    change, open_session, ordinary, begun, caplog
):
    with open_session("w0") as session, caplog.at_level(logging.INFO):
        model, _ = train(session, early=True, change=change)
    assert [one.finished for one in begun] == [False] * 3
    assert caplog.text.count("gradients are sent after the backward pass from now on") == 1
    assert "refused" not in caplog.text
    assert_equal(model, ordinary(change))


def pulled_and_frozen(model, session):
    session.pull()
    if session.global_step == 5:
        model[0].bias.requires_grad_(False)
        model[0].bias.grad = None


def test_steps_go_on_early_after_one_with_other_gradients(open_session, ordinary, begun):
    with open_session("w0") as session:
        model, _ = train(session, early=True, change=pulled_and_frozen)
    assert [one.finished for one in begun].count(False) == 2, "in the step, and after it the gradient is waited for"
    assert_equal(model, ordinary(pulled_and_frozen))


def test_the_cost_of_an_epoch_is_the_mean_of_its_losses_and_each_example_is_trained_once(open_session, begun):
    reports, losses, seen = [], [], []
    data = torch.utils.data.TensorDataset(X, Y, torch.arange(100))
    with open_session("w0"):
        model = network()
        optimizer = pst.distribute(torch.optim.Adam(model.parameters(), 1e-3), model, early=True)

        def loop(epochs, last):
            for x, y, n in pst.loader(data, 10, epochs=epochs, on_epoch=reports.append, name="q"):
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                losses.append(loss.item())
                if len(seen) == last:
                    break  # with a push begun
                optimizer.step()
                optimizer.zero_grad()
                seen.extend(n.tolist())

        loop(2, 50)
        optimizer.zero_grad()
        assert begun[-1].reason
        loop(2, None)
    assert sorted(seen) == sorted([*range(100)] * 2)
    losses[5:7] = [sum(losses[5:7])]  # of the step, and of the backward pass before it without one
    assert [one.cost for one in reports] == pytest.approx([np.mean(losses[:10]), np.mean(losses[10:])], rel=1e-6)
    assert [one.finished for one in begun] == [True] * 4 + [False] + [True] * 14


def fail(gradient):
    raise ZeroDivisionError


def test_nothing_is_applied_of_nan_or_of_a_backward_pass_that_fails(open_session):
    with open_session("w0") as session:
        model, optimizer = train(session, early=True)
        before = copy.deepcopy(model)
        hook = model[0].weight.register_hook(lambda gradient: gradient * torch.nan)
        backward(model)
        with pytest.raises(NotFinite):
            optimizer.step()
        hook.remove()
        optimizer.zero_grad()
        hook = model[0].weight.register_hook(fail)
        with pytest.raises(ZeroDivisionError):
            backward(model)
        hook.remove()
        optimizer.zero_grad()
        session.pull()
        assert (session.global_step, session.half_applied) == (STEPS, 0)
        assert_equal(model, before)
        backward(model)
        optimizer.step()
        assert session.global_step == STEPS + 1
        backward(model)
    with ps.collection(), open_session("w1") as session:
        assert session.global_step == STEPS + 1


def test_gradients_of_later_layers_have_arrived_before_the_backward_pass_is_at_the_first_one(
    open_session, begun, monkeypatch
):
    arrived, read = [0], DirectConnection._read_now

    def counted(connection, into):
        nbytes = read(connection, into)
        arrived[0] += nbytes or 0
        return nbytes

    with open_session("w0") as session:
        model, optimizer = train(session, early=True)
        monkeypatch.setattr(DirectConnection, "_read_now", counted)
        model[0].weight.register_hook(lambda _: wait_until(lambda: arrived[0] > 1_000_000) and None)
        backward(model)
        assert session.global_step == STEPS
        optimizer.step()
        assert session.global_step == STEPS + 1
    assert begun[-1].finished
