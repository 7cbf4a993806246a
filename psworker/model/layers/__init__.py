"""Layers: objects that create their variables in the current `variable_scope`, and compute when called.

    with ps.variable_scope("classifier"):
        hidden = nn.Dense(784, 128, activation=ops.relu)   # classifier/dense/kernel, .../bias
        logits = nn.Dense(128, 10, name="logits")          # classifier/logits/kernel, .../bias
    y = logits(hidden(image))

A layer computes in the dtype of its variables; x of another dtype is cast first, without scaling (bytes remain 0 ...
255). Common to all layers:

- `name`: scope of the variables, by default the kind and a count (`dense`, `dense_1`, ...); as an attribute, the full
  scope. Variables are attributes, or None where the arguments leave them out.
- `variables`, `trainable_variables` and `trainable`: see `Layer`, from which programs compose their own.
- `training`: layers that differ in training, `BatchNorm` and `Dropout`, require it when called.
- Errors: ConfigurationError for a name that is taken; TypeError or ValueError for an invalid argument, before any
  variable is created; when called, ValueError for x of another shape, TypeError for x that is not of real numbers.
"""

from typing import TYPE_CHECKING

from psworker import familiar_names
from psworker.model.layers.attention import MultiHeadAttention
from psworker.model.layers.composition import Sequential
from psworker.model.layers.convolution import Conv1D, Conv2D, Conv2DTranspose, DepthwiseConv2D
from psworker.model.layers.embedding import Embedding
from psworker.model.layers.layer import Layer
from psworker.model.layers.linear import Dense
from psworker.model.layers.normalization import BatchNorm, LayerNorm
from psworker.model.layers.pooling import AvgPool1D, AvgPool2D, Dropout, Flatten, MaxPool1D, MaxPool2D
from psworker.model.layers.recurrent import GRU, LSTM

__all__ = ["GRU", "LSTM", "AvgPool1D", "AvgPool2D", "BatchNorm", "Conv1D", "Conv2D", "Conv2DTranspose", "Dense"]
__all__ += ["DepthwiseConv2D", "Dropout", "Embedding", "Flatten", "Layer", "LayerNorm", "MaxPool1D", "MaxPool2D"]
__all__ += ["MultiHeadAttention", "Sequential"]

familiar_names.hint_arguments(globals()[_name] for _name in __all__)


def __dir__() -> list[str]:
    """Public names only."""
    return sorted(__all__)


if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        raise familiar_names.missing("nn", name)
