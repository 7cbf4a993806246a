"""Deep Q-learning on CartPole, the example itself in the real environment: its update, target, memory and goal."""

import re

import numpy as np
import pytest

import psworker as ps


@pytest.fixture
def run(run_example):
    """A function that runs the example with these arguments and gives its module."""
    return lambda *arguments: run_example("dqn_cartpole", *arguments)


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
def test_a_mean_return_of_195_over_100_episodes_is_reached(run, capsys):
    dqn = run("--max-steps", "60000")
    lines = capsys.readouterr().out.splitlines()
    last = re.fullmatch(r"solved after ([\d,]+) steps .*: mean return ([\d.]+) over 100 episodes, [\d.]+ s", lines[-1])
    assert last, lines
    assert float(last[2]) >= 195
    assert np.mean(dqn.returns) == pytest.approx(float(last[2]), abs=0.05)
    assert int(last[1].replace(",", "")) == dqn.step < 60_000
    assert len([line for line in lines if line.startswith("episode ")]) == dqn.episodes // 50


def test_the_update_of_a_batch_is_that_of_double_q_learning(run):
    dqn, random = run("--max-steps", "400", "--discount", "0.9"), np.random.default_rng(3)
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


def test_the_target_stays_bit_for_bit_until_it_becomes_the_online_network(run):
    dqn = run("--max-steps", "200", "--copy-every", "4")
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
