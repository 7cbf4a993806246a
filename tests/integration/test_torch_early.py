"""Gradients of PyTorch that leave during the backward pass: the same values, and nothing applied that a step is not."""

import numpy as np
import pytest

from pswire.errors import NotFinite
from psworker.config import WorkerConfig
from psworker.model.collection import collection
from psworker.sessions.session import Session
from tests.support.commands import wait_until
from tests.support.cutting_proxy import CuttingProxy
from tests.support.servers import GRPC, GRPC_OF_TWO, parameters

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pst = pytest.importorskip("psworker.torch")
from torch import nn  # noqa: E402 - after the check
from torch.nn import functional as F  # noqa: E402, N812

pytestmark = pytest.mark.slow  # its import alone takes seconds

on_one_and_two_shards = pytest.mark.parametrize("open_session", parameters(GRPC, GRPC_OF_TWO), indirect=True)

generator = torch.Generator().manual_seed(0)
X = torch.randn(100, 200, generator=generator)
Y = torch.randint(0, 5, (100,), generator=generator)
STEPS = 12


def network():
    """400,000 parameters, of which a push has several chunks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(200, 500), nn.Tanh(), nn.Linear(500, 600), nn.Tanh(), nn.Linear(600, 5))


def adam(model):
    return torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-3)


def backward(model, step=0):
    part = slice(step % 10 * 10, step % 10 * 10 + 10)
    F.cross_entropy(model(X[part]), Y[part]).backward()


def train(model, optimizer, *, change=lambda model: None, schedule=None):
    for step in range(STEPS):
        backward(model, step)
        change(model)
        optimizer.step()
        optimizer.zero_grad()
        if schedule:
            schedule.step()


def expected(change=lambda model: None, schedule=None):
    """The network after the same steps of torch.optim."""
    model = network()
    optimizer = adam(model)
    train(model, optimizer, change=change, schedule=schedule and schedule(optimizer))
    return model


def assert_equal(model, wanted):
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        assert (one - other).abs().max() <= 2e-6 * other.abs().max()


@pytest.fixture
def ended(monkeypatch):
    """Whether each step that was begun early was pushed so."""
    found = []
    end = Session.end_push

    def noted(*arguments):
        found.append(end(*arguments))
        return found[-1]

    monkeypatch.setattr(Session, "end_push", noted)
    return found


@on_one_and_two_shards
def test_values_are_those_of_torch_also_when_the_rate_changes(open_session, ended):
    schedule = lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    with open_session("w0") as session:
        model = network()
        optimizer = pst.distribute(adam(model), model, early=True)
        train(model, optimizer, schedule=schedule(optimizer))
        assert session.global_step == STEPS
    assert ended == [True] * (STEPS - 1)  # the first declares the optimizers
    assert_equal(model, expected(schedule=schedule))


def clipped(model):
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def twice(model):
    backward(model, 3)


def without_one(model):
    model[0].bias.grad = None


@on_one_and_two_shards
@pytest.mark.parametrize(("change", "found"), [(lambda model: None, [True] * 19), (clipped, [False])])
def test_the_cost_of_an_epoch_is_the_mean_of_its_losses_and_each_example_is_trained_once(
    change, found, open_session, ended
):
    reports, losses, seen = [], [], []
    with open_session("w0") as session:
        model = network()
        optimizer = pst.distribute(adam(model), model, early=True)
        data = {"x": X.numpy(), "y": Y.numpy(), "n": np.arange(100)}
        for batch in session.batches(data, 10, epochs=2, on_epoch=reports.append):
            loss = F.cross_entropy(model(torch.from_numpy(batch.x)), torch.from_numpy(batch.y))
            loss.backward()
            change(model)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            seen += batch.n.tolist()
    assert ended == found
    assert sorted(seen) == sorted([*range(100)] * 2)
    assert [one.cost for one in reports] == pytest.approx([np.mean(losses[:10]), np.mean(losses[10:])], rel=1e-6)


@on_one_and_two_shards
@pytest.mark.parametrize("change", [clipped, twice, without_one])
def test_gradients_that_change_after_the_backward_pass_are_pushed_as_they_are_then(change, open_session, ended, caplog):
    with open_session("w0") as session:
        model = network()
        train(model, pst.distribute(adam(model), model, early=True), change=change)
        assert session.global_step == STEPS
    assert ended == [False]
    assert "gradients are sent after the backward pass from now on" in caplog.text
    assert_equal(model, expected(change))


@on_one_and_two_shards
def test_nothing_of_a_gradient_with_nan_is_applied_on_any_shard(open_session):
    with open_session("w0") as session:
        model = network()
        optimizer = pst.distribute(adam(model), model, early=True)
        train(model, optimizer)
        before = [one.detach().clone() for one in model.parameters()]
        model[0].weight.register_hook(lambda gradient: gradient * torch.nan)
        backward(model)
        with pytest.raises(NotFinite):
            optimizer.step()
        session.pull()
        assert session.global_step == STEPS
        assert session.half_applied == 0
        for one, other in zip(model.parameters(), before, strict=True):
            assert torch.equal(one, other)


@on_one_and_two_shards
def test_what_is_asked_of_the_servers_before_the_step_gives_it_up_and_the_step_is_pushed_then(open_session, ended):
    with open_session("w0") as session:
        model = network()
        train(model, pst.distribute(adam(model), model, early=True), change=lambda model: session.pull())
        assert session.global_step == STEPS
    assert ended == [False]
    assert_equal(model, expected())


@on_one_and_two_shards
def test_a_session_ends_although_a_backward_pass_has_failed_or_had_no_step(open_session, ended):
    with open_session("w0"):
        model = network()
        train(model, pst.distribute(adam(model), model, early=True))
        backward(model)
    with open_session("w1"):
        model = network()
        train(model, pst.distribute(adam(model), model, early=True))
        model[0].weight.register_hook(lambda gradient: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            backward(model)
    assert len(ended) == 2 * (STEPS - 1)


@pytest.mark.parametrize("open_session", parameters(GRPC), indirect=True)
def test_gradients_of_later_layers_have_left_before_the_backward_pass_is_at_the_first_one(open_session, ended):
    with open_session("w1") as other, CuttingProxy(other._config.servers[0]) as proxy, collection():
        config = WorkerConfig(servers=(proxy.address,), name="w0", shared_memory=False)
        with Session(config):
            model = network()
            optimizer = pst.distribute(adam(model), model, early=True)
            train(model, optimizer)
            began = proxy.to_server
            model[0].weight.register_hook(lambda _: wait_until(lambda: proxy.to_server - began > 1_000_000) and None)
            backward(model)  # the second layer has 1,200,000 bytes, of which chunks leave
            optimizer.step()
    assert ended == [True] * STEPS


@pytest.mark.parametrize("open_session", parameters(GRPC), indirect=True)
def test_a_push_whose_answer_is_cut_is_applied_once(open_session, ended):
    with open_session("w1") as other, CuttingProxy(other._config.servers[0], [6_000_000]) as proxy, collection():
        with Session(WorkerConfig(servers=(proxy.address,), name="w0", shared_memory=False)) as session:
            model = network()
            train(model, pst.distribute(adam(model), model, early=True))
            assert session.global_step == STEPS
        assert not proxy._after, "the connection was cut"
    assert ended == [True] * (STEPS - 1)
    assert_equal(model, expected())
