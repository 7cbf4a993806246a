"""Deep Q-learning on CartPole-v1: each worker has its own environment, and all train one network on the server.

A small Gorila (Nair et al., "Massively Parallel Methods for Deep Reinforcement Learning", 2015): every worker is an
actor with its own replay memory and a learner that pushes its gradients. Targets are those of double Q-learning (van
Hasselt, Guez and Silver, 2016), with a target network that is copied periodically from the online network.

python examples/dqn_cartpole.py                                         # in one process
psworker local --workers 2 examples/dqn_cartpole.py                     # a server and two workers
psworker run --servers host:port examples/dqn_cartpole.py               # one worker of a cluster

Solved when a worker has a mean return of 195 over its last 100 episodes, exploration included.
"""

import argparse
import sys
import time
from collections import deque

import numpy as np

import psworker as ps
from psworker import nn, ops

try:
    import gymnasium
except ImportError:
    sys.exit("this example needs gymnasium: pip install gymnasium")

parser = argparse.ArgumentParser(description="Deep Q-learning on CartPole-v1.")
parser.add_argument("--max-steps", type=int, default=100_000, help="maximum number of environment steps of a worker")
parser.add_argument("--goal", type=float, default=195, help="mean return over 100 episodes at which the job ends")
parser.add_argument("--learning-rate", type=float, default=5e-4)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--discount", type=float, default=0.99)
parser.add_argument("--learn-every", type=int, default=4, help="environment steps between updates")
parser.add_argument(
    "--copy-every", type=int, default=50, help="updates by all workers between copies of the target network"
)
parser.add_argument("--memory", type=int, default=50_000, help="transitions in the replay memory of a worker")
parser.add_argument("--seed", type=int, default=0, help="seed of weights, environments and exploration")
options = parser.parse_args()

FIRST_UPDATE = 500  # environment steps of a worker before its first update
EXPLORING, LEAST_EPSILON = 5_000, 0.05  # steps over which epsilon decreases from 1; its final value
TRANSITION = np.dtype(
    [
        ("observation", np.float32, 4),
        ("action", np.int64),
        ("reward", np.float32),
        ("next_observation", np.float32, 4),
        ("terminated", np.float32),
    ]
)


def network(scope, trainable):
    with ps.variable_scope(scope, trainable):
        return [
            nn.Dense(4, 64, activation=ops.relu, name="hidden_1"),
            nn.Dense(64, 64, activation=ops.relu, name="hidden_2"),
            nn.Dense(64, 2, name="values"),
        ]


ps.set_random_seed(options.seed)
online, target = network("online", trainable=True), network("target", trainable=False)
solved = ps.Variable(0.0, name="solved", trainable=False)  # every push returns it, so all workers see it
optimizer = ps.Adam(options.learning_rate)


def q_values(network, observations):
    for layer in network:
        observations = layer(observations)
    return observations


def td_targets(batch):
    """Targets of double Q-learning: reward plus the target network's value of the online network's best action."""
    best = ops.argmax(q_values(online, batch["next_observation"]), axis=1)
    future = ops.gather(q_values(target, batch["next_observation"]), best, batch_dims=1)
    return ps.stop_gradient(batch["reward"] + options.discount * (1 - batch["terminated"]) * future)


def td_loss(batch):
    values = ops.gather(q_values(online, batch["observation"]), batch["action"], batch_dims=1)
    return ops.mean_squared_error(
        values, td_targets(batch)
    )  # the Huber loss would reduce the few large errors at falls


def copy_target():
    pairs = zip(ps.global_variables("target"), ps.global_variables("online"), strict=True)
    session.assign_all({old: new.value for old, new in pairs})


def learn(batch):
    optimizer.minimize(td_loss(batch))
    if session.global_step % options.copy_every == 0:  # each step is one push, so exactly one worker copies
        copy_target()


def act(observation, epsilon):
    if random.random() < epsilon:
        return int(random.integers(2))
    with ps.no_grad():
        return int(ops.argmax(q_values(online, observation)))


def report(what):
    mean = f"mean return {np.mean(returns):.1f} over {len(returns)} episodes" if returns else "no episode has ended"
    print(f"{what}: {mean}, {time.monotonic() - began:.1f} s", flush=True)


with ps.session() as session:
    random = np.random.default_rng([options.seed, session.number])
    environment = gymnasium.make("CartPole-v1")
    if session.is_chief:
        copy_target()
    observation, _ = environment.reset(seed=int(random.integers(2**31)))
    memory = np.zeros(options.memory, TRANSITION)
    returns, episodes, total, step, began = deque(maxlen=100), 0, 0.0, 0, time.monotonic()

    while step < options.max_steps and not solved.value:
        epsilon = max(LEAST_EPSILON, 1 - step / EXPLORING)
        action = act(observation, epsilon)
        next_observation, reward, terminated, truncated, _ = environment.step(action)
        memory[step % len(memory)] = observation, action, reward, next_observation, terminated
        observation, total, step = next_observation, total + reward, step + 1
        if step >= FIRST_UPDATE and step % options.learn_every == 0:
            learn(memory[random.integers(min(step, len(memory)), size=options.batch_size)])
        if terminated or truncated:
            returns.append(total)
            observation, total, episodes = environment.reset()[0], 0.0, episodes + 1
            if episodes % 50 == 0:
                report(f"episode {episodes}, step {step:,}, epsilon {epsilon:.2f}")
            if len(returns) == returns.maxlen and np.mean(returns) >= options.goal:
                session.assign(solved, 1)
    outcome = "solved" if solved.value else "not solved"
    report(f"{outcome} after {step:,} steps of this worker and {session.global_step:,} updates by all")
