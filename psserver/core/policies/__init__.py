"""Consistency policies: which workers may continue, and whose gradients count. One policy per file, found by its spec.

To add one: its spec, with meaning and source, in `pswire/specs/consistency.py`; `policies/<name>.py` with a pure class
that is a `Policy`; a row in `POLICIES` here, or in `STALENESS_POLICIES` if it handles staleness; a scenario in
`tests/scenarios/`. May import pswire's pure half and the membership.
"""

from collections.abc import Callable
from typing import Any

from psserver.core.policies.asynchronous import Asynchronous
from psserver.core.policies.bounded_staleness import BoundedStaleness
from psserver.core.policies.follower import Follower
from psserver.core.policies.policy import Policy
from psserver.core.policies.stale_pushes import DropStale, ScaleStale
from psserver.core.policies.synchronous import Synchronous
from pswire.specs import consistency
from pswire.specs.consistency import Consistency, StalenessSpec

#: The policy of each kind of consistency.
POLICIES: dict[type[Consistency], Callable[[Any], Policy]] = {
    consistency.Asynchronous: lambda spec: Asynchronous(),
    consistency.Bounded: BoundedStaleness,
    consistency.Synchronous: Synchronous,
}

#: The policy around another for each handling of staleness. Delay compensation changes gradients, and no decisions.
STALENESS_POLICIES: dict[type[StalenessSpec], Callable[[Any, Policy], Policy]] = {
    consistency.IgnoreStaleness: lambda spec, policy: policy,
    consistency.ScaleByStaleness: lambda spec, policy: ScaleStale(policy),
    consistency.DelayCompensation: lambda spec, policy: policy,
    consistency.DropStalePushes: lambda spec, policy: DropStale(policy, spec.above),
}

_unmatched = (POLICIES.keys() ^ set(consistency.CONSISTENCIES)) | (
    STALENESS_POLICIES.keys() ^ set(consistency.STALENESSES)
)
if _unmatched:
    names = ", ".join(sorted(spec.__name__ for spec in _unmatched))
    raise ImportError(f"every spec needs a policy and every policy a spec, but {names} has only one of them")


def policy_for(consistency: Consistency, staleness: StalenessSpec, shard: int, shards: int) -> Policy:
    """The policy of one of `shards` shards: if one must decide for all, shard 0 does, and the others follow."""
    if shard == 0 or not (consistency.decides or staleness.decides):
        return STALENESS_POLICIES[type(staleness)](staleness, POLICIES[type(consistency)](consistency))
    return Follower() if staleness.decides else STALENESS_POLICIES[type(staleness)](staleness, Follower())
