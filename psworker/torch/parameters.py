"""Parameters of a PyTorch model, and the variables that servers hold for them.

A variable has the name of its parameter in `model.state_dict()`, or another one, with axes in another order
(`psworker.torch.layer_variables`). It is float32 for a parameter of float16 or bfloat16,
so that small updates are not rounded away. The servers' values are written into the parameter's own memory.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from pswire.errors import ConfigurationError
from pswire.tensors.values import Array, IndexedSlices
from psworker.model.variables import Variable
from psworker.torch.layer_variables import Place
from psworker.versions import VersionedArray

#: The dtypes of parameters that numpy computes with as they are.
_DIRECT = {torch.float32, torch.float64}


class SharedTensor:
    """A parameter or buffer of a model, and its variable."""

    def __init__(self, place: Place, tensor: torch.Tensor, *, trainable: bool) -> None:
        self.tensor = tensor
        self._axes = place.axes
        self._host: torch.Tensor | None = None  # of a tensor on another device: page-locked memory for its transfers
        trainable = trainable and tensor.is_floating_point()
        self.variable = Variable(self.present(), name=place.name, trainable=trainable)

    def gradient(self, penalty: float, *, negative: bool) -> Array | IndexedSlices | None:
        """The gradient, plus `penalty` times the parameter; `negative` for a loss that is maximized."""
        gradient = self.tensor.grad
        if gradient is None:
            return None
        if negative:
            gradient = -gradient
        if penalty:
            gradient = gradient.add(self.tensor.detach(), alpha=penalty)
        if gradient.is_sparse and not self._axes:
            gradient = gradient.coalesce()
            indices = gradient.indices()[0].cpu().numpy()
            return IndexedSlices(self._as_array(gradient.values()), indices, tuple(self.tensor.shape))
        return self._as_array(self._ordered(gradient.to_dense()))

    def present(self) -> Array:
        """The tensor's elements, in its own memory if that is possible."""
        return self._as_array(self._ordered(self.tensor))

    def set(self, value: Array) -> None:
        """Writes a value into the tensor's memory."""
        tensor = self._ordered(self.tensor.detach())
        if tensor.device.type == "cpu" and tensor.dtype in _DIRECT:
            np.copyto(tensor.numpy(), value)
        elif tensor.device.type == "cpu":
            tensor.copy_(torch.from_numpy(np.array(value)))
        else:
            host = self._pinned(torch.from_numpy(np.array(value)).dtype)
            np.copyto(host.numpy(), value)
            tensor.copy_(host)

    def _ordered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory with the axes of the variable."""
        return tensor.permute(self._axes) if self._axes else tensor

    def _as_array(self, tensor: torch.Tensor) -> Array:
        tensor = tensor.detach()
        if tensor.is_floating_point() and tensor.dtype not in _DIRECT:
            tensor = tensor.float()
        if tensor.device.type == "cpu":
            return tensor.numpy()
        if tensor.numel() != self.tensor.numel():  # rows of a sparse gradient
            return tensor.cpu().numpy()
        host = self._pinned(tensor.dtype)
        host.copy_(tensor)
        return host.numpy()

    def _pinned(self, dtype: torch.dtype) -> torch.Tensor:
        if self._host is None:
            pin = torch.accelerator.is_available()
            self._host = torch.empty(self._ordered(self.tensor).shape, dtype=dtype, pin_memory=pin)
        return self._host


def shared_tensors(model: torch.nn.Module, places: Mapping[str, Place]) -> dict[str, SharedTensor]:
    """The parameters of a model by name, each once, also if it is used in several places.

    Raises `ConfigurationError` for complex numbers, and for a parameter without values.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise ConfigurationError(f"{name!r} is {parameter.dtype}: servers have real variables only")
        if parameter.is_meta:
            raise ConfigurationError(f"{name!r} has no values (device meta): give it some first, by model.to_empty")
    return {
        name: SharedTensor(places[name], parameter, trainable=parameter.requires_grad)
        for name, parameter in model.named_parameters()
    }


def shared_buffers(model: torch.nn.Module, places: Mapping[str, Place]) -> dict[str, SharedTensor]:
    """The persistent buffers of a model by name, such as running means."""
    return {
        name: SharedTensor(places[name], buffer, trainable=False)
        for name, buffer in model.named_buffers()
        if name in places
    }


def receive(tensors: Mapping[str, SharedTensor], values: Sequence[VersionedArray]) -> None:
    """Writes values from the servers into the tensors that have their names."""
    for value in values:
        tensor = tensors.get(value.name)
        if tensor is not None:
            assert not isinstance(value.array, IndexedSlices)
            tensor.set(value.array)


def set_all(tensors: Iterable[SharedTensor]) -> None:
    """Writes the variables' values into the tensors."""
    for tensor in tensors:
        tensor.set(tensor.variable.value)
