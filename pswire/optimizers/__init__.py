"""Optimizers: an optimizer a file, with its hyperparameters, formula, source and update rule.

`optimizer` has the contract, and how to add one. "Lazy" is said of a gradient by rows: rows that are not named stay as
they are, in the slots too, so that a moment or a weight decay is no different for a row that was not used.
"""

from pswire.optimizers.adagrad import Adagrad
from pswire.optimizers.adagrad_decay import AdagradDecay
from pswire.optimizers.adam import Adam, AdamW
from pswire.optimizers.ftrl import Ftrl
from pswire.optimizers.gradient_descent import GradientDescent
from pswire.optimizers.lamb import Lamb
from pswire.optimizers.momentum import Momentum
from pswire.optimizers.moving_average import MovingAverage
from pswire.optimizers.optimizer import (
    COMPUTE_DTYPES,
    RULES,
    OptimizerSpec,
    Rule,
    Step,
    UpdateSpec,
    from_plain,
    rule_for,
)
from pswire.optimizers.rmsprop import RMSProp
from pswire.specs.spec import to_plain

__all__ = ["COMPUTE_DTYPES", "RULES", "Adagrad", "AdagradDecay", "Adam", "AdamW", "Ftrl", "GradientDescent", "Lamb"]
__all__ += ["Momentum", "MovingAverage", "OptimizerSpec", "RMSProp", "Rule", "Step", "UpdateSpec", "from_plain"]
__all__ += ["rule_for", "to_plain"]
