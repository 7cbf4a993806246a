"""The worker's side of paramserver: variables, a numpy autodiff engine, optimizers, and sessions with a server.

    import psworker as ps
    from psworker import ops, datasets

A name is imported at its first use (PEP 562), so that importing this package loads nothing else: the command `psworker`
imports it too, and handles SIGTERM before numpy is loaded, which can take seconds. No name imports grpc or a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pswire import errors as errors
    from pswire.messages import EpochReport as EpochReport
    from pswire.specs import initializers as initializers
    from pswire.specs import schedules as schedules
    from pswire.specs.initializers import RowConstant as RowConstant
    from pswire.specs.initializers import RowNormal as RowNormal
    from pswire.specs.initializers import RowUniform as RowUniform
    from pswire.tensors.values import IndexedSlices as IndexedSlices
    from psworker.autodiff import Tensor as Tensor
    from psworker.autodiff import check_gradients as check_gradients
    from psworker.autodiff import gradients as gradients
    from psworker.autodiff import no_grad as no_grad
    from psworker.autodiff import op as op
    from psworker.autodiff import ops as ops
    from psworker.autodiff import stop_gradient as stop_gradient
    from psworker.data import datasets as datasets
    from psworker.data.dataset import Batch as Batch
    from psworker.data.dataset import Dataset as Dataset
    from psworker.model import layers as nn
    from psworker.model.gradient_transforms import accumulate as accumulate
    from psworker.model.gradient_transforms import add_decayed_weights as add_decayed_weights
    from psworker.model.gradient_transforms import clip_by_global_norm as clip_by_global_norm
    from psworker.model.gradient_transforms import clip_by_norm as clip_by_norm
    from psworker.model.gradient_transforms import clip_by_value as clip_by_value
    from psworker.model.gradient_transforms import global_norm as global_norm
    from psworker.model.gradient_transforms import per_variable as per_variable
    from psworker.model.gradient_transforms import scale as scale
    from psworker.model.optimizers import Adagrad as Adagrad
    from psworker.model.optimizers import AdagradDecay as AdagradDecay
    from psworker.model.optimizers import Adam as Adam
    from psworker.model.optimizers import AdamW as AdamW
    from psworker.model.optimizers import Ftrl as Ftrl
    from psworker.model.optimizers import GradientDescent as GradientDescent
    from psworker.model.optimizers import Lamb as Lamb
    from psworker.model.optimizers import Momentum as Momentum
    from psworker.model.optimizers import Optimizer as Optimizer
    from psworker.model.optimizers import RMSProp as RMSProp
    from psworker.model.optimizers import optimize_loss as optimize_loss
    from psworker.model.tables import Table as Table
    from psworker.model.variables import UpdateOp as UpdateOp
    from psworker.model.variables import Variable as Variable
    from psworker.model.variables import collection as collection
    from psworker.model.variables import discard_update_ops as discard_update_ops
    from psworker.model.variables import global_variables as global_variables
    from psworker.model.variables import note_update as note_update
    from psworker.model.variables import set_random_seed as set_random_seed
    from psworker.model.variables import trainable_variables as trainable_variables
    from psworker.model.variables import update_ops as update_ops
    from psworker.model.variables import variable_scope as variable_scope
    from psworker.sessions.session import Session as Session
    from psworker.sessions.session import session as session

#: The modules that public names come from: names of modules, and names in modules.
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

__all__ = ["nn"]  # type checkers see the others as exported, by `import name as name`
__all__ += sorted(_HOMES.keys() - {"nn"})

if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_HOMES[name])
        globals()[name] = found = module if name in _MODULES else getattr(module, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
