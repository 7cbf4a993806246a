"""Mutants of cuts and late changes."""

from dataclasses import replace
from unittest.mock import patch

from pswire import messages as ms
from tests.tools.mutant_plugin import mutant, scenario, without

CUTS = "psserver.core.cuts.cuts:Cuts"
TESTS = "tests/unit/psserver/core/test_cuts.py"


@mutant(
    "The values of a generation lack the late changes",
    "psserver.core.shard:Shard._apply_late",
    scenario("cuts"),
)
def _(original, self, cut, result):
    with patch.object(cut, "late", []):
        original(self, cut, result)


@mutant(
    "Late changes wait for changes that the cut does not have",
    "psserver.core.cuts.late_changes:owned",
    scenario("cuts"),
)
def _(original, change, version_of):
    owned = original(change, version_of)
    return replace(owned, after=change.after) if isinstance(change, ms.Push | ms.Assign) else owned


@mutant(
    "Late gradients keep versions that the cut does not have",
    "psserver.core.cuts.late_changes:owned",
    scenario("cuts"),
)
def _(original, change, version_of):
    owned = original(change, version_of)
    if not isinstance(change, ms.Push):
        return owned
    pairs = zip(owned.gradients, change.gradients, strict=True)
    return replace(owned, gradients=tuple([replace(one, version=before.version) for one, before in pairs]))


without(
    "A change of an older number is not kept in the cut",
    f"{CUTS}.keep_late",
    f"{TESTS}::test_a_cut_whose_late_changes_have_no_memory_is_given_up_and_the_next_one_is_complete",
)


@mutant(
    "Late pushes that wait for a lost worker are left out",
    "psserver.core.updates.pending_calls:PendingCalls.gone_at_cut",
    scenario("cuts"),
)
def _(original, self):
    return ()


@mutant(
    "A cut is complete before all workers have shown its number",
    f"{CUTS}.begin",
    f"{TESTS}::test_a_cut_whose_late_changes_have_no_memory_is_given_up_and_the_next_one_is_complete",
)
def _(original, self, *args, **options):
    original(self, *args, **options)
    self.leave(list(self.current.missing if self.current else ()))


@mutant(
    "A shard takes its snapshot after a change of a newer number",
    "psserver.core.cuts.cuts:Cuts.begin",
    f"{TESTS}::test_a_cut_whose_late_changes_have_no_memory_is_given_up_and_the_next_one_is_complete",
)
def _(original, self, number, result, **options):
    self.skip(number)


@mutant(
    "A cut has no vectors",
    "psserver.core.cuts.shard_cut:VariableCopy._run",
    "tests/unit/psserver/core/test_vectors.py::test_a_cut_has_the_vectors_of_its_moment",
)
def _(original, self):
    with patch.object(self.variable, "vectors", {}):
        original(self)


@mutant(
    "A held cut is dropped when another worker releases it",
    f"{CUTS}.release",
    scenario("cuts"),
)
def _(original, self, workers):
    if self.current is not None:
        self.current.holders = set()
        self.end_if_idle()
