"""The status of a job, merged from its shards' reports."""

from dataclasses import replace
from unittest import mock

import pytest

from psjob.status.job_status import JobVariable, JobWorker, ShardAnswer, merge_reports
from pswire.messages import Change, StatusReport, Totals, VariableStatus
from pswire.optimizers import GradientDescent
from pswire.tensors.values import Part, TensorSpec
from tests.support.job_reports import two_shards, worker

FIRST, SECOND = two_shards()
SILENT = ShardAnswer("a:1", problem="gone")
ALONE, SCALE = (ShardAnswer("a:1", StatusReport(shards=n, handling=how)) for n, how in ((1, "none"), (2, "scale")))
ORDER, SAME = "workers must name the servers in the order of their shards", "all servers of a job need the same"
HAVE = "these have none and scale"


def test_a_split_variable_is_whole_also_of_one_shard():
    W, table, b = merge_reports([FIRST, SECOND]).variables
    assert table == JobVariable(TensorSpec("table", (100, 4)), (0, 1), (9, 7), (8, 6), None, (), 1600, True)
    assert (W.spec.shape, W.shards, W.slots) == ((2, 3), (0,), ("momentum",))
    assert (b.spec.shape, b.shards, b.slots) == ((3,), (1,), ("m", "v"))
    assert merge_reports([SECOND]).variables[1].spec == table.spec


def _worker(name, number, incarnation, state, steps, mean, loss, lease, **fields):
    """A worker, without the sum of its stalenesses, which is that of a shard."""
    named = {"name": name, "number": number, "incarnation": incarnation, "state": state, "steps": steps, "loss": loss}
    return JobWorker(**named, mean_staleness=mean, lease_left=lease, staleness_sum=mock.ANY, **fields)


def test_a_worker_is_what_all_shards_report_of_its_newest_incarnation():
    w0, w1 = merge_reports([FIRST, SECOND]).workers
    both = {"tensor_transport": "gRPC and shared memory"}
    assert w0 == _worker("w0", 0, 1, "live", 8, 4 / 16, 0.25, 8.5, dropped=1, epoch=3, chief=True, **both)
    waits = {"waiting_for": "w0, 2 steps behind", "tensor_transport": "gRPC"}
    assert w1 == _worker("w1", 1, 1, "lost", 4, 7 / 7, 1.5, 0.0, **waits)
    assert (w0.lease, w1.lease) == (8.5, None)
    now = StatusReport(shards=2, global_step=5, workers=(worker(incarnation=2, steps=5, staleness_sum=5),))
    before = StatusReport(
        shard=1, shards=2, global_step=90, workers=(worker(state="lost", steps=90, loss=0.5, tensor_transport="gRPC"),)
    )
    (again,) = merge_reports([ShardAnswer("a:1", now), ShardAnswer("a:2", before)]).workers
    assert again == _worker("w0", 0, 2, "live", 5, 1.0, None, 15.0)


def test_counts_are_of_the_job_and_a_change_on_several_shards_is_one():
    job = merge_reports([FIRST, SECOND])
    assert (job.global_step, job.shards, job.repeated, job.dropped, job.nbytes) == (12, 2, 3, 1, 1684)
    assert (job.consistency, job.handling, job.problems) == ("bounded:2", "none", ())
    assert job.changes == (
        Change(global_step=1, worker="w0", names=("b",), optimizer=GradientDescent(0.125)),
        Change(global_step=2, worker="w1", names=("W", "b"), optimizer=GradientDescent(0.25)),
    )
    twice = merge_reports([FIRST, FIRST])
    assert (twice.nbytes, twice.variables[1].shards) == (1168, (0,)), "of two reports of a shard one counts"
    other = merge_reports([SECOND, FIRST])
    assert (other.variables, other.workers, other.changes) == (job.variables, job.workers, job.changes)


@pytest.mark.parametrize(
    ("answers", "problems"),
    [
        ([FIRST, SILENT], ("gone",)),
        ([SILENT, SILENT], ("gone", "gone")),
        ([SECOND], ("this is not the whole job: it has 2 shards, and 1 of their addresses are given",)),
        ([FIRST, FIRST], ("a shard is listed twice: host:1 is shard 0 of 2, host:1 is shard 0 of 2",)),
        ([SECOND, FIRST], (f"{ORDER}, but the order is different: host:2 is shard 1 of 2, host:1 is shard 0 of 2",)),
        ([ALONE, SECOND], ("these servers belong to different jobs: a:1 is shard 0 of 1, host:2 is shard 1 of 2",)),
        ([SCALE, SECOND], (f"{SAME} --consistency; these have async and bounded:2", f"{SAME} --staleness; {HAVE}")),
    ],
    ids=["silent", "all silent", "a part", "twice", "order", "other jobs", "policies"],
)
def test_missing_shards_and_inconsistencies_are_problems(answers, problems):
    assert merge_reports(answers).problems == problems


def test_of_lists_that_shards_cut_short_the_status_has_whole_variables_and_says_what_is_left_out():
    def part(first, rows):
        return VariableStatus(spec=TensorSpec("cut", (rows, 2), "float32"), part=Part(first, 5))

    alone = VariableStatus(spec=TensorSpec("alone", (2,), "float32"), version=3, updates=3)
    first = StatusReport(shards=2, global_step=5, variables=(alone, part(0, 3)), totals=Totals(variables=2))
    second = StatusReport(shard=1, shards=2, global_step=5, variables=(part(3, 2),), totals=Totals(variables=1))
    whole = merge_reports([ShardAnswer("a:1", first), ShardAnswer("b:1", second)])
    assert [one.spec.name for one in whole.variables] == ["alone", "cut"]
    assert whole.omitted == ()
    cut = merge_reports([ShardAnswer("a:1", first), ShardAnswer("b:1", replace(second, variables=()))])
    assert [one.spec.name for one in cut.variables] == ["alone"]
    assert cut.omitted == ("shard 1 lists 0 of 1 variables",)
