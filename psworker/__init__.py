"""The worker's side of paramserver: variables, a numpy autodiff engine, optimizers, and sessions with a server.

    import psworker as ps
    from psworker import ops, datasets

A name is imported at its first use (PEP 562), so that importing this package loads nothing else: the command `psworker`
imports it too, and handles SIGTERM before numpy is loaded, which can take seconds. No name imports grpc or a server.
"""

# ruff: noqa: F403 - for type checkers, which see the names in `__all__` of each module

import sys
from importlib import import_module
from typing import TYPE_CHECKING

__version__: str

if TYPE_CHECKING:
    from pswire.messages import EpochReport as EpochReport
    from pswire.messages import QueueStatus as QueueStatus
    from pswire.specs.initializers import RowConstant as RowConstant
    from pswire.specs.initializers import RowNormal as RowNormal
    from pswire.specs.initializers import RowUniform as RowUniform
    from pswire.tensors.values import IndexedSlices as IndexedSlices
    from psworker import callbacks as callbacks
    from psworker import data as data
    from psworker import datasets as datasets
    from psworker import errors as errors
    from psworker import initializers as initializers
    from psworker import metrics as metrics
    from psworker import nn as nn
    from psworker import schedules as schedules
    from psworker.autodiff import *
    from psworker.data.batch import *
    from psworker.data.dataset import *
    from psworker.data.ragged import *
    from psworker.data.sources import *
    from psworker.minimize.line_search import *
    from psworker.minimize.minimizers import *
    from psworker.model.collection import *
    from psworker.model.gradient_transforms import *
    from psworker.model.model_files import *
    from psworker.model.optimizers import *
    from psworker.model.push_reports import *
    from psworker.model.tables import *
    from psworker.model.update_ops import *
    from psworker.model.variables import *
    from psworker.sessions.connection import *
    from psworker.sessions.opening import *
    from psworker.sessions.session import *
    from psworker.summaries.summary import *
    from psworker.trainer import *

#: The module of each public name, and the names that are modules themselves.
_HOMES = {
    name: module
    for module, names in {
        "pswire.messages": "EpochReport QueueStatus",
        "pswire.specs.initializers": "RowConstant RowNormal RowUniform",
        "pswire.tensors.values": "IndexedSlices",
        "psworker.autodiff": "Tensor check_gradients gradients no_grad op ops stop_gradient value_and_grad",
        "psworker.data.batch": "Batch",
        "psworker.data.dataset": "Dataset",
        "psworker.data.ragged": "Ragged",
        "psworker.data.sources": "FunctionDataset",
        "psworker.minimize.line_search": "LineSearch line_search",
        "psworker.minimize.minimizers": "LBFGS OWLQN ConjugateGradient Minimum",
        "psworker.model.gradient_transforms": "accumulate add_decayed_weights add_noise chain "
        "clip_by_global_norm clip_by_norm clip_by_value global_norm multiply per_variable scale",
        "psworker.model.model_files": "Loaded load save",
        "psworker.model.optimizers": "Adagrad AdagradDecay Adam AdamW CustomOptimizer Ftrl GradientDescent Lamb "
        "Momentum Optimizer ParameterGroups RMSProp optimize_loss",
        "psworker.model.push_reports": "PushReport",
        "psworker.model.tables": "Table",
        "psworker.model.collection": "collection discard_update_ops global_variables note_update reset "
        "set_random_seed trainable_variables update_ops variable_scope",
        "psworker.model.update_ops": "UpdateOp",
        "psworker.model.variables": "Variable",
        "psworker.sessions.connection": "Connection connect",
        "psworker.sessions.opening": "session",
        "psworker.sessions.session": "Session",
        "psworker.summaries.summary": "Summary",
        "psworker.trainer": "Trainer",
    }.items()
    for name in names.split()
}
_MODULES = ["callbacks", "data", "datasets", "errors", "initializers", "metrics", "nn", "schedules"]

__all__ = ["nn"]  # type checkers see the others as exported
__all__ += sorted({*_HOMES, *_MODULES} - {"nn"})

if not TYPE_CHECKING:  # or a type checker would take any name for one of these

    def __getattr__(name: str) -> object:
        if name == "__version__":
            found: object = import_module("importlib.metadata").version("paramserver")
        elif name in _MODULES:
            found = import_module(f"psworker.{name}")
        elif name in _HOMES:
            found = getattr(import_module(_HOMES[name]), name)
        else:
            raise import_module("psworker.familiar_names").missing("ps", name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({"__version__", "__doc__", "__name__", "__file__", "__all__", *__all__})


class _Finder:
    """Comes after all others, in `import psworker.NAME`: the error of a name without a module says which there are."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.startswith(f"{__name__}."):
            import_module("psworker.familiar_names").check_module(name)


if not any(getattr(one, "__name__", "") == "_Finder" and one.__module__ == __name__ for one in sys.meta_path):
    sys.meta_path.append(_Finder)  # once, also if this package is imported again
