"""PyTorch models and optimizers in a session: values as those of torch.optim in one process.

Skipped without PyTorch, an extra: `pip install 'paramserver[torch]'`.
"""

import io
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

import psworker as ps
from pswire.errors import ConfigurationError, DatasetError, NotFinite
from psworker import nn as layers
from psworker import ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pst = pytest.importorskip("psworker.torch")
from torch import nn  # noqa: E402 - after the check
from torch.nn import functional as F  # noqa: E402, N812

pytestmark = pytest.mark.slow  # its import alone takes seconds

STEPS = 200
TOLERANCE = 1e-6  # of a value, relative to the largest of its tensor

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, 0.1),
    "momentum and decay": lambda groups: torch.optim.SGD(groups, 0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda groups: torch.optim.SGD(groups, 0.02, momentum=0.9, nesterov=True),
    "maximized": lambda groups: torch.optim.SGD(groups, 0.01, maximize=True),
    "adam": lambda groups: torch.optim.Adam(groups, 1e-2),
    "amsgrad and decay": lambda groups: torch.optim.Adam(groups, 1e-2, amsgrad=True, weight_decay=1e-3),
    "adamw": lambda groups: torch.optim.AdamW(groups, 1e-2, betas=(0.8, 0.99)),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, 1e-2, initial_accumulator_value=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, 1e-3),
    "centered rmsprop": lambda groups: torch.optim.RMSprop(groups, 1e-3, momentum=0.5, centered=True),
}

generator = torch.Generator().manual_seed(0)
X = torch.randn(400, 20, generator=generator)
Y = torch.randint(0, 5, (400,), generator=generator)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def network(*, dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.LayerNorm(30), nn.Linear(30, 5)).to(dtype)


def train(model, optimizer, steps=STEPS, *, schedule=None):
    """As PyTorch programs do; the schedule makes a scheduler of the optimizer."""
    scheduler = schedule(optimizer) if schedule else None
    for number in range(steps):
        rows = slice(number * 40 % 400, number * 40 % 400 + 40)
        loss = F.cross_entropy(model(X[rows].to(model[0].weight.dtype)), Y[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler:
            scheduler.step()


def assert_equal(model, expected, tolerance=TOLERANCE):
    """Each tensor within the tolerance, relative to its largest element."""
    for (name, value), wanted in zip(model.named_parameters(), expected.parameters(), strict=True):
        difference = (value.detach().double() - wanted.detach().double()).abs().max()
        assert difference <= tolerance * wanted.detach().abs().max(), name


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_200_steps_are_those_of_torch(name, open_session):
    expected, model, make = network(), network(), OPTIMIZERS[name]
    train(expected, make(expected.parameters()))
    with open_session("w0"):
        train(model, pst.distribute(make(model.parameters()), model))
    assert_equal(model, expected)


def test_schedulers_change_the_rate_on_the_servers(open_session):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=60)  # the momentum too

    expected, model = network(), network()
    train(expected, torch.optim.SGD(expected.parameters(), 0.01, momentum=0.9), 60, schedule=schedule)
    with open_session("w0"):
        optimizer = pst.distribute(torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), model)
        train(model, optimizer, 60, schedule=schedule)
    assert_equal(model, expected)


def test_groups_have_their_own_hyperparameters(open_session):
    def groups(model):
        decayed = [{"params": model[0].parameters(), "weight_decay": 0.1, "lr": 1e-3}]
        return torch.optim.AdamW([*decayed, {"params": [*model[2].parameters(), *model[3].parameters()]}], lr=1e-2)

    expected, model = network(), network()
    train(expected, groups(expected))
    with open_session("w0") as session:
        train(model, pst.distribute(groups(model), model))
        assert session.global_step == 200, "one push a step"
    assert_equal(model, expected)


def test_a_worker_that_is_not_the_chief_leaves_a_changed_rate_to_the_chief_and_slots_as_they_are(open_session):
    models = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    with open_session("w0") as chief:
        mine = pst.distribute(torch.optim.SGD(models[0].parameters(), 0.0, momentum=0.5), models[0])
        with ps.collection(), open_session("w1") as session:
            other = pst.distribute(torch.optim.SGD(models[1].parameters(), 0.0, momentum=0.5), models[1])
            for optimizer, model, rate in ((mine, models[0], 0.0), (other, models[1], 0.0), (other, models[1], 1.0)):
                optimizer.param_groups[0]["lr"] = rate
                model.weight.grad = torch.ones(1, 1)
                optimizer.step()
            assert (chief.is_chief, session.is_chief) == (True, False)
            [weight] = ps.global_variables()
            assert session.slot(weight, "momentum") == 1.75


def test_gradients_of_several_backward_passes_add_up_and_a_step_may_have_a_closure(open_session):
    def steps(model, optimizer):
        for _ in range(20):

            def closure():
                optimizer.zero_grad()
                for half in (slice(0, 20), slice(20, 40)):
                    loss = F.cross_entropy(model(X[half]), Y[half]) / 2
                    loss.backward()
                return loss

            assert optimizer.step(closure).item() > 0

    expected, model = network(), network()
    steps(expected, torch.optim.Adam(expected.parameters(), 1e-2))
    with open_session("w0"):
        steps(model, pst.distribute(torch.optim.Adam(model.parameters(), 1e-2), model))
    assert_equal(model, expected)


def test_frozen_and_tied_parameters_and_channels_last(open_session):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.conv = nn.Conv2d(2, 8, 3, padding=1)
            self.first, self.second = nn.Linear(128, 128), nn.Linear(128, 128)
            self.second.weight = self.first.weight
            self.frozen = nn.Linear(128, 3).requires_grad_(False)

        def forward(self, x):
            return self.frozen(self.second(torch.tanh(self.first(self.conv(x).flatten(1)))))

    def steps(model, optimizer):
        images = torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(5))
        for _ in range(30):
            F.cross_entropy(model(images.to(memory_format=torch.channels_last)), Y[:8] % 3).backward()
            optimizer.step()
            optimizer.zero_grad()

    expected, model = (Model().to(memory_format=torch.channels_last) for _ in range(2))
    before = model.frozen.weight.clone()
    steps(expected, torch.optim.Adam(expected.parameters(), 1e-3))
    with open_session("w0"):
        memory = model.conv.weight.data_ptr()
        steps(model, pst.distribute(torch.optim.Adam(model.parameters(), 1e-3), model))
        names = {variable.name for variable in ps.global_variables()}
        assert names == model.state_dict().keys() - {"second.weight"}
    assert_equal(model, expected)
    assert torch.equal(model.frozen.weight, before)
    assert model.conv.weight.data_ptr() == memory
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_servers_keep_float32_of_half_precision_so_that_small_updates_count(dtype, open_session):
    weight = nn.Parameter(torch.ones(3, dtype=dtype))
    model = nn.ParameterDict({"w": weight})
    with open_session("w0") as session:
        optimizer = pst.distribute(torch.optim.SGD([weight], 1e-4), model)
        for _ in range(100):
            weight.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        [variable] = [one.variable for one in optimizer._tensors.values()]
        session.pull()
        np.testing.assert_allclose(variable.value, 0.99, rtol=1e-5)
    assert weight.dtype is dtype
    assert torch.equal(weight.detach(), torch.full((3,), 0.99, dtype=dtype))  # 1 - 1e-4 is 1 in both


@pytest.mark.parametrize("kind", ["sparse gradients", "rows on servers"])
def test_embeddings_train_the_rows_that_were_looked_up(kind, open_session):
    ids = torch.tensor([[1, 5, 1], [7, 0, 5]])

    class Words(nn.Module):
        def __init__(self, embedding):
            super().__init__()
            torch.manual_seed(4)
            self.words, self.out = embedding, nn.Linear(4, 1)

    def steps(model, optimizer):
        for _ in range(20):
            model.out(model.words(ids)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    expected = Words(nn.Embedding(10, 4, padding_idx=0))
    on_servers = kind == "rows on servers"
    embedding = pst.Embedding(10, 4, 0) if on_servers else nn.Embedding(10, 4, padding_idx=0, sparse=True)
    model = Words(embedding)
    model.out.load_state_dict(expected.out.state_dict())
    with open_session("w0") as session:
        if on_servers:
            optimizer = pst.distribute(
                torch.optim.Adagrad(model.parameters(), 0.1, initial_accumulator_value=0.1), model
            )
            embedding.table.assign_rows(0, expected.words.weight.detach().numpy())
        else:
            model.words.load_state_dict(expected.words.state_dict())
            optimizer = pst.distribute(
                torch.optim.Adagrad(model.parameters(), 0.1, initial_accumulator_value=0.1), model
            )
        steps(expected, torch.optim.Adagrad(expected.parameters(), 0.1, initial_accumulator_value=0.1))
        steps(model, optimizer)
        found = session.rows(embedding.table, np.arange(10)) if on_servers else model.words.weight.detach().numpy()
        np.testing.assert_allclose(found, expected.words.weight.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_any_optimizer_runs_in_the_worker_with_local_steps(open_session):
    """A round of 5 steps, whose difference the outer optimizer applies whole, is 5 steps of the inner one."""

    class Sign(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 1e-3})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * parameter.grad.sign()

    expected, model = network(), network()
    train(expected, Sign(expected.parameters()), 20)
    with open_session("w0", local_steps=5, outer=ps.GradientDescent(1.0)) as session:
        train(model, pst.distribute(Sign(model.parameters()), model), 20)
        assert session.global_step == 4
    assert_equal(model, expected)


def signed_descent():
    """A rule of ones own, which is known in one test alone."""

    @dataclass(frozen=True)
    class SignedDescent(ps.CustomOptimizer):
        """Descent by signs of averages, with decay of the weights: of the kind of Lion. Slot: `average`."""

        slots = ("average",)
        learning_rate: float = 0.01
        decay: float = 0.0

        def update(self, value, gradient, slots, step):
            average = 0.9 * slots["average"] + 0.1 * gradient
            return value - step.learning_rate * (np.sign(average) + self.decay * value), {"average": average}

    return SignedDescent


class SignedDescentOfTorch(torch.optim.Optimizer):
    """The same in PyTorch."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                average = self.state[one].setdefault("average", torch.zeros_like(one))
                average.lerp_(one.grad, 0.1)
                one -= group["lr"] * (average.sign() + group["weight_decay"] * one)


def test_a_rule_of_ones_own_is_applied_by_the_servers_with_the_hyperparameters_of_groups_and_schedulers(open_session):
    def groups(model):
        decayed = [
            {"params": model[0].parameters(), "weight_decay": 0.5},
            {"params": model[3].parameters(), "lr": 2e-3},
        ]
        return SignedDescentOfTorch(decayed, {"lr": 1e-3, "weight_decay": 0.0})

    schedule = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
    expected, model = network(), network()
    train(expected, groups(expected), 40, schedule=schedule)
    with open_session("w0") as session:
        kind = signed_descent()
        rule = lambda group: kind(group["lr"], group["weight_decay"])
        optimizer = pst.distribute(groups(model), model, rule=rule)
        train(model, optimizer, 40, schedule=schedule)
        assert session.slot(optimizer._tensors["0.weight"].variable, "average").any()
        with pytest.raises(TypeError, match=r"such as ps\.Lamb\(0\.01\), got 0\.1"):
            pst.distribute(groups(model), model, "second", rule=lambda group: 0.1)
    assert_equal(model, expected, 1e-5)


class Reader(nn.Module):
    """Each layer that this package has too."""

    def __init__(self):
        super().__init__()
        self.words, self.conv1, self.conv2 = nn.Embedding(9, 6), nn.Conv1d(6, 4, 3, padding=1), nn.Conv2d(1, 2, 3)
        self.up, self.norm = nn.ConvTranspose2d(2, 3, (2, 3), bias=False), nn.LayerNorm(36)
        self.average, self.out = nn.BatchNorm1d(36), nn.Sequential(nn.Linear(36, 36), nn.Linear(36, 2))

    def forward(self, ids):
        x = self.conv1(self.words(ids).permute(0, 2, 1)).permute(0, 2, 1)  # batch, length, channels
        x = self.up(self.conv2(x[:, None])).permute(0, 2, 3, 1).flatten(1)
        return self.out(self.average(self.norm(x)))


def test_a_model_of_pytorch_and_one_of_layers_have_the_same_variables(open_session):
    ids = np.random.default_rng(3).integers(0, 9, (5, 4))

    def program():
        words, conv1 = layers.Embedding(9, 6, name="words"), layers.Conv1D(6, 4, 3, name="conv1")
        conv2 = layers.Conv2D(1, 2, 3, padding="VALID", name="conv2")
        up = layers.Conv2DTranspose(2, 3, (2, 3), bias=False, padding="VALID", name="up")
        norm, average = layers.LayerNorm(36, name="norm"), layers.BatchNorm(36, epsilon=1e-5, name="average")
        with ps.variable_scope("out"):
            out = layers.Sequential(layers.Dense(36, 36, name="0"), layers.Dense(36, 2, name="1"))

        def logits():
            x = up(conv2(ops.reshape(conv1(words(ids)), (-1, 4, 4, 1))))
            return out(average(norm(ops.reshape(x, (-1, 36))), training=False))

        return logits

    with open_session("w0") as session:
        ours, random = program(), np.random.default_rng(4)
        for one in ps.global_variables():
            one.assign(one.value + random.uniform(0.05, 0.1, one.shape))
        trained = ps.trainable_variables()
        found = ps.gradients(ops.mean(ops.square(ours())), trained)
        dense = [part + np.zeros(part.shape, np.float32) for part in found]  # that of an embedding is of rows
        expected = {one.name: one.value - 0.1 * part for one, part in zip(trained, dense, strict=True)}
        with ps.collection(), open_session("w1"):
            model = Reader().eval()
            sgd = torch.optim.SGD(model.parameters(), 0.1)
            optimizer = pst.distribute(sgd, model, variables=pst.layer_variables(model))
            assert {one.name for one in ps.trainable_variables()} == expected.keys()
            result = model(torch.tensor(ids))
            np.testing.assert_allclose(result.detach(), ours().value, rtol=1e-4, atol=1e-5)
            result.square().mean().backward()
            optimizer.step()
            session.pull()
            np.testing.assert_allclose(model(torch.tensor(ids)).detach(), ours().value, rtol=1e-4, atol=1e-5)
        for one in trained:
            np.testing.assert_allclose(one.value, expected[one.name], rtol=1e-4, atol=1e-6, err_msg=one.name)


def test_variables_that_a_model_does_not_have_are_refused(open_session):
    model, sgd = nn.Linear(2, 3), lambda: torch.optim.SGD(model.parameters(), 0.1)
    with open_session("w0"):
        with pytest.raises(ConfigurationError, match="variables has 'w', but the model has only weight, bias"):
            pst.distribute(sgd(), model, variables={"w": "kernel"})
        for axes in ((0, 0), (0, 1, 2)):
            with pytest.raises(ConfigurationError, match="name each of its 2 axes once"):
                pst.distribute(sgd(), model, variables={"weight": ("kernel", axes)})
        pst.distribute(sgd(), model, variables=pst.layer_variables(model))
        with pytest.raises(ConfigurationError, match="has a variable 'kernel' already"):
            pst.distribute(sgd(), model, variables={"weight": "kernel"})


def test_each_example_comes_once_an_epoch_and_processes_load_them(open_session):
    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return torch.tensor(float(index)), index**2

    costs = []
    with open_session("w0"):
        for workers in (0, 1):
            seen = []
            for x, square in pst.loader(
                Squares(), 8, epochs=2, num_workers=workers, on_epoch=lambda epoch: costs.append(epoch.examples)
            ):
                assert torch.equal(x.long() ** 2, square)
                seen += x.long().tolist()
            assert sorted(seen[:100]) == sorted(seen[100:]) == list(range(100))
            assert seen[:100] != seen[100:]
    assert costs == [100] * 4


def test_iterable_datasets_are_read_in_their_order(open_session):
    class Numbers(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(10))

    with open_session("w0"):
        batches = [batch.tolist() for batch in pst.loader(Numbers(), 4)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_loss_of_backward_is_the_cost_of_the_epoch(open_session):
    data = torch.utils.data.TensorDataset(X, Y)
    reports, losses = [], []
    model = network()
    with open_session("w0"):
        optimizer = pst.distribute(torch.optim.SGD(model.parameters(), 0.1), model)
        for x, y in pst.loader(data, 100, epochs=2, on_epoch=reports.append):
            loss = F.cross_entropy(model(x), y)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [report.cost for report in reports] == pytest.approx([np.mean(losses[:4]), np.mean(losses[4:])], rel=1e-6)


def test_values_that_the_servers_send_at_any_time_are_in_the_parameters(open_session):
    model = network()
    with open_session("w0") as session:
        optimizer = pst.distribute(torch.optim.SGD(model.parameters(), 0.1), model)
        variable = optimizer._tensors["0.bias"].variable
        variable.assign(np.arange(30, dtype=np.float32))
        assert model[0].bias.tolist() == list(range(30))
        train(model, optimizer, 1)
        session.pull()
        np.testing.assert_array_equal(model[0].bias.detach().numpy(), variable.value)


def test_saved_models_have_the_names_of_the_state_dict(open_session, tmp_path):
    files = pytest.importorskip("safetensors.torch")
    model, other = network(), network()
    with open_session("w0") as session:
        optimizer = pst.distribute(torch.optim.SGD(model.parameters(), 0.1), model)
        train(model, optimizer, 5)
        optimizer.save_buffers()
        session.save(tmp_path / "model.safetensors")
    other.load_state_dict(files.load_file(tmp_path / "model.safetensors"))
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name

    files.save_file(network().state_dict(), tmp_path / "first.safetensors")
    with ps.collection(), ps.session(progress="off"):
        pst.distribute(torch.optim.SGD(model.parameters(), 0.1), model)
        ps.load(tmp_path / "first.safetensors")
        for name, value in network().named_parameters():
            assert torch.equal(model.get_parameter(name), value), name


def test_a_compiled_model_trains(open_session):
    pytest.importorskip("torch._dynamo")
    expected, model = network(), network()
    train(expected, torch.optim.SGD(expected.parameters(), 0.1), 10)
    with open_session("w0"):
        optimizer = pst.distribute(torch.optim.SGD(model.parameters(), 0.1), model)
        compiled = torch.compile(model, backend="eager")
        for first, last in pairwise(range(0, 440, 40)):
            F.cross_entropy(compiled(X[first:last]), Y[first:last]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert_equal(model, expected)


def test_the_state_dict_is_that_of_the_groups(open_session):
    model = network()
    with open_session("w0"):
        optimizer = pst.distribute(torch.optim.Adam(model.parameters(), 1e-2), model)
        stored = io.BytesIO()
        torch.save(optimizer.state_dict(), stored)
        optimizer.param_groups[0]["lr"] = 0.5
        stored.seek(0)
        optimizer.load_state_dict(torch.load(stored))
        assert optimizer.param_groups[0]["lr"] == optimizer.inner.param_groups[0]["lr"] == 1e-2


def test_what_cannot_be_distributed_is_refused_with_advice(open_session):
    model = network()
    with pytest.raises(ConfigurationError, match="no session is open"):
        pst.distribute(torch.optim.Adam(model.parameters()), model)
    with open_session("w0"):
        with pytest.raises(ConfigurationError, match=r"no update rule for NAdam, only for .* --local-steps 50"):
            pst.distribute(torch.optim.NAdam(model.parameters()), model)
        with pytest.raises(ConfigurationError, match=r"dampening=0\.5, which the servers do not have"):
            pst.distribute(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, dampening=0.5), model)
        with pytest.raises(ConfigurationError, match=r"parameters that the model does not have, of shape \(7,\)"):
            pst.distribute(torch.optim.SGD([nn.Parameter(torch.ones(7))], 0.1), model)
        meta = nn.Linear(2, 2, device="meta")
        with pytest.raises(ConfigurationError, match="device meta"):
            pst.distribute(torch.optim.SGD(meta.parameters(), 0.1), meta)
        with pytest.raises(TypeError, match="the servers choose the examples"):
            pst.loader(torch.utils.data.TensorDataset(X), 5, sampler=[1, 2])
        with pytest.raises(DatasetError, match="no length"):
            pst.loader(object(), 5)


def test_several_models_have_names_and_a_second_session_begins_with_its_own_model(open_session):
    first, second = network(), network()
    with ps.session(progress="off"):
        pst.distribute(torch.optim.SGD(first.parameters(), 0.1), first, "first")
        with pytest.raises(ConfigurationError, match=r"has a variable 'first/0\.weight' already: give each"):
            pst.distribute(torch.optim.SGD(second.parameters(), 0.1), second, "first")
        pst.distribute(torch.optim.SGD(second.parameters(), 0.1), second, "second")
    for _ in range(2):
        model = network()
        with ps.session(progress="off"):
            train(model, pst.distribute(torch.optim.SGD(model.parameters(), 0.1), model), 3)
        expected = network()
        train(expected, torch.optim.SGD(expected.parameters(), 0.1), 3)
        assert_equal(model, expected)
    assert not ps.global_variables()


def test_a_gradient_with_nan_changes_nothing(open_session):
    model, before = network(), network()
    with open_session("w0"):
        optimizer = pst.distribute(torch.optim.SGD(model.parameters(), 0.1), model)
        (model(X) * float("nan")).sum().backward()
        with pytest.raises(NotFinite, match=r"0\.weight"):
            optimizer.step()
    assert_equal(model, before, 0.0)


def test_dir_lists_public_names_only():
    assert {name for name in dir(pst) if not name.startswith("__")} == set(pst.__all__)
