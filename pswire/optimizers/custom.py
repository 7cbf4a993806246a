"""Custom optimizers: the update rules of users. Programs define the class, and servers load its file at their start.

It never travels: messages have its name and its fields. No bound is known for the result of such a rule, so each of its
updates is checked (`pswire.optimizers.optimizer`). Imports no files: `psserver.custom_optimizers` does.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, get_type_hints

import numpy as np

from pswire.errors import ConfigurationError, UpdateFailed
from pswire.optimizers.element_wise import ElementWise, ElementWiseRule, check_bounds
from pswire.optimizers.optimizer import COMPUTE_DTYPES, OptimizerSpec, Rule, Step
from pswire.specs.schedules import check_learning_rate
from pswire.specs.spec import check_flag, check_number, check_whole
from pswire.tensors.values import Array, IndexedSlices

#: The checks of fields by their annotation, which say what arrives at a server.
_CHECKS: dict[object, Callable[[str, object], object]] = {float: check_number, int: check_whole, bool: check_flag}


class WholeArrayRule(Rule):
    """Update rule of a `CustomOptimizer` that is not element-wise: it gets whole arrays, or the rows of a gradient."""

    spec: "CustomOptimizer"

    @np.errstate(all="ignore")
    def dense(self, value: Array, slots: dict[str, Array], gradient: Array, step: Step) -> None:
        """As in `Rule`."""
        if gradient.shape != value.shape:
            raise ValueError(f"a gradient of shape {gradient.shape} does not broadcast to {value.shape}")
        dtype = COMPUTE_DTYPES[value.dtype]
        new = value.astype(dtype)
        self.spec._change(new, gradient.astype(dtype, copy=False), [slots[name] for name in self._names], step)
        value[...] = new

    def sparse(self, value: Array, slots: dict[str, Array], rows: IndexedSlices, step: Step) -> None:
        """As in `Rule`."""
        check_bounds(value, rows)
        index = rows.indices
        new, new_slots = value[index], {name: slot[index] for name, slot in slots.items()}
        self.dense(new, new_slots, rows.values, step)
        value[index] = new
        for name, slot in new_slots.items():
            slots[name][index] = slot


@dataclasses.dataclass(frozen=True)
class CustomOptimizer(OptimizerSpec, ElementWise):
    """The base class of optimizers that users write: a frozen dataclass of hyperparameters, with its update rule.

        @dataclass(frozen=True)
        class SignDescent(ps.CustomOptimizer):
            decay: float = 0.0

            def update(self, value, gradient, slots, step):
                return value - step.learning_rate * (np.sign(gradient) + self.decay * value), {}

    Programs use it as any optimizer. Servers load its file at their start: `psserver serve --optimizers FILE`. Its name
    is that of the class, and its fields are what travels: annotate them as `float`, `int` or `bool`. `learning_rate`
    is one of them.

    Attributes:
        slots: names of the arrays beside each variable; a field `initial_NAME` is the first value of the slot NAME,
            others start at zero.
        element_wise: whether no element of a result depends on another one. `update` then gets flat blocks of elements;
            otherwise the array of the variable, or of its part on this shard, or the rows of a gradient by rows.
    """

    slots: ClassVar[tuple[str, ...]] = ()
    element_wise: ClassVar[bool] = True
    _is_bounded = False

    def __init_subclass__(cls, *, abstract: bool = False, **keywords: str) -> None:
        name = cls.__name__
        for known in cls.kinds.values():
            if name in (known.kind, known.__name__) and not issubclass(known, CustomOptimizer):
                raise ConfigurationError(f"class {name} has the name of a built-in optimizer: choose another name")
        super().__init_subclass__(**keywords if abstract else {"kind": name, **keywords})
        rule: type[Rule] = ElementWiseRule if cls.element_wise else WholeArrayRule
        cls._rule = rule  # type: ignore[assignment]  # of `UpdateSpec`, any rule

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, check in _checks_of(type(self)).items():  # type: ignore[arg-type]  # a class is hashable
            object.__setattr__(self, name, check(f"{type(self).__name__}: {name}", getattr(self, name)))

    @classmethod
    def is_registered(cls) -> bool:
        """True if it is the class of its name, so none of the base classes."""
        return cls.kinds.get(cls.__name__) is cls

    def slot_names(self) -> tuple[str, ...]:
        """The names of a variable's slots, in order."""
        return self.slots

    def update(
        self, value: Array, gradient: Array, slots: dict[str, Array], step: Step
    ) -> tuple[Array, Mapping[str, Array]]:
        """The new value, and the new slots by name; new arrays, or those given after a change in place.

        Args:
            value: float32 or float64, float32 also for a variable of float16.
            gradient: of the same shape and dtype; read-only.
            slots: arrays of the same shape and dtype, by name.
            step: `number` of this update of the variable, from 1; the `global_step` of the shard; and the
                `learning_rate` at this step, which may be a schedule in `self`.

        It must be a function of these arguments alone, or the replay of a journal would give other values. If it raises
        an exception, or a result is not finite, the push is refused, and nothing has changed.
        """
        raise NotImplementedError("it has no method `update`")

    def _numbers(self, step: Step, tiny: float) -> tuple[float, ...]:
        return step.number, step.global_step, step.learning_rate

    def _block(self, w: Array, g: Array, scratch: Array, slots: Sequence[Array], *numbers: float) -> None:
        number, global_step, rate = numbers
        self._change(w, g, slots, Step(int(number), int(global_step), rate))

    def _change(self, value: Array, gradient: Array, slots: Sequence[Array], step: Step) -> None:
        """Update these arrays, which have the dtype of the computation. Raises `UpdateFailed`."""
        gradient = gradient.view()
        gradient.flags.writeable = False
        targets = value, *slots
        try:
            new, new_slots = self.update(value, gradient, dict(zip(self.slots, slots, strict=True)), step)
            if new_slots.keys() != set(self.slots):
                raise ValueError(f"it returned the slots {sorted(new_slots)}, and it has {sorted(self.slots)}")
            results = [_separate(one, targets) for one in (new, *[new_slots[name] for name in self.slots])]
            for target, result in zip(targets, results, strict=True):
                if result.shape != target.shape:
                    raise ValueError(f"it returned an array of shape {result.shape} for one of {target.shape}")
                np.copyto(target, result, casting="same_kind")
        except Exception as error:
            raise UpdateFailed(
                f"{type(self).__name__}.update raised {type(error).__name__}: {error}: nothing was changed"
            ) from error


def _separate(result: Array, targets: Sequence[Array]) -> Array:
    """The result, copied if it shares memory with an array that is written before it."""
    array = np.asarray(result)
    return array.copy() if any(np.may_share_memory(array, target) for target in targets) else array


@functools.cache
def _checks_of(cls: type[CustomOptimizer]) -> dict[str, Callable[[str, object], object]]:
    """The checks of the fields that have no range of their own. Raises `TypeError` for an annotation without one."""
    checks: dict[str, Callable[[str, object], object]] = {"learning_rate": check_learning_rate}
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if hasattr(hint, "__metadata__") or field.name in checks:
            continue  # an annotation with a range is checked as of any spec
        if hint not in _CHECKS:
            raise TypeError(f"{cls.__name__}: annotate the field {field.name} as float, int or bool, not as {hint}")
        checks[field.name] = _CHECKS[hint]
    return checks
