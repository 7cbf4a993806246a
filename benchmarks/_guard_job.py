"""The job of `guard_demos.py`: digits by a network of three hidden layers, or by softmax regression. Run by workers.

Each step takes `--pause` seconds longer between gradients and push, as on a machine that computes them for so long: so
all workers are equally slow, and a push misses one update of each of the others, however few cores there are.
"""

import argparse
import itertools
import json
import math
import time

import numpy as np

import psworker as ps
from psworker import datasets, environment, ops

BATCH = 50
#: Pushes of the chief between two lines with its mean cost.
REPORT = 10


class Network:
    """784-100-100-100-10 with rectifiers, and initial values by He et al. (2015)."""

    def __init__(self, dtype: str) -> None:
        sizes = 784, 100, 100, 100, 10
        random = np.random.default_rng(0)
        self.layers = [
            (
                ps.Variable((random.normal(size=shape) * math.sqrt(2 / shape[0])).astype(dtype), name=f"W{number}"),
                ps.Variable(np.zeros(shape[1], dtype), name=f"b{number}"),
            )
            for number, shape in enumerate(itertools.pairwise(sizes))
        ]

    def logits(self, x):
        """Of images (batch, 784)."""
        for number, (kernel, bias) in enumerate(self.layers):
            x = ops.matmul(x, kernel) + bias
            if number < len(self.layers) - 1:
                x = ops.relu(x)
        return x


def wrong(labels):
    """Labels that have nothing to do with their images, as those of a file in another order."""
    return np.random.default_rng(int(labels.sum())).integers(0, 10, len(labels))


def spoilt(images, fault: str, scale: float):
    """What a worker with this fault reads in place of these images."""
    match fault:
        case "scale":  # such as bytes that nobody has divided by 255
            return images * np.float32(scale)
        case "nan":
            return images * np.float32(math.nan)
        case "hang":
            time.sleep(45)  # as a mount that does not answer
    return images


def examples(session, options, train):
    """Batches of the data that all workers share; or those of this worker, which alone has every third digit."""
    if not options.sharded:
        yield from session.batches(train, BATCH, 100, seed=options.seed)
        return
    own = int(environment.worker_name().rpartition("-")[2])
    mine, random = np.flatnonzero(train.label % 3 == own), np.random.default_rng(own)
    while not session.stopped:
        yield train.take(random.choice(mine, BATCH))


def main() -> None:
    """One worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--adam", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=1000, help="updates by all workers")
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument(
        "--fault", choices=["none", "scale", "nan", "hang", "labels"], default="none", help="of worker-1"
    )
    parser.add_argument("--fault-at", type=int, default=60, help="the push of worker-1 with the first fault")
    parser.add_argument("--scale", type=float, default=255, help="of its images, with the fault scale")
    parser.add_argument("--sharded", action="store_true", help="of 3 workers each reads other digits")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ps.set_random_seed(options.seed)
    mnist, network = datasets.mnist(), Network(options.dtype)
    rate = options.learning_rate
    plain = ps.Momentum(rate, options.momentum) if options.momentum else ps.GradientDescent(rate)
    optimizer = ps.Adam(rate) if options.adam else plain
    fault = options.fault if environment.worker_name() == "worker-1" else "none"

    if fault != "none":
        time.sleep(1.5)  # the chief, which reports, is another worker

    def cost(images, labels):
        return ops.softmax_cross_entropy(network.logits(images), labels)

    costs: list[float] = []
    with ps.session() as session:
        for number, batch in enumerate(examples(session, options, mnist.train), 1):
            images = batch.image.astype(options.dtype)
            now = fault if number >= options.fault_at else "none"
            loss = cost(spoilt(images, now, options.scale), wrong(batch.label) if now == "labels" else batch.label)
            pairs = optimizer.compute_gradients(loss)
            time.sleep(options.pause)
            optimizer.apply_gradients(pairs)
            costs.append(float(loss))
            if session.is_chief and len(costs) == REPORT:
                print("COST", session.global_step, f"{np.mean(costs):.6g}", flush=True)
            costs = costs if len(costs) < REPORT else []
            if session.global_step >= options.steps:
                break
        if session.is_chief:
            test = mnist.test[:3000]
            accuracy = session.evaluate(
                lambda batch: ops.accuracy(network.logits(batch.image.astype(options.dtype)), batch.label), test
            )
            print("RESULT", json.dumps({"accuracy": accuracy, "step": session.global_step}), flush=True)


if __name__ == "__main__":
    main()
