"""The checks of `make chaos` find each fault, made by hand in a job without other faults."""

import itertools

import pytest

from pswire.specs.consistency import parse_consistency, parse_staleness
from tests.chaos import scheme
from tests.chaos.check import Check, Final
from tests.chaos.records import History, Loss, PushRecord, Reading, Wait

COLUMNS = 4


class Job:
    """Workers 1 and 2 on two shards; deduplication tables and values are those of servers without faults."""

    def __init__(self, consistency="async", staleness="none", shards=2):
        self.consistency, self.staleness = parse_consistency(consistency), parse_staleness(staleness)
        self.shards = shards
        self.unit = scheme.unit_of(getattr(self.consistency, "workers", 1))
        self.values = [[0.0] * COLUMNS for _ in range(shards)]
        self.steps = [0] * shards
        self.histories = [History(column, f"w{column}", code=0, joined=0.0, incarnation=1) for column in (1, 2)]
        self.now = 0.0
        self.complete, self.half_pushes, self.losses = True, 0, []
        self.changes = {}  # of the finals
        for history in self.histories:
            history.readings.append(self.read(history))

    def read(self, history, push=None):
        own = [values[history.column] for values in self.values]
        return Reading(own, list(self.steps), list(self.steps), [], push)

    def send(self, column, shards=None, seen=None):
        """A push under way, computed with the newest weights by default."""
        history = self.histories[column - 1]
        shards = list(range(self.shards)) if shards is None else shards
        seen = list(self.steps) if seen is None else seen
        self.now += 1
        number = len(history.pushes) + 1
        example = sum(len(one.pushes) for one in self.histories)
        push = PushRecord(number, shards, False, seen, [seen[shard] for shard in shards], 1, [example], self.now)
        history.pushes.append(push)
        return history, push

    def apply(self, shard, *pushes, step=None):
        """An update of these."""
        step = self.steps[shard] if step is None else step
        for history, _ in pushes:
            placed = scheme.Push(step, len(pushes))
            self.values[shard][history.column] += scheme.increment_of(placed, self.unit)
        self.values[shard][0] += scheme.BASE - step
        self.steps[shard] += 1

    def answer(self, sent, *, dropped=False):
        history, push = sent
        self.now += 1
        push.answered, push.dropped, push.staleness = self.now, dropped, 100
        history.readings.append(self.read(history, push))

    def push(self, column, **changes):
        sent = self.send(column, **changes)
        for shard in sent[1].shards:
            self.apply(shard, sent)
        self.answer(sent)

    def together(self, *columns):
        """One synchronous update."""
        sent = [self.send(column) for column in columns]
        for shard in range(self.shards):
            self.apply(shard, *sent)
        for one in sent:
            self.answer(one)

    def verdict(self):
        finals = []
        for values, step in zip(self.values, self.steps, strict=True):
            rows = [[value] * 2 for value in values]
            fields = {"first": values, "second": values, "dense": [0.0] * COLUMNS, "table": rows, "version": step}
            finals.append(Final(**fields | self.changes))
        examples = sum(len(one.pushes) for one in self.histories)
        settings = {"lease": 4.0, "examples": examples, "epochs": 1, "complete": self.complete}
        reports = {"half_pushes": self.half_pushes, "losses": self.losses}
        return Check(self.consistency, self.staleness, self.histories, finals, **settings, **reports)()

    def broken(self):
        return sorted(kind for kind, lines in self.verdict().violations.items() if lines)


@pytest.fixture
def job():
    job = Job()
    for column in (1, 2, 2, 1):
        job.push(column)
    return job


def test_a_job_without_faults_passes_and_is_counted(job):
    job.push(1, shards=[1], seen=[4, 2])
    verdict = job.verdict()
    assert verdict.passed
    counts = verdict.acknowledged, verdict.reads, verdict.worst, verdict.half, verdict.twice
    assert counts == (5, 14, 2, 0, 0)


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
    sent = job.send(1)
    for shard in applied:
        job.apply(shard, sent)
    job.answer(sent, dropped=dropped)
    verdict = job.verdict()
    assert (verdict.lost, verdict.doubled, verdict.dropped) == (lost, doubled, dropped)
    assert not lost or "push 3 of process 1" in verdict.violations["lost"][0]


def test_a_push_that_is_applied_again_after_its_answer_is_doubled_and_does_not_make_up_for_a_loss(job):
    job.answer(job.send(1))
    job.push(2)
    job.apply(1, (job.histories[1], job.histories[1].pushes[-1]))
    verdict = job.verdict()
    assert (verdict.lost, verdict.doubled) == (2, 1)


@pytest.mark.parametrize(("took", "staleness", "lost"), [(3.9, "drop:9", 1), (4.1, "drop:9", 0), (4.1, "none", 1)])
def test_a_part_that_came_too_late_is_half_a_push_and_not_lost(took, staleness, lost):
    job = Job(staleness=staleness)
    sent = job.send(1)
    job.apply(0, sent)
    job.answer(sent)
    sent[1].answered = sent[1].at + took  # the lease is 4 s
    job.half_pushes = 1
    verdict = job.verdict()
    assert (verdict.half, verdict.lost, verdict.passed) == (1, lost, not lost)


@pytest.mark.parametrize(("code", "broken"), [(-9, []), (0, ["half push"])])
def test_half_a_push_is_counted_and_only_a_worker_that_ended_badly_may_leave_one(job, code, broken):
    job.apply(1, job.send(2))
    job.histories[1].code, job.histories[1].ended_by = code, "killed" if code else ""
    job.complete, job.half_pushes = False, 1
    assert job.verdict().half == 1
    assert job.broken() == [*broken, "not done"]


@pytest.mark.parametrize(("half_pushes", "broken"), [(1, []), (0, ["half pushes"]), (2, ["half pushes"])])
def test_the_servers_must_know_how_many_pushes_are_half(job, half_pushes, broken):
    history, push = job.send(2)
    job.apply(1, (history, push))
    history.code, history.ended_by = -9, "killed"
    job.histories[0].pushes[0].examples += push.examples  # which were handed out again
    job.half_pushes = half_pushes
    assert job.broken() == broken


def test_a_push_that_was_never_answered_may_be_there_or_not(job):
    job.send(1)
    sent = job.send(2)
    job.apply(0, sent)
    job.apply(1, sent)
    for history in job.histories:
        history.code, history.ended_by = -9, "killed"
    job.complete = False
    verdict = job.verdict()
    assert (verdict.half, verdict.lost, verdict.doubled, job.broken()) == (0, 0, 0, ["not done"])


def last(job):
    return job.histories[1].readings[-1]


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (lambda job: job.changes.update(second=[0.0] * COLUMNS), ["torn read"]),
        (lambda job: job.changes.update(table=[[0.0]] * COLUMNS), ["part of a push"]),
        (lambda job: job.changes.update(dense=[0.0, 1.0, 0.0, 0.0]), ["part of a push"]),
        (lambda job: job.changes.update(version=3), ["version"]),
        (lambda job: last(job).torn.append(1), ["torn read"]),
        (lambda job: last(job).versions.__setitem__(0, 9), ["version"]),
        (lambda job: job.values[0].__setitem__(3, 1.0), ["doubled"]),
        (lambda job: job.apply(0), ["updates"]),
        (lambda job: setattr(job, "complete", False), ["not done"]),
        (lambda job: job.histories[0].pushes[0].examples.clear(), ["examples"]),
        (lambda job: job.histories[0].reports.append((1, 3)), ["examples"]),
        (lambda job: (job.push(1, shards=[1]), setattr(job, "half_pushes", 1)), []),  # a step without gradients
    ],
)
def test_a_fault_is_found(job, fault, broken):
    fault(job)
    assert job.broken() == broken


# --- staleness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seen", "broken"), [([2, 2], []), ([2, 1], ["too stale"]), ([1, 2], ["too stale"])])
def test_a_push_that_is_too_stale_on_any_shard_is_found(seen, broken):
    job = Job(staleness="drop:2")
    for column in (1, 2, 1, 2):
        job.push(column)
    job.push(1, seen=seen)
    assert job.broken() == broken
    assert job.verdict().worst == 4 - min(seen)


@pytest.mark.parametrize(("seen", "staleness"), [([4, 1], 2), ([5, 4], 100)], ids=["too small", "of its future"])
def test_a_wrong_staleness_is_found(job, seen, staleness):
    job.push(1, seen=seen)
    job.histories[0].pushes[-1].staleness = staleness
    assert job.broken() == ["staleness"]


# --- consistency ------------------------------------------------------------------------------------------------------


@pytest.fixture
def synchronous():
    job = Job("sync:2")
    job.together(1, 2)
    job.together(1, 2)
    return job


def test_an_update_of_too_few_gradients_is_found_but_at_the_end_of_the_data(synchronous):
    assert synchronous.broken() == []
    synchronous.together(1)
    assert synchronous.broken() == ["group"]
    synchronous.histories[1].waits.append(Wait(synchronous.now - 0.5, synchronous.now - 0.4, got=True))
    assert synchronous.broken() == ["group"], "that worker got its block at once"
    synchronous.histories[1].waits.append(Wait(synchronous.now - 1.5))
    assert synchronous.broken() == []


def test_a_stale_gradient_in_a_synchronous_update_is_found(synchronous):
    synchronous.together(1, 2)
    synchronous.histories[0].pushes[-1].seen[1] -= 1
    assert synchronous.broken() == ["too stale"]


def test_an_update_that_is_two_on_another_shard_is_found(synchronous):
    sent = [synchronous.send(column) for column in (1, 2)]
    synchronous.apply(0, *sent)
    for one in sent:
        synchronous.apply(1, one)
        synchronous.answer(one)
    assert "group" in synchronous.broken()
    assert "step 2 of shard 0 is steps [2, 3] of shard 1" in synchronous.verdict().violations["group"]


@pytest.mark.parametrize(("pushes", "broken"), [(4, []), (5, ["bound"])])
def test_a_worker_that_is_too_far_ahead_of_another_is_found(pushes, broken):
    job = Job("bounded:1", shards=1)
    job.now = -100.0
    job.push(2)
    for _ in range(pushes):
        job.push(1)
    job.push(2)
    for history in job.histories:
        for push in history.pushes:  # within half a lease
            push.at, push.answered = push.at / 100, push.answered / 100
    assert job.broken() == broken


# --- workers and data -------------------------------------------------------------------------------------------------


def test_a_push_of_an_older_incarnation_is_found(job):
    older, newer = job.histories
    newer.name, newer.incarnation, newer.joined = older.name, 2, job.now + 0.5
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
    job.losses = [Loss("w1", 1, 100.0)]
    job.histories[0].faults, job.histories[0].until = faults, until
    assert job.broken() == broken


def test_a_worker_that_fails_by_itself_is_found_with_its_last_line(job):
    job.histories[0].code, job.histories[0].error = 1, "Error: gave up"
    assert job.verdict().violations["failed"] == ["process 1, w1: Error: gave up"]
    job.histories[0].ended_by = "terminated"
    assert job.broken() == []


@pytest.mark.parametrize(("faults", "broken"), [([], ["examples"]), ([(1.0, "stop worker")], [])])
def test_an_example_is_trained_twice_only_if_something_was_done_to_a_worker(job, faults, broken):
    job.histories[0].pushes[0].examples.append(1)
    job.histories[1].faults = faults
    assert job.broken() == broken
    assert job.verdict().twice == 1
