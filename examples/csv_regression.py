"""Linear regression on a CSV file: the body mass of penguins, from their measurements, species and sex.

Shows how words become numbers, how rows without a value are left out, a split for evaluation, and features that are
scaled by the training part alone. The data are real (datasets/penguins/README.md).

python examples/csv_regression.py                                       # in one process
psworker local --workers 2 --shards 1 examples/csv_regression.py        # a server and two workers
psworker run --servers host:port examples/csv_regression.py             # one worker of a cluster

For birds that it has not seen the error (the root of the mean square) is 317 g; that of the least-squares solution is
316 g, and that of the mean mass 778 g.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

import psworker as ps
from psworker import nn, ops

DATA = Path(__file__).resolve().parents[1] / "datasets" / "penguins" / "penguins.csv"
NUMBERS = "bill_length_mm", "bill_depth_mm", "flipper_length_mm"
WORDS = "species", "sex"

parser = argparse.ArgumentParser(description="Linear regression on a CSV file.")
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--learning-rate", type=float, default=0.05, help="at the beginning")
parser.add_argument("--seed", type=int, default=0, help="seed of the split, the initial weights and the order")
parser.add_argument("--data", type=Path, default=DATA, help="the CSV file")
options = parser.parse_args()
ps.set_random_seed(options.seed)


def read(path):
    """A dataset of the rows without a missing value: features (rows, 6) and mass (rows, 1) in kg; and their names."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if "NA" not in row.values()]
    columns = {name: np.array([float(row[name]) for row in rows]) for name in NUMBERS}
    for name in WORDS:
        for word in sorted({row[name] for row in rows})[1:]:  # the first word is when all others are 0
            columns[word] = np.array([float(row[name] == word) for row in rows])
    features = np.stack(list(columns.values()), axis=1).astype(np.float32)
    mass = np.array([[float(row["body_mass_g"]) / 1000] for row in rows], np.float32)
    return ps.Dataset({"features": features, "mass": mass}, name=path.name), list(columns)


birds, names = read(options.data)
train, test = birds.split(0.8, options.seed)
mean, scale = train.features.mean(axis=0), train.features.std(axis=0)
layer = nn.Dense(len(names), 1, name="mass")
decay = ps.schedules.CosineDecay(options.learning_rate, options.epochs * -(-len(train) // options.batch_size))
optimizer = ps.GradientDescent(decay)  # without momentum: the staleness of several workers has the same effect


def predict(features):
    """The mass in kg, (rows, 1), of features in the units of the file."""
    return layer((features - mean) / scale)


def squared_error(batch):
    return ops.mean(ops.square(predict(batch.features) - batch.mass))


def report(epoch):
    if session.is_chief and epoch.epoch % max(1, options.epochs // 5) == 0:
        print(f"epoch {epoch.epoch:3}: error {1000 * epoch.cost**0.5:.0f} g over {epoch.examples} birds", flush=True)


with ps.session() as session:
    for batch in session.batches(train, options.batch_size, options.epochs, options.seed, on_epoch=report):
        optimizer.minimize(squared_error(batch))
    if session.is_chief:
        error = 1000 * session.evaluate(squared_error, test) ** 0.5
        session.summary.scalar("test error", error)  # shown by psworker runs and psworker sweep
        baseline = 1000 * float(np.mean((test.mass - train.mass.mean()) ** 2)) ** 0.5
        print(f"test error: {error:.0f} g over {len(test)} birds; of the mean mass: {baseline:.0f} g")
        weights = 1000 * layer.kernel.value[:, 0]
        print("grams per standard deviation:", ", ".join(f"{n} {w:+.0f}" for n, w in zip(names, weights, strict=True)))
        bird = test.take([0])
        print(
            f"a bird of {1000 * bird.mass.item():.0f} g: predicted {1000 * predict(bird.features).value.item():.0f} g"
        )
