"""Optimizers, one per file: hyperparameters, formula, source and update rule.

`optimizer.py` defines the interface. "Lazy" means that a gradient by rows changes no other rows, also not
in the slots: momentum and weight decay do not affect unused rows.
"""

from pswire.optimizers.adagrad import Adagrad, AdagradDecay
from pswire.optimizers.adam import Adam, AdamW
from pswire.optimizers.custom import CustomOptimizer
from pswire.optimizers.ftrl import Ftrl
from pswire.optimizers.gradient_descent import GradientDescent
from pswire.optimizers.lamb import Lamb
from pswire.optimizers.momentum import Momentum
from pswire.optimizers.moving_average import MovingAverage
from pswire.optimizers.optimizer import COMPUTE_DTYPES, OptimizerSpec, Rule, Step, UpdateSpec, ordinary_growth, rule_for
from pswire.optimizers.rmsprop import RMSProp
from pswire.optimizers.unknown import UnknownOptimizer, optimizer_from_plain

__all__ = ["COMPUTE_DTYPES", "Adagrad", "AdagradDecay", "Adam", "AdamW", "CustomOptimizer", "Ftrl", "GradientDescent"]
__all__ += ["Lamb", "Momentum", "MovingAverage", "OptimizerSpec", "RMSProp", "Rule", "Step", "UnknownOptimizer"]
__all__ += ["UpdateSpec", "optimizer_from_plain", "ordinary_growth", "rule_for"]
