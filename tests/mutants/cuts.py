"""Mutants of cuts and late changes."""

from dataclasses import replace
from unittest.mock import patch

from psserver.core.variables.array_tasks import StepResult
from pswire import messages as ms
from tests.tools.mutant_plugin import mutant

CUTS = "psserver.core.cuts:Cuts"
TESTS = "tests/unit/psserver/core/test_cuts.py"


@mutant("The values of a generation lack the late changes", "psserver.core.shard:Shard._apply_late", TESTS)
def _(original, self, cut, result):
    with patch.object(cut, "late", []):
        original(self, cut, result)


@mutant("Late changes wait for changes that the cut does not have", "psserver.core.cuts:_owned", TESTS)
def _(original, change, snapshot):
    owned = original(change, snapshot)
    return replace(owned, after=change.after) if isinstance(change, ms.Push | ms.Assign) else owned


@mutant("Late gradients keep versions that the cut does not have", "psserver.core.cuts:_owned", TESTS)
def _(original, change, snapshot):
    owned = original(change, snapshot)
    if not isinstance(change, ms.Push):
        return owned
    pairs = zip(owned.gradients, change.gradients, strict=True)
    return replace(owned, gradients=tuple([replace(one, version=before.version) for one, before in pairs]))


@mutant("A change of an older number is not kept in the cut", f"{CUTS}.keep_late", TESTS)
def _(original, self, change):
    pass


@mutant("Late pushes that wait for a lost worker are left out", "psserver.core.shard:Shard.end_late", TESTS)
def _(original, self, now):
    self._minimizations.end_late()
    return StepResult()


@mutant("A cut is complete before all workers have shown its number", f"{CUTS}.begin", TESTS)
def _(original, self, *args):
    cut = original(self, *args)
    self.leave(list(cut.missing))
    return cut


@mutant("An earlier incarnation shows the number of a cut", f"{CUTS}.show", TESTS)
def _(original, self, member, number):
    if self.current is not None:
        self.leave([member.name])


@mutant("A shard takes its snapshot after a change of a newer number", "psserver.core.shard:Shard._begin_cut", TESTS)
def _(original, self, number, result, **options):
    self.cuts.skip(number)


@mutant("A cut has no vectors", "psserver.core.cuts:VariableCopy._run", "tests/unit/psserver/core/test_vectors.py")
def _(original, self):
    with patch.object(self.variable, "vectors", {}):
        original(self)


@mutant("A held cut is dropped when another worker releases it", f"{CUTS}.release", TESTS)
def _(original, self, workers):
    if self.current is not None:
        self.current.holders = set()
        self.end_if_idle()
