"""The optimizer classes of training programs: they compute gradients here; the update runs on the server.

Hyperparameters, formula and source are in `pswire.optimizers`; slots are stored with the variables on the
servers. Between `compute_gradients` and `apply_gradients` a program may transform the pairs.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import FrozenInstanceError
from fnmatch import fnmatchcase
from glob import escape
from typing import ClassVar, NoReturn, Self

import numpy as np

from pswire import optimizers
from pswire.errors import ConfigurationError
from pswire.specs.schedules import Schedule
from psworker.autodiff import Tensor, gradients
from psworker.familiar_names import OPTIMIZER, hint_arguments, hint_attributes, kind_of
from psworker.model.base_variable import BaseVariable, Variables, check_variable, listed
from psworker.model.collection import context, trainable_variables
from psworker.model.gradient_transforms import GradientAndVariable, Transform, add_noise, clip_by_global_norm, multiply
from psworker.model.push_reports import PushReport
from psworker.model.update_ops import UpdateOp

__all__ = ["Adagrad", "AdagradDecay", "Adam", "AdamW", "CustomOptimizer", "Ftrl", "GradientDescent", "Lamb"]
__all__ += ["Momentum", "Optimizer", "ParameterGroups", "RMSProp", "optimize_loss"]

logger = logging.getLogger(__name__)


class Optimizer(optimizers.OptimizerSpec):
    """The methods of all optimizers.

    optimizer = GradientDescent(learning_rate=0.01)
    for batch in session.batches(dataset, batch_size=100, epochs=10):
        pairs = optimizer.compute_gradients(loss(batch))
        optimizer.apply_gradients(clip_by_global_norm(pairs, 5.0))
    """

    #: At most one, of an instance, beside its fields: servers do not get it.
    transforms: ClassVar[tuple[Transform, ...]] = ()

    def __init_subclass__(cls, **keywords: str) -> None:
        super().__init_subclass__(**keywords)
        cls.__doc__ = cls.__doc__ or cls.__mro__[1].__doc__

    def __post_init__(self) -> None:
        """Checks the fields."""
        first = getattr(self, "learning_rate", None)
        if isinstance(first, list | tuple) or hasattr(first, "variables"):
            raise TypeError(
                f"{type(self).__name__}: learning_rate comes first, and variables are found, or given: "
                "optimizer.minimize(loss, variables)"
            )
        super().__post_init__()

    def with_transform(self, transform: Transform) -> Self:
        """A copy that applies `transform`, such as a `chain`, to the pairs of each `apply_gradients`.

            optimizer = ps.Adam(0.001).with_transform(lambda pairs: ps.clip_by_global_norm(pairs, 5.0))

        It replaces an earlier one. The copy is equal to this optimizer, and trains the same variables. TypeError if it
        is not a function.
        """
        copied = copy.copy(self)
        object.__setattr__(copied, "transforms", (_checked_transform(transform),))
        return copied

    def optimizer_of(self, name: str) -> Optimizer:
        """Itself, which is the optimizer of every variable."""
        return self

    def compute_gradients(
        self, loss: Tensor, var_list: Variables | None = None, *, retain_graph: bool = False
    ) -> list[GradientAndVariable]:
        """The gradient of `loss` for each variable, by one backward pass.

        Args:
            loss: a tensor with one element; its value travels with the next push of one of the variables.
            var_list: one or several, or a layer, for its trainable ones; by default all trainable variables.
            retain_graph: keeps the graph for another backward pass through it; otherwise it is freed on the way.

        Returns:
            Pairs (gradient, variable): an array of the variable's shape and dtype, `IndexedSlices` for the table of an
            embedding, or None where `loss` does not depend on the variable.

        Raises:
            TypeError: `loss` is no tensor.
            ValueError: `loss` has not exactly one element, or there are no variables, or none that is trainable.
            RuntimeError: an earlier backward pass has freed the graph: pass `retain_graph=True` to that call.
        """
        if not isinstance(loss, Tensor):
            called = ": call it, and give its result" if callable(loss) else ""
            raise TypeError(f"a loss must be a Tensor made by ops, but this one is {kind_of(loss)}{called}")
        if loss.value.size != 1:
            raise ValueError(f"a loss has one element, but this has shape {loss.shape}: take its mean or its sum")
        chosen = _chosen(var_list)
        found = gradients(loss, chosen, retain_graph=retain_graph)
        session = context.collection.session
        if session is not None:
            session.note_loss(loss, chosen)
        return list(zip(found, chosen, strict=True))

    def apply_gradients(
        self, grads_and_vars: Iterable[GradientAndVariable], update_ops: Iterable[UpdateOp] | None = None
    ) -> PushReport:
        """Pushes the gradients and takes the fresh weights from the answer. This is the network boundary.

        Args:
            grads_and_vars: pairs as `compute_gradients` returns them; a gradient may be None. One of another
                floating-point dtype is cast to its variable's. Of an empty list, as `accumulate` returns between its
                means, nothing is pushed at all.
            update_ops: observations for moving averages, in the same push; by default all that layers have recorded
                since the last one (`psworker.update_ops()`). Update ops of a refused push are not sent again.

        Returns:
            Outcome, staleness and step of the push (`PushReport`).

        Raises:
            ValueError: all gradients are None.
            ShapeMismatch, TypeError: one does not fit its variable, or is no `IndexedSlices` for a table.
            DtypeMismatch: one is not of floating point.
            NotFinite: one has NaN or infinity.
            ParamServerError: a server's refusal, naming the variable; then that shard has applied nothing of it.
        """
        return _pushed(self, self.transforms, grads_and_vars, update_ops)

    def minimize(
        self,
        loss: Tensor,
        var_list: Variables | None = None,
        *,
        global_step: object = None,
        retain_graph: bool = False,
    ) -> float:
        """`compute_gradients` and `apply_gradients` in one; returns the loss, at the weights of the forward pass.

            generator_optimizer.minimize(loss, generator_variables, retain_graph=True)
            critic_optimizer.minimize(loss, critic_variables)      # the gradient at the weights of the forward pass

        `global_step` is None or an integer such as `session.global_step`, which is ignored: the servers count steps.
        TypeError for anything else, such as a variable, which would never change.
        """
        return _minimized(self, loss, var_list, global_step, retain_graph=retain_graph)


def _checked_transform(transform: Transform) -> Transform:
    if not callable(transform):
        raise TypeError(f"with_transform takes a function of a list of pairs, such as a chain, got {transform!r}")
    return transform


def _pushed(
    optimizer: optimizers.UpdateSpec | Callable[[str], optimizers.UpdateSpec],
    transforms: Iterable[Transform],
    grads_and_vars: Iterable[GradientAndVariable],
    update_ops: Iterable[UpdateOp] | None,
) -> PushReport:
    """See `Optimizer.apply_gradients`."""
    here = context.collection
    if here.session is None:
        raise ConfigurationError("no session is open: do this inside `with psworker.session() as session:`")
    pairs = list(grads_and_vars)
    for transform in transforms:
        pairs = transform(pairs)
    if not pairs:
        return PushReport("none", 0, here.session.global_step)
    return here.session.push(optimizer, pairs, here.noted.take(update_ops) if here.noted or update_ops else ())


def _minimized(
    optimizer: Optimizer | ParameterGroups,
    loss: Tensor,
    var_list: Variables | None,
    global_step: object,
    *,
    retain_graph: bool,
) -> float:
    """See `Optimizer.minimize`."""
    check_global_step("minimize", global_step)
    pairs = optimizer.compute_gradients(loss, var_list, retain_graph=retain_graph)
    value = loss.item()  # before the push, since the loss may be a variable
    optimizer.apply_gradients(pairs)
    return value


def _chosen(var_list: Variables | None) -> list[BaseVariable]:
    if var_list is None:
        chosen = trainable_variables()
    else:
        chosen = listed(var_list, trainable=True)
        if chosen and not any(getattr(variable, "requires_grad", True) for variable in chosen):
            raise ValueError(f"there is no variable to train: {'; '.join(map(_why_frozen, chosen))}")
    if not chosen:
        names = ", ".join(variable.name for variable in trainable_variables()) or "none"
        raise ValueError(
            f"there is no variable to train: is the scope of trainable_variables(...) misspelt? Trainable: {names}"
        )
    return chosen


def _why_frozen(variable: BaseVariable) -> str:
    if variable.dtype.kind != "f":
        return f"{variable.name!r} is {variable.dtype}, and only floating point is trained"
    return f"{variable.name!r} is frozen: make it with trainable=True, in a scope that is trainable"


class GradientDescent(optimizers.GradientDescent, Optimizer): ...


class Momentum(optimizers.Momentum, Optimizer): ...


class Adagrad(optimizers.Adagrad, Optimizer): ...


class AdagradDecay(optimizers.AdagradDecay, Optimizer): ...


class RMSProp(optimizers.RMSProp, Optimizer): ...


class Adam(optimizers.Adam, Optimizer): ...


class AdamW(optimizers.AdamW, Optimizer): ...


class Lamb(optimizers.Lamb, Optimizer): ...


class Ftrl(optimizers.Ftrl, Optimizer): ...


def _frozen(self: Optimizer, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(
        f"{type(self).__name__}.{name} cannot be set: the servers have it, and change it by "
        f"session.set_hyperparameters(optimizer, {name}={value!r:.80})"
    )


hint_attributes(Optimizer, OPTIMIZER)
hint_arguments(Optimizer.__subclasses__())
for _kind in Optimizer.__subclasses__():
    _kind.__setattr__ = _frozen  # type: ignore[method-assign, assignment]


class CustomOptimizer(optimizers.CustomOptimizer, Optimizer, abstract=True): ...


class ParameterGroups:
    """One step of several optimizers, each with variables of its own: rates, weight decays or kinds that differ.

        slow, fast = ps.Adam(1e-5), ps.AdamW(1e-3, weight_decay=0.01)
        optimizer = ps.ParameterGroups(
            [
                (encoder.variables, slow),
                ("*/bias", ps.AdamW(1e-3, weight_decay=0.0)),
                ("*", fast),
            ]
        )
        optimizer.minimize(loss)  # one backward pass, one push

    A variable is in the first group that names it. Each optimizer may have a schedule, and
    `session.set_hyperparameters(slow, learning_rate=1e-6)` changes those of its group.

    Args:
        groups: pairs of variables and their optimizer. Variables are one, several, a layer, or a pattern of names with
            `*`.

    Raises:
        TypeError: groups of another form.
        ValueError: there is none, or an optimizer has a transform: `with_transform` of the groups has one for all.
    """

    def __init__(self, groups: Iterable[tuple[Variables | str, Optimizer]]) -> None:
        self._groups = [_group(given) for given in groups]
        if not self._groups:
            raise ValueError("ParameterGroups: give at least one group, such as (layer.variables, psworker.Adam())")
        self.transforms: tuple[Transform, ...] = ()
        self._found: dict[str, Optimizer] = {}  # by name
        self._checked = False

    def __repr__(self) -> str:
        return f"ParameterGroups({self._groups})"

    def optimizer_of(self, name: str) -> Optimizer:
        """The optimizer of the variable of this name, in its scope. ValueError if it is in no group."""
        if name not in self._found:
            for patterns, optimizer in self._groups:
                if any(fnmatchcase(name, pattern) for pattern in patterns):
                    self._found[name] = optimizer
                    break
            else:
                raise ValueError(
                    f"variable {name!r} is in none of the parameter groups: give a last one for all others, such as "
                    '("*", psworker.Adam()), or leave it out of var_list'
                )
        return self._found[name]

    def with_transform(self, transform: Transform) -> ParameterGroups:
        """As `Optimizer.with_transform`: of the pairs of all groups together."""
        copied = copy.copy(self)
        copied.transforms = (_checked_transform(transform),)
        return copied

    def compute_gradients(
        self, loss: Tensor, var_list: Variables | None = None, *, retain_graph: bool = False
    ) -> list[GradientAndVariable]:
        """As `Optimizer.compute_gradients`."""
        return self._groups[0][1].compute_gradients(loss, var_list, retain_graph=retain_graph)

    def apply_gradients(
        self, grads_and_vars: Iterable[GradientAndVariable], update_ops: Iterable[UpdateOp] | None = None
    ) -> PushReport:
        """As `Optimizer.apply_gradients`: one push; ValueError for a variable that is in no group."""
        if not self._checked:
            self._checked = True
            self._warn_of_misspelt()
        return _pushed(self.optimizer_of, self.transforms, grads_and_vars, update_ops)

    def _warn_of_misspelt(self) -> None:
        """Logs patterns that are those of no variable of the program."""
        names = context.collection.variables
        for pattern in [one for patterns, _ in self._groups for one in patterns]:
            if not any(fnmatchcase(name, pattern) for name in names):
                logger.warning(
                    "ParameterGroups: no variable is named %r so far; there are: %s", pattern, ", ".join(names)
                )

    def minimize(
        self,
        loss: Tensor,
        var_list: Variables | None = None,
        *,
        global_step: object = None,
        retain_graph: bool = False,
    ) -> float:
        """As `Optimizer.minimize`."""
        return _minimized(self, loss, var_list, global_step, retain_graph=retain_graph)


def _group(given: object) -> tuple[tuple[str, ...], Optimizer]:
    """The patterns of names of a group, and its optimizer."""
    if not (isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[1], Optimizer)):
        raise TypeError(
            "ParameterGroups takes pairs of variables and their optimizer, such as (layer.variables, "
            f"psworker.Adam(0.001)), got {given!r}"
        )
    variables, optimizer = given
    if optimizer.transforms:
        raise ValueError(
            "ParameterGroups: give the transform to the groups: ParameterGroups([...]).with_transform(...)"
        )
    if isinstance(variables, str):
        return (variables,), optimizer
    several = listed(variables)
    for variable in several:
        check_variable(variable, "a group of ParameterGroups")
    return tuple([escape(variable.name) for variable in several]), optimizer


#: By the names of tf.contrib.layers.optimize_loss, and by class names.
_BY_NAME: dict[str, type[Optimizer]] = {
    "SGD": GradientDescent,
    **{kind.__name__: kind for kind in (GradientDescent, Momentum, Adagrad, AdagradDecay, RMSProp)},
    **{kind.__name__: kind for kind in (Adam, AdamW, Lamb, Ftrl)},
}


def optimize_loss(
    loss: Tensor,
    global_step: object = None,
    learning_rate: float | Schedule | None = None,
    optimizer: str | Optimizer | ParameterGroups | Callable[..., Optimizer] = "SGD",
    *,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Mapping[BaseVariable | str, float] | None = None,
    clip_gradients: float | Transform | None = None,
    learning_rate_decay_fn: Callable[[float | Schedule | None, int], Schedule] | None = None,
    update_ops: Iterable[UpdateOp] | None = None,
    variables: Variables | None = None,
    summaries: Sequence[str] | None = None,
    retain_graph: bool = False,
) -> float:
    """One complete training step: gradients, their transforms, and the push with the update ops.

        for batch in session.batches(dataset, batch_size=50, epochs=10):
            ps.optimize_loss(
                loss(batch), learning_rate=0.1, optimizer="Momentum", clip_gradients=5.0,
                learning_rate_decay_fn=lambda rate, step: ps.schedules.CosineDecay(rate, decay_steps=10_000),
            )

    Gradients get noise, are multiplied and then clipped, as in TensorFlow 1's tf.contrib.layers.optimize_loss.

    Args:
        loss: a tensor with one element.
        global_step: None or an integer such as `session.global_step`, which is ignored: the servers count steps.
        learning_rate: a number, or a schedule that the server evaluates by its global step; None for the optimizer's.
        optimizer: a name, "SGD" or a class's name; a class such as `Adam`; a function, called with the learning rate
            unless that is None; or an optimizer or parameter groups, which have their learning rates.
        gradient_noise_scale: the `stddev` of `add_noise`.
        gradient_multipliers: factors by variable or by its name, for `multiply`.
        clip_gradients: a number for `clip_by_global_norm`, or a function of the list of (gradient, variable).
        learning_rate_decay_fn: makes a schedule of `learning_rate` and the global step that this worker knows. It
            returns a schedule and no number, since the servers evaluate it.
        update_ops: as in `Optimizer.apply_gradients`.
        variables: one or several; by default all trainable variables.
        summaries: None or empty: what is written is chosen by the session (`summary_dir`).
        retain_graph: as in `Optimizer.compute_gradients`.

    Returns:
        The loss.

    Raises:
        TypeError: an argument of the wrong type, such as a variable as `global_step` or a number as schedule.
        ValueError: an unknown name of an optimizer, an optimizer without its learning rate, or summaries.

    Otherwise raises as `compute_gradients`, `apply_gradients`, the transforms and the optimizer do.
    """
    check_global_step("optimize_loss", global_step)
    if summaries:
        raise ValueError(
            f"optimize_loss: summaries cannot be selected, got {summaries!r}: leave them out; with "
            "psworker.session(summary_dir=...) loss, learning rate and gradient norm are written by themselves"
        )
    if learning_rate_decay_fn is not None:
        learning_rate = _decayed(learning_rate, learning_rate_decay_fn)
    chosen = _optimizer(optimizer, learning_rate)
    pairs = chosen.compute_gradients(loss, variables, retain_graph=retain_graph)
    if gradient_noise_scale is not None:
        pairs = add_noise(pairs, gradient_noise_scale)
    if gradient_multipliers is not None:
        pairs = multiply(pairs, gradient_multipliers)
    if callable(clip_gradients):
        pairs = clip_gradients(pairs)
    elif clip_gradients is not None:
        pairs = clip_by_global_norm(pairs, clip_gradients)
    value = loss.item()  # before the push, since the loss may be a variable
    chosen.apply_gradients(pairs, update_ops)
    return value


def check_global_step(call: str, given: object) -> None:
    """Raises TypeError unless it is None or an integer, as `session.global_step` is; servers count steps themselves."""
    if given is not None and not isinstance(given, int | np.integer):
        kind = f"the variable {given.name!r}" if isinstance(given, BaseVariable) else repr(given)
        raise TypeError(
            f"{call}: global_step is {kind}, which would never change: the servers count steps, so leave it out and "
            "read session.global_step (learning_rate and optimizer come after it, or by keyword)"
        )


def _decayed(
    learning_rate: float | Schedule | None, function: Callable[[float | Schedule | None, int], Schedule]
) -> Schedule:
    session = context.collection.session
    found = function(learning_rate, 0 if session is None else session.global_step)
    if not isinstance(found, Schedule):
        raise TypeError(
            f"optimize_loss: learning_rate_decay_fn must return a schedule, such as "
            f"psworker.schedules.CosineDecay(rate, 10_000), got {found!r}: the servers evaluate it at their global "
            "step, the same for all workers"
        )
    return found


def _optimizer(
    given: str | Optimizer | ParameterGroups | Callable[..., Optimizer], learning_rate: float | Schedule | None
) -> Optimizer | ParameterGroups:
    """The optimizer of a name, a class or a function with this learning rate, or the given one, which has its own."""
    if isinstance(given, Optimizer | ParameterGroups):
        if learning_rate is not None:
            raise ValueError(
                f"optimize_loss: {given} has a learning rate, and another is given, {learning_rate}: leave it out, or "
                f"give the class {type(given).__name__}"
            )
        return given
    if isinstance(given, str) and given not in _BY_NAME:
        raise ValueError(f"optimize_loss: there is no optimizer {given!r}: choose from {', '.join(_BY_NAME)}")
    make: Callable[..., Optimizer] = _BY_NAME[given] if isinstance(given, str) else given
    if not callable(make):
        raise TypeError(
            "optimize_loss: optimizer must be a name such as 'Adam', a class such as psworker.Adam, a function that "
            f"makes one, or an optimizer: {given!r}"
        )
    if learning_rate is None and isinstance(make, type) and not hasattr(make, "learning_rate"):
        raise ValueError(f"optimize_loss: {make.__name__} has no learning rate by default: give learning_rate")
    found = make() if learning_rate is None else make(learning_rate)
    if not isinstance(found, Optimizer):
        raise TypeError(f"optimize_loss: optimizer must make an optimizer such as psworker.Adam(0.001), not {found!r}")
    return found
