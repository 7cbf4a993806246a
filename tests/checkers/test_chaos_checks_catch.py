"""The checks of `make chaos` find each fault, made by hand in a job without other faults."""

import itertools

import pytest

from pswire.specs.consistency import parse_consistency, parse_staleness
from tests.chaos import scheme
from tests.chaos.check import Check
from tests.chaos.records import Final, History, Loss, PushRecord, Reading, Wait

COLUMNS = 4


class Job:
    """Workers 1 and 2 on two shards; deduplication tables and values are those of servers without faults."""

    def __init__(self, consistency="async", staleness="none", shards=2):
        self.consistency, self.staleness = parse_consistency(consistency), parse_staleness(staleness)
        self.unit = scheme.unit_of(getattr(self.consistency, "workers", 1))
        self.values = [[0.0] * COLUMNS for _ in range(shards)]
        self.steps = [0] * shards
        self.now = 0.0
        self.reported = {"complete": True, "half_pushes": 0, "losses": []}
        self.changes = {}  # of the finals
        self.histories = [History(column, f"w{column}", code=0, joined=0.0, incarnation=1) for column in (1, 2)]
        self.one, self.two = self.histories
        for history in self.histories:
            self.read(history)

    def read(self, history, push=None):
        own = [values[history.column] for values in self.values]
        history.readings.append(Reading(own, list(self.steps), list(self.steps), [], push))

    def send(self, column, shards=None, seen=None):
        """A push under way, computed with the newest weights by default."""
        pushes = self.histories[column - 1].pushes
        shards = list(range(len(self.steps))) if shards is None else shards
        seen = list(self.steps) if seen is None else seen
        self.now += 1
        example = sum(len(history.pushes) for history in self.histories)
        rows = [seen[shard] for shard in shards]
        pushes.append(PushRecord(column, len(pushes) + 1, shards, False, seen, rows, 1, [example], self.now))
        return pushes[-1]

    def apply(self, shard, *pushes):
        """An update of these."""
        step = self.steps[shard]
        for push in pushes:
            self.values[shard][push.column] += scheme.increment_of(scheme.Push(step, len(pushes)), self.unit)
        self.values[shard][0] += scheme.BASE - step
        self.steps[shard] += 1

    def answer(self, push, *, dropped=False):
        self.now += 1
        push.answered, push.dropped, push.staleness = self.now, dropped, 100
        self.read(self.histories[push.column - 1], push)

    def push(self, *columns, **changes):
        """One update of a push of each."""
        pushes = [self.send(column, **changes) for column in columns]
        for shard in pushes[0].shards:
            self.apply(shard, *pushes)
        for push in pushes:
            self.answer(push)

    def kill(self, *histories):
        """Each is killed; the job does not complete."""
        self.reported["complete"] = False
        for history in histories:
            history.code, history.ended_by = -9, "kill"

    def check(self):
        finals = []
        for values, step in zip(self.values, self.steps, strict=True):
            final = Final(values, values, [0.0] * COLUMNS, [[value] * 2 for value in values], step)
            finals.append(final._replace(**self.changes))
        examples = sum(len(history.pushes) for history in self.histories)
        settings = {"lease": 4.0, "examples": examples, "epochs": 1, **self.reported}
        return Check(self.consistency, self.staleness, self.histories, finals, **settings)

    def broken(self):
        return sorted(self.check().violations)


@pytest.fixture
def job():
    job = Job()
    for column in (1, 2, 2, 1):
        job.push(column)
    return job


def test_a_job_without_faults_passes_and_is_counted(job):
    job.push(1, shards=[1], seen=[4, 2])
    check = job.check()
    assert not check.violations
    counts = [check.counts[name] for name in ("pushes", "reads", "worst staleness", "half", "examples twice")]
    assert counts == [5, 14, 2, 0, 0]


@pytest.mark.parametrize("gradients", [1, 2, 3, 4])
def test_an_increment_tells_its_step_and_the_size_of_its_update_and_two_pushes_are_not_taken_for_one(gradients):
    unit = scheme.unit_of(gradients)
    pushes = [scheme.Push(step, size) for step in (0, 1, 77, 40_000) for size in range(1, gradients + 1)]
    for push in pushes:
        assert scheme.decode(scheme.increment_of(push, unit), unit) == push
    for one, other in itertools.combinations(pushes, 2):
        if one.gradients == other.gradients and unit % (2 * unit // one.gradients):
            assert scheme.decode(scheme.increment_of(one, unit) + scheme.increment_of(other, unit), unit) is None
    assert scheme.decode(0.0, unit) is None


# --- exactly once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("applied", "dropped", "lost", "doubled"),
    [
        ([], False, 2, 0),
        ([1], False, 1, 0),
        ([0, 0, 1], False, 0, 1),
        ([0, 0, 1, 1], False, 0, 2),
        ([1], True, 0, 1),
    ],
)
def test_an_acknowledged_push_is_on_each_of_its_shards_once_and_a_dropped_one_on_none(
    job, applied, dropped, lost, doubled
):
    push = job.send(1)
    for shard in applied:
        job.apply(shard, push)
    job.answer(push, dropped=dropped)
    check = job.check()
    assert [check.counts[kind] for kind in ("lost", "doubled", "dropped")] == [lost, doubled, dropped]
    assert not lost or "push 3 of process 1" in check.violations["lost"][0]


def test_a_push_that_is_applied_again_after_its_answer_is_doubled_and_does_not_make_up_for_a_loss(job):
    job.answer(job.send(1))
    job.push(2)
    job.apply(1, job.two.pushes[-1])
    counts = job.check().counts
    assert (counts["lost"], counts["doubled"]) == (2, 1)


@pytest.mark.parametrize(("took", "staleness", "lost"), [(3.9, "drop:9", 1), (4.1, "drop:9", 0), (4.1, "none", 1)])
def test_a_part_that_came_too_late_is_half_a_push_and_not_lost(took, staleness, lost):
    job = Job(staleness=staleness)
    push = job.send(1)
    job.apply(0, push)
    job.answer(push)
    push.answered = push.at + took  # the lease is 4 s
    job.reported["half_pushes"] = 1
    assert job.check().counts["half"] == 1
    assert job.broken() == ["lost"] * lost


@pytest.mark.parametrize(
    ("applied", "killed", "reported", "half", "broken"),
    [
        ([1], True, 1, 1, ["not done"]),
        ([1], False, 1, 1, ["half push", "not done"]),
        ([1], True, 0, 1, ["half pushes", "not done"]),
        ([1], True, 2, 1, ["half pushes", "not done"]),
        ([0, 1], True, 0, 0, ["not done"]),
        ([], True, 0, 0, ["not done"]),
    ],
)
def test_a_push_without_an_answer_may_be_there_or_not_and_half_a_one_is_counted_and_needs_a_killed_worker(
    job, applied, killed, reported, half, broken
):
    push = job.send(2)
    for shard in applied:
        job.apply(shard, push)
    job.kill(*[job.two] * killed)
    job.reported["half_pushes"] = reported
    assert job.check().counts["half"] == half
    assert job.broken() == broken


def wait(job, *times, got=False):
    job.two.waits.append(Wait(*times, got=got))


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (lambda job: job.changes.update(second=[0.0] * COLUMNS), ["torn"]),
        (lambda job: job.changes.update(table=[[0.0]] * COLUMNS), ["part of a push"]),
        (lambda job: job.changes.update(dense=[0.0, 1.0, 0.0, 0.0]), ["part of a push"]),
        (lambda job: job.changes.update(version=3), ["version"]),
        (lambda job: job.two.readings[-1].torn.append(1), ["torn"]),
        (lambda job: job.two.readings[-1].versions.__setitem__(0, 9), ["version"]),
        (lambda job: job.values[0].__setitem__(3, 1.0), ["doubled"]),
        (lambda job: job.apply(0), ["updates"]),
        (lambda job: job.reported.update(complete=False), ["not done"]),
        (lambda job: job.one.pushes[0].examples.clear(), ["examples"]),
        (lambda job: job.one.pushes[0].examples.append(1), ["examples"]),
        (lambda job: (job.one.pushes[0].examples.append(1), job.two.faults.append((1.0, "stop worker"))), []),
        (lambda job: job.one.reports.append((1, 3)), ["examples"]),
        (lambda job: (job.push(1, shards=[1]), job.reported.update(half_pushes=1)), []),  # a step without gradients
        (lambda job: vars(job.one).update(code=1, error="Error: gave up"), ["failed"]),
        (lambda job: vars(job.one).update(code=1, ended_by="terminate"), []),
    ],
)
def test_a_fault_is_found(job, fault, broken):
    fault(job)
    assert job.broken() == broken


def test_a_worker_that_fails_is_named_with_its_last_line_and_examples_trained_on_twice_are_counted(job):
    job.one.code, job.one.error = 1, "Error: gave up"
    job.one.pushes[0].examples.append(1)
    check = job.check()
    assert check.violations["failed"] == ["process 1, w1: Error: gave up"]
    assert check.counts["examples twice"] == 1


# --- staleness and consistency ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seen", "broken"), [([2, 2], []), ([2, 1], ["too stale"]), ([1, 2], ["too stale"])])
def test_a_push_that_is_too_stale_on_any_shard_is_found(seen, broken):
    job = Job(staleness="drop:2")
    for column in (1, 2, 1, 2):
        job.push(column)
    job.push(1, seen=seen)
    assert job.broken() == broken
    assert job.check().counts["worst staleness"] == 4 - min(seen)


@pytest.mark.parametrize(("seen", "staleness"), [([4, 1], 2), ([5, 4], 100)], ids=["too small", "of its future"])
def test_a_wrong_staleness_is_found(job, seen, staleness):
    job.push(1, seen=seen)
    job.one.pushes[-1].staleness = staleness
    assert job.broken() == ["staleness"]


@pytest.mark.parametrize(
    ("columns", "change", "broken"),
    [
        ((1, 2), lambda job: None, []),
        ((1,), lambda job: None, ["group"]),
        ((1,), lambda job: wait(job, job.now - 0.5, job.now - 0.4, got=True), ["group"]),  # it got its block at once
        ((1,), lambda job: wait(job, job.now - 1.5), []),  # the end of the data
        ((1, 2), lambda job: job.one.pushes[-1].seen.__setitem__(1, 1), ["too stale"]),
    ],
)
def test_a_synchronous_update_of_too_few_gradients_or_a_stale_one_is_found(columns, change, broken):
    job = Job("sync:2")
    job.push(1, 2)
    job.push(1, 2)
    job.push(*columns)
    change(job)
    assert job.broken() == broken


def test_an_update_that_is_two_on_another_shard_is_found():
    job = Job("sync:2")
    pushes = [job.send(column) for column in (1, 2)]
    job.apply(0, *pushes)
    for push in pushes:
        job.apply(1, push)
        job.answer(push)
    assert "step 0 of shard 0 is steps [0, 1] of shard 1" in job.check().violations["group"]


@pytest.mark.parametrize(("pushes", "broken"), [(4, []), (5, ["bound"])])
def test_a_worker_that_is_too_far_ahead_of_another_is_found(pushes, broken):
    job = Job("bounded:1", shards=1)
    job.now = -100.0
    for column in (2, *[1] * pushes, 2):
        job.push(column)
    for push in (*job.one.pushes, *job.two.pushes):  # within half a lease
        push.at, push.answered = push.at / 100, push.answered / 100
    assert job.broken() == broken


# --- workers ----------------------------------------------------------------------------------------------------------


def test_a_push_of_an_older_incarnation_is_found(job):
    job.two.name, job.two.incarnation, job.two.joined = job.one.name, 2, job.now + 0.5
    assert job.broken() == []
    job.push(1)
    assert job.broken() == ["twin"]


@pytest.mark.parametrize(
    ("faults", "until", "broken"),
    [
        ([], 101.0, ["lease"]),
        ([(95.0, "stop worker")], 101.0, []),
        ([(80.0, "reset")], 101.0, ["lease"]),
        ([], 99.0, []),
    ],
)
def test_a_live_worker_that_is_lost_is_found_if_nothing_was_done_to_it(job, faults, until, broken):
    job.reported["losses"] = [Loss("w1", 1, 100.0)]
    job.one.faults, job.one.until = faults, until
    assert job.broken() == broken
