"""The worker's side of paramserver: variables, a numpy autodiff engine, optimizers, and sessions with a server.

    import psworker as ps
    from psworker import ops, datasets

Importing this loads nothing else: a name is imported when it is first asked for (PEP 562). For the command `psworker`
comes through here too, and while numpy is loaded, which takes seconds with a small part of a core, it could not yet
say what SIGTERM does. None of the names brings grpc or a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pswire import errors
    from pswire.messages import EpochReport
    from pswire.specs import initializers, schedules
    from pswire.specs.initializers import RowConstant, RowNormal, RowUniform
    from pswire.tensors.values import IndexedSlices
    from psworker.autodiff import Tensor, check_gradients, gradients, no_grad, op, ops, stop_gradient
    from psworker.data import datasets
    from psworker.data.dataset import Batch, Dataset
    from psworker.model import layers as nn
    from psworker.model.gradient_transforms import (
        accumulate,
        add_decayed_weights,
        clip_by_global_norm,
        clip_by_norm,
        clip_by_value,
        global_norm,
        per_variable,
        scale,
    )
    from psworker.model.optimizers import (
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
    from psworker.model.tables import Table
    from psworker.model.variables import (
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
    from psworker.sessions.session import Session, session

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

#: Where the names of `__all__` come from: modules, and what is in modules.
_MODULES = {
    "datasets": "psworker.data.datasets",
    "errors": "pswire.errors",
    "initializers": "pswire.specs.initializers",
    "nn": "psworker.model.layers",
    "ops": "psworker.autodiff.ops",
    "schedules": "pswire.specs.schedules",
}
_CONTENTS = {
    "pswire.messages": "EpochReport",
    "pswire.specs.initializers": "RowConstant RowNormal RowUniform",
    "pswire.tensors.values": "IndexedSlices",
    "psworker.autodiff": "Tensor check_gradients gradients no_grad op stop_gradient",
    "psworker.data.dataset": "Batch Dataset",
    "psworker.model.optimizers": (
        "Adagrad AdagradDecay Adam AdamW Ftrl GradientDescent Lamb Momentum Optimizer RMSProp optimize_loss"
    ),
    "psworker.sessions.session": "Session session",
    "psworker.model.tables": "Table",
    "psworker.model.gradient_transforms": (
        "accumulate add_decayed_weights clip_by_global_norm clip_by_norm clip_by_value global_norm per_variable scale"
    ),
    "psworker.model.variables": (
        "UpdateOp Variable collection discard_update_ops global_variables note_update set_random_seed "
        "trainable_variables update_ops variable_scope"
    ),
}
_HOMES = _MODULES | {name: home for home, names in _CONTENTS.items() for name in names.split()}

if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_HOMES[name])
        globals()[name] = found = module if name in _MODULES else getattr(module, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
