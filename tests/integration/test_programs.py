"""Examples: a saved model, a regression, deep Q-learning, the GAN."""

import csv
import hashlib
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

import psworker as ps
from psworker.config import WorkerConfig
from psworker.data.epoch_order import epoch_order
from psworker.sessions.session import Session
from psworker.transport.embedded import EmbeddedTransport
from tests.support.shards import slots_of


def values(network):
    return [variable.value.copy() for variable in ps.global_variables(network)]


def bits(network):
    return [value.tobytes() for value in values(network)]


def batches(dqn, count):
    """Of what was played, in a fixed order."""
    random = np.random.default_rng(11)
    return [dqn.memory[random.integers(dqn.step, size=dqn.options.batch_size)] for _ in range(count)]


def layers(weights, observation):
    W1, b1, W2, b2, W3, b3 = weights
    first = np.maximum(W1.T @ observation + b1, 0)
    second = np.maximum(W2.T @ first + b2, 0)
    return first, second, W3.T @ second + b3


def reference_gradients(batch, online, target, discount):
    """Of the mean squared error to double Q-learning's constant targets; in float64, a transition at a time."""
    online, target = ([value.astype(np.float64) for value in network] for network in (online, target))
    sums = [np.zeros_like(value) for value in online]
    for observation, action, reward, next_observation, terminated in batch.tolist():
        choice = layers(online, np.array(next_observation))[2].argmax()
        after = 0 if terminated else layers(target, np.array(next_observation))[2][choice]
        first, second, q = layers(online, np.array(observation))
        d3 = np.zeros(2)
        d3[action] = 2 * (q[action] - (reward + discount * after))
        d2 = online[4] @ d3 * (second > 0)
        d1 = online[2] @ d2 * (first > 0)
        gradients = np.outer(observation, d1), d1, np.outer(first, d2), d2, np.outer(second, d3), d3
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient / len(batch)
    return sums


@pytest.mark.slow
def test_a_model_that_one_program_saves_is_used_by_another_without_a_server(run_example, tmp_path, capsys):
    path = str(tmp_path / "softmax.safetensors")
    run_example("softmax_mnist", "--epochs", "1", "--batch-size", "1000", "--learning-rate", "0.1", "--save", path)
    trained = capsys.readouterr().out.splitlines()[-1]
    with ps.collection():
        predict = run_example("predict_mnist", path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"test accuracy: {trained.split()[-3]} on 10,000 images"
    assert float(trained.split()[-3]) > 0.7
    weights = load_file(path)
    logits = predict.mnist.test.image @ weights["W"] + weights["b"]
    assert np.mean(logits.argmax(1) == predict.mnist.test.label) == pytest.approx(float(last.split()[2]))


@pytest.mark.slow
def test_the_regression_on_a_csv_file_finds_the_least_squares_solution(run_example, capsys):
    """That of numpy, in float64, for the same split of the file, read anew."""
    example = run_example("csv_regression", "--epochs", "150")
    lines = capsys.readouterr().out.splitlines()
    with example.DATA.open() as file:
        rows = [row for row in csv.DictReader(file) if "NA" not in row.values()]
    assert len(rows) == 333
    numbers = [[float(row[name]) for name in example.NUMBERS] for row in rows]
    words = [[row["species"] == "Chinstrap", row["species"] == "Gentoo", row["sex"] == "male"] for row in rows]
    x, y = np.column_stack([numbers, words]), np.array([float(row["body_mass_g"]) for row in rows])
    order = epoch_order(len(rows), 0, 0)
    train, test = order[: len(example.train)], order[len(example.train) :]
    scaled = np.column_stack([np.ones(len(x)), (x - x[train].mean(axis=0)) / x[train].std(axis=0)])
    weights = np.linalg.lstsq(scaled[train], y[train], rcond=None)[0]
    np.testing.assert_allclose(1000 * example.layer.kernel.value[:, 0], weights[1:], atol=15)
    errors = [np.sqrt(np.mean((guess - y[test]) ** 2)) for guess in (scaled[test] @ weights, y[train].mean())]
    found = re.fullmatch(r"test error: (\d+) g over 67 birds; of the mean mass: (\d+) g", lines[-3])
    assert [float(one) for one in found.groups()] == [pytest.approx(error, abs=2) for error in errors]
    assert [line.split(":")[0] for line in lines[:5]] == [f"epoch {n:3}" for n in (30, 60, 90, 120, 150)]
    digest = hashlib.sha256(example.DATA.read_bytes()).hexdigest()
    assert digest in (example.DATA.parent / "README.md").read_text()


@pytest.mark.exhaustive
def test_a_mean_return_of_195_over_100_episodes_is_reached(run_example, capsys):
    dqn = run_example("dqn_cartpole", "--max-steps", "60000")
    lines = capsys.readouterr().out.splitlines()
    last = re.fullmatch(r"solved after ([\d,]+) steps .*: mean return ([\d.]+) over 100 episodes, [\d.]+ s", lines[-1])
    assert last, lines
    assert float(last[2]) >= 195
    assert np.mean(dqn.returns) == pytest.approx(float(last[2]), abs=0.05)
    assert int(last[1].replace(",", "")) == dqn.step < 60_000
    assert len([line for line in lines if line.startswith("episode ")]) == dqn.episodes // 50


def test_the_update_of_a_batch_is_that_of_double_q_learning(run_example):
    dqn = run_example("dqn_cartpole", "--max-steps", "400", "--discount", "0.9")
    random = np.random.default_rng(3)
    dqn.optimizer = ps.GradientDescent(0.01)
    with ps.session() as dqn.session:
        for variable in ps.global_variables():  # so that neither a mix-up of the networks nor a zero goes unseen
            dqn.session.assign(variable, random.normal(size=variable.shape) * 0.4)
        [batch] = batches(dqn, 1)
        assert 0 < batch["terminated"].sum() < len(batch)
        before = values("online")
        expected = reference_gradients(batch, before, values("target"), 0.9)
        dqn.learn(batch)
    for old, new, gradient in zip(before, values("online"), expected, strict=True):
        assert np.abs(gradient).max() > 0.01
        np.testing.assert_allclose((old - new) / np.float32(0.01), gradient, rtol=2e-4, atol=2e-4)


def test_the_target_stays_bit_for_bit_until_it_becomes_the_online_network(run_example):
    dqn = run_example("dqn_cartpole", "--max-steps", "200", "--copy-every", "4")
    with ps.session() as dqn.session:
        assert bits("target") == bits("online"), "both begin with the same weights"
        for update, batch in enumerate(batches(dqn, 12), start=1):
            online, target = bits("online"), bits("target")
            dqn.learn(batch)
            assert bits("online") != online
            assert bits("target") == (bits("online") if update % 4 == 0 else target)
        target = bits("target")
        dqn.session.pull()
        assert bits("target") == target, "the server has the same"


@pytest.mark.slow
def test_each_networks_step_leaves_every_bit_of_the_other_as_it_was(run_example, tmp_path, monkeypatch):
    transport, push, pushes = EmbeddedTransport(), Session.push, []
    names = [
        [f"{network}/{layer}/{part}" for layer in ("hidden_1", "hidden_2", last) for part in ("kernel", "bias")]
        for network, last in (("discriminator", "logit"), ("generator", "image"))
    ]

    def state(session):
        """Of every variable, version, value and slots on the shard."""
        session.pull()
        slots = {variable.name: slots_of(transport._shard, variable.name) for variable in ps.global_variables()}
        return {
            variable.name: (variable.version, variable.value.tobytes(), *map(bytes, slots[variable.name].values()))
            for variable in ps.global_variables()
        }

    def watched(session, *arguments):
        before = state(session)
        push(session, *arguments)
        after = state(session)
        assert sorted(after) == sorted(before) == sorted(names[0] + names[1]), "nothing is built anew"
        pushes.append([name for name in after if after[name] != before[name]])

    monkeypatch.setattr(Session, "push", watched)
    monkeypatch.setattr(ps, "session", lambda: Session(WorkerConfig(name="w0", timeout=30), transport))
    run_example("gan_mnist", "--output", str(tmp_path / "grids"), "--steps", "5")
    assert pushes == names * 5
