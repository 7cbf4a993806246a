"""The span of a push in a worker: from the encoding of its gradients to the fresh weights, and its parts."""

from collections.abc import Callable

from psjob.tracing.tracing import Tracing
from psworker.client.push_pull import PushResult
from psworker.transport import Future


def traced_push(
    tracing: Tracing, push: Callable[[], Future[PushResult]], **attributes: str | int
) -> Future[PushResult]:
    """A push that is the root of a trace; its calls find the span in `psjob.tracing.tracing.current`.

    A push has no span if it is not sampled, or if its result is never read.
    """
    span = tracing.begin("push")
    if span is None:
        return push()
    span.set(**attributes)
    with span.active():
        sent = push()

    def result() -> PushResult:
        with span.active(ends=True):
            pushed = sent.result()
            span.set(outcome=pushed.outcome.name.lower(), staleness=pushed.staleness, global_step=pushed.global_step)
            return pushed

    return Future(result)
