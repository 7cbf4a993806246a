"""The functions of a training step that are timed, by phase, and their replacement while a program is profiled.

Nothing of a step asks for a profile: without one, all functions are as they are defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from psworker.autodiff.tape import Result, wrapped_ops
from psworker.client.blocks import Blocks
from psworker.client.client import Client
from psworker.client.push_pull import ShardedPull, ShardedPush
from psworker.client.retry import Calls
from psworker.model.optimizers import Optimizer
from psworker.profiling.spans import PROGRAM, Spans
from psworker.sessions.data_loop import DataLoop
from psworker.sessions.replica import Replica
from psworker.sessions.session import Session
from psworker.sessions.strategies.local_steps import LocalSteps
from psworker.transport.embedded import EmbeddedTransport

DATA, FORWARD, BACKWARD, PUSH = "take data", "forward", "backward", "encode and push"
SERVER, WAIT, WEIGHTS, EVALUATION = "embedded shard", "wait for servers", "apply weights", "evaluate"

#: All phases in the order of a step; `PROGRAM` is what is in none of the timed functions.
PHASES = (DATA, FORWARD, BACKWARD, PUSH, SERVER, WAIT, WEIGHTS, EVALUATION, PROGRAM)

#: The methods that are timed: class, name, phase ("": that of the caller), and what is shown in it.
TIMED: tuple[tuple[type, str, str, str], ...] = (
    (DataLoop, "prepare", DATA, "make the batch"),
    (Blocks, "take", DATA, "take a block"),
    (Optimizer, "compute_gradients", BACKWARD, "tape"),
    (Optimizer, "apply_gradients", PUSH, "transforms and checks"),
    (Session, "push", PUSH, "names and losses"),
    (Client, "push", PUSH, "messages and versions"),
    (ShardedPush, "messages", PUSH, "split and encode"),
    (Calls, "send", "", "send"),
    (EmbeddedTransport, "call", SERVER, "update"),
    (Calls, "results", WAIT, "wait and decode"),
    (ShardedPull, "joined", WEIGHTS, "join partitions"),
    (Replica, "_take", WEIGHTS, "set variables"),
    (LocalSteps, "_apply", WEIGHTS, "local update"),
    (Session, "step_outside", WEIGHTS, "local step"),
    (Session, "evaluate", EVALUATION, "other"),
)

#: The methods with which a step ends: of programs, and of the layer for PyTorch.
ENDS = (Optimizer, "apply_gradients"), (Session, "push"), (Session, "step_outside")


@contextmanager
def timed_phases(spans: Spans, after_step: Callable[[], None]) -> Iterator[None]:
    """Within the block the functions of a step are timed; `after_step` is called after each of `ENDS`."""
    with ExitStack() as stack:
        stack.enter_context(wrapped_ops(lambda function, name: _timed_op(spans, function, name)))
        for owner, name, phase, shown in TIMED:
            stack.enter_context(_replaced(owner, name, spans.timed(vars(owner)[name], phase, shown)))
        for owner, name in ENDS:
            stack.enter_context(_replaced(owner, name, _followed(vars(owner)[name], spans, after_step)))
        yield


def _timed_op(spans: Spans, function: Callable[..., Result], name: str) -> Callable[..., Result]:
    """The function of an op, timed, and so its vjps; in an evaluation it is of that phase."""
    forward = spans.timed(function, FORWARD, name, {EVALUATION: EVALUATION})

    @wraps(function)
    def timed(*args: Any, **constants: Any) -> Result:  # noqa: ANN401 - of the op
        value, vjps = forward(*args, **constants)
        return value, [spans.bare(vjp, BACKWARD, name) for vjp in vjps]

    return timed


def _followed(method: Callable[..., Any], spans: Spans, after_step: Callable[[], None]) -> Callable[..., Any]:
    """The method, followed by `after_step` unless another one that is timed has called it."""

    @wraps(method)
    def followed(*args: Any, **constants: Any) -> Any:  # noqa: ANN401 - as the method
        report = method(*args, **constants)
        if not spans.is_within:
            after_step()
        return report

    return followed


@contextmanager
def _replaced(owner: type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)
