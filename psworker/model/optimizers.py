"""The optimizer classes of training programs: they compute gradients here; the update runs on the server.

Hyperparameters, formula and source are those of `pswire.optimizers`; slots are stored with the variables on the
servers. Between `compute_gradients` and `apply_gradients` a program may transform the pairs.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from pswire import optimizers
from pswire.errors import ConfigurationError
from pswire.specs.schedules import Schedule
from psworker.autodiff import Tensor, gradients
from psworker.model import variables
from psworker.model.gradient_transforms import GradientAndVariable, clip_by_global_norm
from psworker.model.variables import BaseVariable, UpdateOp

__all__ = ["Adagrad", "AdagradDecay", "Adam", "AdamW", "Ftrl", "GradientDescent", "Lamb", "Momentum", "Optimizer"]
__all__ += ["RMSProp", "optimize_loss"]

Transform: TypeAlias = Callable[[list[GradientAndVariable]], list[GradientAndVariable]]


class Optimizer(optimizers.OptimizerSpec):
    """The methods of all optimizers.

    optimizer = GradientDescent(learning_rate=0.01)
    for batch in session.batches(dataset, batch_size=100, epochs=10):
        pairs = optimizer.compute_gradients(loss(batch))
        optimizer.apply_gradients(clip_by_global_norm(pairs, 5.0))
    """

    def __init_subclass__(cls, **keywords: str) -> None:
        super().__init_subclass__(**keywords)
        cls.__doc__ = cls.__doc__ or cls.__mro__[1].__doc__

    def compute_gradients(
        self, loss: Tensor, var_list: BaseVariable | Sequence[BaseVariable] | None = None, *, retain_graph: bool = False
    ) -> list[GradientAndVariable]:
        """The gradient of `loss` for each variable, by one backward pass.

        Args:
            loss: a tensor with one element; its value travels with the next push of one of the variables.
            var_list: one or several; by default all trainable variables.
            retain_graph: keeps the graph for another backward pass through it; otherwise it is freed on the way.

        Returns:
            Pairs (gradient, variable): an array of the variable's shape and dtype, `IndexedSlices` for the table of an
            embedding, or None where `loss` does not depend on the variable.

        Raises:
            TypeError: `loss` is no tensor.
            ValueError: `loss` has not exactly one element, or there are no variables.
            RuntimeError: an earlier backward pass has freed the graph.
        """
        if not isinstance(loss, Tensor):
            raise TypeError(f"a loss must be a Tensor made by ops, but this one is {type(loss).__name__}")
        if loss.value.size != 1:
            raise ValueError(f"a loss has one element, but this has shape {loss.shape}: take its mean or its sum")
        chosen = _chosen(var_list)
        found = gradients(loss, chosen, retain_graph=retain_graph)
        session = variables.context.collection.session
        if session is not None:
            session.note_loss(loss.item(), chosen)
        return list(zip(found, chosen, strict=True))

    def apply_gradients(
        self, grads_and_vars: Iterable[GradientAndVariable], update_ops: Iterable[UpdateOp] | None = None
    ) -> None:
        """Pushes the gradients and takes the fresh weights from the answer. This is the network boundary.

        Args:
            grads_and_vars: pairs as `compute_gradients` returns them; a gradient may be None. Of an empty list, as
                `accumulate` returns between its means, nothing is pushed at all.
            update_ops: observations for moving averages, in the same push; by default all that layers have recorded
                since the last one (`psworker.update_ops()`). Those of a push that is refused are not sent again.

        Raises:
            ValueError: all gradients are None.
            ShapeMismatch, TypeError: one does not fit its variable, or is no `IndexedSlices` for a table.
            NotFinite: one has NaN or infinity.
            ParamServerError: a server's refusal, naming the variable; then that shard has applied nothing of it.
        """
        here = variables.context.collection
        if here.session is None:
            raise ConfigurationError("no session is open: do this inside `with psworker.session() as session:`")
        pairs = list(grads_and_vars)
        if pairs:
            here.session.push(self, pairs, here.noted.take(update_ops))

    def minimize(self, loss: Tensor, var_list: BaseVariable | Sequence[BaseVariable] | None = None) -> None:
        """`compute_gradients` and `apply_gradients` in one."""
        self.apply_gradients(self.compute_gradients(loss, var_list))


def _chosen(var_list: BaseVariable | Sequence[BaseVariable] | None) -> list[BaseVariable]:
    if isinstance(var_list, BaseVariable):
        return [var_list]
    chosen = list(variables.trainable_variables() if var_list is None else var_list)
    if not chosen:
        names = ", ".join(variable.name for variable in variables.trainable_variables()) or "none"
        raise ValueError(
            f"there is no variable to train: is the scope of trainable_variables(...) misspelt? Trainable: {names}"
        )
    return chosen


class GradientDescent(optimizers.GradientDescent, Optimizer): ...


class Momentum(optimizers.Momentum, Optimizer): ...


class Adagrad(optimizers.Adagrad, Optimizer): ...


class AdagradDecay(optimizers.AdagradDecay, Optimizer): ...


class RMSProp(optimizers.RMSProp, Optimizer): ...


class Adam(optimizers.Adam, Optimizer): ...


class AdamW(optimizers.AdamW, Optimizer): ...


class Lamb(optimizers.Lamb, Optimizer): ...


class Ftrl(optimizers.Ftrl, Optimizer): ...


def optimize_loss(
    loss: Tensor,
    learning_rate: float | Schedule,
    optimizer: Callable[..., Optimizer],
    clip_gradients: float | Transform | None = None,
    learning_rate_decay_fn: Callable[[float | Schedule], Schedule] | None = None,
    update_ops: Iterable[UpdateOp] | None = None,
    variables: BaseVariable | Sequence[BaseVariable] | None = None,
) -> float:
    """One complete training step: gradients, their transforms, and the push with the update ops.

        for batch in session.batches(dataset, batch_size=50, epochs=10):
            ps.optimize_loss(
                loss(batch), 0.1, ps.Momentum, clip_gradients=5.0,
                learning_rate_decay_fn=lambda rate: ps.schedules.CosineDecay(rate, decay_steps=10_000),
            )

    Args:
        loss: a tensor with one element.
        learning_rate: a number, or a schedule that the server evaluates by its global step.
        optimizer: a class such as `Adam`, or any function that returns one: called with `learning_rate=...`.
        clip_gradients: a number for `clip_by_global_norm`, or a function of the list of (gradient, variable).
        learning_rate_decay_fn: makes a schedule of `learning_rate`.
        update_ops: as in `Optimizer.apply_gradients`.
        variables: one or several; by default all trainable variables.

    Returns the loss. Raises as `compute_gradients`, `apply_gradients` and the optimizer do.
    """
    if not callable(optimizer):
        raise TypeError(f"optimizer must be a class such as psworker.Adam, or a function that makes one: {optimizer!r}")
    rate = learning_rate if learning_rate_decay_fn is None else learning_rate_decay_fn(learning_rate)
    chosen = optimizer(learning_rate=rate)
    pairs = chosen.compute_gradients(loss, variables)
    if callable(clip_gradients):
        pairs = clip_gradients(pairs)
    elif clip_gradients is not None:
        pairs = clip_by_global_norm(pairs, clip_gradients)
    chosen.apply_gradients(pairs, update_ops)
    return loss.item()
