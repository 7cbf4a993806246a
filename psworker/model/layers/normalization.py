"""Normalization by the moments of a batch, of moving averages, or of each example."""

from __future__ import annotations

import math

import numpy as np

from psworker.autodiff import Tensor, ops
from psworker.autodiff.ops.normalization import batch_norm_with_moments
from psworker.autodiff.tensor import TensorLike
from psworker.model.collection import layer_scope, note_update
from psworker.model.layers.layer import ONES, ZEROS, Layer, as_input, new_variable
from psworker.model.update_ops import UpdateOp


class BatchNorm(Layer):
    """Batch normalisation per feature: gamma * (x - mean) / sqrt(variance + epsilon) + beta.

        hidden = ops.relu(nn.BatchNorm(128)(x, training=True))

    In training, mean and variance are those of the batch, over all axes but the last, and become update ops: the next
    push sends them, and the server averages those of all workers, `moving <- decay * moving + (1 - decay) * batch`,
    independently of the optimizer. Otherwise they are the moving averages of the last pull. The averaged variance is
    the unbiased one, n / (n - 1) times the batch's.

    Source: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, algorithms 1 and 2.

    Args:
        features: size of the last axis of x.
        decay: of the moving averages, at least 0 and below 1.
        epsilon: added to the variance.
        center, scale: whether to add beta, and to multiply by gamma.

    Variables, (features,): `gamma`, initially ones, and `beta`, zeros; `moving_mean`, initially zeros, and
    `moving_variance`, ones, which are not trainable.
    """

    def __init__(
        self,
        features: int,
        *,
        decay: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        name: str | None = None,
    ) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"BatchNorm: decay must be at least 0 and below 1, got {decay}")
        self.decay, self.epsilon = decay, epsilon
        with layer_scope(name, "batch_norm") as self.name:
            self.gamma = new_variable("gamma", (features,), ONES) if scale else None
            self.beta = new_variable("beta", (features,), ZEROS) if center else None
            self.moving_mean = new_variable("moving_mean", (features,), ZEROS, trainable=False)
            self.moving_variance = new_variable("moving_variance", (features,), ONES, trainable=False)

    def __call__(self, x: TensorLike, training: bool) -> Tensor:
        """Normalise x (..., features) by its moments in training (ValueError if it is empty), else by the averages."""
        x = as_input(self, x, self.moving_mean, "...", self.moving_mean.shape[0])
        if not training:
            return ops.batch_norm_inference(
                x, self.moving_mean, self.moving_variance, self.gamma, self.beta, self.epsilon
            )
        y, mean, variance = batch_norm_with_moments(x, self.gamma, self.beta, self.epsilon)
        count = math.prod(np.shape(x)[:-1])
        note_update(UpdateOp(self.moving_mean, mean, self.decay))
        note_update(UpdateOp(self.moving_variance, variance * (count / max(count - 1, 1)), self.decay))
        return y

    def __repr__(self) -> str:
        return f"BatchNorm({self.name!r}: {self.moving_mean.shape[0]})"


class LayerNorm(Layer):
    """Layer normalisation by each example's own moments (formula and source: `ops.layer_norm`).

        hidden = nn.LayerNorm(128)(x)              # (batch, 128) -> (batch, 128)

    Args:
        features: size of the last axis of x, over which mean and variance are taken.
        epsilon: added to the variance.

    Variables, (features,): `gamma`, initially ones, and `beta`, zeros.
    """

    def __init__(self, features: int, *, epsilon: float = 1e-5, name: str | None = None) -> None:
        self.epsilon = epsilon
        with layer_scope(name, "layer_norm") as self.name:
            self.gamma = new_variable("gamma", (features,), ONES)
            self.beta = new_variable("beta", (features,), ZEROS)

    def __call__(self, x: TensorLike) -> Tensor:
        """Normalise x (..., features)."""
        x = as_input(self, x, self.gamma, "...", self.gamma.shape[0])
        return ops.layer_norm(x, self.gamma, self.beta, self.epsilon)

    def __repr__(self) -> str:
        return f"LayerNorm({self.name!r}: {self.gamma.shape[0]})"
