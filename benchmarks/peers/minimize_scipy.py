"""The problem of `minimize.py` by scipy's L-BFGS-B; arguments: a file with images and labels, L2, the gradient."""

import sys

import numpy as np
from scipy.optimize import minimize

data, l2, gradient = np.load(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
image, label = data["image"], data["label"]
rows = np.arange(len(label))


def loss(x):
    """The loss and its gradient."""
    W, b = x[:7840].reshape(784, 10), x[7840:]
    scores = image @ W + b
    scores -= scores.max(axis=1, keepdims=True)
    sums = np.exp(scores).sum(axis=1)
    value = np.mean(np.log(sums) - scores[rows, label]) + l2 * np.sum(W * W)
    errors = np.exp(scores) / sums[:, None]
    errors[rows, label] -= 1.0
    found = image.T @ errors / len(rows) + 2 * l2 * W
    return value, np.concatenate([found.ravel(), errors.mean(axis=0)])


limits = {"maxcor": 10, "gtol": gradient, "ftol": 0.0, "maxiter": 10_000, "maxfun": 10_000}
result = minimize(loss, np.zeros(7850), jac=True, method="L-BFGS-B", options=limits)
print(f"RESULT minimize-loss scipy {float(result.fun)!r} nats")
print(f"RESULT minimize-evaluations scipy {result.nfev} evaluations")
