"""A recurrent network that writes: a GRU predicts each character of The World Factbook from those before it.

The measure is bits per character of held-out text: log2 of the number of characters between which the model is in
doubt. Characters alone, by their frequencies, are worth 4.7 bits; printed English to human readers about one (Shannon,
"Prediction and Entropy of Printed English", 1951). At the end the chief lets the model write, a character at a time.

python examples/char_gru.py                                             # in one process
psworker local --workers 2 examples/char_gru.py                         # a server and two workers
psworker run --servers host:port examples/char_gru.py                   # one worker of a cluster

After an epoch (half a minute) it is at 2.3 bits, and writes words and phrases of the Factbook between words of its own.
"""

import argparse
import collections
import gzip
import math
from pathlib import Path

import numpy as np

import psworker as ps
from psworker import nn, ops

TEXT = Path(__file__).resolve().parents[1] / "datasets" / "factbook" / "factbook.txt.gz"

parser = argparse.ArgumentParser(description="A character model: embedding, GRU and softmax.")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--batch-size", type=int, default=32, help="pieces of text")
parser.add_argument("--length", type=int, default=50, help="characters of a piece, over which gradients flow back")
parser.add_argument("--units", type=int, default=128, help="size of the GRU's state")
parser.add_argument("--learning-rate", type=float, default=0.01, help="at first; it falls to 0")
parser.add_argument("--least", type=int, default=50, help="minimum number of occurrences of a character")
parser.add_argument("--steps", type=int, help="end after this many steps of all workers")
parser.add_argument("--report", type=int, default=500, help="steps between reports")
parser.add_argument("--start", default="The economy ", help="the text that the model goes on with")
parser.add_argument("--write", type=int, default=300, help="characters to write")
parser.add_argument("--temperature", type=float, default=0.6, help="0.1: the most probable characters; 1: as learned")
parser.add_argument("--seed", type=int, default=0, help="seed of initial weights, of the order and of what is written")
options = parser.parse_args()

with gzip.open(TEXT, "rt", encoding="utf-8") as file:
    text = file.read()
counts = collections.Counter(text)
alphabet = ["\ufffd", *sorted(one for one, count in counts.items() if count >= options.least)]  # the first: all others
numbers = {one: number for number, one in enumerate(alphabet)}
unknown = set(options.start) - set(numbers)
if unknown or not options.start:
    parser.error(f"--start: the text has no {''.join(sorted(unknown)) or 'empty start'}")


def encode(text):
    """The numbers of characters, int64."""
    return np.array([numbers.get(one, 0) for one in text])


def pieces(numbers):
    """Rows of `length` characters and the one after them, one after the other."""
    count = (len(numbers) - 1) // options.length
    return np.lib.stride_tricks.sliding_window_view(numbers, options.length + 1)[:: options.length][:count]


encoded = encode(text)
end = len(encoded) * 49 // 50
train = ps.Dataset({"piece": pieces(encoded[:end])}, "factbook")
held_out = ps.Dataset({"piece": pieces(encoded[end:])}, "factbook, end")

ps.set_random_seed(options.seed)
embedding = nn.Embedding(len(alphabet), 32)
gru = nn.GRU(32, options.units, return_sequences=True, return_state=True)
out = nn.Dense(options.units, len(alphabet))
steps = options.steps or options.epochs * len(train) // options.batch_size
optimizer = ps.Adam(ps.schedules.CosineDecay(options.learning_rate, decay_steps=steps))
optimizer = optimizer.with_transform(lambda pairs: ps.clip_by_global_norm(pairs, 1.0))


def loss_of(batch):
    """The mean cross-entropy of each piece's characters but the first, in nats."""
    states, _ = gru(embedding(batch.piece[:, :-1]))
    return ops.softmax_cross_entropy(out(states), batch.piece[:, 1:])


def written(start):
    """`start` and the characters that the model has drawn after it, each with all before it in the GRU's state."""
    random, last, state = np.random.default_rng(options.seed), start, None
    whole = start
    with ps.no_grad():
        while len(whole) < len(start) + options.write:
            states, state = gru(embedding(encode(last)[np.newaxis]), state)
            logits = out(states[0, -1:]).value[0] / options.temperature
            logits[0] = -np.inf  # not the sign for other characters
            probabilities = np.exp(logits - logits.max())
            last = alphabet[random.choice(len(alphabet), p=probabilities / probabilities.sum())]
            whole += last
    return whole


with ps.session() as session:
    if session.is_chief:
        shares = np.bincount(encoded) / len(encoded)
        entropy = -np.sum(shares * np.log2(shares, where=shares > 0, out=np.zeros(len(shares))))
        print(f"{len(text):,} characters, {len(alphabet)} different ones: {entropy:.2f} bits by frequency", flush=True)
    next_report = options.report
    for batch in session.batches(train, options.batch_size, options.epochs, seed=options.seed, steps=options.steps):
        optimizer.minimize(loss_of(batch))
        if session.is_chief and session.global_step >= next_report:
            bits = session.evaluate(loss_of, held_out) / math.log(2)
            print(f"step {session.global_step:6,d}: {bits:.3f} bits per held-out character", flush=True)
            next_report += options.report
    if session.is_chief:
        session.pull()
        print(f"{session.evaluate(loss_of, held_out) / math.log(2):.3f} bits at the end; the model writes:")
        print(written(options.start))
