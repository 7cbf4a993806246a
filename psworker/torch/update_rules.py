"""The servers' update rule for a parameter group of an optimizer of PyTorch.

The rules have the form of PyTorch's: the same numbers, up to rounding. Weight decay that is part of the gradient is
added in the worker (`penalty`), since it is the gradient of a term of the loss.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from pswire import optimizers
from pswire.errors import ConfigurationError

#: The options of a parameter group.
Group: TypeAlias = Mapping[str, Any]

#: Makes the servers' optimizer of a parameter group, with its present hyperparameters.
Rule: TypeAlias = Callable[[Group], optimizers.OptimizerSpec]

_HERE = "run the optimizer in the workers, by pst.session(local_steps=50) or psworker local --local-steps 50"


def _sgd(group: Group) -> optimizers.OptimizerSpec:
    _refuse(group, "dampening")
    rate = float(group["lr"])
    if not group["momentum"]:
        return optimizers.GradientDescent(rate)
    return optimizers.Momentum(rate, float(group["momentum"]), bool(group["nesterov"]))


def _adam(group: Group) -> optimizers.OptimizerSpec:
    if group.get("decoupled_weight_decay"):
        return _adamw(group)
    return optimizers.Adam(*_moments(group))


def _adamw(group: Group) -> optimizers.OptimizerSpec:
    return optimizers.AdamW(*_moments(group), float(group["weight_decay"]))


def _moments(group: Group) -> tuple[float, float, float, float, bool]:
    beta1, beta2 = map(float, group["betas"])
    return float(group["lr"]), beta1, beta2, float(group["eps"]), bool(group["amsgrad"])


def _adagrad(group: Group) -> optimizers.OptimizerSpec:
    _refuse(group, "lr_decay")
    return optimizers.Adagrad(float(group["lr"]), float(group["initial_accumulator_value"]), float(group["eps"]))


def _rmsprop(group: Group) -> optimizers.OptimizerSpec:
    rate, decay, momentum, epsilon = (float(group[name]) for name in ("lr", "alpha", "momentum", "eps"))
    return optimizers.RMSProp(rate, decay, momentum, epsilon, bool(group["centered"]))


_RULES: dict[type[torch.optim.Optimizer], Rule] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
}


def update_rule(optimizer: torch.optim.Optimizer, group: Group, given: Rule | None) -> optimizers.OptimizerSpec:
    """The servers' optimizer for a group, with its present hyperparameters, by the `given` rule if there is one.

    Raises `ConfigurationError` for an optimizer, or an option of one, that the servers do not have; `TypeError` if the
    given rule makes something else.
    """
    if given is not None:
        spec = given(group)
        if not isinstance(spec, optimizers.OptimizerSpec):
            raise TypeError(
                f"rule makes an optimizer of psworker of a parameter group, such as ps.Lamb(0.01), got {spec!r}"
            )
        return spec
    rule = _RULES.get(type(optimizer))
    if rule is None:
        known = ", ".join(sorted(kind.__name__ for kind in _RULES))
        raise ConfigurationError(
            f"the servers have no update rule for {type(optimizer).__name__}, only for torch.optim's {known}: use one "
            f"of them, give a rule (rule=lambda group: ps.Lamb(group['lr'])), or {_HERE}"
        )
    return rule(group)


def penalty(optimizer: torch.optim.Optimizer, group: Group, given: Rule | None) -> float:
    """The factor of the weights that is added to their gradient: L2 regularization.

    AdamW does not have it, and a given rule does with the group's weight decay what it likes.
    """
    decoupled = given or isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay")
    return 0.0 if decoupled else float(group["weight_decay"])


def _refuse(group: Group, option: str) -> None:
    if group[option]:
        raise ConfigurationError(
            f"a parameter group has {option}={group[option]}, which the servers do not have: leave it out, or {_HERE}"
        )
