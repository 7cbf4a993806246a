"""The base of variables and tables, and checks of both. May import the engine."""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol, TypeAlias

import numpy as np

from pswire.tensors.values import Array, TensorSpec
from psworker.autodiff import Tensor
from psworker.autodiff.tensor import TensorLike, as_array
from psworker.versions import ReadVersion

#: Sets the value of a variable, which programs cannot set; faster than a method that is overridden.
set_value: Callable[[Tensor, Array], None] = Tensor.__dict__["value"].__set__


class BaseVariable(Tensor):
    """A named array that servers hold: a `Variable`, or a `Table`.

    `name` includes its scope; `trainable` is whether it is trained by default; `read` is the version that this worker
    has read of it.
    """

    __slots__ = ("__weakref__", "name", "read", "trainable")

    name: str
    read: ReadVersion
    trainable: bool

    @property
    def versions(self) -> tuple[int, ...]:
        """Updates of each partition when the value was sent; () until a server has sent one."""
        return self.read.versions

    @property
    def version(self) -> int:
        """The largest of `versions`, 0 at first."""
        return max(self.versions, default=0)

    @property
    def spec(self) -> TensorSpec:
        """Name, shape and dtype."""
        return TensorSpec(self.name, self.shape, self.dtype.name)

    def assign(self, value: TensorLike) -> None:
        """Sets the value; see `Variable` and `Table`."""
        raise NotImplementedError

    def assign_add(self, value: TensorLike) -> None:
        """Adds to the value; see `Variable` and `Table`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec}, version {self.version})"


def _not_in_place(self: BaseVariable, value: object) -> NoReturn:
    raise TypeError(
        f"{self.name!r} is a variable, and += and the like would give its Python name to a new tensor, and not change "
        "the variable: use variable.assign_add(value) or variable.assign(value), or write tensor = variable + value"
    )


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul", "mod"):
    setattr(BaseVariable, f"__i{_name}__", _not_in_place)

#: Sets `read`, without the check of `Variable.__setattr__`: a session does this for each variable in each step.
set_read: Callable[[BaseVariable, ReadVersion], None] = BaseVariable.__dict__["read"].__set__


def in_scope(variable: BaseVariable, scope: str | None) -> bool:
    """True if the variable is named `scope/...`; all are without a scope."""
    return not scope or variable.name.startswith(scope.rstrip("/") + "/")


def as_assigned(variable: BaseVariable, value: TensorLike) -> Array:
    """An assigned value in the variable's dtype; TypeError if it would lose its fraction, or its sign."""
    array = as_array(value)
    if array.dtype is variable.dtype:
        return array
    if not np.can_cast(array.dtype, variable.dtype, "same_kind"):
        raise TypeError(
            f"assigned value for {variable.name!r}: Cannot cast {array.dtype} to {variable.dtype} without loss of more "
            "than precision; convert it before"
        )
    return array.astype(variable.dtype, copy=False)


class HasVariables(Protocol):
    """A layer."""

    @property
    def variables(self) -> list[BaseVariable]: ...  # noqa: D102

    @property
    def trainable_variables(self) -> list[BaseVariable]: ...  # noqa: D102


#: One variable, several, or a layer, for all of its own.
Variables: TypeAlias = BaseVariable | Iterable[BaseVariable] | HasVariables


def listed(given: Variables, *, trainable: bool = False) -> list[BaseVariable]:
    """The variables as a list; with `trainable`, of a layer those that are."""
    several: Any = [given] if isinstance(given, BaseVariable) else given
    return list(getattr(several, "trainable_variables" if trainable else "variables", several))


def check_variable(given: object, call: str) -> None:
    """Raises `TypeError` unless the argument of `call` is a variable or a table."""
    if not isinstance(given, BaseVariable):
        raise TypeError(f"{call} takes a psworker.Variable or Table, got {given!r}")
