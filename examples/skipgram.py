"""Word vectors by skip-gram with negative sampling: two tables, of which each step moves the rows of its words alone.

A word's vector learns to tell the words near it from words drawn at random (Mikolov et al., "Distributed
Representations of Words and Phrases and their Compositionality", 2013, equation 4). The text is that of The World
Factbook, 370,000 words; at the end the chief prints which words have nearly the same vector.

python examples/skipgram.py                                             # in one process
psworker local --workers 2 --shards 2 examples/skipgram.py              # two servers and two workers
psworker run --servers host:port examples/skipgram.py                   # one worker of a cluster

After three epochs, half a minute, coffee is near cocoa and bananas, malaria near dengue fever, a king near a throne.
"""

import argparse
import collections
import gzip
import re
from pathlib import Path

import numpy as np

import psworker as ps
from psworker import ops

TEXT = Path(__file__).resolve().parents[1] / "datasets" / "factbook" / "factbook.txt.gz"
WORDS = "coffee", "copper", "german", "hindu", "hurricanes", "king", "malaria", "navy", "television", "yellow"

parser = argparse.ArgumentParser(description="Word vectors by skip-gram with negative sampling.")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=1000, help="pairs of a word and one near it")
parser.add_argument("--width", type=int, default=64, help="numbers in a word's vector")
parser.add_argument("--window", type=int, default=5, help="words are near that are at most so many apart")
parser.add_argument("--negatives", type=int, default=5, help="words drawn at random for each pair")
parser.add_argument("--least", type=int, default=10, help="a word that occurs less often gets no vector")
parser.add_argument("--learning-rate", type=float, default=0.2)
parser.add_argument("--report", type=int, default=500, help="steps between two lines about the loss")
parser.add_argument("--seed", type=int, default=0, help="of the initial vectors, the pairs and the words drawn")
parser.add_argument("--words", nargs="+", default=WORDS, help="whose neighbours are printed")
options = parser.parse_args()


def read_text():
    """The vocabulary, most frequent first, how often each occurs, and of each word of the text its number and line."""
    with gzip.open(TEXT, "rt", encoding="utf-8") as file:
        lines = [re.findall("[a-z]+", line.lower().replace("'s", "")) for line in file]
    frequency = collections.Counter(word for line in lines for word in line)
    vocabulary = [word for word, count in frequency.most_common() if count >= options.least]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    text = [(numbers[word], at) for at, line in enumerate(lines) for word in line if word in numbers]
    return vocabulary, np.array([frequency[word] for word in vocabulary]), np.array(text)


def near_pairs(text, counts, random):
    """(n, 2): numbers of a word and of one near it in its line; frequent and far ones are left out at random.

    Of a word that is the share f of the text, sqrt(1e-3 / f) are kept; how far is near is drawn for each occurrence.
    """
    kept = random.random(len(text)) < np.sqrt(1e-3 * counts.sum() / counts[text[:, 0]])
    words, line = text[kept].T
    reach = random.integers(1, options.window, len(words), endpoint=True)
    pairs = []
    for apart in range(1, options.window + 1):
        left, right = np.arange(len(words) - apart), np.arange(apart, len(words))
        for center, near in ((left, right), (right, left)):
            close = (line[left] == line[right]) & (reach[center] >= apart)
            pairs.append(np.stack([words[center[close]], words[near[close]]], axis=1))
    return np.concatenate(pairs)


def loss_of(batch, random):
    """What it costs not to tell the word near each center, label 1, from those drawn, label 0."""
    negatives = np.searchsorted(drawn_below, random.random((len(batch), options.negatives)))
    candidates = np.concatenate([batch.near[:, np.newaxis], negatives], axis=1)
    labels = np.zeros(candidates.shape, np.float32)
    labels[:, 0] = 1
    centers = ops.embedding(vectors, batch.center[:, np.newaxis])
    logits = ops.sum(centers * ops.embedding(contexts, candidates), axis=-1)
    return ops.sigmoid_cross_entropy(logits, labels)


def print_neighbours(vectors):
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for word in options.words:
        cosines = directions @ directions[vocabulary.index(word)]
        nearest = np.argsort(-cosines)[1:8]  # the first is the word itself
        print(f"{word:>12}: " + ", ".join(f"{vocabulary[number]} {cosines[number]:.2f}" for number in nearest))


vocabulary, counts, text = read_text()
unknown = set(options.words) - set(vocabulary)
if unknown:
    parser.error(f"--words: {', '.join(sorted(unknown))} occur less than {options.least} times in the text")
pairs = near_pairs(text, counts, np.random.default_rng(options.seed))  # the same in every worker
dataset = ps.Dataset({"center": pairs[:, 0], "near": pairs[:, 1]}, "factbook")
drawn_below = np.cumsum(counts**0.75)  # word i is drawn by a number from the bound before it to its own
drawn_below /= drawn_below[-1]

limit = 0.5 / options.width
shape = len(vocabulary), options.width
vectors = ps.Table(shape, ps.RowUniform(-limit, limit, options.seed), name="vectors")
contexts = ps.Table(shape, ps.RowConstant(0.0), name="contexts")
# The loss is a mean over thousands of words, so that squares of its gradients are far below the usual 0.1.
optimizer = ps.Adagrad(options.learning_rate, initial_accumulator=1e-8)

with ps.session() as session:
    random = np.random.default_rng([options.seed, session.number])  # draws other words in each worker
    if session.is_chief:
        print(f"{len(text):,d} words, {len(vocabulary):,d} different ones, {len(pairs):,d} pairs", flush=True)
    losses = []
    for batch in session.batches(dataset, options.batch_size, options.epochs, seed=options.seed):
        loss = loss_of(batch, random)
        optimizer.minimize(loss)
        losses.append(float(loss))
        if len(losses) == options.report:
            if session.is_chief:
                print(f"step {session.global_step:6,d}: loss {np.mean(losses):.4f}", flush=True)
            losses.clear()
    if session.is_chief:
        print_neighbours(session.rows(vectors, np.arange(len(vocabulary))))
