"""Optimizers, as the program sees them: gradients here, updates on the server.

An optimizer has no state of its own: its hyperparameters are its spec's, its slots live beside the variables.
Between `compute_gradients` and `apply_gradients` a program may do to the pairs what it likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from pswire import specs
from pswire.values import Array
from psworker import variables
from psworker.autodiff import Tensor, gradients
from psworker.variables import Variable

GradientAndVariable: TypeAlias = tuple[Array | None, Variable]


class Optimizer(specs.OptimizerSpec):
    """What all optimizers can do.

    optimizer = GradientDescent(learning_rate=0.01)
    for batch in session.batches(dataset, batch_size=100, epochs=10):
        pairs = optimizer.compute_gradients(loss(batch))
        optimizer.apply_gradients([(ops.clip(g, -1, 1), v) for g, v in pairs])
    """

    def compute_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None = None
    ) -> list[tuple[Array | None, Variable]]:
        """The gradient of `loss` for each variable, by one backward pass.

        Args:
            loss: a tensor with one element; its value travels with the next push.
            var_list: by default all trainable variables.

        Returns:
            Pairs (gradient, variable), gradients with their variable's shape and dtype; None where `loss` does not
            depend on the variable.

        Raises:
            ValueError: `loss` has not exactly one element.
        """
        if loss.value.size != 1:
            raise ValueError(f"a loss has one element, this one has shape {loss.shape}: take its mean or its sum")
        chosen = list(variables.trainable_variables() if var_list is None else var_list)
        session = variables.open_session()
        if session is not None:
            session.note_loss(loss.item())
        return list(zip(gradients(loss, chosen), chosen, strict=True))

    def apply_gradients(self, grads_and_vars: Iterable[GradientAndVariable]) -> None:
        """Pushes the gradients, and takes the fresh weights that come back. This is the network boundary.

        Args:
            grads_and_vars: pairs as `compute_gradients` returns them; a pair whose gradient is None pushes nothing.

        Raises:
            ValueError: there is no gradient at all.
            ParamServerError: a server's refusal, naming the variable; then that shard has applied nothing of it.
        """
        variables.current_session().push(self, grads_and_vars)

    def minimize(self, loss: Tensor, var_list: Sequence[Variable] | None = None) -> None:
        """`compute_gradients` and `apply_gradients` in one."""
        self.apply_gradients(self.compute_gradients(loss, var_list))


class GradientDescent(specs.GradientDescent, Optimizer):
    """Plain stochastic gradient descent; formula, fields and source: `pswire.specs.GradientDescent`."""


class Momentum(specs.Momentum, Optimizer):
    """Gradient descent with momentum, plain or Nesterov's; formula, fields and source: `pswire.specs.Momentum`."""


class Adagrad(specs.Adagrad, Optimizer):
    """A learning rate for each element, by squared gradients; formula, fields and source: `pswire.specs.Adagrad`."""


class Adam(specs.Adam, Optimizer):
    """Adaptive moments; formula, fields and source: `pswire.specs.Adam`."""
