"""Mutants of minimizations: portions, coordinators and sums on shards, and the methods of workers."""

from unittest.mock import patch

from tests.tools.mutant_plugin import mutant, scenario, without

PORTIONS = "psserver.core.minimization.portions:Portions"
ALL = "psserver.core.minimization.minimizations:Minimizations"
ONE = "psserver.core.minimization.minimization:Minimization"
SUMS = "psserver.core.minimization.sums:Sums"
SEARCH = "psworker.minimize.line_search"
PROPERTIES = "tests/properties/test_portions.py"
VECTORS = "tests/unit/psserver/core/test_vectors.py"
SESSIONS = "tests/integration/test_minimize.py"
DESCENT = "tests/unit/psworker/minimize/test_descent.py"
LINE = "tests/unit/psworker/minimize/test_line_search.py"


@mutant(
    "A portion that a lost worker had claimed is pushed with others",
    f"{PORTIONS}.withdraw",
    f"{PROPERTIES}::test_every_portion_is_counted_once_on_every_shard_and_every_evaluation_ends[19]",
)
def _(original, self, worker, numbers):
    with patch.object(self, "_alone", set()):
        return original(self, worker, numbers)


@mutant(
    "A portion that must be pushed alone is counted in a sum",
    f"{PORTIONS}.refusal",
    scenario("portions_of_lost_workers"),
)
def _(original, self, worker, numbers):
    with patch.object(self, "_alone", set()):
        return original(self, worker, numbers)


@mutant(
    "A portion whose answer was lost is never given again",
    f"{PORTIONS}.take",
    f"{PROPERTIES}::test_every_portion_is_counted_once_on_every_shard_and_every_evaluation_ends[17]",
)
def _(original, self, worker, holding):
    return original(self, worker, self._held.get(worker, ()))


without(
    "A portion that a lost worker had in hand is not handed out again",
    f"{PORTIONS}._give_back",
    f"{PROPERTIES}::test_every_portion_is_counted_once_on_every_shard_and_every_evaluation_ends[9]",
)


@mutant(
    "A shard counts a portion twice", "psserver.core.minimization.sums:Sums._refusal", scenario("portions_dropped_sums")
)
def _(original, self, one, worker, portions):
    with patch.object(one, "counted", set()):
        return original(self, one, worker, portions)


@mutant(
    "A worker that is not the chief becomes coordinator",
    f"{ALL}._check_coordinator",
    scenario("portions_coordinators"),
)
def _(original, self, name, sender, term):
    with patch.object(self, "_hands_out", False):
        original(self, name, sender, term)


without(
    "The coordinator of an earlier term goes on",
    f"{ONE}.check_coordinator",
    scenario("portions_coordinators"),
)


without(
    "An evaluation goes on after the shards went back",
    f"{ONE}.give_up",
    f"{VECTORS}::test_a_cut_in_the_middle_of_an_evaluation_has_its_sums_and_what_was_made_of_them",
)


@mutant(
    "Sums of vectors have no compensation",
    "psserver.core.minimization.vector_operations:CompensatedSum.add",
    f"{VECTORS}::test_results_do_not_depend_on_how_a_vector_is_distributed",
)
def _(original, self, terms):
    original(self, terms)
    self._errors[:] = 0


# --- workers ----------------------------------------------------------------------------------------------------------


@mutant(
    "The weights of a portion are those of the evaluation before",
    "psworker.sessions.claimed_portions:ClaimedPortions.begin",
    f"{SESSIONS}::test_the_minimum_is_that_of_the_linear_system[L-BFGS-embedded]",
)
def _(original, self, evaluation):
    original(self, evaluation)
    return False


@mutant(
    "An accepted point replaces the one before at once",
    "psworker.minimize.shard_space:ShardSpace.save",
    f"{SESSIONS}::test_the_minimum_is_that_of_the_linear_system[L-BFGS-embedded]",
)
def _(original, self, data):
    with patch.object(self, "_buffer", 1 - self._buffer):
        original(self, data)


@mutant(
    "A step after which the function is not flat is taken",
    f"{SEARCH}:_Search._is_flat",
    f"{LINE}::test_a_step_satisfies_the_strong_wolfe_conditions_wherever_the_search_begins",
)
def _(original, self, point):
    return abs(point.slope) <= -2 * self._curvature * self._start.slope


@mutant(
    "The matrix of L-BFGS has no scale",
    "psworker.minimize.lbfgs:LBFGS._add",
    f"{DESCENT}::test_the_minimum_of_rosenbrocks_function_is_found_through_its_valley",
)
def _(original, self, number, product, square):
    original(self, number, product, product)


@mutant(
    "OWL-QN goes up where the loss with the 1-norm increases",
    "psworker.minimize.owlqn:OWLQN.measure",
    f"{SESSIONS}::test_owlqn_finds_the_soft_threshold_and_exact_zeros",
)
def _(original, self):
    with patch.object(self, "_l1", 0.0):
        return original(self)
