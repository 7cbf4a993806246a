"""Optimizers, one per file: hyperparameters, formula, source and update rule.

`optimizer.py` defines the interface. "Lazy" means that a gradient by rows changes no other rows, also not
in the slots: momentum and weight decay do not affect unused rows.
"""

from pswire.optimizers.adagrad import Adagrad, AdagradDecay
from pswire.optimizers.adam import Adam, AdamW
from pswire.optimizers.ftrl import Ftrl
from pswire.optimizers.gradient_descent import GradientDescent
from pswire.optimizers.lamb import Lamb
from pswire.optimizers.momentum import Momentum
from pswire.optimizers.moving_average import MovingAverage
from pswire.optimizers.optimizer import COMPUTE_DTYPES, OptimizerSpec, Rule, Step, UpdateSpec, ordinary_growth, rule_for
from pswire.optimizers.rmsprop import RMSProp

__all__ = ["COMPUTE_DTYPES", "Adagrad", "AdagradDecay", "Adam", "AdamW", "Ftrl", "GradientDescent", "Lamb"]
__all__ += ["Momentum", "MovingAverage", "OptimizerSpec", "RMSProp", "Rule", "Step", "UpdateSpec"]
__all__ += ["ordinary_growth", "rule_for"]
