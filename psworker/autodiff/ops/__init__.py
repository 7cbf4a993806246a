"""The ops: functions on tensors, arrays and numbers, each of which knows its derivative.

`from psworker import ops`, then `ops.matmul(x, W)`; a `Tensor`'s operators are these same functions. To add one: write
a function with `@op` in its family's file, name it in that file's `__all__`, and give it rows in
tests/unit/autodiff/cases_<family>.py, without which a test fails.
"""

from psworker.autodiff.ops import (
    array,
    conv,
    indexing,
    loss,
    math,
    nn,
    norm,
    operators,
    plain,
    pool,
    products,
    reductions,
    sparse,
    special,
)
from psworker.autodiff.ops.array import *  # noqa: F403
from psworker.autodiff.ops.conv import *  # noqa: F403
from psworker.autodiff.ops.indexing import *  # noqa: F403
from psworker.autodiff.ops.loss import *  # noqa: F403
from psworker.autodiff.ops.math import *  # noqa: F403
from psworker.autodiff.ops.nn import *  # noqa: F403
from psworker.autodiff.ops.norm import *  # noqa: F403
from psworker.autodiff.ops.plain import *  # noqa: F403
from psworker.autodiff.ops.pool import *  # noqa: F403
from psworker.autodiff.ops.products import *  # noqa: F403
from psworker.autodiff.ops.reductions import *  # noqa: F403
from psworker.autodiff.ops.sparse import *  # noqa: F403
from psworker.autodiff.ops.special import *  # noqa: F403
from psworker.autodiff.precise import precise

__all__ = ["precise"]
__all__ += array.__all__
__all__ += conv.__all__
__all__ += indexing.__all__
__all__ += loss.__all__
__all__ += math.__all__
__all__ += nn.__all__
__all__ += norm.__all__
__all__ += plain.__all__
__all__ += pool.__all__
__all__ += products.__all__
__all__ += reductions.__all__
__all__ += sparse.__all__
__all__ += special.__all__

operators.bind()
