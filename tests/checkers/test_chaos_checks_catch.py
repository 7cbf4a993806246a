"""The checks of `make chaos` find each fault, made by hand in a job without other faults."""

import itertools
from collections import Counter
from datetime import datetime

import pytest
from click.testing import CliRunner

from psserver.core import events
from psserver.core.members.member import Member
from pswire.specs.consistency import parse_consistency, parse_staleness
from tests.chaos import __main__ as chaos
from tests.chaos import scheme
from tests.chaos.check import Check, Final, History, PushRecord, Reading, Wait, losses
from tests.chaos.cluster import WEIGHTS
from tests.support.combinations import together

COLUMNS = 4


class Job:
    """Workers 1 and 2 on two shards; deduplication tables and values are those of servers without faults."""

    def __init__(self, consistency="async", staleness="none", shards=2):
        self.policies = parse_consistency(consistency), parse_staleness(staleness)
        self.unit = scheme.unit_of(getattr(self.policies[0], "workers", 1))
        self.values = [[0.0] * COLUMNS for _ in range(shards)]
        self.steps = [0] * shards
        self.now = 0.0
        self.reported = {"complete": True, "half_pushes": 0}
        self.changes, self.cuts = {}, {}  # of the finals; checkpoints
        self.histories = [History(column, f"w{column}", code=0, joined=0.0, incarnation=1) for column in (1, 2)]
        self.one, self.two = self.histories
        for history in self.histories:
            self.read(history)

    def read(self, history, push=None):
        own = [values[history.column] for values in self.values]
        history.readings.append(Reading(own, list(self.steps), list(self.steps), [], push))

    def send(self, column, shards=None, seen=None):
        """A push under way, computed with the newest weights by default."""
        self.now += 1
        pushes, example = self.histories[column - 1].pushes, sum(len(history.pushes) for history in self.histories)
        shards = list(range(len(self.steps))) if shards is None else shards
        seen = [[count] for count in seen or self.steps]
        pushes.append(PushRecord(column, len(pushes) + 1, self.now, shards, False, seen, 1, [example]))
        return pushes[-1]

    def apply(self, shard, *pushes):
        """An update of these."""
        step = self.steps[shard]
        for push in pushes:
            self.values[shard][push.column] += scheme.increment_of(scheme.Push(step, len(pushes)), self.unit)
        self.values[shard][0] += scheme.BASE - step
        self.steps[shard] += 1

    def answer(self, push, *, staleness=100, dropped=False):
        self.now += 1
        push.answered, push.dropped, push.staleness = self.now, dropped, staleness
        self.read(self.histories[push.column - 1], push)

    def push(self, *columns, staleness=100, apart=None, **sent):
        """One update of a push of each; but one for each on shard `apart`."""
        pushes = [self.send(column, **sent) for column in columns]
        for shard in pushes[0].shards:
            for group in [[push] for push in pushes] if shard == apart else [pushes]:
                self.apply(shard, *group)
        for push in pushes:
            self.answer(push, staleness=staleness)

    def wait(self, *times, got=False):
        """Worker 2 asks for a block at a time from now on; and gets an answer."""
        self.two.waits.append(Wait(*(self.now + time for time in times), got=got))

    def rejoin(self):
        """Worker 2 is a newer incarnation of worker 1."""
        self.two.name, self.two.incarnation, self.two.joined = self.one.name, 2, self.now + 0.5

    def lose(self, until=101.0, *faults, shard=1):
        """A shard declares worker 1 lost at 100; faults and its last record are at these times."""
        self.one.losses, self.one.faults, self.one.until = [(100.0, shard)], [(at, "a fault") for at in faults], until

    def train_twice(self, **lost):
        """Worker 1 trains on an example of worker 2, too."""
        self.one.pushes[0].examples.append(1)
        if lost:
            self.lose(101.0, 99.0, **lost)

    def kill(self, *applied, example=1):
        """Worker 2 is killed while a push is under way, which is applied on these shards."""
        push = self.send(2)
        push.examples[:] = [example]
        for shard in applied:
            self.apply(shard, push)
        self.two.code, self.two.ended_by = -9, "kill"
        self.one.pushes[0].examples.append(4)  # of five
        self.reported["half_pushes"] = len(applied) % 2

    def check(self):
        finals = [
            Final(values, values, [0.0] * COLUMNS, [[value] * 2 for value in values], step)._replace(**self.changes)
            for values, step in zip(self.values, self.steps, strict=True)
        ]
        examples = sum(len(history.pushes) for history in self.histories)
        facts = {"examples": examples, "epochs": 1, "cuts": self.cuts, **self.reported}
        return Check(*self.policies, self.histories, finals, lease=4.0, **facts)

    def cut(self, *shards):
        """A checkpoint with the present values of these shards, and those of the checkpoint before of the others."""
        before = self.cuts.get(len(self.cuts), [None] * len(self.values))
        now = [Final(list(values), list(values), [], [[value] * 2 for value in values], 0) for values in self.values]
        self.cuts[len(self.cuts) + 1] = [now[shard] if shard in shards else old for shard, old in enumerate(before)]


def test_a_worker_that_a_server_declares_lost_is_found_in_its_log_by_the_words_of_the_server():
    log = [
        f"2026-11-21 19:19:46,5{number} WARNING psserver.runtime.executor: {events.lost(Member(name, 0), 4.0).text}"
        for number, name in enumerate(["w0", "w0x", "w0"], 10)
    ]
    begin = datetime(2026, 11, 21, 19, 19, 46).timestamp()
    found = losses(["psserver: shard 0/1 listening on host:1", *log], "w0", 4.0)
    assert found == pytest.approx([begin + 0.51, begin + 0.512], abs=1e-4)


def test_the_command_names_all_kinds_of_faults():
    text = "".join(CliRunner().invoke(chaos.main, ["--faults", "flood"], prog_name="chaos").output.split())
    assert "unknown:flood" in text
    assert {"kill", "kill server", "stop server", "stop worker"} < set(WEIGHTS)


@pytest.mark.parametrize(
    ("transport", "passed", "met", "reason"),
    [
        ("auto", {"direct": 9}, {"cut": 1}, ""),
        ("auto", {"gRPC": 9}, {}, "none of 5 cut faults met a direct connection"),
        ("direct", {"gRPC": 9}, {"reset": 7}, "none of 5 cut faults met a direct connection"),
        ("grpc", {"gRPC": 9}, {}, ""),
        ("grpc", {"gRPC": 9, "direct": 1}, {}, "1 bytes passed direct connections, and none should"),
    ],
)
def test_faults_that_do_not_meet_the_transport_are_noticed(transport, passed, met, reason):
    injected = Counter({"cut": 5, "reset": 4})
    assert chaos.unreached(transport, injected, Counter(passed), Counter(met)) == ([reason] if reason else [])


def test_a_job_without_faults_passes_and_is_counted():
    job = Job()
    for column in (1, 2, 2, 1):
        job.push(column)
    job.push(1, shards=[1], seen=[4, 2])
    check = job.check()
    assert not check.violations
    assert +check.counts == {"pushes": 5, "reads": 14, "worst staleness": 2}


@pytest.mark.parametrize("gradients", [1, 2, 3, 4])
def test_an_increment_encodes_the_step_and_size_of_its_update_and_two_pushes_are_not_taken_for_one(gradients):
    unit = scheme.unit_of(gradients)
    pushes = [scheme.Push(step, size) for step in (0, 1, 77, 40_000) for size in range(1, gradients + 1)]
    for push in pushes:
        assert scheme.decode(scheme.increment_of(push, unit), unit) == push
    for one, other in itertools.combinations(pushes, 2):
        if one.gradients == other.gradients and unit % (2 * unit // one.gradients):
            assert scheme.decode(scheme.increment_of(one, unit) + scheme.increment_of(other, unit), unit) is None
    assert scheme.decode(0.0, unit) is None


@together(
    ("applied", "options", "counts"),
    [
        ([0, 1], {}, {}),
        ([], {}, {"lost": 2}),
        ([1], {"half_pushes": 1}, {"lost": 1, "half": 1}),
        ([0, 0, 1], {"half_pushes": 1}, {"doubled": 1, "half": 1, "updates": 1}),
        ([0, 0, 1, 1], {}, {"doubled": 2, "updates": 2}),
        ([1], {"answer": "dropped"}, {"doubled": 1, "dropped": 1, "updates": 1}),
        ([], {"answer": "dropped"}, {"dropped": 1}),
        # A part may come too late, after the lease of 4 s, if changes have one order over all shards.
        ([0], {"half_pushes": 1, "staleness": "drop:9", "took": 3.9}, {"lost": 1, "half": 1}),
        ([0], {"half_pushes": 1, "staleness": "drop:9", "took": 4.1}, {"half": 1}),
        ([0], {"half_pushes": 1, "staleness": "none", "took": 4.1}, {"lost": 1, "half": 1}),
        # A push without an answer may be there or not; only a worker that ended badly may leave half a one.
        ([], {"answer": "", "ended_by": "kill"}, {"not done": 1}),
        ([0, 1], {"answer": "", "ended_by": "kill"}, {"not done": 1}),
        ([1], {"answer": "", "ended_by": "kill", "half_pushes": 1}, {"half": 1, "not done": 1}),
        ([1], {"answer": "", "half_pushes": 1}, {"half": 1, "half push": 1, "not done": 1}),
        # The servers know how many pushes are half.
        ([1], {"answer": "", "ended_by": "kill", "half_pushes": 0}, {"half": 1, "half pushes": 1, "not done": 1}),
        ([1], {"answer": "", "ended_by": "kill", "half_pushes": 2}, {"half": 1, "half pushes": 1, "not done": 1}),
    ],
)
def test_a_push_is_on_each_of_its_shards_once_and_a_dropped_one_on_none(applied, options, counts):
    job = Job(staleness=options.get("staleness", "none"))
    push = job.send(2)
    for shard in applied:
        job.apply(shard, push)
    if answer := options.get("answer", "applied"):
        job.answer(push, dropped=answer == "dropped")
        push.answered = push.at + options.get("took", 1.0)
    job.two.ended_by = options.get("ended_by", "")
    job.two.code = -9 if job.two.ended_by else 0
    job.reported |= {"half_pushes": options.get("half_pushes", 0), "complete": bool(answer)}
    found = +job.check().counts
    assert {kind: found[kind] for kind in found.keys() - {"pushes", "reads", "worst staleness"}} == counts


def test_a_push_that_is_applied_again_after_its_answer_is_doubled_and_does_not_make_up_for_a_loss():
    job = Job()
    job.answer(job.send(1))
    job.push(2)
    job.apply(1, job.two.pushes[-1])
    check = job.check()
    assert (check.counts["lost"], check.counts["doubled"]) == (2, 1)
    assert check.violations["lost"][0] == "shard 0: push 1 of process 1 was acknowledged, but is missing"


@together(
    ("policies", "fault", "broken"),
    [
        (["async"], lambda job: job.changes.update(second=[0.0] * COLUMNS), ["torn"]),
        (["async"], lambda job: job.changes.update(table=[[0.0]] * COLUMNS), ["part of a push"]),
        (["async"], lambda job: job.changes.update(dense=[0.0, 1.0, 0.0, 0.0]), ["part of a push"]),
        (["async"], lambda job: job.changes.update(version=3), ["version"]),
        (["async"], lambda job: job.two.readings[-1].torn.append(1), ["torn"]),
        (["async"], lambda job: job.two.readings[-1].versions.__setitem__(0, 9), ["version"]),
        (["async"], lambda job: job.values[0].__setitem__(3, 1.0), ["doubled"]),
        (["async"], lambda job: job.apply(0), ["updates"]),
        (["async"], lambda job: job.reported.update(complete=False), ["not done"]),
        # A step without gradients for one shard.
        (["async"], lambda job: (job.push(1, shards=[1]), job.reported.update(half_pushes=1)), []),
        # Examples: each once, twice only if shard 0 declared a living worker lost, and all of them reported.
        (["async"], lambda job: job.one.pushes[0].examples.clear(), ["examples"]),
        (["async"], lambda job: job.train_twice(), ["examples"]),
        (["async"], lambda job: job.train_twice(shard=1), ["examples"]),
        (["async"], lambda job: job.train_twice(shard=0), []),
        # The push of a killed worker counts if it is on shard 0; if it may have been dropped, nobody knows.
        (["async"], lambda job: job.kill(example=1), []),
        (["async"], lambda job: job.kill(1, example=1), []),
        (["async"], lambda job: job.kill(0, 1, example=1), ["examples"]),
        (["async"], lambda job: (job.kill(0, 1, example=4), job.one.pushes[0].examples.pop()), []),
        (["async"], lambda job: (job.kill(example=4), job.one.pushes[0].examples.pop()), ["examples"]),
        (["async", "drop:9"], lambda job: (job.kill(example=4), job.one.pushes[0].examples.pop()), []),
        (["async"], lambda job: job.one.reports.append((1, 3, 0.5)), ["examples"]),
        (["async"], lambda job: [one.reports.append((1, 4, 0.5)) for one in job.histories], []),
        (
            ["async"],
            lambda job: [one.reports.append((1, 4, cost)) for one, cost in zip(job.histories, (0.5, 0.6), strict=True)],
            ["examples"],
        ),
        # Staleness, as limited and as answered, on any shard.
        (["async", "drop:2"], lambda job: job.push(1, seen=[2, 2]), []),
        (["async", "drop:2"], lambda job: job.push(1, seen=[2, 1]), ["too stale"]),
        (["async", "drop:2"], lambda job: job.push(1, seen=[1, 2]), ["too stale"]),
        (["async"], lambda job: job.push(1, seen=[4, 1], staleness=2), ["staleness"]),
        (["async"], lambda job: job.push(1, seen=[5, 4]), ["staleness"]),
        # A synchronous update is of two gradients, but at the end of the data: a worker asks for a block and waits.
        (["sync:2"], lambda job: job.push(1, 2), []),
        (["sync:2"], lambda job: job.push(1), ["group"]),
        (["sync:2"], lambda job: (job.push(1), job.wait(-0.5, -0.4, got=True)), ["group"]),
        (["sync:2"], lambda job: (job.push(1), job.wait(-1.5)), []),
        (["sync:2"], lambda job: job.push(1, 2, seen=[2, 1]), ["too stale"]),
        (["sync:2"], lambda job: job.push(1, 2, apart=1), ["group", "too stale"]),
        # Workers: an older incarnation, one that fails, and one that is lost though nothing was done to it.
        (["async"], lambda job: job.rejoin(), []),
        (["async"], lambda job: (job.rejoin(), job.push(1)), ["twin"]),
        (["async"], lambda job: vars(job.one).update(code=1), ["failed"]),
        (["async"], lambda job: vars(job.one).update(code=1, ended_by="terminate"), []),
        (["async"], lambda job: job.lose(), ["lease"]),
        (["async"], lambda job: job.lose(101.0, 95.0), []),
        (["async"], lambda job: job.lose(101.0, 80.0), ["lease"]),
        (["async"], lambda job: job.lose(99.0), []),
    ],
)
def test_a_fault_is_found(policies, fault, broken):
    job = Job(*policies)
    for _ in range(2):
        for columns in [(1, 2)] if policies == ["sync:2"] else [(1,), (2,)]:
            job.push(*columns)
    fault(job)
    assert sorted(job.check().violations) == broken


@pytest.mark.parametrize("shards", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("policy", ["async", "sync:2"])
def test_a_checkpoint_with_a_push_on_one_shard_only_is_found(policy, shards):
    job = Job(policy)
    for cut in (0, 1), shards:
        for columns in [(1, 2)] if policy == "sync:2" else [(1,), (2,)]:
            job.push(*columns)
        job.cut(*cut)
    check = job.check()
    assert check.counts["checkpoints"] == 2
    lines = check.violations["checkpoint"]
    assert len(lines) == (0 if len(shards) == 2 else 2)
    whole, part = [int(shard in shards) + 1 for shard in (0, 1)]
    assert not lines or lines[0] == f"checkpoint 2: of process 1 it has the first {[[whole], [part]]} pushes, by shard"


@pytest.mark.parametrize(("pushes", "lost", "broken"), [(1, True, 0), (2, True, 1), (1, False, 1)])
def test_a_checkpoint_may_have_one_push_of_a_lost_worker_on_one_shard_only(pushes, lost, broken):
    job = Job()
    job.push(2)
    job.cut(0, 1)
    for _ in range(pushes):
        job.push(2)
    job.cut(0)
    if lost:
        job.two.losses, job.two.faults = [(100.0, 1)], [(100.0, "stop worker")]
    check = job.check()
    assert (len(check.violations["checkpoint"]), check.counts["half in checkpoint"]) == (broken, 1)


def test_a_checkpoint_whose_variables_differ_is_found():
    job = Job()
    job.push(1)
    job.cut(0, 1)
    job.cuts[1][1].table[0][1] = 7.0
    assert job.check().violations["checkpoint"] == ["checkpoint 1, shard 1: its variables differ"]


@pytest.mark.parametrize(("pushes", "broken"), [(4, []), (5, ["bound"])])
def test_a_worker_that_is_too_far_ahead_of_another_is_found(pushes, broken):
    job = Job("bounded:1", shards=1)
    job.now = -100.0
    for column in (2, *[1] * pushes, 2):
        job.push(column)
    for push in (*job.one.pushes, *job.two.pushes):  # within half a lease
        push.at, push.answered = push.at / 100, push.answered / 100
    assert sorted(job.check().violations) == broken
