"""A recommender in PyTorch on a table of a million rows: how a senator votes, as in examples/recommender.py.

Names are hashed: the row of a senator or a roll call is a number that follows from its name. So the program needs no
list of all users and items, and new ones may come at any time; the table is as large as collisions must be rare. No
worker has it: a step pulls and pushes the rows of its batch.

python examples/pytorch/recommender.py                                  # in one process
psworker local --workers 2 --shards 2 examples/pytorch/recommender.py   # two servers and two workers

After eight epochs 8 % of the held-out votes are predicted wrongly, as by the program with two small tables.
"""

import argparse
from zlib import crc32

import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import psworker as ps
import psworker.torch as pst
from psworker import datasets

parser = argparse.ArgumentParser(description="Matrix factorization of votes, in PyTorch, on a table of hashed names.")
parser.add_argument("--rows", type=int, default=1_000_000, help="of the table")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=500, help="votes")
parser.add_argument("--width", type=int, default=4, help="dimension of the vectors")
parser.add_argument("--learning-rate", type=float, default=0.3)
parser.add_argument("--penalty", type=float, default=0.003, help="factor of the squared norms in the loss")
parser.add_argument("--seed", type=int, default=0, help="seed of initial rows, of the order, and of what is held out")
options = parser.parse_args()


class Votes(torch.nn.Module):
    """The logit of a yea: the product of two vectors, with a bias of each."""

    def __init__(self):
        super().__init__()
        initial = ps.RowUniform(-0.1, 0.1, options.seed)
        self.names = pst.Embedding(options.rows, options.width + 1, initializer=initial)  # the last column is the bias
        self.yeas = torch.nn.Parameter(torch.zeros(()))  # of all votes

    def forward(self, pairs):
        """Logits (n,) and rows (n, 2, width + 1) of the pairs of rows (n, 2)."""
        rows = self.names(pairs)
        vectors, biases = rows[..., :-1], rows[..., -1]
        return vectors.prod(dim=1).sum(dim=1) + biases.sum(dim=1) + self.yeas, rows


def rows_of(kind, names):
    """The rows of names."""
    return torch.tensor([crc32(f"{kind} {name}".encode()) % options.rows for name in names])


def examples(votes):
    """Pairs of rows (n, 2), and 1 for yea."""
    pairs = [senators[torch.tensor(votes.senator)], roll_calls[torch.tensor(votes.roll_call)]]
    return TensorDataset(torch.stack(pairs, dim=1), torch.tensor(votes.yea, dtype=torch.float32))


def wrong():
    """The share of held-out votes that are predicted wrongly."""
    pairs, yea = held_out.tensors
    with torch.no_grad():
        return ((model(pairs)[0] > 0) != (yea > 0.5)).float().mean()


def report(epoch):
    if session.is_chief:
        print(
            f"epoch {epoch.epoch}: mean loss {epoch.cost:.4f}, held-out votes that are wrong {wrong():.1%}", flush=True
        )


senate = datasets.senate()
senators, roll_calls = rows_of("senator", senate.senators), rows_of("roll call", senate.roll_calls)
train, held_out = map(examples, senate.votes.split(0.8, seed=options.seed))
model = Votes()
looked_up = []  # rows of each step

with pst.session() as session:
    adagrad = torch.optim.Adagrad(model.parameters(), options.learning_rate, initial_accumulator_value=1e-8)
    optimizer = pst.distribute(adagrad, model)
    for pairs, yea in pst.loader(train, options.batch_size, options.epochs, seed=options.seed, on_epoch=report):
        logits, rows = model(pairs)
        norms = rows.square().sum(dim=(1, 2)).mean()
        loss = F.binary_cross_entropy_with_logits(logits, yea) + options.penalty * norms
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        looked_up.append(len(pairs.unique()))
    mean = sum(looked_up) / max(len(looked_up), 1)
    print(f"{len(looked_up)} steps of this worker, with {mean:.0f} of {options.rows:,} rows each", flush=True)
