"""Word vectors by skip-gram with negative sampling: two tables; each step updates only the rows of its words.

The vector of a word learns to distinguish nearby words from random words (Mikolov et al., "Distributed Representations
of Words and Phrases and their Compositionality", 2013, equation 4). The text is The World Factbook, 370,000 words; at
the end the chief prints words with similar vectors.

python examples/skipgram.py                                             # in one process
psworker local --workers 2 --shards 2 examples/skipgram.py              # two servers and two workers
psworker run --servers host:port examples/skipgram.py                   # one worker of a cluster

After three epochs (half a minute) coffee is near cocoa and bananas, malaria near dengue fever, king near throne.
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
parser.add_argument("--batch-size", type=int, default=1000, help="pairs of a word and a nearby word")
parser.add_argument("--width", type=int, default=64, help="dimension of the vectors")
parser.add_argument("--window", type=int, default=5, help="maximum distance of nearby words")
parser.add_argument("--negatives", type=int, default=5, help="random words for each pair")
parser.add_argument("--least", type=int, default=10, help="minimum number of occurrences of a word")
parser.add_argument("--learning-rate", type=float, default=0.2)
parser.add_argument("--report", type=int, default=500, help="steps between reports of the loss")
parser.add_argument("--seed", type=int, default=0, help="seed of initial vectors, pairs and random words")
parser.add_argument("--words", nargs="+", default=WORDS, help="words to print the neighbours of")
options = parser.parse_args()


def read_text():
    """The vocabulary by decreasing frequency, its frequencies, and the (word number, line) of each word in the text."""
    with gzip.open(TEXT, "rt", encoding="utf-8") as file:
        lines = [re.findall("[a-z]+", line.lower().replace("'s", "")) for line in file]
    frequency = collections.Counter(word for line in lines for word in line)
    vocabulary = [word for word, count in frequency.most_common() if count >= options.least]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    text = [(numbers[word], at) for at, line in enumerate(lines) for word in line if word in numbers]
    return vocabulary, np.array([frequency[word] for word in vocabulary]), np.array(text)


def near_pairs(text, counts, random):
    """(n, 2): numbers of a word and of a nearby word in its line; frequent and distant words are subsampled.

    A word that is the fraction f of the text is kept with probability sqrt(1e-3 / f); each occurrence has a random
    maximum distance.
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
    """Loss of classifying the word near each center (label 1) and random words (label 0)."""
    negatives = np.searchsorted(cumulative, random.random((len(batch), options.negatives)))
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
cumulative = np.cumsum(counts**0.75)  # of the distribution of random words
cumulative /= cumulative[-1]

limit = 0.5 / options.width
shape = len(vocabulary), options.width
vectors = ps.Table(shape, ps.RowUniform(-limit, limit, options.seed), name="vectors")
contexts = ps.Table(shape, ps.RowConstant(0.0), name="contexts")
# The loss is a mean over thousands of words: squares of its gradients are far below the default accumulator of 0.1.
optimizer = ps.Adagrad(options.learning_rate, initial_accumulator=1e-8)

with ps.session() as session:
    random = np.random.default_rng([options.seed, session.number])  # different words in each worker
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
