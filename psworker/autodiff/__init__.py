"""Define-by-run reverse-mode automatic differentiation over numpy arrays, usable without any server.

    x = Tensor(np.float32([1, 2, 3]), requires_grad=True)
    loss = ops.sum(ops.square(x))
    [gradient] = gradients(loss, x)      # array([2., 4., 6.], dtype=float32)

Imports numpy and pure parts of pswire only.
"""

from psworker.autodiff import ops
from psworker.autodiff.functional import value_and_grad
from psworker.autodiff.gradient_check import check_gradients
from psworker.autodiff.tape import gradients, no_grad, op, stop_gradient
from psworker.autodiff.tensor import Tensor

__all__ = ["Tensor", "check_gradients", "gradients", "no_grad", "op", "ops", "stop_gradient"]
__all__ += ["value_and_grad"]
