"""Gradients that leave while the backward pass still goes on: `distribute(..., early=True)`."""

import logging
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from pswire.tensors.values import Array, IndexedSlices
from psworker.client.begun_push import BegunPush
from psworker.sessions.session import Session
from psworker.torch.losses import noted_loss
from psworker.torch.parameters import SharedTensor

logger = logging.getLogger(__name__)

#: Steps in a row whose gradients had left in vain, after which none are sent early.
MOST_IN_VAIN = 3


class EarlyGradients:
    """Sends gradients as soon as a backward pass has them, in the order in which those of the last step came.

    The push of a step begins with its first gradient; `Session.push` completes it if it is the same. `gradients` give
    those of the tensors as they travel, and `tune` sends hyperparameters that have changed.
    """

    def __init__(
        self,
        session: Session,
        gradients: Mapping[SharedTensor, Callable[[], Array | IndexedSlices | None]],
        tune: Callable[[], None],
    ) -> None:
        self._session, self._gradients, self._tune = session, gradients, tune
        self._memory: dict[SharedTensor, Array] = {}  # from which they are sent
        self._expected: list[SharedTensor] = []
        self._came: dict[SharedTensor, None] = {}  # in this step
        self._begun: BegunPush | None = None
        self._in_vain = 0
        trained = [one for one in gradients if one.tensor.requires_grad]
        on_cpu = all(one.tensor.device.type == "cpu" for one in trained)
        self._hooks = [
            one.tensor.register_post_accumulate_grad_hook(partial(self._send, one)) for one in trained if on_cpu
        ]

    def end_step(self) -> None:
        """To be called after the push of each step."""
        begun, self._begun = self._begun, None
        self._expected, self._came = [*self._came], {}
        if begun is None:
            return
        self._in_vain = 0 if begun.finished else self._in_vain + 1
        if self._in_vain == MOST_IN_VAIN:
            self.close()
            logger.warning("gradients are sent after the backward pass from now on, as without early: %s", begun.reason)

    def close(self) -> None:
        """Sends no more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _send(self, one: SharedTensor, _: torch.Tensor) -> None:
        if not self._came and self._expected:
            self._begin()
        self._came[one] = None
        if self._begun is None or one not in self._memory:
            return
        with torch.no_grad():
            gradient = self._gradients[one]()
        if isinstance(gradient, np.ndarray):
            self._begun.send(one.variable.name, gradient)

    def _begin(self) -> None:
        self._tune()
        for one in self._expected:
            if one not in self._memory:
                self._memory[one] = np.zeros(one.variable.shape, one.variable.dtype)
        self._begun = self._session.begin_push(
            [(self._memory[one], one.variable) for one in self._expected], noted_loss()
        )
