"""Composition of layers and functions into one layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from psworker.autodiff import Tensor
from psworker.autodiff.tensor import TensorLike
from psworker.familiar_names import is_of_torch, shown
from psworker.model.layers.layer import Layer


class Sequential(Layer):
    """Layers and functions of a tensor, each applied to the result of the one before.

        model = nn.Sequential(nn.Dense(784, 128), ops.relu, nn.Dropout(0.2), nn.Dense(128, 10))
        logits = model(image, training=True)       # (batch, 784) -> (batch, 10)

    The layers have made their variables before: it adds no scope. `training` is passed to layers that take an
    argument of this name, as `BatchNorm`, `Dropout`, another `Sequential` and a program's own layers may.

    Args:
        layers: layers, or functions such as `ops.relu`; TypeError for anything else.

    Attributes:
        layers: those given, as a tuple; `model[0]` is one of them.
    """

    def __init__(self, *layers: Callable[..., Any]) -> None:
        for number, layer in enumerate(layers):
            if not callable(layer) or isinstance(layer, type) or is_of_torch(layer):
                raise TypeError(
                    f"Sequential: each argument must be a layer or a function of a tensor, such as nn.Dense(3, 4) or "
                    f"ops.relu, but argument {number} is {shown(layer, 'ops')}"
                    + (": give its elements, nn.Sequential(*layers)" if isinstance(layer, list | tuple) else "")
                )
        self.layers = layers
        self._training = [training_parameter(layer) for layer in layers]

    def __call__(self, x: TensorLike, training: bool | None = None) -> Tensor:
        """Apply all layers to x; what shapes are taken and returned depends on them.

        Raises TypeError without `training` if a layer requires it.
        """
        if training is None and inspect.Parameter.empty in [one.default for one in self._training if one]:
            raise TypeError(
                f"{self}: one of the layers requires training: call it with training=True or training=False"
            )
        y: Any = x
        for layer, parameter in zip(self.layers, self._training, strict=True):
            y = layer(y) if parameter is None or training is None else layer(y, training=training)
        return y  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self.layers)

    def __getitem__(self, number: int) -> Callable[..., Any]:
        return self.layers[number]

    def __repr__(self) -> str:
        names = [
            repr(layer) if isinstance(layer, Layer) else getattr(layer, "__name__", repr(layer))
            for layer in self.layers
        ]
        return f"Sequential({', '.join(names)})"


def training_parameter(layer: Callable[..., Any]) -> inspect.Parameter | None:
    """The parameter `training` of a layer or function, if it has one; a `partial` that sets it keeps its own."""
    if isinstance(layer, partial) and "training" in layer.keywords:
        return None
    try:
        return inspect.signature(layer).parameters.get("training")
    except ValueError:  # of a function of C that has no signature
        return None
