"""Mutants of a worker's calls: retries, exactly-once pushes, cuts, recovery, compression and strategies."""

import itertools
import os
from dataclasses import replace
from unittest.mock import patch

from tests.tools.mutant_plugin import mutant, without

CALLS = "psworker.client.retry:Calls"
MEMBERSHIP = "psworker.client.membership:WorkerMembership"
PUSH = "psworker.client.push_pull:ShardedPush"
CLIENT_CLASS = "psworker.client.client:Client"
NUMBERS_CLASS = "psworker.client.cut_numbers:CutNumbers"
ENCODER = "psworker.client.error_feedback:GradientEncoder"
UNIT = "tests/unit/psworker/client"
CLIENT, RETRIES, NUMBERS = f"{UNIT}/test_client.py", f"{UNIT}/test_retry.py", f"{UNIT}/test_cut_numbers.py"
ROLLBACK, FEEDBACK, PLACEMENT = (
    f"{UNIT}/test_rollback.py",
    f"{UNIT}/test_error_feedback.py",
    f"{UNIT}/test_partitions.py",
)
STRATEGIES = "tests/integration/test_strategies.py"
TRANSPORT = "tests/unit/psworker/transport/test_network_transport.py"


@mutant(
    "A client that leaves goes on trying",
    f"{CALLS}._answer",
    f"{RETRIES}::test_a_call_whose_last_try_was_long_has_the_reason_of_that_try",
)
def _(original, self, *args):
    with patch.object(self.closing, "is_set", return_value=False):
        return original(self, *args)


@mutant(
    "A message is sent again with versions from before a rejoin",
    f"{MEMBERSHIP}.current",
    f"{CLIENT}::test_no_version_from_before_is_named_to_a_shard_that_was_joined_again_also_if_its_answer_was_lost",
)
def _(original, self, message, rejoins):
    return message


@mutant(
    "An error of one shard is raised while calls of others are open",
    f"{CALLS}.results",
    f"{CLIENT}::test_a_refusal_by_one_shard_is_raised_when_no_call_is_open_any_more",
)
def _(original, self, sent, kind, failed=None):
    return [future.result() for future in sent.values()]


without(
    "Other workers wait for a part that a shard refused",
    f"{CALLS}.abandon",
    f"{CLIENT}::test_a_refusal_by_one_shard_is_raised_when_no_call_is_open_any_more",
)


@mutant(
    "An abandoned push is not reported again to a shard that missed it",
    f"{CALLS}.abandon",
    f"{CLIENT}::test_an_abandoned_push_is_reported_before_the_next_change",
)
def _(original, self, shards, sequence):
    original(self, shards, sequence)
    self.membership.abandoned.clear()


@mutant(
    "A shard does not wait for what shard 0 decided before",
    f"{MEMBERSHIP}.in_order",
    f"{CLIENT}::test_values_of_other_shards_have_all_that_shard_0_had_decided",
)
def _(original, self, messages):
    return {shard: message for shard, message in messages.items() if shard}


without(
    "A half-applied push is not reported",
    f"{MEMBERSHIP}.report_half_push",
    "tests/unit/psserver/core/test_half_pushes.py::test_a_worker_reports_a_push_that_one_shard_refused_and_not_all_and_it_counts_once",
)


@mutant(
    "Heartbeats do not report half-applied pushes",
    f"{MEMBERSHIP}.renewal",
    f"{RETRIES}::test_heartbeats_report_the_workers_state_and_new_reasons_of_a_held_push_are_logged_and_the_last_is_kept",
)
def _(original, self, shard, sequence, *, idle=False):
    return replace(original(self, shard, sequence, idle=idle), half_pushes=0)


@mutant(
    "A message from before all shards went back is carried out",
    "psworker.client.joining:_join_all",
    f"{ROLLBACK}::test_a_message_from_before_that_arrives_late_is_refused",
)
def _(original, calls, settled):
    return original(calls, 0)


@mutant(
    "A push whose answer is lost hides one that is lost later",
    "psworker.client.joining:join_again",
    f"{ROLLBACK}::test_a_push_whose_answer_did_not_arrive_hides_none_that_is_lost_later",
)
def _(original, calls, timeline, cut):
    steps = calls.membership.steps
    answers = original(calls, timeline, cut)
    calls.membership.steps = steps
    return answers


@mutant(
    "A fork of a worker leaves the job for it",
    f"{CLIENT_CLASS}.leave",
    f"{CLIENT}::test_a_fork_of_a_worker_does_not_leave_for_its_parent",
)
def _(original, self, *, failed=False):
    self._process = os.getpid()
    original(self, failed=failed)


@mutant(
    "Gradients of weights from before the shards went back are pushed",
    f"{CLIENT_CLASS}._is_outdated",
    f"{ROLLBACK}::test_a_gradient_of_weights_from_before_is_dropped_without_being_sent",
)
def _(original, self, gradients, progress):
    return False


@mutant(
    "A block from before the shards went back is finished",
    "psworker.client.blocks:Blocks.has",
    f"{ROLLBACK}::test_a_take_from_before_the_shards_went_back_arrives_too_late_to_finish_a_block_that_is_trained_again",
)
def _(original, self, queue):
    return True


@mutant(
    "The shards go back to a cut that only some of them have",
    "psworker.client.rollback:common_cut",
    f"{ROLLBACK}::test_all_shards_go_back_to_the_newest_timeline_that_is_in_force_or_else_to_the_newest_common_cut",
)
def _(original, answers):
    timeline, cut = original(answers)
    return timeline, max([cut, *[number for one in answers for number in one.cuts]])


@mutant(
    "The parts of a decided push carry the number that the worker knew",
    f"{PUSH}._following",
    f"{NUMBERS}::test_where_shard_0_decides_the_parts_of_a_push_carry_its_number_at_the_decision",
)
def _(original, self, messages, decision, pull):
    return original(self, messages, replace(decision, cut=messages[0].cut), pull)


@mutant(
    "The values of a push that shard 0 drops are not pulled from others",
    f"{PUSH}._following",
    f"{CLIENT}::test_a_push_that_shard_0_drops_reaches_no_other_and_brings_their_values",
)
def _(original, self, messages, decision, pull):
    following = original(self, messages, decision, pull)
    return {shard: one for shard, one in following.items() if type(one) is type(messages[shard])}


@mutant(
    "A signal between the decision of shard 0 and the others leaves a push on shard 0 alone",
    f"{PUSH}.result",
    f"{CLIENT}::test_a_push_that_is_cut_short_on_one_shard_when_the_process_ends_is_on_all_shards_or_none",
)
def _(original, self, sent, messages, pull):
    return self._decided(sent, messages, pull) if self.decides else self._answered(sent, messages, pull)


@mutant(
    "A heartbeat shows a cut that an open change precedes",
    f"{NUMBERS_CLASS}.to_show",
    f"{NUMBERS}::test_a_heartbeat_shows_the_newest_number_but_while_a_change_is_open_the_one_that_it_carries",
)
def _(original, self):
    return self.newest


without("A cut waits for a push that the policy holds", f"{NUMBERS_CLASS}.note_held_push", NUMBERS)


@mutant("The number of a cut from before the shards went back is shown", f"{NUMBERS_CLASS}.note", RETRIES)
def _(original, self, number, resets=None):
    original(self, number)


@mutant(
    "Rows of several shards are put together in the wrong places",
    "psworker.client.partitions:PlacedVariable.split_rows",
    f"{PLACEMENT}::test_values_gradients_and_rows_are_split_and_joined_in_the_order_asked_for",
)
def _(original, self, rows):
    parts, _ = original(self, rows)
    ends = itertools.accumulate(map(len, parts), initial=0)
    return parts, [slice(start, stop) for start, stop in itertools.pairwise(ends)]


# --- compression ------------------------------------------------------------------------------------------------------


@mutant(
    "A compressed gradient forgets what earlier ones have left out",
    f"{ENCODER}._compressed",
    f"{FEEDBACK}::test_all_that_was_sent_is_in_the_end_the_sum_of_the_gradients",
)
def _(original, self, key, array):
    self._residuals.clear()
    return original(self, key, array)


@mutant(
    "What is left out of one part of a variable goes into another",
    f"{ENCODER}._compressed",
    f"{FEEDBACK}::test_all_that_was_sent_is_in_the_end_the_sum_of_the_gradients",
)
def _(original, self, key, array):
    return original(self, (0, key[1]), array)


# --- transport --------------------------------------------------------------------------------------------------------


@mutant(
    "A segment is free while a value lies in it",
    "psworker.transport.shared_memory:AnswerReceiver.close",
    f"{TRANSPORT}::test_values_stay_as_they_are_for_as_long_as_they_are_used",
)
def _(original, self):
    self._roots.clear()
    original(self)


# --- strategies -------------------------------------------------------------------------------------------------------


@mutant(
    "A sum of gradients has the versions of the last one",
    "psworker.sessions.strategies.downpour:StepSum.add",
    f"{STRATEGIES}::test_a_push_of_several_steps_is_as_stale_as_the_first_of_them",
)
def _(original, self, step):
    self._reads.clear()
    original(self, step)


@mutant(
    "A push names examples whose gradients another sum still has",
    "psworker.sessions.strategies.downpour:Downpour._pushed",
    "tests/integration/test_examples_once.py::test_with_two_sums_a_push_names_no_examples_whose_gradients_the_other_sum_has_still",
)
def _(original, self):
    with patch.object(self, "_sums", {}):
        return original(self)
