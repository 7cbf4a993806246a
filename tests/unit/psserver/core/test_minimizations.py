"""Minimizations of a shard: limits, memory, memory of the sum, and states that go on after a restart."""

from dataclasses import replace

import numpy as np

from psserver.core.minimization import minimizations
from psserver.core.shard import Shard
from pswire import messages as ms
from pswire.errors import InvalidMessage, ShapeMismatch, StateLost, TooLarge, UnknownVariable
from pswire.optimizers import GradientDescent
from pswire.specs.initializers import RowConstant
from pswire.specs.vectors import GRADIENT
from pswire.tensors.values import TensorSpec
from tests.support.shards import A, B, ShardDriver, declared, new_shard, restored, state_of


def evaluate(number=1, examples=4, portion=1, name="fit", sender=A, term=1):
    return ms.Evaluate(sender=sender, name=name, evaluation=ms.Evaluation(number, examples, portion), term=term)


def end(name="fit", sender=A, term=1, **fields):
    return ms.Evaluate(sender=sender, name=name, end="{}", term=term, **fields)


def take(sender=A, holding=(), evaluation=1, **fields):
    return ms.TakePortion(sender=sender, name="fit", evaluation=evaluation, holding=holding, **fields)


def claim(number, sender=A, loss=1.0):
    return ms.ClaimPortion(sender=sender, name="fit", evaluation=1, portion=number, loss=loss)


def gradients(numbers, sequence=1, sender=A, **arrays):
    assignments = tuple(ms.Assignment(name, np.asarray(array)) for name, array in arrays.items())
    return ms.Assign(
        sender=sender,
        sequence=sequence,
        assignments=assignments,
        add=True,
        portions=ms.CountedPortions("fit", 1, numbers),
    )


def test_a_sum_needs_memory_and_a_plain_variable_of_floating_point():
    table = ms.Declaration(TensorSpec("T", (8, 2)), None, GradientDescent(0.5), RowConstant(0.0))
    whole, number = declared("W", np.zeros(4)), declared("n", np.zeros(4, np.int64))
    job = ShardDriver(whole, number, table, memory_limit=500)
    job.step(evaluate(), 1)
    for number in range(2):
        job.answer(take())
        job.answer(claim(number))
    job.refuse(gradients((0, 1), n=np.zeros(4, np.int64)), InvalidMessage, "has no sum of gradients")
    job.refuse(gradients((0, 1), T=np.zeros((8, 2), np.float32)), InvalidMessage, "has no sum of gradients")
    job.refuse(gradients((0, 1), W=np.zeros(3)), ShapeMismatch, "W")
    job.refuse(gradients((0, 1), V=np.zeros(3)), UnknownVariable, "V")
    before = job.shard._store.nbytes
    assert job.answer(gradients((0,), W=np.ones(4))).outcome is ms.Outcome.APPLIED
    assert job.shard._store.nbytes == before + 32 == sum(one.nbytes for one in job.shard._store)
    assert job.answer(gradients((1,), 2, W=np.full(4, np.nan))).outcome is ms.Outcome.APPLIED
    assert np.isnan(job.shard.variables["W"].vectors[GRADIENT]).all(), "as the loss: the line search sees it"
    small = ShardDriver(whole, memory_limit=40)
    small.step(evaluate(), 1)
    small.answer(take())
    small.answer(claim(0))
    small.refuse(gradients((0,), W=np.ones(4)), TooLarge, "needs 32 bytes more")


def test_the_status_has_the_point_that_came_with_the_last_evaluation_or_the_end_also_after_a_restart():
    job, point = (
        ShardDriver(workers="a"),
        ms.AcceptedPoint(iterations=1, evaluations=3, loss=0.5, gradient=1e-3, step=0.25),
    )

    def shown(shard):
        (reply,) = shard.step(9, ms.Status(), 0.0).replies
        return [one.point for one in reply.answer.minimizations]

    job.step(evaluate(1), 1)
    assert shown(job.shard) == [None], "none is accepted before the first evaluation is complete"
    job.step(replace(evaluate(2), point=point), 2)
    job.step(replace(evaluate(2), point=replace(point, loss=0.1)), 3)
    assert shown(job.shard) == [point], "a repeated call begins nothing"
    new = Shard()
    restored(job.shard, new, job.now)
    assert shown(new) == [point]
    job.step(end(point=replace(point, iterations=2)), 4)
    assert shown(job.shard) == [replace(point, iterations=2)]


def test_a_job_has_a_limit_of_minimizations_and_keeps_only_the_result_of_those_that_are_over(monkeypatch):
    monkeypatch.setattr(minimizations, "MAX_MINIMIZATIONS", 3)
    job = ShardDriver()
    for number in range(3):
        job.step(evaluate(name=f"fit-{number}"), 1 + number)
        assert job.answer(end(f"fit-{number}"), 9).end == "{}"
    job.refuse(evaluate(name="fit-3"), TooLarge, "one more than the 3")
    job.refuse(end("fit-3"), TooLarge, "one more than the 3")
    job.refuse(ms.Compute(sender=A, sequence=1, minimization="fit-3", term=1), TooLarge, "one more than the 3")
    assert job.answer(ms.Evaluate(sender=A, name="fit-3")).number == 0, "it only asks"
    assert job.answer(evaluate(2, name="fit-0")).end == "{}", "it is over"
    assert all(one.portions is None and not one.counted for one in job.shard.state().minimizations)
    assert [one.name for one in job.answer(ms.Status()).minimizations] == ["fit-0", "fit-1", "fit-2"]


def test_portions_count_with_the_memory_of_variables_until_the_minimization_is_over_or_the_last_worker_has_left():
    job = ShardDriver(memory_limit=20 << 20)
    job.answer(evaluate(examples=32_768))
    job.refuse(evaluate(examples=32_768, name="other"), TooLarge, "'other' needs .* bytes more, .* larger")
    job.refuse(
        ms.Register(sender=A, declarations=(declared("W", np.zeros(2 << 20)),)), TooLarge, "raise --memory-limit"
    )
    assert [one.name for one in job.shard.state().minimizations] == ["fit"]
    job.answer(end())
    job.answer(evaluate(examples=32_768, name="other"))
    job.answer(ms.Compute(sender=A, sequence=1, minimization="other", term=1, note="kept"))
    used = job.shard._minimizations.nbytes
    job.answer(ms.Leave(A))
    assert job.shard._minimizations.nbytes == used, "the other worker may go on with it"
    job.answer(ms.Leave(B))
    assert job.shard._minimizations.nbytes == 0
    state = job.shard.state().minimizations[1]
    assert (state.portions, state.counted, state.note) == (None, (), "kept")
    new = new_shard(memory_limit=20 << 20)
    restored(job.shard, new, job.now)
    assert state_of(new._minimizations._bytes) == state_of(job.shard._minimizations._bytes)


def test_texts_of_minimizations_count_with_the_memory_of_variables(monkeypatch):
    monkeypatch.setattr(minimizations, "UNCOUNTED", 0)
    job = ShardDriver(memory_limit=50_000)
    for number in range(2):
        name, note = f"m{number}", "x" * 4096
        job.answer(ms.Compute(sender=A, sequence=number + 1, minimization=name, term=1, note=note))
    full = ms.Compute(sender=A, sequence=3, minimization="m2", term=1, note="x" * 4096)
    job.refuse(full, TooLarge, "'m2' needs 20,480 bytes more")
    job.refuse(ms.Evaluate(sender=A, name="m0", end="x" * 4096, term=1), TooLarge, "'m0' needs 16,384 bytes more")


def test_portions_and_claims_from_before_the_shards_went_back_are_refused():
    job = ShardDriver()
    job.shard.begin_from(2, 0.0)
    old = {"timeline": 1}
    for message in (
        take(**old),
        ms.ClaimPortion(sender=A, name="fit", evaluation=1, portion=0, loss=1.0, **old),
        ms.Evaluate(sender=A, name="fit", evaluation=None, **old),
    ):
        job.refuse(message, StateLost, "follows timeline 2 of the job, and worker 'a' timeline 1")


def test_a_worker_that_went_back_with_its_shard_gives_up_its_portions():
    job = ShardDriver()
    job.step(evaluate(), 1)
    job.answer(take(B))
    job.answer(claim(0, B))
    job.answer(take(B))
    job.shard.begin_from(3, 0.0, went_back=True)
    joined = job.answer(ms.Join(worker="b", incarnation=1, timeline=3, job=job.shard.job))
    assert joined.incarnation == 1
    assert job.shard.state().minimizations[0].portions.alone == (0,)
    assert not job.shard.state().minimizations[0].portions.out


def test_portions_are_handed_out_again_by_a_shard_0_whose_state_has_none():
    """It is of another number of shards (`psserver.storage.reshard`)."""
    job = ShardDriver()
    job.step(evaluate(examples=2), 1)
    state = job.shard.state()
    (one,) = state.minimizations
    new = ShardDriver(workers="")
    new.shard.restore(replace(state, minimizations=(replace(one, portions=None),)), {}, 0.0)
    assert new.answer(take()).portion == ms.Portion(number=0, start=0, stop=1)


def test_late_evaluations_leave_no_call_that_waits():
    job = ShardDriver()
    assert job.shard.begin_from(0, 0.0, late=[evaluate()]) == []
    assert job.shard.waiting() == []


def test_handing_out_all_portions_takes_a_time_for_each_that_does_not_grow(monkeypatch):
    """In the middle of an evaluation, whoever takes or claims looks at nothing of the others."""
    job = ShardDriver()
    job.step(evaluate(examples=1 << 15), 1)
    asked = []
    original = minimizations.Minimizations._taken
    monkeypatch.setattr(
        minimizations.Minimizations,
        "_taken",
        lambda self, one, message: asked.append(message.sender) or original(self, one, message),
    )
    numbers = []
    for sender in (A, B, A, B):
        numbers.append(job.answer(take(sender)).portion.number)
        assert job.answer(claim(numbers[-1], sender)).counted
    assert numbers == [0, 1, 2, 3]
    assert asked == [A, B, A, B]
