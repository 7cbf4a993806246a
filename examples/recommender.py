"""A recommender on two tables: how a senator votes on a roll call, predicted from all other votes of both.

Each senator and each roll call has a vector and a bias, the rows of two tables; the probability of a yea is the sigmoid
of their product plus biases (Koren, Bell, Volinsky, "Matrix Factorization Techniques for Recommender Systems", 2009).
A step pulls and pushes the rows of its batch only, so the same program has room for millions of users and items. The
data are 62,742 votes of the Senate of the United States in 2005 and 2006, of which a fifth is held out.

python examples/recommender.py                                          # in one process
psworker local --workers 2 --shards 2 examples/recommender.py           # two servers and two workers

After eight epochs (two seconds) 8 % of the held-out votes are predicted wrongly; the mean of a roll call's other votes
is wrong for 30 %. Senators with similar vectors vote alike: Collins is near Snowe and Chafee.
"""

import argparse

import numpy as np

import psworker as ps
from psworker import datasets, ops

parser = argparse.ArgumentParser(description="Matrix factorization of votes, on two tables.")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=500, help="votes")
parser.add_argument("--width", type=int, default=4, help="dimension of the vectors")
parser.add_argument("--learning-rate", type=float, default=0.3)
parser.add_argument("--penalty", type=float, default=0.003, help="factor of the squared norms in the loss")
parser.add_argument("--seed", type=int, default=0, help="seed of initial rows, of the order, and of what is held out")
parser.add_argument("--senators", nargs="+", default=["COLLINS R-ME", "CLINTON D-NY", "SESSIONS R-AL"], metavar="NAME")
options = parser.parse_args()

senate = datasets.senate()
unknown = set(options.senators) - set(senate.senators)
if unknown:
    parser.error(f"--senators: there is no {', '.join(sorted(unknown))}; the first is {senate.senators[0]!r}")
train, held_out = senate.votes.split(0.8, seed=options.seed)

near = 0.1  # initial elements are random between -near and near
columns = options.width + 1  # the last one is the bias
senators = ps.Table((len(senate.senators), columns), ps.RowUniform(-near, near, options.seed), name="senators")
roll_calls = ps.Table((len(senate.roll_calls), columns), ps.RowUniform(-near, near, options.seed + 1), name="calls")
# The loss is a mean over hundreds of votes: squares of its gradients are far below the default accumulator of 0.1.
optimizer = ps.Adagrad(options.learning_rate, initial_accumulator=1e-8)


def logits_and_rows(batch):
    """The logit of a yea for each vote, and the rows that it was computed from."""
    one, other = ops.embedding(senators, batch.senator), ops.embedding(roll_calls, batch.roll_call)
    return ops.sum(one[:, :-1] * other[:, :-1], axis=-1) + one[:, -1] + other[:, -1], (one, other)


def loss_of(batch):
    logits, rows = logits_and_rows(batch)
    norms = sum(ops.mean(ops.sum(ops.square(part), axis=-1)) for part in rows)
    return ops.sigmoid_cross_entropy(logits, batch.yea) + options.penalty * norms


def wrong(batch):
    """The share of votes that are predicted wrongly."""
    return np.mean((logits_and_rows(batch)[0].value > 0) != (batch.yea > 0.5))


def wrong_by_mean():
    """The same for two predictions without a model: the mean of all votes, and of those on the same roll call."""
    yeas = np.bincount(train.roll_call, train.yea, len(senate.roll_calls))
    means = yeas / np.maximum(np.bincount(train.roll_call, minlength=len(senate.roll_calls)), 1)
    predictions = np.full(len(held_out), train.yea.mean()), means[held_out.roll_call]
    return [np.mean((prediction > 0.5) != (held_out.yea > 0.5)) for prediction in predictions]


def report(epoch):
    if session.is_chief:
        held = session.evaluate(wrong, held_out)
        print(f"epoch {epoch.epoch}: mean loss {epoch.cost:.4f}, held-out votes that are wrong {held:.1%}", flush=True)


with ps.session() as session:
    if session.is_chief:
        mean, mean_of_call = wrong_by_mean()
        print(f"without a model: by the mean of all {mean:.1%} are wrong, by that of the roll call {mean_of_call:.1%}")
    for batch in session.batches(train, options.batch_size, options.epochs, seed=options.seed, on_epoch=report):
        optimizer.minimize(loss_of(batch))
    if session.is_chief:
        vectors = session.rows(senators, np.arange(len(senate.senators)))[:, :-1]
        directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        for name in options.senators:
            nearest = np.argsort(-directions @ directions[senate.senators.index(name)])[1:6]  # the first is itself
            print(f"{name}: votes like {', '.join(senate.senators[number] for number in nearest)}")
