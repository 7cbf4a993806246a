"""A shard by its options as arguments."""

from typing import Any

from psserver.core.options import ShardOptions
from psserver.core.policies.policy import Policy
from psserver.core.shard import Shard


def new_shard(
    *options: Any, policy: Policy | None = None, identity: int = 0, stores_cuts: bool = False, **named: Any
) -> Shard:
    """A shard with these options, in the order of `ShardOptions` or by name."""
    return Shard(ShardOptions(*options, **named), policy=policy, identity=identity, stores_cuts=stores_cuts)
