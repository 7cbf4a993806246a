"""Interactive interpreters, where a cell or line that runs again makes its variables again.

Scripts do not: a name made twice there is a mistake. May import the engine.
"""

import sys
from collections.abc import Iterator

from pswire.errors import ConfigurationError
from psworker.autodiff import Tensor
from psworker.autodiff.tensor import Edge


def is_interactive() -> bool:
    """True if the program is typed: in Jupyter, IPython, or at Python's prompt, which all set `sys.ps1`."""
    return hasattr(sys, "ps1")


class DetachedEdges(tuple[Edge, ...]):
    """The edges of a variable that was removed from its collection: a backward pass that reaches them raises.

    Without them the pass would take the loss for one that does not depend on the present variables.
    """

    reason: str

    def __iter__(self) -> Iterator[Edge]:
        raise ConfigurationError(
            f"a gradient is requested of what was computed with {self.reason}: run the code that makes the model again"
        )


def detach(variable: Tensor, reason: str) -> None:
    """Makes backward passes that reach the variable raise `ConfigurationError` with a noun phrase as `reason`."""
    if variable._node is not None:
        variable._node.edges = edges = DetachedEdges()
        edges.reason = reason


def attach(variable: Tensor) -> None:
    """Undoes `detach`."""
    if variable._node is not None:
        variable._node.edges = ()
