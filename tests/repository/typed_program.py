"""A program for type checkers, as `make lint` calls mypy: descent by hand passes, and what is not ours is an error.

A comment that ignores an error is one itself where there is none (`warn_unused_ignores`).
"""

import numpy as np

import psworker as ps
import psworker.ops
from psworker import nn, ops
from psworker.errors import DatasetError
from psworker.nn import Dense, Sequential
from psworker.schedules import CosineDecay

x, y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)
W, b = ps.Variable(ops.zeros((2, 1)), name="W"), ps.Variable(ops.zeros((1,)), name="b")


def loss(W: ps.Tensor, b: ps.Tensor) -> ps.Tensor:
    return ops.mean(ops.square(x @ W + b - y))


def descend(rate: float) -> float:
    optimizer = ps.GradientDescent(rate)
    with ps.session() as session:
        of_W, of_b = ps.gradients(loss(W, b), [W, b])
        W.assign(W.value - rate * of_W)
        session.assign_add(b, -rate * of_b)
        value, (of_W, of_b) = ps.value_and_grad(loss, argnums=(0, 1))(W, b)
        session.assign_all({W: W.value - rate * of_W, b: b.value - rate * of_b})
        pairs = optimizer.compute_gradients(loss(W, b))
        for gradient, variable in pairs:
            variable.assign_add(-rate * gradient)
        report = optimizer.apply_gradients([(0.5 * gradient, variable) for gradient, variable in pairs])
        session.push(optimizer, ps.clip_by_global_norm(pairs, 1.0))
        session.pull()
    return value / report.step


def by_modules(columns: dict[str, list[float]]) -> ps.Tensor | None:
    model = Sequential(Dense(2, 1), psworker.ops.relu)
    with ps.session() as session:
        ps.Adam(CosineDecay(0.1, 100)).minimize(psworker.ops.mean(model(x)), model)
        session.pull(model)
    ps.save("model.safetensors", model)
    try:
        return model(ps.Dataset(columns).x)
    except DatasetError:
        return None


def from_elsewhere(batch: ps.Batch) -> None:
    nn.Linear(2, 1)  # type: ignore[attr-defined]
    psworker.ops.cross_entropy(x, y)  # type: ignore[attr-defined]
    ops.cross_entropy(x, y)  # type: ignore[attr-defined]
    ps.SGD(0.1)  # type: ignore[attr-defined]
    ps.datasets.MNIST()  # type: ignore[attr-defined]
    ps.metrics.Accuracy()  # type: ignore[attr-defined]
    ps.Adam(lr=0.1)  # type: ignore[call-arg]
    ps.Adam().step()  # type: ignore[attr-defined]
    ps.session(log_dir="runs")  # type: ignore[call-arg]
    nn.Dense(2, units=1).parameters()  # type: ignore[attr-defined]
    nn.Dense(in_features=2, out_features=1)  # type: ignore[call-arg]
    loss(W, b).backward()  # type: ignore[attr-defined]
    W[...] = x  # type: ignore[index]
    ops.sum(batch.any_column)
