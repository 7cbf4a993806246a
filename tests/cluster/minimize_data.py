"""The problem of minimized jobs, and its loss and gradient by numpy alone."""

from functools import cache

import numpy as np

from psworker import datasets

EXAMPLES, FEATURES, CLASSES, L2 = 1500, 49, 10, 1e-2


@cache
def examples():
    """Images of MNIST in 7 by 7 pixels, float64, and their labels."""
    train = datasets.mnist().train[:EXAMPLES]
    pixels = train.image.astype(np.float64).reshape(EXAMPLES, 7, 4, 7, 4).mean((2, 4))
    return pixels.reshape(EXAMPLES, FEATURES), train.label


def loss_and_gradient(W, b):
    """The mean loss over all examples, and the largest magnitude in its gradient."""
    image, label = examples()
    scores = image @ W + b
    scores -= scores.max(axis=1, keepdims=True)
    sums = np.exp(scores).sum(axis=1)
    of_label = scores[np.arange(EXAMPLES), label]
    loss = np.mean(np.log(sums) - of_label) + L2 * (np.sum(W * W) + np.sum(b * b))
    errors = np.exp(scores) / sums[:, None]
    errors[np.arange(EXAMPLES), label] -= 1.0
    gradients = image.T @ errors / EXAMPLES + 2 * L2 * W, errors.mean(axis=0) + 2 * L2 * b
    return loss, max(np.abs(gradient).max() for gradient in gradients)
