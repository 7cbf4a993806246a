"""The worker's side of paramserver: variables, a numpy autodiff engine, optimizers, and sessions with a server.

    import psworker as ps
    from psworker import ops, datasets

Importing this loads numpy, but neither grpc nor a server.
"""

from pswire import errors, schedules
from pswire.messages import EpochReport
from pswire.rows import RowConstant, RowNormal, RowUniform
from pswire.values import IndexedSlices
from psworker import initializers, nn
from psworker.autodiff import Tensor, check_gradients, gradients, no_grad, op, ops, stop_gradient
from psworker.data import datasets
from psworker.data.dataset import Batch, Dataset
from psworker.opening import session
from psworker.optimizers import (
    Adagrad,
    AdagradDecay,
    Adam,
    AdamW,
    Ftrl,
    GradientDescent,
    Lamb,
    Momentum,
    Optimizer,
    RMSProp,
    optimize_loss,
)
from psworker.session import Session
from psworker.tables import Table
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
from psworker.variables import (
    UpdateOp,
    Variable,
    collection,
    discard_update_ops,
    global_variables,
    note_update,
    set_random_seed,
    trainable_variables,
    update_ops,
    variable_scope,
)

__all__ = [
    "Adagrad",
    "AdagradDecay",
    "Adam",
    "AdamW",
    "Batch",
    "Dataset",
    "EpochReport",
    "Ftrl",
    "GradientDescent",
    "IndexedSlices",
    "Lamb",
    "Momentum",
    "Optimizer",
    "RMSProp",
    "RowConstant",
    "RowNormal",
    "RowUniform",
    "Session",
    "Table",
    "Tensor",
    "UpdateOp",
    "Variable",
    "accumulate",
    "add_decayed_weights",
    "check_gradients",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "collection",
    "datasets",
    "discard_update_ops",
    "errors",
    "global_norm",
    "global_variables",
    "gradients",
    "initializers",
    "nn",
    "no_grad",
    "note_update",
    "op",
    "ops",
    "optimize_loss",
    "per_variable",
    "scale",
    "schedules",
    "session",
    "set_random_seed",
    "stop_gradient",
    "trainable_variables",
    "update_ops",
    "variable_scope",
]
