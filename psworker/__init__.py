"""The worker's side of paramserver: variables, a numpy autodiff engine, optimizers, and sessions with a server.

    import psworker as ps
    from psworker import ops, datasets

Importing this loads numpy, but neither grpc nor a server.
"""

from pswire import errors
from pswire.messages import EpochReport
from psworker.autodiff import Tensor, check_gradients, gradients, no_grad, ops, stop_gradient
from psworker.data import datasets
from psworker.data.dataset import Batch, Dataset
from psworker.optimizers import Adagrad, Adam, GradientDescent, Momentum, Optimizer
from psworker.session import Session, session
from psworker.variables import Variable, collection, trainable_variables, variable_scope

__all__ = [
    "Adagrad",
    "Adam",
    "Batch",
    "Dataset",
    "EpochReport",
    "GradientDescent",
    "Momentum",
    "Optimizer",
    "Session",
    "Tensor",
    "Variable",
    "check_gradients",
    "collection",
    "datasets",
    "errors",
    "gradients",
    "no_grad",
    "ops",
    "session",
    "stop_gradient",
    "trainable_variables",
    "variable_scope",
]
