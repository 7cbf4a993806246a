"""The variables of the parameters of a PyTorch model: their names, and the order of their axes.

By default a variable is named as its parameter. Workers of other libraries in the same job may have other names and
axes: a mapping gives those, and `layer_variables` makes it for the layers that this package has too.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch

from pswire.errors import ConfigurationError
from psworker.torch.embedding import Embedding, embeddings

#: A variable's name, or that and the parameter's axes in the order of the variable's.
Named: TypeAlias = str | tuple[str, tuple[int, ...]]


class Place(NamedTuple):
    """The variable of a parameter: its name, and the parameter's axes in the order of the variable's; (): the same."""

    name: str
    axes: tuple[int, ...] = ()


#: By the kind of a layer: the variables of its parameters and buffers.
_LAYERS: dict[type[torch.nn.Module], dict[str, Named]] = {
    torch.nn.Linear: {"weight": ("kernel", (1, 0)), "bias": "bias"},
    torch.nn.Conv1d: {"weight": ("kernel", (2, 1, 0)), "bias": "bias"},
    torch.nn.Conv2d: {"weight": ("kernel", (2, 3, 1, 0)), "bias": "bias"},
    torch.nn.ConvTranspose2d: {"weight": ("kernel", (2, 3, 1, 0)), "bias": "bias"},
    torch.nn.LayerNorm: {"weight": "gamma", "bias": "beta"},
    torch.nn.modules.batchnorm._BatchNorm: {
        "weight": "gamma",
        "bias": "beta",
        "running_mean": "moving_mean",
        "running_var": "moving_variance",
    },
    torch.nn.Embedding: {"weight": "table"},
    Embedding: {"weight": "table"},
}


def layer_variables(model: torch.nn.Module) -> dict[str, Named]:
    """The variables that a model's parameters are in a program with this package's layers, for `distribute`.

        optimizer = pst.distribute(torch.optim.Adam(model.parameters()), model, variables=pst.layer_variables(model))

    `conv1.weight` of a `Conv2d` is `conv1/kernel` with the axes (height, width, in, out), as of `psworker.nn.Conv2D`,
    of Flax, and of a tree for `psworker.jax` with these names. Layers: `Linear`, `Conv1d`, `Conv2d`, `ConvTranspose2d`,
    `LayerNorm`, `BatchNorm1d` to `BatchNorm3d`, `Embedding`, `pst.Embedding`. Parameters of others are not in the
    dict, and keep their names; add them, as in `pst.layer_variables(model) | {"scale": "scales/first"}`.
    """
    found: dict[str, Named] = {}
    for path, module in model.named_modules():
        before, scope = (f"{path}.", f"{path.replace('.', '/')}/") if path else ("", "")
        own = next((names for kind, names in _LAYERS.items() if isinstance(module, kind)), {})
        for name, one in own.items():
            if isinstance(module, Embedding) or name in module.state_dict():
                found[before + name] = scope + one if isinstance(one, str) else (scope + one[0], one[1])
    return found


def places(model: torch.nn.Module, variables: Mapping[str, Named]) -> dict[str, Place]:
    """The variable of each parameter, persistent buffer and table of a model, by its name in `state_dict`.

    Raises `ConfigurationError` for a name that the model does not have, and axes that are not the parameter's.
    """
    axes_of = {name: value.ndim for name, value in model.state_dict().items()} | dict.fromkeys(embeddings(model), 0)
    found = {name: Place(name) for name in axes_of}
    for name, one in variables.items():
        place = Place(one) if isinstance(one, str) else Place(*one)
        if name not in axes_of:
            raise ConfigurationError(f"variables has {name!r}, but the model has only {', '.join(axes_of)}")
        if place.axes and sorted(place.axes) != list(range(axes_of[name])):
            raise ConfigurationError(
                f"variables has {name!r} as {place.name!r} with the axes {place.axes}: name each of its "
                f"{axes_of[name]} axes once, in the order of the variable's"
            )
        found[name] = place
    return found
