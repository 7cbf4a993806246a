"""Mutants of pending calls, policies and the order of changes over shards."""

from dataclasses import replace
from unittest.mock import patch

from psserver.core.policies.policy import Apply
from pswire import messages as ms
from tests.tools.mutant_plugin import mutant, scenario, without

PENDING = "psserver.core.updates.pending_calls:PendingCalls"
CALLS = "psserver.core.updates.update_calls:UpdateCalls"
UPDATES = "psserver.core.updates.updates:Updates"
ORDER = "psserver.core.policies.update_order:UpdateOrder"
POLICIES = "tests/unit/psserver/core/test_status_and_policies.py"
UNRELIABLE = "tests/simulation/test_unreliable_transport.py"
CLIENT = "tests/unit/psworker/client/test_client.py"


@mutant(
    "Of a push with weights of other shards those of shard 0 have no staleness",
    "psserver.core.updates.staleness:Staleness._computed",
    scenario("order_staleness"),
)
def _(original, self, push):
    return self._order.staleness(push.remote) if self._order and push.remote else original(self, push)


@mutant("A dropped push does not advance its worker's clock", f"{UPDATES}.drop", scenario("bounded_first_push"))
def _(original, self, call, reason, result):
    original(self, call, reason, result)
    call.member.clock -= 1


without("A part that arrives after others went on without it is applied", f"{UPDATES}.pass_over", scenario("following"))


@mutant("An abandoned part is waited for", f"{UPDATES}.settle", scenario("following_second_loop"))
def _(original, self, member, sequence):
    with patch.object(self._members, "settle"):
        original(self, member, sequence)


@mutant(
    "A held push settles an older number after an empty push",
    f"{CALLS}._push",
    scenario("empty_pushes"),
)
def _(original, self, call, result):
    with patch.object(self._pending, "abandon"):
        original(self, call, result)


without("A tune leaves a held push of its worker", f"{PENDING}.abandon", scenario("tune_held"))


@mutant(
    "A push of a worker in quarantine is applied",
    f"{CALLS}._push",
    scenario("intervene"),
)
def _(original, self, call, result):
    with patch.object(call.member, "quarantined", ""):
        original(self, call, result)


@mutant(
    "A push waits for changes that have no part on its shard",
    "psserver.core.updates.remote_decisions:RemoteDecisions._with_parts_here",
    f"{CLIENT}::test_a_shard_waits_for_changes_that_are_made_there_and_for_no_others",
)
def _(original, self, changes):
    return tuple([ms.ChangeId(change.sender, change.sequence) for change in changes])


@mutant(
    "A push is computed under guard beside earlier array tasks",
    "psserver.core.shard:Shard.step",
    scenario("checked_group"),
)
def _(original, self, ticket, message, now, **options):
    return original(self, ticket, message, now, **options | {"settled": True})


# --- policies ---------------------------------------------------------------------------------------------------------


@mutant(
    "With bounded staleness the pushes of all slowest workers are not applied together",
    "psserver.core.policies.bounded_staleness:BoundedStaleness.decide",
    scenario("barrier"),
)
def _(original, self, pushes, shard):
    floor = shard.members.progress.least_clock + self.spec.steps
    return [Apply((push.ticket,)) for push in pushes if shard.members[push.worker].clock < floor]


@mutant(
    "At the end of the data a synchronous update has more gradients than N",
    "psserver.core.policies.synchronous:Synchronous._needed",
    scenario("synchronous_end"),
)
def _(original, self, shard):
    progress = shard.members.progress
    return max(1, len(progress.training)) if progress.ending else original(self, shard)


@mutant(
    "A group waits for a member whose part is settled",
    "psserver.core.policies.follower:_missing",
    scenario("following"),
)
def _(original, group, parts, shard):
    return original(group, parts, replace(shard, settled=lambda change: False))


@mutant(
    "A shard that follows applies each push of a group by itself",
    "psserver.core.policies.follower:Follower.decide",
    f"{UNRELIABLE}::test_held_and_dropped_pushes_count_once_too_and_none_has_more_staleness_than_promised[0-sync:2,backup=1-drop:3-0-2]",
)
def _(original, self, pushes, shard):
    return [Apply((ticket,)) for one in original(self, pushes, shard) for ticket in one.tickets]


@mutant("A change waits on other shards for itself", f"{ORDER}.add", scenario("empty_pushes"))
def _(original, self, messages, names):
    original(self, messages, names)
    return self.frontier()


without("Weights may be newer than all that shard 0 has decided", f"{ORDER}.check", scenario("order_over_shards"))
