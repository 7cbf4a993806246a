"""The options of a shard, which are the same from its beginning to its end, and after a restore."""

from dataclasses import dataclass

from psserver.core.policies import policy_for
from psserver.core.policies.gradient_norm import RejectLargeGradients
from psserver.core.policies.policy import Policy
from pswire.messages import ShardState
from pswire.specs.consistency import (
    Aggregate,
    Asynchronous,
    Consistency,
    DelayCompensation,
    IgnoreStaleness,
    Mean,
    StalenessSpec,
    Synchronous,
    parse_consistency,
    parse_staleness,
)
from pswire.specs.gradient_norm import GradientNormLimit, parse_gradient_norm


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """The options of a shard.

    Args:
        shard, shards: index among the shards of the job, from 0, and their number.
        lease: seconds of silence after which a worker is lost.
        memory_limit: bytes that values and slots may take; None: no limit.
        consistency, staleness: when pushes are applied, and what becomes of stale ones.
        one_job: whether it serves one job only (`Membership`).
        progress_timeout: seconds that others wait for the push of a member at most; None: as long as it is live.
        max_workers: live at a time; None: any number.
        max_gradient_norm: the limit of the gradients of a push, on this shard, and what is done with larger ones.
    """

    shard: int = 0
    shards: int = 1
    lease: float = 15.0
    memory_limit: int | None = None
    consistency: Consistency = Asynchronous()  # noqa: RUF009 - frozen
    staleness: StalenessSpec = IgnoreStaleness()  # noqa: RUF009
    one_job: bool = False
    progress_timeout: float | None = None
    max_workers: int | None = None
    max_gradient_norm: GradientNormLimit | None = None

    @classmethod
    def of_state(cls, state: ShardState) -> "ShardOptions":
        """Those of the shard that has written a state, as far as the state has them: without limits of its process."""
        return cls(
            shard=state.shard,
            shards=state.shards,
            consistency=parse_consistency(state.consistency),
            staleness=parse_staleness(state.handling),
            max_gradient_norm=parse_gradient_norm(state.max_gradient_norm),
        )

    @property
    def policy(self) -> Policy:
        """The consistency policy."""
        policy, limit = policy_for(self.consistency, self.staleness, self.shard, self.shards), self.max_gradient_norm
        return policy if limit is None or limit.action != "reject" else RejectLargeGradients(policy, limit)

    @property
    def decides(self) -> bool:
        """Whether shard 0 decides about pushes on all shards."""
        return self.consistency.decides or self.staleness.decides

    @property
    def follows(self) -> bool:
        """Whether shard 0 decides about the pushes of this other shard."""
        return bool(self.shard) and self.decides

    @property
    def orders(self) -> bool:
        """Whether this shard decides the order of changes on all shards."""
        return not self.shard and self.shards > 1 and (self.consistency.orders or self.staleness.orders)

    @property
    def strength(self) -> float:
        """That of the delay compensation; 0: there is none."""
        return self.staleness.strength if isinstance(self.staleness, DelayCompensation) else 0.0

    @property
    def aggregate(self) -> Aggregate:
        """How the gradients of several pushes become one."""
        return self.consistency.aggregate if isinstance(self.consistency, Synchronous) else Mean()

    @property
    def limit_text(self) -> str:
        """The limit of gradients as text; "": none."""
        return "" if self.max_gradient_norm is None else str(self.max_gradient_norm)

    def differences(self, state: ShardState) -> str:
        """What a state of another shard, or of one with other options, has in place of these; "": it has the same."""
        mine = self.shard, self.shards, str(self.consistency), str(self.staleness), self.limit_text or "off"
        limit = state.max_gradient_norm or "off"
        theirs = state.shard, state.shards, state.consistency, state.handling, limit
        text = "shard {} of {} with --consistency {} --staleness {} --max-gradient-norm {}"
        return "" if mine == theirs else f"the state is of {text.format(*theirs)}, and this is {text.format(*mine)}"
