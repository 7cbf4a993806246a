"""The ops: functions on tensors, arrays and numbers, each of which knows its derivative.

`from psworker import ops`, then `ops.matmul(x, W)`; a `Tensor`'s operators are these same functions. To add one: write
a function with `@op` in its family's file (math, array, nn, loss), name it in that file's `__all__`, and give it rows
in tests/unit/autodiff/cases.py, without which a test fails.
"""

from psworker.autodiff.ops import array, loss, math, nn, operators
from psworker.autodiff.ops.array import *  # noqa: F403
from psworker.autodiff.ops.loss import *  # noqa: F403
from psworker.autodiff.ops.math import *  # noqa: F403
from psworker.autodiff.ops.nn import *  # noqa: F403

__all__: list[str] = []
__all__ += array.__all__
__all__ += loss.__all__
__all__ += math.__all__
__all__ += nn.__all__

operators.bind()
