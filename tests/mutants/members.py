"""Mutants of membership, deduplication, jobs and barriers."""

import math
from dataclasses import replace
from unittest.mock import patch

from pswire import messages as ms
from tests.tools.mutant_plugin import mutant, scenario, without

MEMBERSHIP = "psserver.core.members.membership:Membership"
GONE = "tests/unit/psserver/core/test_members_that_are_gone.py"
UNRELIABLE = "tests/simulation/test_unreliable_transport.py"


@mutant(
    "No message is recognized as a repeated one",
    "psserver.core.members.deduplication:is_repeated",
    f"{UNRELIABLE}::test_every_push_assign_and_example_counts_once[0-1-False]",
)
def _(original, member, message):
    original(member, message)
    return False


without(
    "No answer is recorded, so a retry is applied twice",
    f"{MEMBERSHIP}.record",
    f"{UNRELIABLE}::test_every_push_assign_and_example_counts_once[0-1-False]",
)


without("An abandoned message is applied when it arrives late", f"{MEMBERSHIP}.settle", scenario("following"))


@mutant(
    "The sequence numbers of an earlier incarnation count for the next", f"{MEMBERSHIP}.join", scenario("held_pushes")
)
def _(original, self, message, now, timeline=0):
    known = self.get(message.worker)
    member, new = original(self, message, now, timeline)
    if known is not None:
        member.settled = known.settled
    return member, new


@mutant("A new process of a worker leaves the quarantine", f"{MEMBERSHIP}.join", scenario("intervene"))
def _(original, self, message, now, timeline=0):
    member, new = original(self, message, now, timeline)
    if new:
        member.quarantined = ""
    return member, new


@mutant(
    "Incarnations of a new timeline begin at 1 again",
    f"{MEMBERSHIP}.join",
    "tests/unit/psserver/core/test_cuts.py::test_a_new_process_gets_an_incarnation_that_no_shard_can_know_from_before_going_back",
)
def _(original, self, message, now, timeline=0):
    return original(self, message, now, 0)


@mutant("A lease ends in its last moment, not after it", f"{MEMBERSHIP}.expired", scenario("incarnations"))
def _(original, self, now):
    return original(self, math.nextafter(now, math.inf))


@mutant(
    "A forgotten incarnation may join again, and repeat its pushes",
    f"{MEMBERSHIP}.check_join",
    f"{GONE}::test_the_longest_gone_are_forgotten_and_their_messages_and_joins_refused",
)
def _(original, self, message):
    with patch.object(self, "_forgotten", -1):
        original(self, message)


@mutant(
    "Any process takes over the name of a live worker",
    f"{MEMBERSHIP}.check_join",
    "tests/attacks/test_identity.py::test_a_name_that_is_live_is_for_the_same_worker_or_free_when_its_lease_has_ended",
)
def _(original, self, message):
    known = self.get(message.worker)
    original(self, message if known is None else replace(message, name_key=known.name_key))


@mutant(
    "An earlier incarnation of a live worker counts as live",
    f"{MEMBERSHIP}.is_live",
    scenario("following_earlier_lives"),
)
def _(original, self, sender):
    member = self.get(sender.worker)
    return member is not None and member.state == "live"


@mutant(
    "A worker that trains again loses its lead", "psserver.core.members.member:Progress.start", scenario("progress")
)
def _(original, self, member):
    member.clock = 0
    original(self, member)


@mutant(
    "A lost chief stays chief in its next incarnation",
    "psserver.core.members.chief:ChiefElection.replace",
    scenario("chief"),
)
def _(original, self, old, new):
    if self._chief is old:
        self._chief = new


without(
    "A worker that has met another state of a shard may join",
    "psserver.core.members.job_invariants:JobInvariants._check_states",
    scenario("lost_shard_state"),
)


@mutant(
    "The half-applied pushes of an earlier incarnation are forgotten",
    "psserver.core.members.deduplication:HalfPushes.end_incarnation",
    scenario("half_pushes"),
)
def _(original, self, member):
    counted = self._counted
    original(self, member)
    self._counted = counted


@mutant(
    "Heartbeats from before all shards went back count",
    "psserver.core.shard:OF_TIMELINES",
    "tests/unit/psserver/core/test_cuts.py::test_heartbeats_from_before_going_back_are_refused_as_their_numbers_of_cuts_are_no_longer_true",
)
def _(original):
    return tuple([one for one in original if one is not ms.Renew])


@mutant(
    "A member that went back need not join again",
    "psserver.core.shard:Shard.begin_from",
    "tests/unit/psserver/core/test_cuts.py::test_after_going_back_members_join_again_and_what_they_lost_is_counted_once",
)
def _(original, self, timeline, now, **options):
    return original(self, timeline, now, **options | {"went_back": False})


# --- jobs -------------------------------------------------------------------------------------------------------------


@mutant("The next worker continues a job that is done", "psserver.core.job.jobs:Jobs.begun_by", scenario("jobs"))
def _(original, self, message, members, state):
    return original(self, message, members, "running" if state == "done" else state)


without(
    "A worker of an earlier job takes part in the present one",
    "psserver.core.job.jobs:Jobs._check_is_present",
    scenario("jobs"),
)
