"""The smallest job: one number x with the loss (x - b)^2 / 2, and a transform of its gradient.

python examples/quadratic.py                                            # in one process: both columns agree exactly
psworker local --workers 2 examples/quadratic.py                        # updates of the other worker show
psworker run --servers host:port examples/quadratic.py                  # one worker of a cluster
"""

import argparse

import numpy as np

import psworker as ps

parser = argparse.ArgumentParser(description="Gradient descent on a quadratic, each step shown.")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--decay", type=float, default=0.1, help="factor of each gradient")
parser.add_argument("--learning-rate", type=float, default=1.0)
options = parser.parse_args()

b = 1.0
x = ps.Variable(10.0, name="x")
optimizer = ps.GradientDescent(learning_rate=options.learning_rate)
decay, rate = np.float32(options.decay), np.float32(options.learning_rate)

with ps.session() as session:
    print("step       before     gradient      expected      became")
    for _ in range(options.steps):
        grads_and_vars = optimizer.compute_gradients(0.5 * (x - b) ** 2)
        grads_and_vars = ps.scale(grads_and_vars, options.decay)
        before = x.value
        [(gradient, _)] = grads_and_vars
        expected = before - rate * (decay * (before - np.float32(b)))  # in the precision of the variable
        optimizer.apply_gradients(grads_and_vars)
        same = "" if x.value == expected else f"   (staleness {session.staleness}: other workers updated x too)"
        print(
            f"{session.global_step:4d} {before:12.8f} {gradient:12.8f} {expected:14.8f} {x.value:11.8f}{same}",
            flush=True,
        )
