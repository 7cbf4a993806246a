"""Updates that vanish in rounding: steps smaller than half a unit in the last place of what they should change.

A float16 has 11 significant bits: to 0.5 nothing below 0.00024 can be added. With small learning rates most updates
change nothing, and the cost stays where it is although there are gradients. Servers look at some elements before and
after an update once a second (`psserver.core.variables.rounding`).

Sources: P. Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.1 (a master copy of the weights in
float32); S. Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from psjob.guard.finding import Finding
from psjob.guard.history import CONVERGED, History, learning_rate
from psjob.status.job_status import JobVariable
from pswire.optimizers import OptimizerSpec

#: Seconds that are looked at, sampled elements in them, and the part of these that must be unchanged.
SECONDS, SAMPLED, VANISHED = 5.0, 100, 0.75

#: Variables that are named.
NAMED = 3

#: The bits of a significand, with the one that is not written.
_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def findings(history: History) -> Iterator[Finding]:
    """One finding, with the worst variables."""
    since, now, cost, first = history.window(SECONDS), history.now, history.cost(), history.first
    converged = cost is not None and first is not None and 0 < cost < CONVERGED * first
    if since is None or converged:
        return
    before = {one.spec.name: one for one in since.job.variables}
    vanished: list[tuple[float, JobVariable]] = []
    for variable in now.job.variables:
        earlier = before.get(variable.spec.name)
        if earlier is None or not isinstance(variable.optimizer, OptimizerSpec):
            continue
        sampled, unchanged = variable.sampled - earlier.sampled, variable.unchanged - earlier.unchanged
        if sampled >= SAMPLED and unchanged >= VANISHED * sampled:
            vanished.append((unchanged / sampled, variable))
    if not vanished:
        return
    vanished.sort(key=lambda one: -one[0])
    named = ", ".join([f"{part:.0%} of {one.spec.name!r} ({one.spec.dtype})" for part, one in vanished[:NAMED]])
    more = f" and of {len(vanished) - NAMED} more variables" if len(vanished) > NAMED else ""
    dtype = vanished[0][1].spec.dtype
    bits = _BITS.get(dtype, 24)
    rate = learning_rate(now.job)
    wider = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}.get(dtype)
    keep = f"keep such variables in {wider}" if wider else "scale the model"
    sent = " (`--encoding bfloat16` still halves what is sent)" if dtype == "float16" else ""
    yield Finding(
        "rounding",
        "warning",
        "",
        f"updates vanish in rounding: of sampled elements with a gradient, {named}{more} stay as they are, because "
        f"steps at a learning rate of {rate:.3g} are below half a unit in the last place ({math.ldexp(1, -bits):.2g} "
        f"of an element in {dtype})",
        f"{keep}{sent}, or raise the learning rate",
        step=since.job.global_step,
    )
