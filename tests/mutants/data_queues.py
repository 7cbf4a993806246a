"""Mutants of data queues on shard 0, of a worker's loop over examples, and of `ps.data.Queue`."""

import contextlib
import heapq
from unittest.mock import patch

from pswire.errors import Unavailable
from tests.tools.mutant_plugin import mutant, scenario, without

QUEUE = "psserver.core.data.data_queue:DataQueue"
QUEUES = "psserver.core.data.data_queues:DataQueues"
AHEAD = "psworker.data.queue:_Prefetching"
GROWTH = "tests/unit/psserver/core/test_growth_of_a_job.py"
UNIT = "tests/unit/psserver/core/test_data_queue.py"
ITEMS = "tests/unit/psworker/data/test_queue.py"


@mutant("A returned block is handed out after the new ones", f"{QUEUE}.take", scenario("block_progress"))
def _(original, self, worker, result):
    if self._handed_out == self._end:
        return original(self, worker, result)
    with patch.object(self, "_returned", []):
        return original(self, worker, result)


@mutant(
    "The holders of blocks are forgotten",
    f"{QUEUE}.take",
    "tests/simulation/test_unreliable_transport.py::test_every_push_assign_and_example_counts_once[0-1-False]",
)
def _(original, self, worker, result):
    if worker not in self._out:
        self._out.clear()
    return original(self, worker, result)


@mutant("A returned block is handed out from its beginning", f"{QUEUE}._block", scenario("block_progress"))
def _(original, self, number, start=None):
    return original(self, number)


@mutant(
    "A block that is done is handed out again when its worker is lost", f"{QUEUE}.give_back", scenario("block_progress")
)
def _(original, self, worker, result):
    held, rest = self._out.get(worker), original(self, worker, result)
    if held is not None and rest is None:
        heapq.heappush(self._returned, (held.block.number, held.block.start, worker))
    return rest


without("The progress of pushes is ignored", f"{QUEUE}.note", scenario("block_progress"))


@mutant(
    "The rest of a block that the former end of its queue had cut off is never handed out",
    f"{QUEUE}.extend",
    scenario("data_queue_end"),
)
def _(original, self, spec):
    with patch.object(heapq, "heappush"):
        original(self, spec)


@mutant("A stopped job hands out blocks", f"{QUEUES}._hand_out", scenario("intervene"))
def _(original, self, queues, result):
    with patch.object(self._position, "stopped", ""):
        original(self, queues, result)


@mutant("A queue gets more epochs while other workers read it", f"{QUEUES}._check", scenario("data_queue_longer"))
def _(original, self, message, member):
    with contextlib.suppress(Unavailable):
        original(self, message, member)


@mutant(
    "A block is reported as done before its gradients are pushed",
    "psworker.sessions.strategies.downpour:Downpour.is_flushed",
    "tests/integration/test_examples_once.py::test_of_a_block_that_a_worker_leaves_the_others_train_the_rest_once",
)
def _(original, self):
    return True


# --- ps.data.Queue ----------------------------------------------------------------------------------------------------


@mutant(
    "Several threads read an iterable at the same time",
    f"{AHEAD}.__init__",
    f"{ITEMS}::test_workers_that_share_an_iterable_read_it_one_at_a_time_and_each_item_once",
)
def _(original, self, source, capacity, timeout):
    original(self, source, capacity, timeout)
    self._reading = contextlib.nullcontext()


@mutant(
    "An iterable is read beyond its end",
    f"{AHEAD}._next",
    f"{ITEMS}::test_workers_that_share_an_iterable_read_it_one_at_a_time_and_each_item_once",
)
def _(original, self):
    with self._reading:
        return self._make()


@mutant(
    "The end comes before items that are still in the making",
    f"{AHEAD}._is_over",
    f"{ITEMS}::test_after_an_error_no_item_is_begun_and_those_in_the_making_are_delivered_before_it",
)
def _(original, self):
    return self._ended
