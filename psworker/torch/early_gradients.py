"""Gradients that leave while the backward pass still goes on: `distribute(..., early=True)`."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from pswire import optimizers
from pswire.tensors.values import LateArray
from psworker.model.collection import context
from psworker.sessions.early_push import EarlyPush
from psworker.sessions.session import Session
from psworker.torch.losses import before_backward
from psworker.torch.parameters import SharedTensor

logger = logging.getLogger(__name__)


class EarlyGradients:
    """Puts gradients into a push as soon as the backward pass has them: from the last layer to the first.

    `gradient_of` is that of a tensor as it travels; `tune` sends changed hyperparameters. The step's gradients must be
    those of one backward pass, unchanged: `end` compares them, and if they are not, the push is given up, and there are
    no more early ones.
    """

    def __init__(
        self,
        session: Session,
        tensors: Sequence[SharedTensor],
        gradient_of: Callable[[SharedTensor], Any],
        tune: Callable[[], None],
    ) -> None:
        self._session, self._gradient_of, self._tune = session, gradient_of, tune
        self._arrays: list[tuple[LateArray, Any]] = []
        for one in reversed(tensors):
            if one.tensor.requires_grad:
                self._arrays.append((np.zeros(one.variable.shape, one.variable.dtype).view(LateArray), one.variable))
                one.tensor.register_post_accumulate_grad_hook(partial(self._put, one))
        #: The optimizers by variable, once they are declared.
        self.optimizer: Callable[[str], optimizers.OptimizerSpec] | None = None
        self._push: EarlyPush | None = None
        self._loss: float | None = None
        before_backward(self)

    def begin(self, loss: torch.Tensor) -> None:
        """Begins the push of a step, before its backward pass."""
        if self.optimizer is not None and self._push is None and context.collection.session is self._session:
            self._tune()
            self._loss = float(loss)
            self._push = self._session.begin_push(self.optimizer, self._arrays, self._loss)
            if self._push is None:
                self.optimizer = None

    def end(self, pairs: Sequence[tuple[Any, Any]], loss: float | None) -> bool:
        """Ends the push of a step, whose gradients are these; False: nothing was pushed."""
        push, self._push = self._push, None
        if push is None or self.optimizer is None:
            return False
        if self._session.end_push(push, self.optimizer, pairs if loss == self._loss else (), self._loss):
            return True
        self.optimizer = None
        logger.warning(
            "gradients are sent after the backward pass from now on: they are not those that it has computed, as after "
            "clipping or several passes; leave out early=True"
        )
        return False

    def _put(self, one: SharedTensor, _: torch.Tensor) -> None:
        if self._push is not None:
            with torch.no_grad():
                gradient = self._gradient_of(one)
            if isinstance(gradient, np.ndarray):
                self._push.put(one.variable.name, gradient)
