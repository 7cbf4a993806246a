"""A small transformer that writes, in PyTorch: it predicts each character of The World Factbook from those before it.

A decoder of a few blocks, each of causal attention and a dense layer. Text, alphabet and held-out part are those of
examples/char_gru.py, and so is the measure: bits per held-out character.

python examples/pytorch/char_transformer.py                             # in one process
psworker local --workers 2 examples/pytorch/char_transformer.py         # a server and two workers

At first it learns more slowly than the GRU: after 300 of 500 steps it is at 3.1 bits, where the GRU is at 2.8.
"""

import argparse
import collections
import gzip
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import psworker.torch as pst

TEXT = Path(__file__).resolve().parents[2] / "datasets" / "factbook" / "factbook.txt.gz"

parser = argparse.ArgumentParser(description="A character model: a transformer of PyTorch.")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=32, help="pieces of text")
parser.add_argument("--length", type=int, default=50, help="characters of a piece, all that a prediction can see")
parser.add_argument("--width", type=int, default=64, help="of the vector of a character")
parser.add_argument("--blocks", type=int, default=2)
parser.add_argument("--heads", type=int, default=4, help="of attention")
parser.add_argument("--learning-rate", type=float, default=0.008, help="after a warm-up; it falls to 0")
parser.add_argument("--least", type=int, default=50, help="minimum number of occurrences of a character")
parser.add_argument("--steps", type=int, help="end after this many steps of all workers")
parser.add_argument("--report", type=int, default=500, help="steps between reports")
parser.add_argument("--start", default="The economy ", help="the text that the model goes on with")
parser.add_argument("--write", type=int, default=300, help="characters to write")
parser.add_argument("--temperature", type=float, default=0.6, help="0.1: the most probable characters; 1: as learned")
parser.add_argument("--seed", type=int, default=0, help="seed of initial weights, of the order and of what is written")
options = parser.parse_args()


class Block(nn.Module):
    """Attention to the characters so far, and a dense layer, each added to what comes in."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.queries_keys_values, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        """The same shape as x, (batch, length, width)."""
        parts = self.queries_keys_values(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        attention = F.scaled_dot_product_attention(*parts.unbind(2), is_causal=True)
        x = x + self.attended(attention.transpose(1, 2).flatten(2))
        return x + self.dense(self.norms[1](x))


class Transformer(nn.Module):
    """Logits of the next character, after each."""

    def __init__(self, characters):
        super().__init__()
        width = options.width
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(options.length, width)
        self.blocks = nn.Sequential(*[Block(width, options.heads) for _ in range(options.blocks)])
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, characters)
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, numbers):
        """Logits (batch, length, characters) of numbers (batch, length)."""
        x = self.characters(numbers) + self.places.weight[: numbers.shape[1]]
        return self.out(self.norm(self.blocks(x)))


with gzip.open(TEXT, "rt", encoding="utf-8") as file:
    text = file.read()
counts = collections.Counter(text)
alphabet = ["\ufffd", *sorted(one for one, count in counts.items() if count >= options.least)]  # the first: all others
numbers = {one: number for number, one in enumerate(alphabet)}
encoded = torch.tensor([numbers.get(one, 0) for one in text])
end = len(encoded) * 49 // 50
pieces = lambda part: part.unfold(0, options.length + 1, options.length)  # (n, length + 1), the last one shared
train, held_out = TensorDataset(pieces(encoded[:end])), pieces(encoded[end:])
steps = options.steps or options.epochs * len(train) // options.batch_size
torch.manual_seed(options.seed)
model = Transformer(len(alphabet))


def loss_of(piece):
    """The mean cross-entropy of each piece's characters but the first, in nats."""
    return F.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())


def rate(step):
    """The learning rate at a step of the job: a warm-up, then a cosine."""
    return options.learning_rate * min(1, 20 * (step + 1) / steps) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2


@torch.no_grad()
def bits():
    """Bits per held-out character."""
    session.pull()
    batches = held_out.split(500)
    return sum(loss_of(batch).item() * len(batch) for batch in batches) / len(held_out) / math.log(2)


@torch.no_grad()
def written(start):
    """`start` and the characters that the model has drawn after it, each with the ones before it that it can see."""
    while len(start) < options.write:
        seen = torch.tensor([[numbers.get(one, 0) for one in start[-options.length :]]])
        logits = model(seen)[0, -1] / options.temperature
        logits[0] = -math.inf  # not the sign for other characters
        start += alphabet[torch.multinomial(logits.softmax(0), 1)]
    return start


with pst.session() as session:
    optimizer = pst.distribute(torch.optim.AdamW(model.parameters(), options.learning_rate), model)
    next_report = options.report
    for (piece,) in pst.loader(train, options.batch_size, options.epochs, seed=options.seed, steps=options.steps):
        loss_of(piece).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = rate(session.global_step)
        optimizer.step()
        optimizer.zero_grad()
        if session.is_chief and session.global_step >= next_report:
            print(f"step {session.global_step:6,d}: {bits():.3f} bits per held-out character", flush=True)
            next_report += options.report
    if session.is_chief:
        print(f"{bits():.3f} bits at the end; the model writes:")
        print(written(options.start))
