"""Attention: a layer composed of four `Dense` layers and ops."""

from __future__ import annotations

import math

import numpy as np

from psworker.autodiff import Tensor, ops
from psworker.autodiff.ops.convolution.windows import single
from psworker.autodiff.tensor import Array, TensorLike, as_array
from psworker.model.layers.layer import Layer
from psworker.model.layers.linear import Dense


class MultiHeadAttention(Layer):
    """Scaled dot-product attention of several heads, batch first.

        y = nn.MultiHeadAttention(64, num_heads=4, key_dim=16)(x, causal=True)     # (batch, time, 64), as x
        y = nn.MultiHeadAttention(64, num_heads=4, key_dim=16)(decoded, encoded)

    For each head, softmax(Q K' / sqrt(key_dim)) V, with Q, K and V its part of the projected query, key and value; the
    results of all heads side by side are projected to the result.

    Source: A. Vaswani et al., "Attention Is All You Need", NIPS 2017, equation 1 and section 3.2.2.

    Args:
        inputs: size of the last axis of query, key and value, and of the result.
        num_heads, key_dim: number of heads, and size of a query, key and value in each; both at least 1.
        bias: whether the projections add a bias.

    Layers: `query`, `key` and `value`, `Dense` of inputs -> num_heads * key_dim, heads one after another; `output`,
    `Dense` of num_heads * key_dim -> inputs.
    """

    def __init__(
        self, inputs: int, num_heads: int, key_dim: int, *, bias: bool = True, name: str | None = None
    ) -> None:
        self.num_heads = single("MultiHeadAttention: num_heads", num_heads)
        self.key_dim = single("MultiHeadAttention: key_dim", key_dim)
        width = self.num_heads * self.key_dim
        with self.scope(name):
            self.query, self.key, self.value = (
                Dense(inputs, width, bias=bias, name=part) for part in ("query", "key", "value")
            )
            self.output = Dense(width, inputs, bias=bias, name="output")

    def __call__(
        self,
        query: TensorLike,
        key: TensorLike | None = None,
        value: TensorLike | None = None,
        mask: TensorLike | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Map queries (batch, queries, inputs) to (batch, queries, inputs).

        Args:
            query: for each of them, a mean of the values is computed.
            key: (batch, keys, inputs), by default the query: self-attention.
            value: as the key, and by default the key.
            mask: booleans, true where a query may attend to a key (as in Keras; masks of PyTorch are the opposite):
                (queries, keys), (batch, queries, keys) or (batch, num_heads, queries, keys), each size but of these
                possibly 1, as in (batch, 1, keys) for padding.
            causal: whether query i attends to the keys 0 ... i only, besides the mask.

        A query that may attend to no key gets zeros before the projection `output`. Raises ValueError for other shapes,
        TypeError for a mask that is not of booleans.
        """
        key = query if key is None else key
        value = key if value is None else value
        shapes = self._checked_shapes(query, key, value)
        q, k, v = (self._heads(part(x)) for part, x in ((self.query, query), (self.key, key), (self.value, value)))
        scores = ops.matmul(q * (1 / math.sqrt(self.key_dim)), ops.transpose(k, (0, 1, 3, 2)))
        allowed = self._allowed(shapes, mask, causal)
        if allowed is not None:  # not -inf, which would make NaN of a query without keys
            scores = ops.where(allowed, scores, float(np.finfo(scores.dtype).min) / 2)
        weights = ops.softmax(scores)
        if allowed is not None and not np.all(np.any(allowed, axis=-1)):
            weights = ops.where(allowed, weights, 0.0)
        heads = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        return self.output(ops.reshape(heads, (*np.shape(query)[:2], self.num_heads * self.key_dim)))

    def _heads(self, x: Tensor) -> Tensor:
        """(batch, time, num_heads * key_dim) -> (batch, num_heads, time, key_dim)."""
        return ops.transpose(ops.reshape(x, (*x.shape[:2], self.num_heads, self.key_dim)), (0, 2, 1, 3))

    def _checked_shapes(self, query: TensorLike, key: TensorLike, value: TensorLike) -> tuple[int, int, int, int]:
        """(batch, num_heads, queries, keys)."""
        q, k, v = (np.shape(x) for x in (query, key, value))
        inputs = self.output.kernel.shape[1]
        if not (len(q) == len(k) == 3 and q[2] == k[2] == inputs and q[0] == k[0] and k == v and k[1] > 0):
            raise ValueError(
                f"{self}: query must have shape (batch, queries, {inputs}), and key and value (batch, keys, {inputs}) "
                f"with at least one key, but their shapes are {q}, {k} and {v}"
            )
        return q[0], self.num_heads, q[1], k[1]

    def _allowed(self, shape: tuple[int, int, int, int], mask: TensorLike | None, causal: bool) -> Array | None:
        """The keys that a query may attend to, broadcast to (batch, num_heads, queries, keys); None: all."""
        order = np.tri(shape[2], shape[3], dtype=bool) if causal else None
        if mask is None:
            return order
        allowed = as_array(mask)
        if allowed.dtype != bool:
            raise TypeError(f"{self}: mask must be of booleans, true where a query may attend, not {allowed.dtype}")
        if allowed.ndim == 3:
            allowed = allowed[:, np.newaxis]
        sizes = (1, 1, *allowed.shape) if allowed.ndim == 2 else allowed.shape
        if len(sizes) != 4 or any(size not in (1, whole) for size, whole in zip(sizes, shape, strict=True)):
            raise ValueError(
                f"{self}: mask must have shape (queries, keys), (batch, queries, keys) or (batch, num_heads, queries, "
                f"keys), here {shape} or 1 for any of these, but its shape is {np.shape(mask)}"
            )
        return allowed if order is None else np.logical_and(allowed, order)

    def __repr__(self) -> str:
        inputs = self.output.kernel.shape[1]
        return f"MultiHeadAttention({self.name!r}: {inputs}, {self.num_heads} heads of {self.key_dim})"
