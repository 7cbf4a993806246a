"""The worker's side of paramserver: variables, a numpy autodiff engine, optimizers, and sessions with a server.

    import psworker as ps
    from psworker import ops, datasets

Importing this loads numpy, but neither grpc nor a server.
"""

from pswire import errors
from pswire.messages import EpochReport
from pswire.values import IndexedSlices
from psworker.autodiff import Tensor, check_gradients, gradients, no_grad, ops, stop_gradient
from psworker.data import datasets
from psworker.data.dataset import Batch, Dataset
from psworker.optimizers import Adagrad, Adam, GradientDescent, Momentum, Optimizer, optimize_loss
from psworker.session import Session, session
from psworker.transforms import (
    accumulate,
    add_decayed_weights,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    global_norm,
    per_variable,
    scale,
)
from psworker.variables import Variable, collection, trainable_variables, variable_scope

__all__ = [
    "Adagrad",
    "Adam",
    "Batch",
    "Dataset",
    "EpochReport",
    "GradientDescent",
    "IndexedSlices",
    "Momentum",
    "Optimizer",
    "Session",
    "Tensor",
    "Variable",
    "accumulate",
    "add_decayed_weights",
    "check_gradients",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "collection",
    "datasets",
    "errors",
    "global_norm",
    "gradients",
    "no_grad",
    "ops",
    "optimize_loss",
    "per_variable",
    "scale",
    "session",
    "stop_gradient",
    "trainable_variables",
    "variable_scope",
]
