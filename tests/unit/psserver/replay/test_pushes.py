"""What a replay says of each push, compared with what the workers have recorded and computed by themselves."""

import math
import time

import numpy as np
import pytest

from psserver.config import ServerConfig
from psserver.replay.journal_replay import JournalReplay
from psserver.replay.norms import norm
from psserver.replay.pushes import Fate, Happening, PushObserver, PushReport
from psserver.replay.summary import StopRule, Summary
from psserver.replay.verification import verify
from psserver.rpc.server import ServerThread
from pswire.codec import encode
from pswire.messages import (
    Assign,
    Assignment,
    ClaimPortion,
    Compute,
    CountedPortions,
    Cut,
    Evaluate,
    Evaluation,
    Gradient,
    Outcome,
    Push,
    Renew,
    Sender,
    TakePortion,
    Tune,
)
from pswire.network.channel import member_metadata
from pswire.optimizers import GradientDescent
from pswire.specs.consistency import parse_consistency
from pswire.specs.vectors import GRADIENT, Fill
from pswire.tensors.transport import InlineSender
from tests.support.servers import Client
from tests.unit.psserver.replay.journaled_job import RATE, Job, W


def lines_of(folder, watch=("W",), **where):
    """All lines, and the shard at the end."""
    replay = JournalReplay(folder, 0, 1, **where)
    observer = PushObserver(replay, watch)
    lines = [line for record in observer.records() for line in record]
    return [*lines, *observer.undecided()], replay.shard


def pushes_of(folder):
    return [line for line in lines_of(folder)[0] if isinstance(line, PushReport)]


def test_norms_and_values_of_asynchronous_sgd_are_those_of_a_computation_in_float64(tmp_path):
    job = Job(tmp_path).run()
    lines, shard = lines_of(tmp_path)
    pushes = [line for line in lines if isinstance(line, PushReport)]
    assert len(pushes) == len(job.pushes)
    value = W.copy()
    for step, push in enumerate(pushes, 1):
        gradient, result = job.pushes[push.worker, push.incarnation, push.sequence]
        after = value - RATE * gradient
        watched = push.watched["W"]
        found = watched.gradient, watched.update, watched.before, watched.after
        expected = [np.linalg.norm(one) for one in (gradient, after - value, value, after)]
        np.testing.assert_allclose(found, expected, rtol=1e-13)
        assert (push.fate, push.step, push.staleness) == (Fate.APPLIED, step, result.staleness)
        assert push.learning_rate == RATE
        assert math.isnan(push.loss) if push.sequence == 2 else push.loss == push.sequence
        value = after
    assert shard.variables["W"].value.tolist() == value.tolist()
    assert max(push.staleness for push in pushes) > 0


def test_all_gradients_of_a_push_count_for_its_norm_rows_that_are_repeated_are_added_up(tmp_path):
    job = Job(tmp_path, workers=1).run(6)
    draws = np.random.default_rng(0)
    for push in pushes_of(tmp_path):
        rows = draws.integers(0, 49, 3)
        rows[2] = rows[0]
        w, v = draws.normal(size=(4, 3)), draws.normal(size=(30, 4)).astype("float32").astype(float)
        counts = np.bincount(rows)
        expected = math.sqrt((w**2).sum() + (v**2).sum() + 2 * (counts**2).sum())
        assert push.gradient == pytest.approx(expected, rel=1e-12)
        assert push.update > push.watched["W"].update
    assert len(job.pushes) >= 6


def test_the_pushes_of_a_synchronous_update_name_each_other_and_have_one_step_and_update(tmp_path):
    job = Job(tmp_path, "sync:3").run()
    pushes, value = pushes_of(tmp_path), W.copy()
    for first in range(0, len(pushes), 3):
        group = pushes[first : first + 3]
        names = {(push.worker, push.sequence) for push in group}
        assert len(names) == 3
        for push in group:
            assert {*push.group, (push.worker, push.sequence)} == names
            assert (push.fate, push.step) == (Fate.APPLIED, first // 3 + 1)
        mean = sum(job.pushes[push.worker, 1, push.sequence][0] for push in group) / 3
        value, before = value - RATE * mean, value
        for push in group:
            assert push.watched["W"].update == pytest.approx(np.linalg.norm(value - before), rel=1e-9)
    assert len(pushes) == len(job.pushes)


@pytest.mark.slow
@pytest.mark.parametrize(("consistency", "staleness"), [("sync:2,backup=1", "none"), ("async", "drop:1")])
def test_dropped_pushes_are_those_that_the_workers_were_told_of(consistency, staleness, tmp_path):
    job = Job(tmp_path, consistency, staleness).run(40)
    expected = {key: result.outcome is Outcome.DROPPED for key, (_, result) in job.pushes.items()}
    pushes = pushes_of(tmp_path)
    found = {(one.worker, one.incarnation, one.sequence): one.fate is Fate.DROPPED for one in pushes}
    assert found == expected
    assert all(one.reason and one.step is None for one in pushes if one.fate is Fate.DROPPED)
    assert any(expected.values())


@pytest.mark.slow
def test_what_happens_between_pushes_is_told_where_it_happened(tmp_path):
    Job(tmp_path, workers=2).run(4, checkpoints=2)
    lines, _ = lines_of(tmp_path)
    texts = [line.text for line in lines if isinstance(line, Happening)]
    joined = sorted(text.partition(" joined")[0] for text in texts if " joined (number" in text)
    assert joined == ["worker 'w0'", "worker 'w1'"]
    declared = [
        text for text in texts if " registered W float64[4, 3] with GradientDescent(learning_rate=0.125)" in text
    ]
    assert len(declared) == 1
    assert sum(" finished after " in text for text in texts) == 2
    assert any(text.startswith("checkpoint ") for text in texts)


def push(fate=Fate.APPLIED, loss=1.0, gradient=2.0, update=0.5, reason=""):
    return PushReport("w0", 1, 7, loss, gradient, fate, reason, staleness=3, update=update)


@pytest.mark.parametrize(
    ("report", "rule", "reason"),
    [
        (push(), StopRule(above=2.0), ""),
        (push(loss=math.nan), StopRule(), "the loss of push 7 of worker 'w0' is nan"),
        (push(loss=math.nan), StopRule(at_nan=False), ""),
        (push(Fate.REFUSED, reason="W would be NaN"), StopRule(), "push 7 of worker 'w0' was refused: W would be NaN"),
        (push(Fate.REFUSED, reason="W would be NaN"), StopRule(at_nan=False), ""),
        (push(gradient=math.inf), StopRule(), "the norm of the gradient of push 7 of worker 'w0' is inf"),
        (push(update=3.5), StopRule(above=3.0), "the norm of the update of push 7 of worker 'w0' is 3.5, above 3"),
        (push(loss=-8.0, update=None), StopRule(above=3.0), ""),
    ],
)
def test_a_replay_stops_at_what_is_not_finite_refused_or_above_the_bound(report, rule, reason):
    assert rule.reason(report) == reason


def test_the_summary_counts_by_worker_what_became_of_pushes_and_the_staleness_of_those_applied():
    summary = Summary()
    for report in (push(), push(Fate.DROPPED, gradient=99.0), push(gradient=6.0, update=0.25), push(Fate.REPEATED)):
        summary.add(report)
    [counts] = summary.workers.values()
    assert (counts.fates[Fate.APPLIED], counts.fates[Fate.DROPPED], counts.fates[Fate.REPEATED]) == (2, 1, 1)
    assert (counts.staleness(50), counts.gradient_mean, counts.gradient_max, counts.update_max) == (3, 4.0, 6.0, 0.5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 7, 100_000, 200_001])
def test_norms_are_those_of_float64(size, dtype):
    array = np.random.default_rng(size).normal(size=size).astype(dtype)
    assert norm(array) == pytest.approx(math.sqrt(math.fsum(array.astype(float) ** 2)), rel=1e-13)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_norms_neither_overflow_nor_vanish(scale):
    assert norm(np.array([3.0, 4.0]) * scale) == pytest.approx(5 * scale, rel=1e-15)
    assert norm(np.zeros(3)) == 0
    assert math.isinf(norm(np.array([1.0, -np.inf])))
    assert math.isnan(norm(np.array([1.0, np.nan])))


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


class ServerByHand:
    """A server of a journal that is kept, in which three workers push numbers to the scalar `S` by hand."""

    def __init__(self, folder, **options):
        self._server = ServerThread(
            ServerConfig(checkpoint_dir=folder, journal=True, keep_journal=True, lease=60.0, **options)
        )

        self._calls = []  # a call that nobody refers to is cancelled

    def __enter__(self):
        self._server.__enter__()
        self.client = Client(self._server.address)
        return self

    def __exit__(self, *error):
        self.client.channel.close()
        self._server.__exit__(*error)

    dtype = "float64"

    def begin(self, rate=1.0, dtype="float64"):
        for worker in "abc":
            self.client.join(worker)
        value = np.zeros(1, dtype)
        self.client.register(Sender("a", 1), GradientDescent(rate), S=value)
        self.dtype = dtype

    def push(self, worker, sequence, number, loss=None, version=0):
        """The answer to come."""
        gradient = Gradient("S", version, np.array([number], self.dtype))
        push = Push(sender=Sender(worker, 1), sequence=sequence, gradients=(gradient,), loss=loss)
        metadata = member_metadata(self.client.tokens.of(push))
        self._calls.append(self.client.stub.Push.future(encode(push, InlineSender()), timeout=60, metadata=metadata))
        return self._calls[-1]

    def wait_until_held(self, worker):
        until(lambda: self.client.unary(Renew(sender=Sender(worker, 1))).waiting_for)

    def checkpoint(self):
        number = self.client.unary(Cut()).number
        until(lambda: self.client.unary(Cut(number)).written)
        return number


def test_a_push_that_is_held_over_a_checkpoint_is_told_once_and_a_restart_ends_it(tmp_path):
    with ServerByHand(tmp_path, consistency=parse_consistency("sync:2,backup=1"), grace=0.0) as server:
        server.begin()
        held = server.push("a", 1, -1)
        server.wait_until_held("a")
        server.checkpoint()
        server.push("b", 1, -3).result()
        held.result()
        unanswered = server.push("a", 2, -5, version=1)
        server.wait_until_held("a")
    assert unanswered.exception() is not None
    tokens = server.client.tokens
    with ServerByHand(tmp_path, consistency=parse_consistency("sync:2,backup=1")) as server:
        server.client.tokens = tokens
        others = [server.push(worker, 2, -7, version=1) for worker in "bc"]
        for other in others:
            other.result()
        server.push("a", 2, -5, version=1).result()
        server.push("b", 3, -9, version=2)
        server.wait_until_held("b")
    pushes = [line for line in lines_of(tmp_path, ("S",))[0] if isinstance(line, PushReport)]
    found = [(one.worker, one.sequence, one.fate, one.step, one.group) for one in pushes]
    assert sorted(found[:2]) == [("a", 1, Fate.APPLIED, 1, (("b", 1),)), ("b", 1, Fate.APPLIED, 1, (("a", 1),))]
    assert sorted(found[2:4]) == [("b", 2, Fate.APPLIED, 2, (("c", 2),)), ("c", 2, Fate.APPLIED, 2, (("b", 2),))]
    assert found[4:] == [("a", 2, Fate.DROPPED, None, ()), ("b", 3, Fate.HELD, None, ())]
    assert [one.watched["S"].after for one in pushes[:4]] == [2, 2, 9, 9]
    assert {one.difference for one in verify(tmp_path, JournalReplay(tmp_path, 0, 1))} == {""}


def test_updates_that_are_computed_on_copies_have_their_norms_and_one_that_would_not_be_finite_is_refused(tmp_path):
    with ServerByHand(tmp_path) as server:
        server.begin(rate=1e20, dtype="float32")
        server.push("a", 1, -4.0, loss=0.5).result()
        assert server.push("b", 1, -1e30, loss=math.inf).exception() is not None
        server.push("a", 2, 1.0).result()
    lines, shard = lines_of(tmp_path, ("S",))
    first, refused, second = [line for line in lines if isinstance(line, PushReport)]
    assert (first.fate, first.step, first.watched["S"].before) == (Fate.APPLIED, 1, 0.0)
    assert (first.update, first.watched["S"].after) == pytest.approx((4e20, 4e20))
    assert (refused.fate, refused.step, refused.loss, refused.update) == (Fate.REFUSED, None, math.inf, None)
    assert refused.gradient == pytest.approx(1e30)
    assert "the update of 'S' would make NaN or infinity" in refused.reason
    assert (second.fate, second.step, second.update) == (Fate.APPLIED, 2, pytest.approx(1e20))
    assert shard.variables["S"].value == pytest.approx(3e20)


def test_a_repeated_push_and_assignments_and_changed_hyperparameters_are_told(tmp_path):
    with ServerByHand(tmp_path) as server:
        server.begin()
        for _ in range(2):
            server.push("a", 1, -1.0).result()
        server.client.transfer(
            Assign(sender=Sender("b", 1), sequence=1, assignments=(Assignment("S", np.array([5.0])),))
        )
        server.client.unary(
            Tune(
                sender=Sender("a", 1),
                sequence=2,
                names=("S",),
                optimizer=GradientDescent(0.5),
                fields=("learning_rate",),
            )
        )
        server.push("b", 2, 2.0).result()
    lines, _ = lines_of(tmp_path, ("S",))
    told = [line.text if isinstance(line, Happening) else (line.fate, line.learning_rate) for line in lines]
    assert told[told.index((Fate.APPLIED, 1.0)) :] == [
        (Fate.APPLIED, 1.0),
        (Fate.REPEATED, None),
        "worker 'b' set S",
        "worker 'a' set learning_rate=0.5 for S",
        (Fate.APPLIED, 0.5),
    ]


def test_the_sum_of_an_evaluation_is_told_without_the_number_of_that(tmp_path):
    """After all shards went back to a checkpoint it has ten digits."""
    number, a = 1_000_000_001, Sender("a", 1)
    with ServerByHand(tmp_path) as server:
        server.begin()
        server.client.unary(
            Compute(sender=a, sequence=1, names=("S",), operations=(Fill(GRADIENT, 0.0),), minimization="fit", term=1)
        )
        server.client.unary(Evaluate(sender=a, name="fit", evaluation=Evaluation(number, 3, 3), wait=False, term=1))
        server.client.unary(TakePortion(sender=a, name="fit"))
        server.client.unary(ClaimPortion(sender=a, name="fit", evaluation=number, portion=0, loss=0.5))
        portions = CountedPortions("fit", number, (0,))
        server.client.transfer(
            Assign(sender=a, sequence=2, assignments=(Assignment("S", np.array([5.0])),), add=True, portions=portions)
        )
    lines, _ = lines_of(tmp_path, ("S",))
    told = [line.text for line in lines if isinstance(line, Happening)]
    assert told[-1] == "worker 'a' pushed the gradients of 1 portion of 'fit'"


def test_a_journal_is_read_beside_the_server_that_writes_it(tmp_path):
    with ServerByHand(tmp_path) as server:
        server.begin()
        for sequence in range(1, 5):
            server.push("a", sequence, -1.0).result()
            _, shard = lines_of(tmp_path)
            assert shard.variables["S"].value == [sequence]
            server.checkpoint()
