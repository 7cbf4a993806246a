"""The losses of a step: noted by `loss.backward()`, shown as costs of the step and of the batch.

The first distributed optimizer wraps `torch.Tensor.backward`, which changes nothing but that the value is kept.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_noted: torch.Tensor | None = None  # their sum: of models without a distributed optimizer no step takes it


def note_loss(loss: torch.Tensor | float) -> None:
    """Notes the loss of the present step in place of the sum of those on which `backward` was called.

    `loss` is a number, or a tensor of one element.
    """
    global _noted
    _noted = torch.as_tensor(loss).detach()


def take_loss() -> float | None:
    """The sum of the losses since the last call; None if there was none."""
    global _noted
    loss, _noted = noted_loss(), None
    return loss


def noted_loss() -> float | None:
    """As `take_loss`, which will find it too."""
    return None if _noted is None else float(_noted)


def note_backward() -> None:
    """Makes `loss.backward()` note the loss, from now on."""
    if not hasattr(torch.Tensor.backward, "__wrapped__"):
        torch.Tensor.backward = _noting(torch.Tensor.backward)


def _noting(backward: Any) -> Any:  # noqa: ANN401 - PyTorch's method
    @functools.wraps(backward)
    def noting(self: torch.Tensor, *args: Any, **options: Any) -> None:  # noqa: ANN401
        global _noted
        if self.numel() == 1:
            loss = self.detach().reshape(())
            _noted = loss if _noted is None else _noted + loss
        backward(self, *args, **options)

    return noting
